"""Files: paths that are to be read, and writing that survives a crash."""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from io import BufferedReader
from pathlib import Path

from expunge.errors import FileError

# Paths that are to be read -----------------------------------------------------------------------------------------

LIKELY = ("statement.json", "model.safetensors")  # what is in a result


def readable(path: Path) -> Path:
    """The path, if it is a file that can be read."""
    try:
        exists = path.exists()
    except (OSError, ValueError) as error:
        raise FileError(f"{path} is not a usable path ({error})", "a file is needed", "Check the path.") from error
    if not exists:
        raise FileError(f"{path} does not exist", "a file is needed", _nearest(path))
    if path.is_dir():
        inside = next((each for name in LIKELY if (each := path / name).is_file()), None)
        example = "" if inside is None else f", for example {inside}"
        raise FileError(f"{path} is a folder", "a file is needed", f"Name the file inside it{example}.")
    if not path.is_file():
        raise FileError(
            f"{path} is {_kind(path.stat().st_mode)}", "a plain file is needed", "Save what it gives first."
        )
    if not os.access(path, os.R_OK):
        raise FileError(
            f"{path} cannot be read", "read permission is needed", "Change its permissions, or run as its owner."
        )
    if path.stat().st_size == 0:
        raise FileError(f"{path} is empty", "a file with data is needed", "Write it again.")
    return path


@contextlib.contextmanager
def opened_plain(path: Path, limit: int, what: str) -> Iterator[BufferedReader]:
    """A file of somebody else's folder, to be read: no link, pipe or device, which might lead out of it or never end.

    One that has more than `limit` bytes is refused before any of them is read.
    """
    try:
        mode = path.lstat().st_mode
        if not stat.S_ISREG(mode):
            raise FileError(f"{path} is {_kind(mode)}", f"{what} is a plain file", "Do not rely on it.")
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        gone = isinstance(error, OSError) and error.errno == errno.ENOENT
        why = "does not exist" if gone else f"cannot be read ({getattr(error, 'strerror', None) or error})"
        raise FileError(
            f"{path} {why}",
            f"{what} is needed",
            "Check path and permissions; if it is another user's, run this as that user.",
        ) from error
    with os.fdopen(handle, "rb") as stream:
        found = os.fstat(stream.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise FileError(f"{path} is {_kind(found.st_mode)}", f"{what} is a plain file", "Do not rely on it.")
        if found.st_size > limit:
            raise FileError(
                f"{path} has {found.st_size:,} bytes", f"{what} has at most {limit:,}", "Do not rely on it."
            )
        yield stream


def plain_bytes(path: Path, limit: int, what: str) -> bytes:
    """All bytes of a file in somebody else's folder (see `opened_plain`)."""
    with opened_plain(path, limit, what) as stream:
        return stream.read(limit)


def _kind(mode: int) -> str:
    """What a path is that is no plain file."""
    kinds = {stat.S_ISLNK: "a link", stat.S_ISDIR: "a folder", stat.S_ISFIFO: "a pipe", stat.S_ISSOCK: "a socket"}
    return next((name for of, name in kinds.items() if of(mode)), "a device")


def _nearest(path: Path) -> str:
    """What to do about a file that is not there: the name that is written most alike, where there is one."""
    if path.parts[:1] in (("http:",), ("https:",)):
        return "Nothing is fetched: download it, and name the file."
    try:
        close = nearest(path.name, [each.name for each in path.parent.iterdir()])
    except OSError:
        close = None
    return f"Check the path; did you mean {path.parent / close}?" if close else "Check the path."


def nearest(name: str, names: Sequence[str]) -> str | None:
    """The name that is written most alike, if any is.

    >>> nearest("defualt", ["age", "default"])
    'default'
    """
    folded = {each.casefold(): each for each in names}
    close = difflib.get_close_matches(name.casefold(), folded, 1, 0.6)
    return folded[close[0]] if close else None


# Files that survive a crash: temporary file, fsync, rename, fsync of the folder --------------------------------------
#
# After `write_whole` returns, the file is on disk under its name with all of its bytes; if the process or the machine
# dies before, either the old file is there or none. An error of `fsync` is never retried: what it left unwritten is
# unknown.

PRIVATE, PUBLIC = 0o600, 0o644
PRIVATE_FOLDER, PUBLIC_FOLDER = 0o700, 0o755
TEMPORARY = ".expunge-"
Content = bytes | Sequence[bytes | memoryview]  # of a file: whole, or in parts, one after the other


def write_whole(path: Path, content: bytes, mode: int = PRIVATE) -> None:
    """Write or replace a file, whole, on disk, with this mode."""
    temporary = path.with_name(f"{TEMPORARY}{secrets.token_hex(8)}")
    try:
        write_synced(temporary, content, mode)
        temporary.rename(path)
        sync_folder(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise cannot_write(path, error) from error
        raise


def write_synced(path: Path, content: Content, mode: int) -> None:
    """A new file with these bytes, on disk; its name is not until the folder is synced."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "wb") as stream:
        for part in [content] if isinstance(content, bytes) else content:
            stream.write(part)
        stream.flush()
        os.fsync(stream.fileno())


def make_folder(path: Path, files: Mapping[str, Content], *, private: bool) -> None:
    """A new folder with these files, all synced, the folder itself too."""
    path.mkdir(mode=PRIVATE_FOLDER if private else PUBLIC_FOLDER)
    for name, content in files.items():
        write_synced(path / name, content, PRIVATE if private else PUBLIC)
    sync_folder(path)


def move(source: Path, target: Path) -> None:
    """Give a file or folder its final name, durably."""
    source.rename(target)
    sync_folder(target.parent)
    sync_folder(source.parent)


def remove(path: Path) -> None:
    """Remove a file or folder, durably; nothing happens if it is not there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif path.exists() or path.is_symlink():
        path.unlink()
    else:
        return
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def cannot_write(path: Path, error: OSError) -> FileError:
    """The error for a write that did not reach the disk."""
    found = f"{path} could not be written ({error.strerror or error})"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return FileError(
            found,
            "permission to write there is needed",
            "Nothing that was acknowledged is lost; run this as the owner, on a disk that is mounted for writing.",
        )
    return FileError(
        found,
        "a disk with room that works is needed",
        "Nothing that was acknowledged is lost; make room, then run the command again.",
    )
