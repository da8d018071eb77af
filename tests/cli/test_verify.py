"""`expunge verify` as it is read: the verdict first, what it rests on, and what is wrong in words."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import command_line
import expunge
from expunge.bounds.calibration import mu_for
from expunge.certificate.derive import sentences
from expunge.certificate.dossier import digest_of, read_claim
from expunge.certificate.sign import generate_keys, keyid_of, read_public_key
from private_values import leaves, private_values

pytestmark = pytest.mark.usefixtures("one_thread")

STORED = Path(__file__).parents[1] / "stored"
FEW = 7  # lines, assumptions apart


def run(*words: object) -> Result:
    return command_line.run("", *words)


def lines(result: Result) -> list[str]:
    assert result.exit_code == 0, result.stderr
    return result.stdout.splitlines()


def test_the_verdict_comes_first_and_the_rest_is_short_unless_every_check_is_wanted(box: Any) -> None:
    result = box.folder / "result"
    words = ("verify", result / "statement.json", "--model", result / "model.safetensors")
    told = lines(run(*words))
    assert told[0].startswith("verdict: consistent, not authenticated: nobody has signed this (")
    assert told[1] == "the certificate's status: conditional, epsilon 5, delta 0.001"
    assert len([line for line in told if not line.startswith("  assumes: ")]) <= FEW
    assert [line.split()[0] for line in told[2:6]] == ["statement", "model", "dossier", "signature"]
    assert not [line for line in told if line.startswith("  ok  ")]
    assert "anybody could have written this file" in told[5]
    names = json.loads(run(*words, "--json").stdout)["checks"]
    named = [line.removeprefix("  ok  ") for line in lines(run(*words, "--verbose")) if line.startswith("  ok  ")]
    assert named == names
    audited = lines(run(*words, "--dossier", result / "private" / "dossier.json"))
    assert "every number recomputed" in audited[4]
    counted = [int(line.rsplit("(", 1)[1].split()[0]) for line in audited[2:5]]
    assert f"({sum(counted)} checks, none failed)" in audited[0]


def test_what_is_wrong_comes_first_in_words(box: Any) -> None:
    path = box.folder / box.certificate(lambda content: content.update(status="proven", sigma=1.5), sealed=True)
    ran = run("verify", path)
    assert ran.exit_code == 1
    assert ran.stdout == ""
    told = ran.stderr.splitlines()
    assert told[0] == "verdict: failed"
    assert "  wrong: sigma is stated as 1.5, which does not follow from the rest" in told
    assert "  wrong: status is stated as proven, which does not follow from the rest" in told
    assert told[-1].endswith("Do not rely on this certificate.")


def test_few_are_shown_unless_all_are_wanted(box: Any) -> None:
    model = box.folder / "model.safetensors"
    path = box.folder / "result" / "statement.json"
    path.write_text(path.read_text().replace('"conditional"', '"proven"').replace('"epsilon": 5.0', '"epsilon": 4.0'))
    few = run("verify", path, "--model", model).stderr.splitlines()
    every = run("verify", path, "--model", model, "--verbose").stderr.splitlines()
    assert sum(line.startswith("  wrong: ") for line in few) == 5
    (more,) = [line for line in few if "--verbose" in line]
    assert sum(line.startswith("  wrong: ") for line in every) == 5 + int(more.split()[1])


def test_json_has_the_verdict_apart_from_the_certificate_s_status(box: Any) -> None:
    found = json.loads(run("verify", box.folder / "result" / "statement.json", "--json").stdout)
    assert set(found) == {
        "verdict", "verdict_means", "signed_by", "status", "model_checked", "dossier_checked", "deposits_checked",
        "forgotten_checked", "signature_checked", "checks",
    }  # fmt: skip
    assert (found["verdict"], found["signed_by"], found["status"]) == ("consistent", None, "conditional")
    assert found["verdict_means"] == "consistent, not authenticated: nobody has signed this"
    path = box.folder / box.certificate(lambda content: content.update(status="proven"), sealed=True)
    failed = run("verify", path, "--json")
    assert failed.exit_code == 1
    told = json.loads(failed.stdout)
    assert (told["verdict"], set(told["error"])) == ("failed", {"kind", "found", "required", "remedy"})
    assert failed.stderr.startswith("error: ")


# Who signed it --------------------------------------------------------------------------------------------------------


@pytest.fixture
def key(tmp_path: Path) -> Path:
    made = generate_keys()
    for name, content in (("k", made.private), ("k.pub", made.public)):
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(0o600)
    return tmp_path / "k"


def test_a_signature_authenticates_and_can_be_required(box: Any, key: Path) -> None:
    result, public = box.folder / "result", key.with_suffix(".pub")
    assert run("sign", result, "--sign-key", key).exit_code == 0
    keyid = keyid_of(read_public_key(public))
    signed, plain = result / "statement.signed.json", result / "statement.json"
    told = lines(run("verify", signed, "--public-key", public, "--require-signature"))
    assert told[0].startswith(f"verdict: authenticated: signed by {keyid} (")
    assert told[1].startswith("the certificate's status: conditional, ")
    found = json.loads(run("verify", signed, "--public-key", public, "--json").stdout)
    assert (found["verdict"], found["signed_by"], found["status"]) == ("authenticated", keyid, "conditional")
    for words in (("--require-signature",), ("--public-key", public), ("--public-key", public, "--require-signature")):
        refused = run("verify", plain, *words)
        assert (refused.exit_code, "nobody has signed this" in refused.stderr) == (1, True), words
    assert run("verify", signed, "--require-signature").exit_code == 2, "the key is needed"


def test_python_says_the_same(box: Any, key: Path) -> None:
    result, public = box.folder / "result", key.with_suffix(".pub")
    model, dossier = result / "model.safetensors", result / "private" / "dossier.json"
    _, verdict = expunge.verify_file(result / "statement.json", None, model, dossier)
    assert (verdict.word, verdict.status, verdict.signed_by) == ("consistent", "conditional", None)
    assert "nobody has signed this" in repr(verdict)
    assert expunge.verify_statement(expunge.read_statement(result / "statement.json")).word == "consistent"
    with pytest.raises(expunge.VerificationFailed, match="nobody has signed this"):
        expunge.verify_file(result / "statement.json", require_signature=True)
    assert run("sign", result, "--sign-key", key).exit_code == 0
    _, verdict = expunge.verify_file(result / "statement.signed.json", public, model, require_signature=True)
    assert verdict.sentence == f"authenticated: signed by {keyid_of(read_public_key(public))}"


# What a forger would need ---------------------------------------------------------------------------------------------


def printed(*words: object) -> str:
    """All that a command says of a file, in every way."""
    told = [run("verify", *words, *more) for more in ((), ("--verbose",), ("--json",))]
    assert {one.exit_code for one in told} == {1}
    return "".join(one.stdout + one.stderr for one in told)


def test_nobody_is_told_what_a_statement_would_have_to_say(box: Any) -> None:
    """Two rounds of pasting what was printed turned epsilon 1 into 0.01; nor what a model would have to be."""
    other = box.folder / "model.safetensors"
    told = printed(box.folder / "result" / "statement.json", "--model", other)
    assert hashlib.sha256(other.read_bytes()).hexdigest()[:8] not in told
    path, model = box.folder / "result" / "statement.json", box.folder / "result" / "model.safetensors"
    content = json.loads(path.read_text())
    for epsilon, status in ((0.01, content["status"]), (content["epsilon"], "proven")):
        forged = content | {"epsilon": epsilon, "status": status}
        path.write_text(json.dumps(forged))
        told = printed(path, "--model", model)
        mu = mu_for(epsilon, content["noise"]["delta_for_noise"])
        claim = read_claim(forged, public=True)
        promise, assumptions, limits = sentences(claim, forged["sigma"])
        right = {digest_of(forged), str(mu), f"{mu:.4g}", promise, *assumptions, *limits}
        right |= {text[:40] for text in right} - {text[:40] for text in (str(value) for _, value in leaves(forged))}
        assert not [text for text in right if text in told]
        forged["digest"] = digest_of(forged)
        path.write_text(json.dumps(forged))
        assert not [text for text in right - {forged["digest"]} if text in printed(path, "--model", model)]


# Files that are damaged -----------------------------------------------------------------------------------------------


def flipped(content: bytes, position: int) -> bytes:
    return content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :]


def places(content: bytes) -> dict[str, int]:
    """A byte of each part of a model's file: what says how long the header is, the header, its metadata, the weights."""
    header = 8 + int.from_bytes(content[:8], "little")
    return {
        **{"length": 0, "length, far too much": 6, "brace": 8},
        "dtype": content.index(b'"dtype"') + 10,
        "shape": content.index(b'"shape"') + 9,
        "offsets": content.index(b"data_offsets") + 15,
        "record": content.index(b"l2"),
        "record's schema": content.index(b"expunge/record/") + 15,
        **{"weights": header, "last": len(content) - 1},
    }


def test_a_flipped_bit_fails_wherever_it_is(box: Any) -> None:
    result = box.folder / "result"
    statement, model, dossier = result / "statement.json", result / "model.safetensors", result / "private/dossier.json"
    line = ("verify", statement, "--model", model, "--dossier", dossier)
    assert run(*line).exit_code == 0
    whole = model.read_bytes()
    for name, position in places(whole).items():
        model.write_bytes(flipped(whole, position))
        for words in (line, ("verify", dossier, "--model", model)):
            ran = run(*words)
            assert (ran.exit_code, ran.stderr.splitlines()[0]) == (1, "verdict: failed"), (name, ran.stderr)
    model.write_bytes(whole[:-1])
    assert run(*line).exit_code == 1
    model.write_bytes(whole)
    for path in (statement, dossier):
        whole = path.read_bytes()
        for position in [*range(0, 40, 4), *range(40, len(whole), len(whole) // 20)]:
            path.write_bytes(flipped(whole, position))
            ran = run(*line)
            same = json.loads(whole) == _loaded(path)  # such as a space that became another character of JSON
            assert ran.exit_code == (0 if same else 1), (path, position, ran.stderr)
        path.write_bytes(whole[:-30])
        assert run(*line).exit_code == 1
        path.write_bytes(whole)


def _loaded(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except ValueError:
        return None


def test_a_file_that_is_not_there_or_is_another_was_given_by_mistake(box: Any) -> None:
    result = box.folder / "result"
    statement, model = result / "statement.json", result / "model.safetensors"
    files = ((result / "gone.json",), (model,), (statement, "--model", result), (statement, "--model", statement))
    for words in (*files, (statement, "--model", model, "--dossier", statement)):
        assert run("verify", *words).exit_code == 2, words


# What is printed for programs -----------------------------------------------------------------------------------------


def test_unlearning_prints_nothing_private_for_programs(box: Any) -> None:
    ran = box.run([*box.unlearn(), "--json"])
    assert ran.status == 0, ran.err
    told = json.loads(ran.out)
    dossier = json.loads((box.folder / told["dossier_file"]).read_text())
    found = [text for text in private_values(dossier, told["statement"]) if text in ran.out]
    assert not found
    assert set(told) == {"model", "statement_file", "statement", "dossier_file"}
