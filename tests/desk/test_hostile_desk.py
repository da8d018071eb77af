"""A desk's folder that somebody made to hold up, to harm or to deceive whoever looks at it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from expunge.certificate.dossier import digest_of
from expunge.cli import main
from expunge.desk import Desk, desk_report, open_desk, verify_desk
from expunge.desk.ledger import NAMES_ANOTHER, Ledger
from expunge.errors import FileError, VerificationFailed
from ledger_forgery import rejected

LOOKS = ("verify", "status", "history", "head", "report")
FOREVER = "CREATE VIEW head AS WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT max(n) AS size, \
'' AS last, '[]' AS frontier FROM r"


@contextmanager
def _guarded(seconds: int = 120) -> Iterator[None]:
    """What hangs ends the test, and not the machine."""

    def stop(*_: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _look(command: str, desk: Desk) -> Result:
    folder = desk.layout.folder
    out = ["--out", str(folder.parent / "report")] if command == "report" else []
    with _guarded():
        done = CliRunner().invoke(main, ["desk", command, str(folder), *out])
    shutil.rmtree(folder.parent / "report", ignore_errors=True)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def _pipe(path: Path, kept: Path) -> None:
    os.mkfifo(path)


def _endless(path: Path, kept: Path) -> None:
    path.symlink_to("/dev/zero")


def _sparse(path: Path, kept: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(8 << 30)


def _outside(path: Path, kept: Path) -> None:
    path.symlink_to(kept)


@pytest.mark.parametrize("made", [_pipe, _endless, _sparse, _outside])
@pytest.mark.parametrize(
    "name",
    ["published/0001/statement.json", "published/0002/head.json", "published/0002/model.safetensors",
     "published/0001/report.html", "private/dossiers/0001.json", "ledger.seal", "ledger.sqlite"],
)  # fmt: skip
def test_only_plain_files_of_their_size_are_read(made: Any, name: str, ledger: Desk, tmp_path: Path) -> None:
    path = ledger.layout.folder / name
    path.rename(tmp_path / "elsewhere")
    made(path, tmp_path / "elsewhere")
    assert _look("verify", ledger).exit_code in ((1, 2) if name == "ledger.sqlite" else (1,))
    for command in LOOKS[1:]:
        assert _look(command, ledger).exit_code in (0, 1, 2)


@pytest.mark.parametrize("made", [_pipe, _endless, _outside])
@pytest.mark.parametrize("more", ["-wal", "-shm", "-journal"])
def test_nor_does_sqlite_open_others(made: Any, more: str, ledger: Desk, tmp_path: Path) -> None:
    path = ledger.layout.folder / f"ledger.sqlite{more}"
    path.unlink(missing_ok=True)
    made(path, tmp_path / "elsewhere")
    for command in LOOKS:
        assert _look(command, ledger).exit_code in (1, 2)


@pytest.mark.parametrize("folder", ["published", "published/0001", "private/dossiers"])
def test_no_folder_leads_out_of_the_desk(folder: str, ledger: Desk, tmp_path: Path) -> None:
    place = ledger.layout.folder / folder
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    assert "link" in rejected(ledger)


@pytest.mark.parametrize(
    "statements",
    [
        ("ALTER TABLE head RENAME TO old", FOREVER),
        ("CREATE VIEW more AS SELECT 1",),
        ("CREATE TRIGGER sly AFTER INSERT ON entries BEGIN DELETE FROM head; END",),
        ("ALTER TABLE requests ADD COLUMN sly TEXT AS (hex(zeroblob(100000000)))",),
    ],
    ids=["a view without end", "a view", "a trigger", "a column that computes"],
)
def test_tables_that_are_not_a_ledgers_are_not_asked(statements: tuple[str, ...], ledger: Desk) -> None:
    with sqlite3.connect(ledger.layout.ledger) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()
    ledger.layout.seal.unlink()
    for command in LOOKS:
        done = _look(command, ledger)
        assert done.exit_code == (1 if command == "verify" else 2)
        assert "its tables are not a ledger's" in done.stderr


def test_a_journal_that_names_another_file_is_not_followed(ledger: Desk, tmp_path: Path) -> None:
    """SQLite would remove that file once it has put the journal back."""
    (tmp_path / "precious").write_text("kept")
    journal = ledger.layout.folder / "ledger.sqlite-journal"
    journal.write_bytes(
        b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + bytes(504) + str(tmp_path / "precious").encode() + NAMES_ANOTHER
    )
    for command in LOOKS:
        assert "names another file" in _look(command, ledger).stderr
    assert (tmp_path / "precious").exists()


def test_looking_writes_nothing_and_takes_no_more_steps_than_a_ledger_can_need(
    ledger: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ledger.open(ledger.layout.ledger, writing=False) as opened:
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            opened.connection.execute("DELETE FROM entries")
        assert opened.connection.execute("PRAGMA trusted_schema").fetchone() == (0,)
        endless = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT max(n) FROM r"
        with _guarded(), pytest.raises(sqlite3.OperationalError, match="interrupted"):
            opened.connection.execute(endless).fetchone()
    monkeypatch.setattr("expunge.desk.ledger.LARGEST_LEDGER", 1000)
    with pytest.raises(FileError, match="a ledger has at most 1,000"):
        open_desk(ledger.layout.folder)


# Dossiers -------------------------------------------------------------------------------------------------------------


def _edited(desk: Desk, number: int, *, whole: bool) -> None:
    """A dossier with another number in it; `whole`: with its digest made anew, as a forger would."""
    path = desk.layout.dossier_of(number)
    content = json.loads(path.read_text())
    content["sizes"]["n_forget"] += 1
    if whole:
        content["digest"] = digest_of(content)
    path.write_text(json.dumps(content, indent=2) + "\n")


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("absent", [False, True], ids=["", "the model was taken away"])
def test_an_edited_dossier_fails_and_is_not_shown(whole: bool, absent: bool, ledger: Desk) -> None:
    assert verify_desk(ledger).dossiers == (1, 2)
    assert "model-0001.html" in desk_report(ledger)
    _edited(ledger, 1, whole=whole)
    if absent:
        shutil.rmtree(ledger.layout.published_model(1))
    assert "is not the dossier that was written" in rejected(ledger)
    with pytest.raises(VerificationFailed, match="is not the dossier that was written"):
        desk_report(ledger)
    assert _look("report", ledger).exit_code == 1


def test_a_dossier_of_another_model_fails(ledger: Desk) -> None:
    shutil.copy(ledger.layout.dossier_of(2), ledger.layout.dossier_of(1))
    assert "0001.json is not the dossier that was written" in rejected(ledger)


def test_dossiers_that_are_not_at_hand_are_told(ledger: Desk) -> None:
    shutil.rmtree(ledger.layout.private)
    assert verify_desk(ledger).dossiers == ()
    done = CliRunner().invoke(main, ["desk", "verify", str(ledger.layout.folder)])
    assert done.exit_code == 0
    assert "dossiers at hand: 0" in done.stdout


def test_a_statement_that_does_not_follow_from_its_dossier_fails(ledger: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the certificate's own checks: the digests alone would pass where the desk itself wrote what is false."""
    asked = []
    monkeypatch.setattr("expunge.desk.check.verify_statement", lambda *given: asked.append(given))
    verify_desk(ledger)
    assert [(given[1].parent.name, given[2] is not None) for given in asked] == [("0001", True), ("0002", True)]
