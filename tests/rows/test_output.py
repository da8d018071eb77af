"""Results are written whole or not at all, whatever fails on the way."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import expunge
from expunge.deposit.make import make_deposit
from expunge.errors import FileError
from expunge.rows.output import (
    _locked,
    require_absent,
    write_file,
    write_folder,
    write_together,
)
from small_deposit import rows, source, trained

FILES = {"model.safetensors": b"weights", "certificate.json": b"{}"}


def full(*args: object, **options: object) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def failing_at(call: int, function: Callable[..., Any], error: BaseException) -> Callable[..., Any]:
    """The function, but its call-th call raises."""
    calls = 0

    def wrapper(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise error
        return function(*args, **options)

    return wrapper


def write(kind: str, folder: Path) -> None:
    if kind == "file":
        write_file(folder / "result", b"weights")
    elif kind == "pair":
        write_together((folder / "key", b"private", 0o600), (folder / "key.pub", b"public", 0o644))
    elif kind == "apart":
        first, second = folder / "new" / "model", folder / "other" / "kept" / "deposit"
        write_together((first, b"weights", 0o644), (second, b"private", 0o600))
    elif kind == "private":
        write_folder(folder / "result", FILES, mode=0o700)
    else:
        write_folder(folder / "result", FILES)


@pytest.mark.parametrize("kind", ["file", "folder", "private", "pair", "apart"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("call", range(1, 5))
@pytest.mark.parametrize("name", ["fsync", "rename", "link", "open", "mkdir"])
def test_all_or_nothing(
    name: str,
    call: int,
    error: BaseException,
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    snapshot: Callable[[Path], dict[str, str]],
) -> None:
    """Whichever call fails: an error and nothing, or no error and everything."""
    monkeypatch.setattr(os, name, failing_at(call, getattr(os, name), error))
    try:
        write(kind, tmp_path)
    except (FileError, KeyboardInterrupt):
        assert snapshot(tmp_path) == {}
    else:
        folder = {"result", "result/model.safetensors", "result/certificate.json"}
        apart = {"new", "new/model", "other", "other/kept", "other/kept/deposit"}
        expected = {"file": {"result"}, "pair": {"key", "key.pub"}, "apart": apart}.get(kind, folder)
        assert set(snapshot(tmp_path)) == expected


def test_a_private_folder_and_a_pair_have_their_modes(tmp_path: Path) -> None:
    for kind in ("private", "pair"):
        write(kind, tmp_path)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (*tmp_path.iterdir(), *tmp_path.glob("result/*"))}
    assert modes == {"result": 0o700, "key": 0o600, "key.pub": 0o644, **dict.fromkeys(FILES, 0o600)}


@pytest.mark.parametrize("taken", ["key", "key.pub"])
def test_a_pair_is_never_written_over(taken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what was there before, nor what somebody else made meanwhile."""
    (tmp_path / taken).write_bytes(b"mine")
    with pytest.raises(FileError, match="exists already"):
        write("pair", tmp_path)
    (tmp_path / taken).unlink()
    real = os.link

    def raced(source: Path, target: Path) -> None:
        if Path(target).name == taken:
            (tmp_path / taken).write_bytes(b"theirs")
        real(source, target)

    monkeypatch.setattr(os, "link", raced)
    with pytest.raises(FileError, match="exists already"):
        write("pair", tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {taken: b"theirs"}


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_nothing_is_written_over(kind: str, tmp_path: Path) -> None:
    for make in (lambda path: path.write_text("mine"), Path.mkdir, lambda path: path.symlink_to("nowhere")):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        make(folder / "result")
        with pytest.raises(FileError, match="exists already; results are never written over"):
            write(kind, folder)
        assert [path.name for path in folder.iterdir()] == ["result"]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_somebody_faster_is_not_written_over(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is taken between the check and the last step."""
    result = tmp_path / "result"
    original = {name: getattr(os, name) for name in ("rename", "link")}

    def take() -> None:
        if kind == "file":
            result.write_text("theirs")
        else:
            result.mkdir()
            (result / "theirs").write_text("theirs")

    for name, function in original.items():
        monkeypatch.setattr(os, name, lambda *args, function=function: (take(), function(*args)))
    with pytest.raises(FileError, match="result"):
        write(kind, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["result"]
    assert (result if kind == "file" else result / "theirs").read_text() == "theirs"


def killed(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write, but die before anything can be put right."""
    with monkeypatch.context() as patch:
        patch.setattr("expunge.rows.output._remove", lambda path: None)
        patch.setattr(os, "link" if kind == "file" else "rename", failing_at(1, os.rename, KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            write(kind, folder)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_a_killed_command_left_goes_with_the_next(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed(kind, tmp_path, monkeypatch)
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".expunge-")
    (tmp_path / ".expunge-other").write_text("of another result")
    write_file(tmp_path / "another", b"weights")
    assert left.exists(), "it may be somebody else's, just being written"
    write(kind, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".expunge-other", "another", "result"]


def test_what_somebody_is_writing_is_not_swept_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed("folder", tmp_path, monkeypatch)
    (left,) = tmp_path.iterdir()
    shutil.rmtree(left)
    left.mkdir()
    with _locked(left):
        (left / "model.safetensors").write_bytes(b"weights")
        write_folder(tmp_path / "result", FILES)
        assert (left / "model.safetensors").read_bytes() == b"weights"
    assert sorted(path.name for path in tmp_path.iterdir()) == [left.name, "result"]


@pytest.mark.parametrize("name", [".expunge-0123456789abcdef", "NAME-x", "NAME-0123456789abcdef0"])
def test_only_names_that_were_made_here_are_swept(name: str, tmp_path: Path) -> None:
    begun = f".expunge-{hashlib.sha256(b'result').hexdigest()[:16]}"
    mine = tmp_path / name.replace("NAME", begun)
    mine.mkdir()
    (mine / "notes").write_text("mine")
    write_folder(tmp_path / "result", FILES)
    assert (mine / "notes").read_text() == "mine"


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_somebody_else_put_there_meanwhile_stays(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though our own attempt fails, for whatever reason."""
    real = os.fsync

    def late(handle: int) -> None:
        (tmp_path / "result").write_text("theirs")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", late)
    with pytest.raises(FileError, match="No space left"):
        write(kind, tmp_path)
    monkeypatch.setattr(os, "fsync", real)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("result", "theirs")]


def test_a_place_that_is_no_folder_is_refused_beforehand(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path / "file" / "result", tmp_path / "file" / "a" / "b" / "result"):
        with pytest.raises(FileError, match="is not a folder"):
            require_absent(path)
    with pytest.raises(FileError):
        require_absent(tmp_path / ("n" * 300) / "result")


def permissions_bind() -> bool:
    """Whether a file without permissions is closed to this user (it is not to root)."""
    with tempfile.TemporaryDirectory() as folder:
        closed = Path(folder) / "closed"
        closed.write_text("")
        closed.chmod(0)
        return not os.access(closed, os.R_OK)


@pytest.mark.skipif(not permissions_bind(), reason="permission bits do not bind here")
def test_a_folder_without_permission_is_refused_beforehand(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    for mode in (0o500, 0o000):
        closed.chmod(mode)
        try:
            with pytest.raises(FileError, match=r"(?i)permission"):
                require_absent(closed / "result")
        finally:
            closed.chmod(0o700)


def test_a_folder_that_takes_no_files_is_found_before_the_work() -> None:
    with pytest.raises(FileError, match="/proc cannot be written in"):
        require_absent(Path("/proc/new/model.safetensors"))


# Results of a deletion ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def result() -> expunge.Unlearned:
    kept = make_deposit(trained(), source(), seed=3).deposit
    return expunge.unlearn(trained(), rows(1), epsilon=1.0, delta=1e-3, deposit=kept)


def test_a_saved_result_verifies_and_keeps_what_is_private_apart(result: expunge.Unlearned, tmp_path: Path) -> None:
    names = result.save(tmp_path / "result", sign_key=Ed25519PrivateKey.generate())
    assert [path.name for path in names] == ["model.safetensors", "statement.json", "statement.signed.json"]
    replace(result, deposit=None).save(str(tmp_path / "without"))
    assert [path.name for path in (tmp_path / "without/private").iterdir()] == ["dossier.json"]
    statement = expunge.read_statement(names[1])
    assert expunge.verify_statement(
        statement, names[0], expunge.read_certificate(tmp_path / "result/private/dossier.json")
    )
    assert (
        expunge.read_deposit(tmp_path / "result/private/model.deposit").numbers.n_rows == result.deposit.numbers.n_rows
    )
    assert stat.S_IMODE((tmp_path / "result/private").stat().st_mode) == 0o700
    with pytest.raises(FileError, match="exists already"):
        result.save(tmp_path / "result")
