"""Writing results: whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from expunge.errors import FileError
from expunge.runtime.durable import PRIVATE, PUBLIC, make_folder, sync_folder, write_synced


def require_absent(path: Path) -> None:
    """Refuse to write over something, or where nothing can be written, before any work is done."""
    try:
        taken = path.exists() or path.is_symlink()
    except (OSError, ValueError) as error:
        raise FileError(
            f"{path} is not a usable path ({error})", "a new name is needed", "Choose another one."
        ) from error
    if taken:
        raise FileError(
            f"{path} exists already", "results are never written over", "Choose another name, or remove it first."
        )
    parent = path.absolute().parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        raise FileError(f"{parent} is not a folder", "results need one to be written in", "Choose another place.")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise FileError(
            f"{parent} cannot be written in",
            "write permission is needed",
            "Choose another place, or change its permissions.",
        )


def write_private(path: Path, content: bytes) -> None:
    """A new file that nobody but its owner can read."""
    write_file(path, content, mode=PRIVATE)


def write_file(path: Path, content: bytes, *, mode: int = PUBLIC) -> None:
    """A new file, whole or not at all."""

    def make(temporary: Path) -> None:
        write_synced(temporary, content, mode)
        _give_name(temporary, path)

    _publish(path, make)


def _give_name(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)  # fails where somebody else was faster; a rename would replace
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        temporary.rename(path)  # a file system without hard links
    else:
        temporary.unlink()


def write_folder(
    path: Path, files: Mapping[str, bytes], *, private: Mapping[str, Mapping[str, bytes]] | None = None
) -> None:
    """A new folder with these files, all of them or none; `private` are folders in it that only its owner reads."""

    def make(temporary: Path) -> None:
        temporary.mkdir()
        with _in_use(temporary):
            for name, content in files.items():
                write_synced(temporary / name, content, PUBLIC)
            for name, kept in (private or {}).items():
                make_folder(temporary / name, kept, private=True)
            sync_folder(temporary)
            temporary.rename(path)

    _publish(path, make)


def write_private_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """A new folder with these files, all of them or none, that nobody but its owner can read."""

    def make(temporary: Path) -> None:
        make_folder(temporary, files, private=True)
        temporary.rename(path)

    _publish(path, make)


def write_pair(first: tuple[Path, bytes, int], second: tuple[Path, bytes, int]) -> None:
    """Two new files in one folder, each as (path, bytes, mode): both or, whatever fails or stops it, neither.

    Both are on disk under other names before either gets its own, the first before the second: only a kill between
    these two steps leaves the first alone.
    """
    require_absent(second[0])

    def make(temporary: Path) -> None:
        beside, named = temporary.with_name(temporary.name + "-2"), []
        try:
            write_synced(beside, second[1], second[2])
            write_synced(temporary, first[1], first[2])
            for staged, (path, _, _) in ((temporary, first), (beside, second)):
                _give_name(staged, path)
                named.append(path)
        except BaseException:
            for path in (beside, *named):
                _remove(path)
            raise

    _publish(first[0], make, second[0])


def _publish(path: Path, make: Callable[[Path], None], *others: Path) -> None:
    """Let `make` build something under a temporary name and give it its own; leave nothing if it fails.

    `others` are what it makes beside `path`, where nothing was before either.
    """
    require_absent(path)
    made = [folder for folder in path.absolute().parents if not folder.exists()]
    begun = f".expunge-{hashlib.sha256(path.name.encode()).hexdigest()[:16]}-"
    temporary = path.with_name(f"{begun}{secrets.token_hex(8)}")
    before = _identity(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for left in path.parent.glob(f"{begun}*"):
            _sweep(left)
        make(temporary)
        sync_folder(path.parent)
    except BaseException as error:
        _remove(temporary)
        if isinstance(error, FileExistsError) or (isinstance(error, OSError) and error.errno == errno.ENOTEMPTY):
            raise FileError(
                f"{path} exists already", "results are never written over", "Choose another name."
            ) from error
        for place in (path, *others) if before is None else ():
            _remove(place)
        for folder in made:
            with contextlib.suppress(OSError):
                folder.rmdir()
        if isinstance(error, OSError):
            raise _cannot_write(path, error) from error
        raise


@contextlib.contextmanager
def _in_use(folder: Path) -> Iterator[None]:
    """Nobody sweeps it away meanwhile; when the process dies, the lock does too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a disk without locks is never swept
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def _sweep(left: Path) -> None:
    """Remove what a killed command left of this very result, private files among it; not what is being written."""
    with contextlib.suppress(OSError):
        handle = os.open(left, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(left)
        finally:
            os.close(handle)


def _identity(path: Path) -> int | None:
    return path.lstat().st_ino if path.exists() or path.is_symlink() else None


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _cannot_write(path: Path, error: OSError) -> FileError:
    return FileError(
        f"{path} could not be written ({error.strerror or error})",
        "a folder with room and permission is needed",
        "Nothing was written; try another place.",
    )
