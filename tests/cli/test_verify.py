"""`expunge verify` as it is read: the verdict first, what it rests on, and what is wrong in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from expunge.cli import main

pytestmark = pytest.mark.usefixtures("one_thread")

STORED = Path(__file__).parents[1] / "stored"
FEW = 6  # lines, assumptions apart


def run(*words: object) -> Result:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    return result


def lines(result: Result) -> list[str]:
    assert result.exit_code == 0, result.stderr
    return result.stdout.splitlines()


def test_the_verdict_comes_first_and_the_rest_is_short(box: Any) -> None:
    result = box.folder / "result"
    words = ("verify", result / "statement.json", "--model", result / "model.safetensors")
    told = lines(run(*words))
    assert told[0].startswith("verified: conditional, epsilon 5, delta 0.001 (")
    assert len([line for line in told if not line.startswith("  assumes: ")]) <= FEW
    assert [line.split()[0] for line in told[1:5]] == ["statement", "model", "dossier", "signature"]
    assert not [line for line in told if line.startswith("  ok  ")]
    assert "anybody could have written this file" in told[4]
    audited = lines(run(*words, "--dossier", result / "private" / "dossier.json"))
    assert "every number recomputed" in audited[3]
    counted = [int(line.rsplit("(", 1)[1].split()[0]) for line in audited[1:4]]
    assert f"({sum(counted)} checks, none failed)" in audited[0]


def test_verbose_names_every_check(box: Any) -> None:
    words = ("verify", box.folder / "result" / "statement.json")
    names = json.loads(run(*words, "--json").stdout)["checks"]
    told = lines(run(*words, "--verbose"))
    assert [line.removeprefix("  ok  ") for line in told if line.startswith("  ok  ")] == names


def test_an_old_certificate_says_what_was_found_since(box: Any) -> None:
    told = lines(run("verify", STORED / "certificate-1-same.json"))
    assert told[0].startswith("verified: ")
    assert told[1].split()[0] == "file"
    assert any(line.startswith("  found since it was issued: ") for line in told)


def test_what_is_wrong_comes_first_in_words(box: Any) -> None:
    path = box.folder / box.certificate(lambda content: content.update(status="proven", sigma=1.5), sealed=True)
    ran = run("verify", path)
    assert ran.exit_code == 1
    assert ran.stdout == ""
    told = ran.stderr.splitlines()
    assert told[0] == "NOT VERIFIED"
    assert any(line.startswith("  wrong: sigma is stated as 1.5, but ") for line in told)
    assert "  wrong: status is stated as proven, but conditional follows" in told
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


def test_json_stays_as_it_was(box: Any) -> None:
    found = json.loads(run("verify", box.folder / "result" / "statement.json", "--json").stdout)
    assert set(found) == {
        "verified", "status", "model_checked", "dossier_checked", "deposits_checked", "forgotten_checked",
        "signature_checked", "checks", "found_since",
    }  # fmt: skip
    path = box.folder / box.certificate(lambda content: content.update(status="proven"), sealed=True)
    failed = run("verify", path, "--json")
    assert failed.exit_code == 1
    assert set(json.loads(failed.stdout)["error"]) == {"kind", "found", "required", "remedy"}
    assert failed.stderr.startswith("error: ")
