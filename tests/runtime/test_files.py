"""Durable files: whole, with their mode, and nothing left where the disk fails."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from expunge.errors import FileError
from expunge.runtime import files as durable
from expunge.runtime.files import PRIVATE, readable, write_synced


@pytest.mark.parametrize("mode", [durable.PRIVATE, durable.PUBLIC])
def test_a_file_is_written_and_replaced_whole(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in (b"first", b"", b"second" * 100_000):
        durable.write_whole(path, content, mode)
        assert path.read_bytes() == content
        assert stat.S_IMODE(path.stat().st_mode) == mode
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    write_synced(tmp_path / "parts", [b"ab", memoryview(b"cde"), b"", b"f"], PRIVATE)
    assert (tmp_path / "parts").read_bytes() == b"abcdef"


def test_the_order_is_write_sync_rename_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    real_sync, real_rename = os.fsync, Path.rename

    def sync(handle: int) -> None:
        seen.append("sync folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "sync file")
        real_sync(handle)

    def rename(self: Path, target: Path) -> Path:
        seen.append("rename")
        return real_rename(self, target)

    monkeypatch.setattr(durable.os, "fsync", sync)
    monkeypatch.setattr(Path, "rename", rename)
    durable.write_whole(tmp_path / "file", b"x")
    assert seen == ["sync file", "rename", "sync folder"]
    seen.clear()
    (tmp_path / "there").mkdir()
    durable.move(tmp_path / "file", tmp_path / "there" / "file")
    assert seen == ["rename", "sync folder", "sync folder"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("call", ["fsync", "open"])
def test_a_failing_disk_leaves_the_old_file_and_is_not_tried_twice(
    call: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    durable.write_whole(path, b"old")
    calls = []

    def fail(*arguments: object, **options: object) -> None:
        calls.append(arguments)
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(durable.os, call, fail)
        with pytest.raises(FileError, match=os.strerror(number)):
            durable.write_whole(path, b"new")
    assert len(calls) == 1
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_folders_and_removal(tmp_path: Path) -> None:
    for name, private, modes in (("private", True, (0o700, 0o600)), ("public", False, (0o755, 0o644))):
        durable.make_folder(tmp_path / name, {"a": b"1", "b": b"2"}, private=private)
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == modes[0]
        assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / name).iterdir()} == {modes[1]}
    for name in ("private", "public", "not there"):
        durable.remove(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_what_can_be_read_and_each_way_that_it_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "credit.csv").write_text("x")
    (tmp_path / "link").symlink_to("credit.csv")
    (tmp_path / "empty").touch()
    (tmp_path / "nowhere").symlink_to("missing")
    for name in ("credit.csv", "link"):
        assert readable(tmp_path / name) == tmp_path / name
    cases = {
        "nothing-like-it": r"does not exist; a file is needed\. Check the path\.$",
        "credits.csv": r"did you mean .*/credit\.csv\?",
        "not a folder/credit.csv": r"Check the path\.$",
        "nowhere": "does not exist",
        "empty": "is empty",
        "a\0b": "does not exist|not a usable path",
        "x" * 256: "not a usable path",
        ".": "is a folder",
    }
    for name, words in cases.items():
        with pytest.raises(FileError, match=words):
            readable(tmp_path / name)
    monkeypatch.setattr("expunge.runtime.files.os.access", lambda path, mode: False)
    with pytest.raises(FileError, match="read permission"):
        readable(tmp_path / "credit.csv")
