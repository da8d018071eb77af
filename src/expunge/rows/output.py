"""Writing results: whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from expunge.errors import FileError
from expunge.runtime.durable import (
    PRIVATE,
    PRIVATE_FOLDER,
    PUBLIC,
    PUBLIC_FOLDER,
    TEMPORARY,
    Content,
    make_folder,
    sync_folder,
    write_synced,
)

Named = dict[Path, int]  # what got its name, and the inode that it is
SWEPT = re.compile(rf"{re.escape(TEMPORARY)}[0-9a-f]{{16}}-[0-9a-f]{{16}}(-2)?")


def require_absent(path: Path, *, probe: bool = True) -> None:
    """Refuse to write over something, or where nothing can be written, before any work is done.

    With `probe` a file without a name is made there to see: of some folders permissions do not tell.
    """
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
    if not os.access(parent, os.W_OK | os.X_OK) or (probe and not _takes_files(parent)):
        raise FileError(
            f"{parent} cannot be written in",
            "write permission is needed",
            "Choose another place, or change its permissions.",
        )


def _takes_files(folder: Path) -> bool:
    """Whether a file can be made there."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)


def write_private(path: Path, content: Content) -> None:
    """A new file that nobody but its owner can read."""
    write_file(path, content, mode=PRIVATE)


def write_file(path: Path, content: Content, *, mode: int = PUBLIC) -> None:
    """A new file, whole or not at all."""

    def make(temporary: Path, named: Named) -> None:
        write_synced(temporary, content, mode)
        _give_name(temporary, path, named)

    _publish(path, make)


def _give_name(temporary: Path, path: Path, named: Named) -> None:
    named[path] = temporary.lstat().st_ino
    try:
        os.link(temporary, path)  # fails where somebody else was faster; a rename would replace
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        temporary.rename(path)  # a file system without hard links
    else:
        temporary.unlink()


def write_folder(
    path: Path, files: Mapping[str, Content], *, private: Mapping[str, Mapping[str, Content]] | None = None
) -> None:
    """A new folder with these files, all of them or none; `private` are folders in it that only its owner reads."""

    def fill(folder: Path) -> None:
        for name, content in files.items():
            write_synced(folder / name, content, PUBLIC)
        for name, kept in (private or {}).items():
            make_folder(folder / name, kept, private=True)

    build_folder(path, fill)


def write_private_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """A new folder with these files, all of them or none, that nobody but its owner can read."""

    def fill(folder: Path) -> None:
        for name, content in files.items():
            write_synced(folder / name, content, PRIVATE)

    build_folder(path, fill, mode=PRIVATE_FOLDER)


def build_folder(path: Path, fill: Callable[[Path], None], *, mode: int = PUBLIC_FOLDER) -> None:
    """A new folder that `fill` puts things into, whole or not at all; of several at once for one name one gets it."""

    def make(temporary: Path, named: Named) -> None:
        with _in_use(temporary, mode):
            fill(temporary)
            sync_folder(temporary)
            named[path] = temporary.lstat().st_ino
            temporary.rename(path)

    _publish(path, make)


def write_pair(first: tuple[Path, Content, int], second: tuple[Path, Content, int]) -> None:
    """Two new files, each as (path, bytes, mode): both or, whatever fails or stops it, neither.

    Both are on disk under other names before either gets its own, the first before the second: only a kill between
    these two steps leaves the first alone.
    """
    require_absent(second[0], probe=False)

    def make(temporary: Path, named: Named) -> None:
        beside = second[0].with_name(temporary.name + "-2")
        try:
            _room_for(beside)
            write_synced(beside, second[1], second[2])
            write_synced(temporary, first[1], first[2])
            for staged, (path, _, _) in ((temporary, first), (beside, second)):
                _give_name(staged, path, named)
            sync_folder(beside.parent)
        except BaseException:
            _remove(beside)
            _remove_ours(named)
            raise

    _publish(first[0], make, second[0])


def _publish(path: Path, make: Callable[[Path, Named], None], *others: Path) -> None:
    """Let `make` build something under a temporary name and give it its own; leave nothing of it if it fails.

    `others` are made with it. What got a name is known by its inode: what somebody else put there meanwhile stays.
    """
    require_absent(path, probe=False)
    made = [folder for each in (path, *others) for folder in each.absolute().parents if not folder.exists()]
    temporary = path.with_name(f"{_begun(path)}-{secrets.token_hex(8)}")
    named: Named = {}
    try:
        _room_for(temporary)
        make(temporary, named)
        sync_folder(path.parent)
    except BaseException as error:
        _remove(temporary)
        _remove_ours(named)
        for folder in made:
            with contextlib.suppress(OSError):
                folder.rmdir()
        if isinstance(error, FileExistsError) or (isinstance(error, OSError) and error.errno == errno.ENOTEMPTY):
            raise FileError(
                f"{path} exists already", "results are never written over", "Choose another name."
            ) from error
        if isinstance(error, OSError):
            raise _cannot_write(path, error) from error
        raise


def sweep(path: Path) -> None:
    """Remove what a killed command left of this result under other names, private files among it."""
    for left in path.parent.glob(f"{_begun(path)}*"):
        _sweep(left)


def _begun(path: Path) -> str:
    """How the temporary names of a result begin."""
    return f"{TEMPORARY}{hashlib.sha256(path.name.encode()).hexdigest()[:16]}"


def _room_for(temporary: Path) -> None:
    """The folder for it, without what a killed command left there of the same result."""
    temporary.parent.mkdir(parents=True, exist_ok=True)
    for left in temporary.parent.glob(f"{temporary.name[: len(TEMPORARY) + 17]}*"):
        _sweep(left)


@contextlib.contextmanager
def _in_use(folder: Path, mode: int) -> Iterator[None]:
    """A new folder that nobody sweeps away meanwhile; when the process dies, the lock does too."""
    folder.mkdir(mode=mode)
    handle = _locked(folder)
    while handle is None:  # it was swept away before it was locked
        folder.mkdir(mode=mode)
        handle = _locked(folder)
    try:
        yield
    finally:
        os.close(handle)


def _locked(folder: Path) -> int | None:
    """A handle that holds the folder's lock; None if it is gone by then."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return None
    with contextlib.suppress(OSError):  # a disk without locks is never swept
        fcntl.flock(handle, fcntl.LOCK_EX)  # somebody who looks whether to sweep has it for a moment
    if folder.exists():
        return handle
    os.close(handle)
    return None


def _sweep(left: Path) -> None:
    """Remove what a killed command left of this very result, private files among it.

    Not what is being written, nor anything that is not ours.
    """
    with contextlib.suppress(OSError):
        handle = os.open(left, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if SWEPT.fullmatch(left.name) and left.lstat().st_uid == os.geteuid():
                _remove(left)
        finally:
            os.close(handle)


def _remove_ours(named: Named) -> None:
    """Take back what got its name from us."""
    for path, inode in named.items():
        with contextlib.suppress(OSError):
            if path.lstat().st_ino == inode:
                _remove(path)


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
