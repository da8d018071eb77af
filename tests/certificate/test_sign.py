"""Signed statements: what is accepted is what was signed, bit for bit; and verdicts for other tools, of public things."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
import stat
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from expunge.certificate import sign as signing
from expunge.certificate.sign import (
    FAILED,
    PASSED,
    WARNED,
    AttestedFile,
    as_file,
    audit_result,
    generate_keys,
    open_envelope,
    pae,
    seal,
    seal_in_toto,
    subjects_of,
    verification_result,
    verify_file,
)
from expunge.certificate.statement import Statement, read_statement
from expunge.certificate.verify import verify_statement
from expunge.cli import main
from expunge.errors import ExpungeError, FileError, VerificationFailed
from private_values import leaves, private_values

pytestmark = pytest.mark.usefixtures("one_thread")

STORED = Path(__file__).parents[1] / "stored"
STATEMENT, MODEL = STORED / "statement-3-same.json", STORED / "model-3-same.safetensors"


@pytest.fixture(scope="module")
def key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.generate()


@pytest.fixture(scope="module")
def statement() -> Statement:
    return read_statement(STATEMENT)


@pytest.fixture(scope="module")
def envelope(statement: Statement, key: Ed25519PrivateKey) -> bytes:
    return seal(statement, key)


def test_what_is_signed_is_an_in_toto_statement_about_the_model(
    envelope: bytes, statement: Statement, key: Ed25519PrivateKey
) -> None:
    outer = json.loads(envelope)
    payload = base64.b64decode(outer["payload"])
    inner = json.loads(payload)
    assert outer["payloadType"] == "application/vnd.in-toto+json"
    assert inner["_type"] == "https://in-toto.io/Statement/v1"
    assert inner["subject"][0]["digest"]["sha256"] == statement.model_sha256
    assert inner["predicate"] == statement.content
    kind = outer["payloadType"].encode()
    naive = b"DSSEv1 " + str(len(kind)).encode() + b" " + kind + b" " + str(len(payload)).encode() + b" " + payload
    key.public_key().verify(base64.b64decode(outer["signatures"][0]["sig"]), naive)
    assert open_envelope(envelope, key.public_key(), "it").content == statement.content


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_a_single_bit_flip_is_rejected(step: int, envelope: bytes, key: Ed25519PrivateKey) -> None:
    """At every byte; at each fourth of them in the quick tests."""
    public, survived = key.public_key(), []
    for position in range(0, len(envelope), step):
        for bit in range(8):
            changed = bytearray(envelope)
            changed[position] ^= 1 << bit
            try:
                open_envelope(bytes(changed), public, "it")
            except VerificationFailed:
                continue
            survived.append((position, bit))
    assert not survived


@pytest.mark.parametrize(
    "change",
    [
        lambda b: b[:-1],
        lambda b: b + b"\n",
        lambda b: b.replace(b'"payload"', b'"payload" ', 1),
        lambda b: b"",
        lambda b: b"[]",
        lambda b: b"[" * 100_000,
        lambda b: b'{"signatures": [1], "payload": 3}',
        lambda b: json.dumps(json.loads(b)).encode(),
        lambda b: json.dumps(json.loads(b) | {"signatures": []}, indent=1).encode() + b"\n",
    ],
)
def test_other_spellings_are_rejected(change: object, envelope: bytes, key: Ed25519PrivateKey) -> None:
    with pytest.raises(VerificationFailed):
        open_envelope(change(envelope), key.public_key(), "it")  # type: ignore[operator]


def test_another_key_is_rejected(envelope: bytes) -> None:
    with pytest.raises(VerificationFailed):
        open_envelope(envelope, Ed25519PrivateKey.generate().public_key(), "it")


def test_the_payload_is_not_parsed_before_the_signature_is_checked(
    envelope: bytes, key: Ed25519PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bytes] = []
    real = json.loads
    monkeypatch.setattr(
        signing.json, "loads", lambda text, **options: seen.append(bytes(text)) or real(text, **options)
    )
    outer = real(envelope)
    forged = bytearray(base64.b64decode(outer["signatures"][0]["sig"]))
    forged[3] ^= 1
    changed = envelope.replace(outer["signatures"][0]["sig"].encode(), base64.b64encode(bytes(forged)))
    with pytest.raises(VerificationFailed, match="signature"):
        open_envelope(changed, key.public_key(), "it")
    assert seen == [changed], "only the envelope was parsed"


def sign_statement(content: object, key: Ed25519PrivateKey) -> bytes:
    payload = json.dumps(content).encode()
    return signing._envelope(payload, signing.keyid_of(key.public_key()), key.sign(pae(signing.PAYLOAD_TYPE, payload)))


@pytest.mark.parametrize("part", ["_type", "predicateType", "subject", "predicate"])
def test_a_signed_statement_about_something_else_is_rejected(
    part: str, statement: Statement, key: Ed25519PrivateKey
) -> None:
    good = signing.in_toto(statement)
    assert open_envelope(sign_statement(good, key), key.public_key(), "it").content == statement.content
    other = {"subject": [{"name": "model.safetensors", "digest": {"sha256": "0" * 64}}], "predicate": {"schema": "x"}}
    with pytest.raises((VerificationFailed, FileError)):
        open_envelope(sign_statement(good | {part: other.get(part, "other")}, key), key.public_key(), "it")


def write_keys(folder: Path) -> tuple[Path, Path]:
    result = CliRunner().invoke(main, ["keygen", "--out", str(folder / "k"), "--json"])
    assert result.exit_code == 0, result.stderr
    return folder / "k", folder / "k.pub"


def test_keys_are_written_with_care_and_never_over(tmp_path: Path) -> None:
    private, public = write_keys(tmp_path)
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert stat.S_IMODE(public.stat().st_mode) == 0o644
    again = CliRunner().invoke(main, ["keygen", "--out", str(private)])
    assert again.exit_code == 2
    assert "exists already" in again.stderr
    assert isinstance(signing.read_public_key(public), Ed25519PublicKey)
    private.chmod(0o640)
    with pytest.raises(FileError, match="0640"):
        signing.read_private_key(private)


def test_the_other_half_of_a_pair_is_named_before_its_mode(tmp_path: Path) -> None:
    private, public = write_keys(tmp_path)
    with pytest.raises(FileError, match=r"is a public key .*the private key .*without \.pub"):
        signing.read_private_key(public)
    with pytest.raises(FileError, match=r"is a private key \(keep it to yourself\).*\.pub appended"):
        signing.read_public_key(private)


@pytest.mark.parametrize("content", [b"no key", b"x" * 20_000])
def test_what_is_not_a_key(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(0o600)
    for read in (signing.read_private_key, signing.read_public_key):
        with pytest.raises(FileError):
            read(path)


def test_another_kind_of_key(tmp_path: Path) -> None:
    rsa = generate_private_key(65537, 2048)
    path = tmp_path / "key"
    path.write_bytes(rsa.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    path.chmod(0o600)
    with pytest.raises(FileError, match="Ed25519"):
        signing.read_private_key(path)
    path.write_bytes(rsa.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    with pytest.raises(FileError, match="Ed25519"):
        signing.read_public_key(path)


def test_unlearn_signs_and_verify_checks(box: object, tmp_path: Path) -> None:
    private, public = write_keys(tmp_path)
    ran = box.run(box.unlearn("--sign-key", str(private)))  # type: ignore[attr-defined]
    assert ran.status == 0, ran.err
    folder = box.folder / "new"  # type: ignore[attr-defined]
    signed, model = folder / "statement.signed.json", folder / "model.safetensors"
    line = ["verify", str(signed), "--model", str(model), "--public-key", str(public)]
    result = CliRunner().invoke(main, [*line, "--json"])
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["checks"][0] == "signature"
    found, _ = verify_file(signed, public, model)
    assert found.content == json.loads((folder / "statement.json").read_text())
    assert (
        CliRunner().invoke(main, ["verify", str(folder / "statement.json"), "--public-key", str(public)]).exit_code == 1
    )
    unkeyed = CliRunner().invoke(main, ["verify", str(signed)])
    assert unkeyed.exit_code == 2
    assert "--public-key" in unkeyed.stderr
    changed = bytearray(model.read_bytes())
    changed[-1] ^= 1
    model.write_bytes(bytes(changed))
    assert CliRunner().invoke(main, line).exit_code in (1, 2)


def test_a_thousand_bit_flips_of_the_model_are_rejected(statement: Statement, tmp_path: Path) -> None:
    whole, generator = MODEL.read_bytes(), random.Random(5)
    changed_model = tmp_path / "model.safetensors"
    for _ in range(1000):
        changed = bytearray(whole)
        changed[generator.randrange(len(whole))] ^= 1 << generator.randrange(8)
        changed_model.write_bytes(bytes(changed))
        with pytest.raises(ExpungeError):
            verify_statement(statement, changed_model)
    changed_model.write_bytes(whole)
    verify_statement(statement, changed_model)


# Verdicts for other tools ------------------------------------------------------------------------------------------

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def run(*words: object) -> Result:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    return result


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def resource(content: dict[str, Any], subject: bool) -> None:
    """A ResourceDescriptor of the in-toto attestation framework, v1, with fields this project writes."""
    assert set(content) <= {"name", "uri", "digest", "annotations"}
    assert {"uri", "digest"} & set(content), "at least one that says which"
    if subject:
        assert set(content["digest"]) == {"sha256"}
        assert re.fullmatch("[0-9a-f]{64}", content["digest"]["sha256"])


def predicate_of(statement: dict[str, Any], kind: str) -> dict[str, Any]:
    """The predicate, of an in-toto statement v1 with these fields and no others."""
    assert set(statement) == {"_type", "subject", "predicateType", "predicate"}
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == kind
    for subject in statement["subject"]:
        resource(subject, subject=True)
    return dict(statement["predicate"])


def read_svr(statement: dict[str, Any]) -> list[str]:
    """The properties, read as the specification of the Simple Verification Result 0.1 has them."""
    predicate = predicate_of(statement, "https://in-toto.io/attestation/svr/v0.1")
    assert set(predicate) == {"verifier", "timeCreated", "properties"}
    assert set(predicate["verifier"]) == {"id"}
    assert re.fullmatch(r"https://\S+/\d+\.\d+\.\d+", predicate["verifier"]["id"]), "a URI with a version"
    assert TIME.fullmatch(predicate["timeCreated"])
    assert all(isinstance(name, str) and name.startswith("EXPUNGE_") for name in predicate["properties"])
    return list(predicate["properties"])


def read_test_result(statement: dict[str, Any]) -> dict[str, Any]:
    """The predicate, read as the specification of the Test Result 0.1 has it."""
    predicate = predicate_of(statement, "https://in-toto.io/attestation/test-result/v0.1")
    assert set(predicate) == {"result", "configuration", "passedTests", "warnedTests", "failedTests"}
    assert predicate["result"] in ("PASSED", "WARNED", "FAILED")
    for part in predicate["configuration"]:
        resource(part, subject=False)
    return predicate


def opened(path: Path, public: Path) -> dict[str, Any]:
    """A DSSE envelope's payload, opened as DSSE says and by nothing of Expunge but the reading of keys."""
    envelope = json.loads(path.read_text())
    assert envelope["payloadType"] == "application/vnd.in-toto+json"
    payload = base64.b64decode(envelope["payload"])
    (signature,) = envelope["signatures"]
    signing.read_public_key(public).verify(base64.b64decode(signature["sig"]), pae(envelope["payloadType"], payload))
    return dict(json.loads(payload))


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    made = generate_keys()
    (tmp_path / "k").write_bytes(made.private)
    (tmp_path / "k").chmod(0o600)
    (tmp_path / "k.pub").write_bytes(made.public)
    return tmp_path / "k", tmp_path / "k.pub"


# The functions ------------------------------------------------------------------------------------------------------


def test_a_verification_result_has_the_fields_of_its_specification(workshop: Path) -> None:
    statement = read_statement(workshop / "result" / "statement.json")
    made = verification_result(statement, "ab" * 32, time="2026-01-02T03:04:05Z")
    assert read_svr(made) == [
        "EXPUNGE_VERDICT_CONSISTENT_NOT_AUTHENTICATED",
        "EXPUNGE_STATEMENT_CONSISTENT",
        "EXPUNGE_MODEL_IS_THE_ONE",
        "EXPUNGE_STATUS_CONDITIONAL",
    ]
    assert made["predicate"]["timeCreated"] == "2026-01-02T03:04:05Z"
    everything = read_svr(verification_result(statement, "ab" * 32, signed_by="cd" * 32, dossier=True, deposits=True))
    assert len(everything) == 6
    assert everything[0] == "EXPUNGE_VERDICT_AUTHENTICATED"
    model, document = made["subject"]
    assert model == {"name": "model.safetensors", "digest": {"sha256": statement.model_sha256}}
    assert document["digest"] == {"sha256": "ab" * 32}
    assert document["annotations"] == {
        "verdict": "consistent, not authenticated: nobody has signed this",
        "status": statement.status,
        "epsilon": statement.epsilon,
        "delta": statement.delta,
    }
    assert subjects_of(statement, "ab" * 32, signed=True)[1].name == "statement.signed.json"


@pytest.mark.parametrize(
    ("outcomes", "result"),
    [
        ({"a": PASSED}, "PASSED"),
        ({"a": PASSED, "b": WARNED}, "WARNED"),
        ({"a": WARNED, "b": FAILED, "c": PASSED}, "FAILED"),
    ],
)
def test_a_test_result_is_as_bad_as_its_worst_part(outcomes: dict[str, str], result: str) -> None:
    made = read_test_result(audit_result([AttestedFile("model.safetensors", "00" * 32)], outcomes, {"runs": 5}))
    assert made["result"] == result
    for kind in (PASSED, WARNED, FAILED):
        named = [f"EXPUNGE_AUDIT_{name.upper()}" for name, ended in outcomes.items() if ended == kind]
        assert made[f"{kind.lower()}Tests"] == named


def test_files_signed_and_not(keys: tuple[Path, Path], tmp_path: Path) -> None:
    content = audit_result([AttestedFile("model.safetensors", "00" * 32)], {"a": PASSED}, {})
    assert json.loads(as_file(content)) == content
    (tmp_path / "signed").write_bytes(seal_in_toto(content, signing.read_private_key(keys[0])))
    assert opened(tmp_path / "signed", keys[1]) == content


# expunge verify --svr -----------------------------------------------------------------------------------------------


def test_verify_writes_its_verdict_for_other_tools(box: Any, keys: tuple[Path, Path]) -> None:
    result = box.folder / "result"
    line = ("verify", result / "statement.json", "--model", result / "model.safetensors")
    assert run(*line, "--svr", box.folder / "v.json").exit_code == 0
    made = json.loads((box.folder / "v.json").read_text())
    assert read_svr(made)[0] == "EXPUNGE_VERDICT_CONSISTENT_NOT_AUTHENTICATED"
    found = {subject["name"]: subject["digest"]["sha256"] for subject in made["subject"]}
    assert found == {name: sha256(result / name) for name in ("model.safetensors", "statement.json")}
    again = run(*line, "--svr", box.folder / "v.json")
    assert again.exit_code == 2
    assert "exists already" in again.stderr
    assert run("sign", result, "--sign-key", keys[0]).exit_code == 0
    signed = ("verify", result / "statement.signed.json", "--model", result / "model.safetensors")
    dossier = ("--dossier", result / "private" / "dossier.json")
    ran = run(*signed, "--public-key", keys[1], *dossier, "--svr", box.folder / "s.json", "--sign-key", keys[0])
    assert ran.exit_code == 0, ran.stderr
    made = opened(box.folder / "s.json", keys[1])
    assert {"EXPUNGE_VERDICT_AUTHENTICATED", "EXPUNGE_DOSSIER_CONSISTENT"} <= set(read_svr(made))
    assert made["subject"][1]["name"] == "statement.signed.json"
    assert made["subject"][1]["digest"]["sha256"] == sha256(result / "statement.signed.json")


def test_there_is_no_verdict_of_what_fails_or_is_private(box: Any, keys: tuple[Path, Path]) -> None:
    result, target = box.folder / "result", box.folder / "v.json"
    statement, model = result / "statement.json", result / "model.safetensors"
    for words, status in (
        ((statement, "--model", box.folder / "model.safetensors"), 1),
        ((statement,), 2),
        ((result / "private" / "dossier.json", "--model", model), 2),
        ((statement, "--model", model, "--sign-key", box.folder / "gone"), 2),
    ):
        assert run("verify", *words, "--svr", target).exit_code == status
        assert not target.exists()
    keys[0].chmod(0o644)
    ran = run("verify", statement, "--model", model, "--svr", target, "--sign-key", keys[0])
    assert ran.exit_code == 2
    assert "0644" in ran.stderr
    assert run("verify", statement, "--sign-key", keys[0]).exit_code == 2, "there is nothing to sign"
    assert not target.exists()


# expunge audit --test-result ------------------------------------------------------------------------------------------


@pytest.fixture
def audited(box: Any) -> tuple[Any, list[object]]:
    """A result in a box, and the words that audit its dossier."""
    box.npz(box.X[2:], box.y[2:], "retain.npz")
    files = [
        word
        for option, name in (
            ("--certificate", "result/private/dossier.json"),
            ("--model", "model.safetensors"),
            ("--retain", "retain.npz"),
            ("--forget", "forget.npz"),
            ("--surrogate", "surrogate.npz"),
        )
        for word in (option, box.folder / name)
    ]
    return box, ["audit", *files, "--runs", 200, "--quiet"]


def test_audit_writes_its_outcome_for_other_tools(
    audited: tuple[Any, list[object]], keys: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    box, words = audited
    target, result = box.folder / "t.json", box.folder / "result"
    ran = run(*words, "--test-result", target)
    assert ran.exit_code == 0, ran.stderr
    made = json.loads(target.read_text())
    predicate = read_test_result(made)
    assert (predicate["result"], predicate["passedTests"]) == ("PASSED", ["EXPUNGE_AUDIT_CERTIFICATE"])
    found = {subject["name"]: subject["digest"]["sha256"] for subject in made["subject"]}
    assert found == {name: sha256(result / name) for name in ("model.safetensors", "statement.json")}
    from expunge.evaluate.audit import Audit

    monkeypatch.setattr(Audit, "contradicted", True)
    ran = run(*words, "--test-result", box.folder / "f.json", "--sign-key", keys[0])
    assert ran.exit_code == 1
    predicate = read_test_result(opened(box.folder / "f.json", keys[1]))
    assert (predicate["result"], predicate["failedTests"]) == ("FAILED", ["EXPUNGE_AUDIT_CERTIFICATE"])


def test_an_audit_without_the_source_speaks_of_the_model(box: Any) -> None:
    for name in ("forget", "fresh"):
        box.npz(
            box.X[:30] if name == "forget" else box.S[:30],
            box.y[:30] if name == "forget" else box.t[:30],
            f"{name}-30.npz",
        )
    target, model = box.folder / "t.json", box.folder / "result" / "model.safetensors"
    rows = ("--forget", box.folder / "forget-30.npz", "--fresh", box.folder / "fresh-30.npz")
    ran = run("audit", "--published", model, *rows, "--test-result", target)
    assert ran.exit_code == 0, ran.stderr
    made = json.loads(target.read_text())
    predicate = read_test_result(made)
    assert [subject["digest"]["sha256"] for subject in made["subject"]] == [sha256(model)]
    assert predicate["result"] == "WARNED", "without the model from before it cannot tell"
    assert predicate["warnedTests"] == ["EXPUNGE_AUDIT_FORGET_ROWS"]


def test_built_in_tasks_and_forged_dossiers_have_no_result_for_others(audited: tuple[Any, list[object]]) -> None:
    box, words = audited
    target = box.folder / "t.json"
    for more in ((), ("--published", box.folder / "result" / "model.safetensors")):
        ran = run("audit", "--task", "tight", "--runs", 200, "--quiet", *more, "--test-result", target)
        assert ran.exit_code == 2
    forged = box.certificate(lambda content: content.update(status="proven"), sealed=True)
    ran = run(*words, "--certificate", box.folder / forged, "--test-result", target)
    assert ran.exit_code == 1
    ran = run(*words, "--certificate", box.folder / "result" / "statement.json", "--test-result", target)
    assert ran.exit_code == 2
    assert not target.exists()


# What is private --------------------------------------------------------------------------------------------------------


def test_no_value_of_the_dossier_is_in_either(audited: tuple[Any, list[object]]) -> None:
    box, words = audited
    result = box.folder / "result"
    dossier, statement = (
        json.loads((result / name).read_text()) for name in ("private/dossier.json", "statement.json")
    )
    assert run(*words, "--test-result", box.folder / "t.json").exit_code == 0
    auditor = ("--dossier", result / "private" / "dossier.json")
    line = ("verify", result / "statement.json", "--model", result / "model.safetensors", *auditor)
    assert run(*line, "--svr", box.folder / "v.json").exit_code == 0
    private = private_values(dossier, statement)
    assert len(private) > 30
    assert dossier["nonce"] in private
    public = {value for _, value in leaves(statement)} | {200, 0.999}  # runs and confidence were chosen by the auditor
    for name in ("v.json", "t.json"):
        text = (box.folder / name).read_text()
        assert not [value for value in private if value in text], name
        for path, value in leaves(json.loads(text)):
            assert isinstance(value, str) or value in public, f"{name}: {path} {value}"


def test_a_file_s_own_name_is_not_told(box: Any) -> None:
    """People's names are in the names of files."""
    named = box.folder / "canary-jane-doe.json"
    named.write_bytes((box.folder / "result" / "statement.json").read_bytes())
    model = box.folder / "canary-jane-doe.safetensors"
    model.write_bytes((box.folder / "result" / "model.safetensors").read_bytes())
    assert run("verify", named, "--model", model, "--svr", box.folder / "v.json").exit_code == 0
    assert "canary" not in (box.folder / "v.json").read_text()
