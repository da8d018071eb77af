"""Errors of the operating system at any place of the code that touches a file, in process.

Every call of the functions below that comes from a line of the package is a place: the line, with the line that called
it. `places` runs something and lists them; `failing` makes the first call at one of them fail.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import expunge

PACKAGE = str(Path(expunge.__file__).parent)
CALLS = ("open", "fsync", "rename", "replace", "link", "unlink", "mkdir", "rmdir")
ERRORS = (errno.ENOSPC, errno.EIO, errno.EACCES, errno.EROFS, errno.EXDEV)
NOT_OURS = ("console.py", "launched.py")  # what is done to standard output when it is lost

Place = tuple[str, tuple[str, ...]]


def _place(call: str) -> Place | None:
    frame, lines = sys._getframe(2), []
    while frame is not None and len(lines) < 2:
        name = frame.f_code.co_filename
        if name.startswith(PACKAGE):
            lines.append(f"{Path(name).name}:{frame.f_lineno}")
        frame = frame.f_back  # type: ignore[assignment]
    if not lines or lines[0].startswith(NOT_OURS):
        return None
    return call, tuple(lines)


class _Raw(io.FileIO):
    """A file whose writes are calls, too."""

    seen: Callable[[str], None]

    def write(self, content: Any) -> int:
        self.seen("write")
        return super().write(content)


@contextlib.contextmanager
def watched(tell: Callable[[Place], object]) -> Iterator[None]:
    """Tell of every call; what `tell` raises, the call raises."""

    def seen(call: str) -> None:
        place = _place(call)
        if place is not None:
            tell(place)

    def wrapped(call: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def function(*given: Any, **options: Any) -> Any:
            place = _place(call)
            if place is not None:
                tell(place)
            return real(*given, **options)

        return function

    def opened(file: Any, mode: str = "r", *given: Any, **options: Any) -> Any:
        if any(letter in mode for letter in "wax+"):
            place = _place("io.open")
            if place is not None:
                tell(place)
        return real_open(file, mode, *given, **options)

    def writable(handle: int, mode: str = "r", *given: Any, **options: Any) -> Any:
        if mode != "wb":
            return real_fdopen(handle, mode, *given, **options)
        raw = _Raw(handle, "w")
        raw.seen = seen
        return io.BufferedWriter(raw)

    real_open, real_fdopen = io.open, os.fdopen
    with pytest.MonkeyPatch.context() as patch:
        for call in CALLS:
            patch.setattr(os, call, wrapped(call, getattr(os, call)))
        patch.setattr(io, "open", opened)
        patch.setattr(os, "fdopen", writable)
        yield


def places(work: Callable[[], object]) -> list[Place]:
    """Every distinct place that something touches files from, in the order of the first call."""
    found: dict[Place, None] = {}
    with watched(found.setdefault):
        work()
    return list(found)


@contextlib.contextmanager
def failing(where: Place, number: int) -> Iterator[list[Place]]:
    """The first call at this place fails with this error; hands over a list with the place once it did."""
    done: list[Place] = []

    def tell(place: Place) -> None:
        if place == where and not done:
            done.append(place)
            raise OSError(number, os.strerror(number))

    with watched(tell):
        yield done
