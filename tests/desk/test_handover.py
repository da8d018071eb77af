"""What is made of results and desks: signatures, reports."""

from __future__ import annotations

import csv
import io
import json
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from expunge.certificate.sign import generate_keys, read_private_key, seal, verify_file
from expunge.certificate.statement import read_certificate, read_statement
from expunge.cli import main
from expunge.desk import Desk, accept, sign_result, verify_desk
from expunge.desk.handover import desk_report, result_report
from expunge.desk.policy import MODEL, REPORT, SIGNED, STATEMENT
from expunge.desk.status import models, requests
from expunge.errors import ExpungeError, FileError, VerificationFailed

# A result that is there already: signed without unlearning again, and only if it holds.


def run(*words: object) -> Result:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    return result


@pytest.fixture
def result(workshop: Path, tmp_path: Path) -> Path:
    shutil.copytree(workshop / "result", tmp_path / "result")
    return tmp_path / "result"


@pytest.fixture
def key(tmp_path: Path) -> Path:
    made = generate_keys()
    (tmp_path / "k").write_bytes(made.private)
    (tmp_path / "k").chmod(0o600)
    (tmp_path / "k.pub").write_bytes(made.public)
    return tmp_path / "k"


def test_sign_is_what_unlearn_would_have_written(result: Path, key: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in result.rglob("*") if path.is_file()}
    ran = run("sign", result, "--sign-key", key, "--json")
    assert ran.exit_code == 0, ran.stderr
    signed = result / "statement.signed.json"
    assert json.loads(ran.stdout)["signed_file"] == str(signed)
    assert stat.S_IMODE(signed.stat().st_mode) == 0o644
    found, checks = verify_file(signed, tmp_path / "k.pub", result / "model.safetensors")
    assert found.content == json.loads((result / "statement.json").read_text())
    assert checks[0].name == "signature"
    assert {path: path.read_bytes() for path in before} == before, "nothing else was touched"
    again = run("sign", result, "--sign-key", key)
    assert again.exit_code == 2
    assert "exists already" in again.stderr


def test_from_python_with_a_key_or_its_file(result: Path, key: Path, tmp_path: Path) -> None:
    first = sign_result(result, key)
    second = sign_result(str(result), read_private_key(key), tmp_path / "elsewhere" / "signed.json")
    assert first == result / "statement.signed.json"
    assert first.read_bytes() == second.read_bytes()


def test_what_does_not_hold_is_not_signed(result: Path, key: Path) -> None:
    def refused(status: int, words: str) -> None:
        ran = run("sign", result, "--sign-key", key)
        assert ran.exit_code == status, ran.stderr
        assert words in ran.stderr
        assert not (result / "statement.signed.json").exists()

    statement, model = result / "statement.json", result / "model.safetensors"
    dossier = result / "private" / "dossier.json"
    whole, weights, private = statement.read_text(), model.read_bytes(), dossier.read_text()
    statement.write_text(whole.replace('"conditional"', '"proven"'))
    refused(1, "status")
    statement.write_text(whole)
    model.write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    refused(1, "record")
    model.write_bytes(weights)
    dossier.write_text(private.replace('"n_surrogate"', '"n_surrogates"', 1))
    refused(1, "cannot be recomputed")
    dossier.write_text(private)
    key.chmod(0o640)
    refused(2, "0640")
    key.chmod(0o600)
    key.write_bytes(b"no key")
    refused(2, "Ed25519")
    statement.unlink()
    key.write_bytes(generate_keys().private)
    refused(2, "neither a desk nor a result")


def test_a_dossier_of_another_statement_stops_it(ledger: Desk, key: Path, tmp_path: Path) -> None:
    folder = ledger.layout.published_model(1)
    (folder / "private").mkdir()
    (folder / "private" / "dossier.json").write_bytes(ledger.layout.dossier_of(2).read_bytes())
    with pytest.raises(VerificationFailed, match="dossier"):
        sign_result(folder, key, tmp_path / "signed.json")
    (folder / "private" / "dossier.json").write_bytes(ledger.layout.dossier_of(1).read_bytes())
    sign_result(folder, key, tmp_path / "signed.json")


def test_a_published_model_of_a_desk_is_signed_elsewhere(ledger: Desk, key: Path, tmp_path: Path) -> None:
    folder = ledger.layout.published_model(1)
    with pytest.raises(FileError, match="a folder that a desk published"):
        sign_result(folder, key)
    written = sign_result(folder, key, tmp_path / "signed.json")
    verify_file(written, tmp_path / "k.pub", folder / "model.safetensors")
    verify_desk(ledger)
    with pytest.raises(FileError, match="exists already"):
        sign_result(folder, key, tmp_path / "signed.json")


# The desk's report: every request and model in it, and the page of one result only if its certificate holds.


def table(content: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(content.decode(), newline="")))


def test_every_request_and_every_model_has_its_line(ledger: Desk) -> None:
    files = desk_report(ledger)
    assert sorted(files) == ["index.html", "model-0001.html", "model-0002.html", "models.csv", "requests.csv"]
    asked, published = table(files["requests.csv"]), table(files["models.csv"])
    assert [line["reference"] for line in asked] == [request.reference for request in requests(ledger)]
    assert [line["state"] for line in asked] == ["done", "done", "withdrawn", "pending"]
    assert [float(line["sigma"]) for line in published] == [facts["sigma"] for facts in models(ledger)]
    page = files["index.html"].decode()
    for line in asked:
        assert line["reference"] in page
    for number in (1, 2):
        page, public = files[f"model-{number:04d}.html"], (ledger.layout.published_model(number) / REPORT).read_bytes()
        dossier = read_certificate(ledger.layout.dossier_of(number))
        assert f"{dossier.total:.4g}" in page.decode(), "the desk's own pages are full ones"
        assert f"{dossier.total:.4g}" not in public.decode(), "the published one is made from the statement"


def test_the_page_says_what_is_set_aside_and_why(ledger: Desk, source: tuple[np.ndarray, np.ndarray]) -> None:
    assert "set aside" not in desk_report(ledger)["index.html"].decode()
    accept(ledger, source[0][:1], source[1][:1], "the same row")
    files = desk_report(ledger)
    page = files["index.html"].decode()
    assert "set aside: 1 of 1 rows was asked for before (in request 1)" in page
    assert "expunge desk resume --another-person" in page
    assert table(files["requests.csv"])[-1]["state"] == "aside"


def test_a_model_that_was_taken_away_has_a_line_and_no_page(ledger: Desk) -> None:
    (ledger.layout.published_model(1) / REPORT).unlink()
    ledger.layout.dossier_of(1).unlink()
    files = desk_report(ledger)
    assert "model-0001.html" not in files
    assert [line["model"] for line in table(files["models.csv"])] == ["1", "2"]


def test_the_page_of_one_result_is_made_only_of_a_certificate_that_holds(ledger: Desk, tmp_path: Path) -> None:
    folder = ledger.layout.published_model(1)
    statement = read_statement(folder / STATEMENT)
    assert statement.content["digest"] in result_report(folder).decode()
    keys = generate_keys()
    (tmp_path / "k").write_bytes(keys.private)
    (tmp_path / "k").chmod(0o600)
    (tmp_path / "k.pub").write_bytes(keys.public)
    with pytest.raises(ExpungeError):
        result_report(folder, tmp_path / "k.pub")
    (folder / SIGNED).write_bytes(seal(statement, read_private_key(tmp_path / "k")))
    assert keys.keyid in result_report(folder, tmp_path / "k.pub").decode()
    (folder / "private").mkdir()
    (folder / "private" / "dossier.json").write_bytes(ledger.layout.dossier_of(1).read_bytes())
    assert "Private." in result_report(folder, full=True).decode()
    (folder / "private" / "dossier.json").write_bytes(ledger.layout.dossier_of(2).read_bytes())
    with pytest.raises(ExpungeError, match="dossier"):
        result_report(folder, full=True)
    model = bytearray((folder / MODEL).read_bytes())
    model[-1] ^= 1
    (folder / MODEL).write_bytes(bytes(model))
    with pytest.raises(ExpungeError):
        result_report(folder)
    with pytest.raises(FileError, match="neither a desk nor a result"):
        result_report(tmp_path)
