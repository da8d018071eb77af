"""The desk's report: every request and model in it, and the page of one result only if its certificate holds."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest

from expunge.certificate.dossier import read_certificate
from expunge.certificate.sign import generate_keys, read_private_key, seal
from expunge.certificate.statement import read_statement
from expunge.desk import Desk, accept
from expunge.desk.handover import desk_report, result_report
from expunge.desk.layout import MODEL, REPORT, SIGNED, STATEMENT
from expunge.desk.status import models, requests
from expunge.errors import ExpungeError, FileError, OptionError


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


def test_names_are_on_every_page_of_a_desk_and_in_no_published_file(ledger: Desk) -> None:
    files = desk_report(ledger, organisation="Bank & Sons", model_name="Credit <2025>")
    for name in ("index.html", "model-0001.html", "model-0002.html"):
        assert "Bank &amp; Sons" in files[name].decode()
        assert "Credit &lt;2025&gt;" in files[name].decode()
    page = result_report(ledger.layout.published_model(1), organisation="Bank & Sons").decode()
    assert "Bank &amp; Sons" in page
    assert "Bank" not in result_report(ledger.layout.published_model(1)).decode(), "stored nowhere"
    for odd in ("", "two\nlines"):
        with pytest.raises(OptionError, match="--model-name"):
            desk_report(ledger, model_name=odd)
        with pytest.raises(OptionError, match="--organisation"):
            result_report(ledger.layout.folder / "none", organisation=odd)
