"""Durable files: whole, with their mode, and nothing left where the disk fails."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from expunge.errors import FileError
from expunge.runtime import durable


@pytest.mark.parametrize("mode", [durable.PRIVATE, durable.PUBLIC])
def test_a_file_is_written_and_replaced_whole(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in (b"first", b"", b"second" * 100_000):
        durable.write_whole(path, content, mode)
        assert path.read_bytes() == content
        assert stat.S_IMODE(path.stat().st_mode) == mode
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


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
    durable.make_folder(tmp_path / "private", {"a": b"1", "b": b"2"}, private=True)
    assert stat.S_IMODE((tmp_path / "private").stat().st_mode) == 0o700
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "private").iterdir()} == {
        "a": 0o600,
        "b": 0o600,
    }
    durable.make_folder(tmp_path / "public", {"a": b"1"}, private=False)
    assert stat.S_IMODE((tmp_path / "public" / "a").stat().st_mode) == 0o644
    for name in ("private", "public", "not there"):
        durable.remove(tmp_path / name)
    assert not list(tmp_path.iterdir())
