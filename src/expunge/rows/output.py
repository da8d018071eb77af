"""Results on disk, whole or not at all: new files and folders, and the result of a deletion.

Everything is written under a temporary name, synced, and then given its own name in a way that fails where somebody
else was faster. What a killed command left of a result goes when the same result is written again.
"""

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
from typing import Any

from expunge.errors import FileError
from expunge.runtime.files import (
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

Fill = Callable[[Path], None]  # puts things into a new folder
LEFTOVER = re.compile(rf"{re.escape(TEMPORARY)}[0-9a-f]{{16}}-[0-9a-f]{{16}}")
MODEL, STATEMENT, SIGNED, DOSSIER = "model.safetensors", "statement.json", "statement.signed.json", "dossier.json"
DEPOSIT = "model.deposit"
PRIVATE_PART = "private"


def require_absent(path: Path, *, probe: bool = True) -> None:
    """Refuse to write over something, or where nothing can be written, before any work is done.

    With `probe` a file without a name is made there to see: of some folders permissions do not tell.
    """
    try:
        exists = path.exists() or path.is_symlink()
    except (OSError, ValueError) as error:
        raise FileError(
            f"{path} is not a usable path ({error})", "a new name is needed", "Choose another one."
        ) from error
    if exists:
        raise FileError(
            f"{path} exists already", "results are never written over", "Choose another name, or remove it first."
        )
    parent = path.absolute().parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        raise FileError(f"{parent} is not a folder", "results need one to be written in", "Choose another place.")
    if probe:
        try:
            tempfile.TemporaryFile(dir=parent).close()
        except OSError as error:
            raise FileError(
                f"{parent} cannot be written in ({error.strerror})",
                "write permission is needed",
                "Choose another place, or change its permissions.",
            ) from error


def write_file(path: Path, content: Content, *, mode: int = PUBLIC) -> None:
    """Write a new file, whole or not at all; by the mode `PRIVATE` nobody but its owner can read it."""
    write_together((path, content, mode))


def write_together(*files: tuple[Path, Content, int]) -> None:
    """Write new files, each given as (path, bytes, mode): all or, whatever fails or stops it, none.

    All are on disk under other names before any gets its own, in order: only a kill between these steps leaves the
    first without the others.
    """
    if files:
        _publish(*files)


def write_folder(
    path: Path,
    files: Mapping[str, Content],
    *,
    private: Mapping[str, Mapping[str, Content]] | None = None,
    mode: int = PUBLIC_FOLDER,
) -> None:
    """Write a new folder with these files, all or none.

    `private` are folders in it that only its owner can read; by the mode `PRIVATE_FOLDER` so is all of it.
    """

    def fill(folder: Path) -> None:
        for name, content in files.items():
            write_synced(folder / name, content, PRIVATE if mode == PRIVATE_FOLDER else PUBLIC)
        for name, contents in (private or {}).items():
            make_folder(folder / name, contents, private=True)

    build_folder(path, fill, mode=mode)


def build_folder(path: Path, fill: Fill, *, mode: int = PUBLIC_FOLDER) -> None:
    """Make a new folder that `fill` puts things into; of several processes at once for one name one gets it."""
    _publish((path, fill, mode))


def _publish(*results: tuple[Path, Content | Fill, int]) -> None:
    """Make each file or folder under a temporary name, then give all of them their own; leave nothing if that fails.

    What got a name is known by its inode: what somebody else put there meanwhile stays.
    """
    first = results[0][0]
    for path, _, _ in results:
        require_absent(path, probe=False)
    parents = {folder for path, _, _ in results for folder in path.absolute().parents}
    new_folders = sorted((folder for folder in parents if not folder.exists()), reverse=True)
    staged: dict[Path, Path] = {}
    named: dict[Path, int] = {}
    try:
        with contextlib.ExitStack() as locks:
            for path, content, mode in results:
                path.parent.mkdir(parents=True, exist_ok=True)
                sweep(path)
                staged[path] = temporary = path.with_name(f"{_prefix(path)}-{secrets.token_hex(8)}")
                if callable(content):
                    temporary.mkdir(mode=mode)
                    locks.enter_context(_locked(temporary))
                    content(temporary)
                    sync_folder(temporary)
                else:
                    write_synced(temporary, content, mode)
            for path, temporary in staged.items():
                named[path] = temporary.lstat().st_ino
                _give_name(temporary, path)
            for folder in {path.parent for path in staged}:
                sync_folder(folder)
    except BaseException as error:
        for temporary in staged.values():
            _remove(temporary)
        for path, inode in named.items():
            with contextlib.suppress(OSError):
                if path.lstat().st_ino == inode:
                    _remove(path)
        for folder in new_folders:
            with contextlib.suppress(OSError):
                folder.rmdir()
        if isinstance(error, FileExistsError) or (isinstance(error, OSError) and error.errno == errno.ENOTEMPTY):
            raise FileError(
                f"{first} exists already", "results are never written over", "Choose another name."
            ) from error
        if isinstance(error, OSError):
            raise FileError(
                f"{first} could not be written ({error.strerror or error})",
                "a folder with room and permission is needed",
                "Nothing was written; try another place.",
            ) from error
        raise


def _give_name(temporary: Path, path: Path) -> None:
    if temporary.is_dir():
        temporary.rename(path)
        return
    try:
        os.link(temporary, path)  # fails where somebody else was faster; a rename would replace
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        temporary.rename(path)  # a file system without hard links
    else:
        temporary.unlink()


def _prefix(path: Path) -> str:
    """How the temporary names of a result begin."""
    return f"{TEMPORARY}{hashlib.sha256(path.name.encode()).hexdigest()[:16]}"


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """A folder that nobody sweeps away meanwhile; when the process dies, the lock does too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a disk without locks is never swept
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def sweep(path: Path) -> None:
    """Remove what a killed command left of this result under temporary names, private files among it.

    What is being written stays, and whatever is not ours.
    """
    for leftover in path.parent.glob(f"{_prefix(path)}*"):
        with contextlib.suppress(OSError):
            handle = os.open(leftover, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if LEFTOVER.fullmatch(leftover.name) and leftover.lstat().st_uid == os.geteuid():
                    _remove(leftover)
            finally:
                os.close(handle)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


# What a deletion hands over ------------------------------------------------------------------------------------------


class Result:
    """What results of deletions share: they can be saved."""

    model: Any
    statement: Any
    certificate: Any
    deposit: Any

    def save(self, folder: str | Path, sign_key: Any = None) -> tuple[Path, ...]:
        """Write a new folder, whole or not at all; the paths of the files that may be handed out.

        What may not, the dossier and the deposit, is in `private/` in it. With `sign_key`, a private key as
        `expunge.certificate.sign.read_private_key` reads it, the statement is also written signed.
        """
        target = Path(folder)
        require_absent(target)
        public, private = result_files(self, sign_key)
        write_folder(target, public, private={PRIVATE_PART: private})
        return tuple(target / name for name in public)


def result_files(result: Any, key: Any = None) -> tuple[dict[str, bytes], dict[str, Content]]:
    """The files of a result by name: those that may be handed out, and those that may not."""
    public = {MODEL: result.model.to_bytes(), STATEMENT: result.statement.to_json().encode()}
    if key is not None:
        from expunge.certificate.sign import seal

        public[SIGNED] = seal(result.statement, key)
    private: dict[str, Content] = {DOSSIER: result.certificate.to_json().encode()}
    if getattr(result, "deposit", None) is not None:
        private[DEPOSIT] = result.deposit.to_parts()
    return public, private
