"""Paths that are to be read."""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

from expunge.errors import FileError

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
    """All of such a file."""
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
        names = [each.name for each in path.parent.iterdir()]
    except OSError:
        return "Check the path."
    close = difflib.get_close_matches(path.name, names, 1, 0.7)
    return f"Check the path; did you mean {path.parent / close[0]}?" if close else "Check the path."
