"""Checking a desk that was edited, put back, or made to deceive or to do harm."""

from __future__ import annotations

import importlib
import json
import os
import random
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from desk_use import Rows, ask
from expunge.certificate.dossier import digest_of
from expunge.certificate.statement import committed_head, head_key
from expunge.cli import main
from expunge.desk import Desk, desk_report, history, open_desk, run, verify_desk
from expunge.desk.ledger import DeskCreated, Head, Ledger, PublishedHead, RunRefused, saved_head
from expunge.desk.policy import STATEMENT
from expunge.errors import FileError, VerificationFailed
from ledger_forgery import change, head, rebuild, rejected
from published_files import published, require_same_but_weights

# Checking a desk offline: edits, cut-off tails, rewritten histories and changed files are seen.


EDITS = [
    ("UPDATE entries SET body = replace(body, 'case 1', 'case 9') WHERE kind = 'accepted'",),
    ("UPDATE entries SET time = '2020-01-01T00:00:00+00:00' WHERE number = 3",),
    ("UPDATE entries SET kind = 'refused' WHERE number = 3",),
    ("UPDATE entries SET hash = zeroblob(32) WHERE number = 3",),
    ("DELETE FROM entries WHERE number = 4",),
    ("DELETE FROM entries WHERE number = (SELECT max(number) FROM entries)",),
    (
        "UPDATE entries SET number = -1 WHERE number = 2",
        "UPDATE entries SET number = 2 WHERE number = 3",
        "UPDATE entries SET number = 3 WHERE number = -1",
    ),
    ("UPDATE head SET size = size + 1",),
    ("UPDATE head SET hash = ''",),
    ("UPDATE requests SET reference = 'another' WHERE id = 1",),
    ("UPDATE requests SET state = 'done' WHERE state = 'pending'",),
    ("DELETE FROM row_digests WHERE request = 4",),
    ("UPDATE models SET prepared = prepared + 1",),
    ("CREATE TABLE more (x)",),
    ("CREATE TRIGGER sly AFTER INSERT ON entries BEGIN DELETE FROM head; END",),
]


def test_an_edit_is_seen(ledger: Desk) -> None:
    whole = ledger.layout.ledger.read_bytes()
    for statements in EDITS:
        ledger.layout.ledger.unlink()
        ledger.layout.ledger.write_bytes(whole)
        verify_desk(ledger)
        change(ledger, *statements)
        assert "ledger" in rejected(ledger), statements


def test_a_cut_off_tail_is_seen_against_a_saved_head(ledger: Desk) -> None:
    saved = head(ledger)
    shutil.rmtree(ledger.layout.published)  # else the certificates' own heads show it
    ledger.layout.published.mkdir()
    rebuild(ledger, history(ledger)[:-1])
    assert verify_desk(ledger).head.size == saved.size - 1, "by itself it looks whole"
    assert "cut off" in rejected(ledger, [saved])
    with Ledger.open(ledger.layout.ledger) as opened:
        opened.append(RunRefused((), "x", "x"))
    assert "not those of a saved head" in rejected(ledger, [saved])


def test_a_rewritten_history_is_seen_by_the_certificates_it_published(ledger: Desk) -> None:
    first, *others = history(ledger)
    assert isinstance(first.body, DeskCreated)
    forged = replace(first, body=replace(first.body, policy=replace(first.body.policy, days=1)))
    rebuild(ledger, [forged, *others])
    assert "before model 1 are not those that its statement commits to" in rejected(ledger)


def test_a_published_file_that_was_changed_is_seen(ledger: Desk) -> None:
    path = ledger.layout.published_model(2) / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    assert "model.safetensors" in rejected(ledger)
    shutil.rmtree(path.parent)
    assert verify_desk(ledger).absent == (2,), "a folder that was taken away is told"


@pytest.mark.parametrize("flips", [200, pytest.param(1000, marks=pytest.mark.slow)])
def test_bit_flips_of_the_ledger_are_rejected(flips: int, ledger: Desk) -> None:
    path, generator = ledger.layout.ledger, random.Random(11)
    whole = path.read_bytes()
    survived = []
    for _ in range(flips):
        position, bit = generator.randrange(len(whole)), generator.randrange(8)
        changed = bytearray(whole)
        changed[position] ^= 1 << bit
        path.write_bytes(bytes(changed))
        try:
            verify_desk(ledger)
        except VerificationFailed:
            continue
        survived.append((position, bit))
    assert not survived
    path.write_bytes(whole)
    assert verify_desk(ledger).sealed


@pytest.mark.parametrize("name", ["_same", "require_whole", "_refuse_unexpected"])
def test_a_command_that_writes_meanwhile_is_no_false_alarm(
    name: str, ledger: Desk, source: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request is accepted, or a model published, while the ledger, its file or the folders are looked at."""
    monkeypatch.setattr("expunge.desk.ledger.PATIENCE", 0.05)
    module = sys.modules["expunge.desk.status"]
    real, wrote = getattr(module, name), []

    def looked_at(*given: Any) -> Any:
        if not wrote:
            wrote.append(run(ledger) if name == "_refuse_unexpected" else ask(ledger, source, 20, 21))
        return real(*given)

    monkeypatch.setattr(module, name, looked_at)
    checked = verify_desk(ledger)
    assert wrote
    assert checked.head == head(ledger)


def test_what_is_wrong_is_found_though_a_command_writes_meanwhile(
    ledger: Desk, source: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, rows = sys.modules["expunge.desk.status"]._refuse_unexpected, iter(range(20, 60))

    def looked_at(*given: Any) -> Any:
        at = next(rows)
        ask(ledger, source, at, at + 1)
        return real(*given)

    (ledger.layout.published / "0007").mkdir()
    monkeypatch.setattr(sys.modules["expunge.desk.status"], "_refuse_unexpected", looked_at)
    monkeypatch.setattr(sys.modules["expunge.desk.status"], "MOST_TRIES", 3)
    with pytest.raises(VerificationFailed, match="does not know"):
        verify_desk(ledger)


# A desk that was put back: found out by what is in it, and by heads that were kept outside.


Snapshot = Callable[[Path], dict[str, str]]


def again(desk: Desk, tmp_path: Path) -> Path:
    """A copy, to put back later."""
    shutil.copytree(desk.layout.folder, tmp_path / "kept")
    return tmp_path / "kept"


def put_back(desk: Desk, kept: Path, *parts: str) -> Desk:
    """Put these parts of a copy back, or all of it."""
    for name in parts or [path.name for path in desk.layout.folder.iterdir()]:
        there = desk.layout.folder / name
        shutil.rmtree(there) if there.is_dir() else there.unlink(missing_ok=True)
        if (kept / name).is_dir():
            shutil.copytree(kept / name, there)
        elif (kept / name).exists():
            shutil.copy2(kept / name, there)
    return open_desk(desk.layout.folder)


LEDGER = ("ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm", "ledger.seal")


def test_what_is_there_already_is_refused_before_anything_is_started(
    desk: Desk, source: Rows, snapshot: Snapshot
) -> None:
    place, entries = desk.layout.published_model(1), ask(desk, source, 0, 1) + 1
    before = snapshot(desk.layout.folder)
    for put, at in (
        (place.mkdir, place),
        (lambda: place.write_text("a file"), place),
        (lambda: place.symlink_to("nowhere"), place),
        (lambda: desk.layout.dossier_of(1).write_text("{}"), desk.layout.dossier_of(1)),
    ):
        put()
        with pytest.raises(FileError, match="is there already, and the ledger has no model 1"):
            run(desk)
        after = snapshot(desk.layout.folder)
        assert len(history(desk)) == entries, "nothing was started"
        assert [name for name in before if not name.startswith("ledger") and after.get(name) != before[name]] == []
        at.rmdir() if at.is_dir() and not at.is_symlink() else at.unlink()
    assert run(desk).refused is None


def test_a_folder_that_came_while_a_run_was_finished_is_not_taken_for_it(desk: Desk, source: Rows) -> None:
    """Between `prepared` and the names: what was staged waits until the place is free."""
    ask(desk, source, 0, 1)
    real = Path.rename

    def late(self: Path, target: Path) -> Path:
        if Path(target) == desk.layout.published_model(1):
            Path(target).mkdir()
            (Path(target) / "notes.txt").write_text("by hand")
        return real(self, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "rename", late)
        with pytest.raises(FileError):
            run(desk)
    with pytest.raises(FileError, match="not put there by this desk"):
        run(desk)
    assert (desk.layout.published_model(1) / "notes.txt").is_file()
    shutil.rmtree(desk.layout.published_model(1))
    run(desk)
    assert (desk.layout.published_model(1) / STATEMENT).is_file()
    verify_desk(desk)


def test_every_published_statement_is_a_head_that_was_saved(ledger: Desk, tmp_path: Path) -> None:
    heads = [saved_head(ledger.layout.published_model(number) / STATEMENT) for number in (1, 2)]
    verify_desk(ledger, heads)
    with pytest.raises(VerificationFailed, match="has not published the statement that was saved"):
        run(ledger, heads=[PublishedHead("0" * 64)])
    rebuild(ledger, history(ledger)[:-5])
    assert "not published the statement" in rejected(ledger, heads)


def test_an_older_ledger_is_refused_by_a_head_that_was_kept(desk: Desk, source: Rows, tmp_path: Path) -> None:
    ask(desk, source, 0, 1)
    kept = again(desk, tmp_path)
    run(desk)
    head = tmp_path / "statement.json"
    shutil.copy(desk.layout.published_model(1) / STATEMENT, head)
    put_back(desk, kept)
    verify_desk(desk)  # all of it was put back: nothing in the desk shows that
    before = len(history(desk))
    with pytest.raises(VerificationFailed, match="a ledger only ever grows"):
        run(desk, heads=[saved_head(head)])
    done = CliRunner().invoke(main, ["desk", "run", str(desk.layout.folder), "--head", str(head), "--quiet"])
    assert done.exit_code == 1
    assert "put it back" in done.stderr
    assert len(history(desk)) == before
    run(desk)
    with pytest.raises(VerificationFailed, match="not those of a saved head"):
        run(desk, heads=[Head(2, "00" * 32)])


def test_what_was_prepared_in_an_older_ledger_is_not_published_either(desk: Desk, source: Rows, tmp_path: Path) -> None:
    """The head is looked at before anything that a kill left is put right."""
    ask(desk, source, 0, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("expunge.desk.desk.move", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
        with pytest.raises(FileError):
            run(desk)
    with pytest.raises(VerificationFailed):
        run(desk, heads=[Head(1000, "00" * 32)])
    assert not desk.layout.published_model(1).exists()
    run(desk)
    assert desk.layout.published_model(1).exists()


@pytest.mark.parametrize("parts", [LEDGER, (*LEDGER, "private")], ids=["the ledger", "all but what was published"])
def test_a_desk_that_was_put_back_in_part_is_found_out(
    parts: tuple[str, ...], desk: Desk, source: Rows, tmp_path: Path
) -> None:
    ask(desk, source, 0, 1)
    kept = again(desk, tmp_path)
    run(desk)
    put_back(desk, kept, *parts)
    with pytest.raises(VerificationFailed, match="does not know of"):
        verify_desk(desk)
    with pytest.raises((FileError, VerificationFailed)):
        run(desk)
    assert (desk.layout.published_model(1) / "statement.json").is_file()


def test_a_ledger_that_is_older_than_its_seal_is_not_written_in(desk: Desk, source: Rows, tmp_path: Path) -> None:
    kept = again(desk, tmp_path)
    ask(desk, source, 0, 1)
    put_back(desk, kept, *LEDGER[:3])
    with pytest.raises(VerificationFailed, match="the seal has 2 entries, the ledger 1"):
        ask(desk, source, 1, 2)
    for command in ("status", "history", "head"):  # or a head that is saved of it would be taken for the desk's own
        done = CliRunner().invoke(main, ["desk", command, str(desk.layout.folder)])
        assert done.exit_code == 1
        assert "the seal has 2 entries, the ledger 1" in done.stderr


def test_an_older_ledger_with_its_seal_removes_nothing_of_the_newest(desk: Desk, source: Rows, tmp_path: Path) -> None:
    """The newest state is needed again once the newest ledger is restored."""
    ask(desk, source, 0, 1)
    run(desk)
    kept = again(desk, tmp_path)
    ask(desk, source, 1, 2)
    run(desk)
    shutil.copytree(desk.layout.folder, tmp_path / "newest")
    put_back(desk, kept, *LEDGER)
    with pytest.raises(FileError, match="is not the state the ledger speaks of"):
        ask(desk, source, 3, 4)
    put_back(desk, tmp_path / "newest", *LEDGER)
    ask(desk, source, 2, 3)
    assert [made.requests for made in run(desk).published] == [(3,)]


def test_nor_does_one_from_before_requests_were_accepted(desk: Desk, source: Rows, tmp_path: Path) -> None:
    kept = again(desk, tmp_path)
    for number in range(2):
        ask(desk, source, number, number + 1)
    shutil.copytree(desk.layout.folder, tmp_path / "newest")
    put_back(desk, kept, *LEDGER)
    with pytest.raises(FileError, match="the ledger does not know"):
        ask(desk, source, 3, 4)
    put_back(desk, tmp_path / "newest", *LEDGER)
    assert [made.requests for made in run(desk).published] == [(1, 2)]


@pytest.mark.parametrize(
    "name",
    ["published/0007/", "published/backup/", "published/index.html", "published/0001/README.md",
     "published/0002/.expunge-x", "private/dossiers/0009.json"],
)  # fmt: skip
def test_what_no_entry_speaks_of_fails(name: str, ledger: Desk) -> None:
    """What is handed out is what the ledger has the digests of, and nothing that somebody put beside it."""
    path = ledger.layout.folder / name
    path.mkdir() if name.endswith("/") else path.write_text("a page")
    with pytest.raises(VerificationFailed, match=f"{path}: unexpected, the ledger does not know of it"):
        verify_desk(ledger)


# What is published of it ----------------------------------------------------------------------------------------------


def test_nothing_published_says_how_many_asked(empty: Path, source: Rows, tmp_path: Path) -> None:
    """One person a model, or now three, now five: files, names, sizes and fields are the same; the dossier knows."""
    desks, sizes = [], []
    for name, counts in {"one": [1, 1, 1], "several": [3, 1, 5]}.items():
        shutil.copytree(empty, tmp_path / name)
        desk, first = open_desk(tmp_path / name), 0
        for count in counts:
            for at in range(first, first + count):
                ask(desk, source, at, at + 1)
            first += count
            assert run(desk).refused is None
        dossiers = [json.loads(desk.layout.dossier_of(number).read_text()) for number in (1, 2, 3)]
        sizes.append([each["data"]["sequence"]["ledger_head"]["size"] for each in dossiers])
        statements = [json.loads((desk.layout.published_model(n) / STATEMENT).read_text()) for n in (1, 2, 3)]
        for statement, dossier in zip(statements, dossiers, strict=True):
            head = dossier["data"]["sequence"]["ledger_head"]
            assert statement["series"]["ledger_head"] == committed_head(head_key(dossier["nonce"]), head)
            assert head["hash"] not in json.dumps(statement), "whoever has seen the ledger could look it up"
        verify_desk(desk)
        desks.append(published(desk))
    assert sizes == [[2, 6, 10], [4, 8, 16]], "so that the game can be lost"
    require_same_but_weights(*desks, 3)


# A desk's folder that somebody made to hold up, to harm or to deceive whoever looks at it.


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


MADE: dict[str, Callable[[Path, Path], object]] = {
    "a pipe": lambda path, kept: os.mkfifo(path),
    "without end": lambda path, kept: path.symlink_to("/dev/zero"),
    "outside": lambda path, kept: path.symlink_to(kept),
    "eight gigabytes": lambda path, kept: (path.touch(), os.truncate(path, 8 << 30)),
}


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize(
    "name",
    ["published/0001/statement.json", "published/0002/model.safetensors", "published/0001/report.html",
     "private/dossiers/0001.json", "ledger.seal", "ledger.sqlite"],
)  # fmt: skip
def test_only_plain_files_of_their_size_are_read(made: str, name: str, ledger: Desk, tmp_path: Path) -> None:
    path = ledger.layout.folder / name
    path.rename(tmp_path / "elsewhere")
    MADE[made](path, tmp_path / "elsewhere")
    assert _look("verify", ledger).exit_code in ((1, 2) if name == "ledger.sqlite" else (1,))
    for command in LOOKS[1:]:
        assert _look(command, ledger).exit_code in (0, 1, 2)


@pytest.mark.parametrize("more", ["-wal", "-shm", "-journal"])
def test_nor_does_sqlite_open_others(more: str, ledger: Desk, tmp_path: Path) -> None:
    """A journal least of all: SQLite would put it back, and remove another file that it names."""
    path = ledger.layout.folder / f"ledger.sqlite{more}"
    for made in ("a pipe", "without end", "outside"):
        path.unlink(missing_ok=True)
        MADE[made](path, tmp_path / "elsewhere")
        for command in LOOKS:
            done = _look(command, ledger)
            assert done.exit_code in (1, 2)
            assert "has no journal" in done.stderr


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


@pytest.mark.parametrize(
    "how", ["edited", "edited, its digest made anew", "of another model", "its model was taken away"]
)
def test_an_edited_dossier_fails_and_is_not_shown(how: str, ledger: Desk) -> None:
    assert verify_desk(ledger).dossiers == (1, 2)
    assert "model-0001.html" in desk_report(ledger)
    path = ledger.layout.dossier_of(1)
    content = json.loads(path.read_text())
    content["sizes"]["n_forget"] += 1
    if how == "edited, its digest made anew":
        content["digest"] = digest_of(content)
    path.write_text(json.dumps(content, indent=2) + "\n")
    if how == "of another model":
        shutil.copy(ledger.layout.dossier_of(2), path)
    if how == "its model was taken away":
        shutil.rmtree(ledger.layout.published_model(1))
    assert "0001.json is not the dossier that was written" in rejected(ledger)
    with pytest.raises(VerificationFailed, match="is not the dossier that was written"):
        desk_report(ledger)
    assert _look("report", ledger).exit_code == 1


def test_dossiers_that_are_not_at_hand_are_told(ledger: Desk) -> None:
    shutil.rmtree(ledger.layout.private)
    assert verify_desk(ledger).dossiers == ()
    done = CliRunner().invoke(main, ["desk", "verify", str(ledger.layout.folder)])
    assert done.exit_code == 0
    assert "dossiers at hand: 0" in done.stdout


def test_a_statement_that_does_not_follow_from_its_dossier_fails(ledger: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the certificate's own checks: the digests alone would pass where the desk itself wrote what is false."""
    asked = []
    monkeypatch.setattr(
        importlib.import_module("expunge.desk.status"), "verify_statement", lambda *given: asked.append(given)
    )
    verify_desk(ledger)
    assert [(given[1].parent.name, given[2] is not None) for given in asked] == [("0001", True), ("0002", True)]
