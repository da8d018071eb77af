"""A desk that was put back: found out by what is in it, and by heads that were kept outside."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from desk_use import ask
from expunge.certificate.statement import committed_head, head_key
from expunge.cli import main
from expunge.desk import Desk, history, open_desk, run, verify_desk
from expunge.desk.layout import HEAD, STATEMENT
from expunge.desk.ledger import Head, PublishedHead, saved_head
from expunge.errors import FileError, VerificationFailed
from published_files import published, require_same_but_weights

Rows = tuple[np.ndarray, np.ndarray]
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


@pytest.mark.parametrize("made", ["a folder", "an empty folder", "a file", "a link to nowhere", "a dossier"])
def test_what_is_there_already_is_refused_before_anything_is_started(
    made: str, desk: Desk, source: Rows, snapshot: Snapshot
) -> None:
    place = desk.layout.published_model(1)
    if made == "a dossier":
        desk.layout.dossier_of(1).write_text("{}")
    elif made == "a file":
        place.write_text("a file")
    elif made == "a link to nowhere":
        place.symlink_to("nowhere")
    else:
        place.mkdir()
        if made == "a folder":
            (place / "notes.txt").write_text("made by hand")
    ask(desk, source, 0, 1)
    before, entries = snapshot(desk.layout.folder), len(history(desk))
    with pytest.raises(FileError, match="is there already, and the ledger has no model 1"):
        run(desk)
    after = snapshot(desk.layout.folder)
    assert len(history(desk)) == entries, "nothing was started"
    assert [name for name in before if not name.startswith("ledger") and after.get(name) != before[name]] == []
    assert desk.layout.rows_of(1).is_file(), "the rows that are to be forgotten are still there"
    (desk.layout.dossier_of(1) if made == "a dossier" else place).rename(desk.layout.folder / "moved away")
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
    with pytest.raises(FileError, match="not what was prepared"):
        run(desk)
    assert (desk.layout.published_model(1) / "notes.txt").is_file()
    shutil.rmtree(desk.layout.published_model(1))
    run(desk)
    assert (desk.layout.published_model(1) / HEAD).is_file()
    verify_desk(desk)


def test_the_head_lies_beside_every_statement_and_knows_of_it(desk: Desk, source: Rows) -> None:
    for number in range(2):
        ask(desk, source, number, number + 1)
        run(desk)
    heads = [saved_head(desk.layout.published_model(number) / HEAD) for number in (1, 2)]
    entries = history(desk)
    with desk.reading() as ledger:
        sizes = {model.number: model.published for model in ledger.models()}
        assert heads == [ledger.published_head(number) for number in (1, 2)]
    assert [entries[size - 1].kind for size in sizes.values()] == ["published", "published"]
    verify_desk(desk, heads)
    assert isinstance(heads[1], PublishedHead)
    forged = PublishedHead(1, heads[1].commitment)
    with pytest.raises(VerificationFailed, match="up to model 1 are not those of a saved head"):
        verify_desk(desk, [forged])
    with pytest.raises(VerificationFailed, match="up to model 1 are not those of a saved head"):
        run(desk, heads=[forged])


def test_a_head_that_a_kill_prevented_is_written_by_the_next_command(ledger: Desk, source: Rows) -> None:
    (ledger.layout.published_model(2) / HEAD).unlink()
    (ledger.layout.published_model(2) / ".expunge-left").write_text("half")
    ask(ledger, source, 30, 31)
    assert isinstance(saved_head(ledger.layout.published_model(2) / HEAD), PublishedHead)
    assert not list(ledger.layout.published_model(2).glob(".expunge-*"))
    verify_desk(ledger)


def test_an_older_ledger_is_refused_by_a_head_that_was_kept(desk: Desk, source: Rows, tmp_path: Path) -> None:
    ask(desk, source, 0, 1)
    kept = again(desk, tmp_path)
    run(desk)
    head = tmp_path / "saved-head.json"
    shutil.copy(desk.layout.published_model(1) / HEAD, head)
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
        patch.setattr("expunge.desk.publish.move", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
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


@pytest.mark.parametrize("command", ["status", "history", "head"])
def test_nor_is_it_looked_at(command: str, desk: Desk, source: Rows, tmp_path: Path) -> None:
    """A head that is saved of it, or a request that it does not know, would be taken for the desk's own."""
    kept = again(desk, tmp_path)
    ask(desk, source, 0, 1)
    put_back(desk, kept, *LEDGER[:3])
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


@pytest.mark.parametrize("name", ["0007", "backup", "1"])
def test_a_folder_that_no_entry_speaks_of_fails(name: str, ledger: Desk) -> None:
    verify_desk(ledger)
    (ledger.layout.published / name).mkdir()
    with pytest.raises(VerificationFailed, match="does not know"):
        verify_desk(ledger)


@pytest.mark.parametrize(
    "name",
    ["published/index.html", "published/0001/README.md", "published/0002/.expunge-x", "published/.x",
     "private/dossiers/0009.json"],
)  # fmt: skip
def test_a_file_that_no_entry_speaks_of_fails(name: str, ledger: Desk) -> None:
    """What is handed out is what the ledger has the digests of, and nothing that somebody put beside it."""
    (ledger.layout.folder / name).write_text("a page")
    with pytest.raises(VerificationFailed, match=f"{name}: unexpected, the ledger does not know of it"):
        verify_desk(ledger)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b'{"size": 3, "hash": "00"}', b"\xff", b'{"size": 3, "hash": "%s"}' % (b"00" * 32)]
)
def test_a_damaged_head_fails(content: bytes, ledger: Desk) -> None:
    (ledger.layout.published_model(1) / HEAD).write_bytes(content)
    with pytest.raises(VerificationFailed):
        verify_desk(ledger)


# Another file system ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("killed", [False, True])
def test_published_models_may_lie_on_another_file_system(killed: bool, desk: Desk, source: Rows) -> None:
    """Also where it is found out only once everything is prepared, and where a kill comes in between."""
    real, target = Path.rename, desk.layout.published_model(1)

    def rename(self: Path, to: Path) -> Path:
        if Path(to) == target and self.parent != target.parent:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        return real(self, to)

    ask(desk, source, 0, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "rename", rename)
        if killed:  # after the copy has its name, before what was staged is removed
            with pytest.MonkeyPatch.context() as inner:
                inner.setattr("expunge.runtime.durable.remove", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
                with pytest.raises(KeyboardInterrupt):
                    run(desk)
            assert target.is_dir()
        run(desk)
    assert sorted(path.name for path in target.iterdir()) == [
        HEAD,
        "model.safetensors",
        "report.html",
        "statement.json",
    ]
    assert not desk.layout.staging.exists()
    verify_desk(desk)


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
