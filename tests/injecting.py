"""Errors of the operating system at any place of the code that touches a file; signals after any call that changes one.

Every call of the functions below that comes from a line of the package is a place: the line, with the line that called
it. `places` runs something and lists them; `failing` makes the first call at one of them fail.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import expunge

PACKAGE = str(Path(expunge.__file__).parent)
CALLS = ("open", "fsync", "rename", "replace", "link", "unlink", "mkdir", "rmdir")
ERRORS = (errno.ENOSPC, errno.EIO, errno.EACCES, errno.EROFS, errno.EXDEV)
NOT_OURS = ("console.py",)  # what is done to standard output when it is lost

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


# A command as a process of its own that gets a signal just after one of its calls that change a file.

CHANGING = ("fsync", "rename", "replace", "link", "unlink", "mkdir", "rmdir")
BROKEN = 99  # exit status of a command that ended in a way that no command should


def stopped(command: click.Command, line: str, at: int, number: int, told: Path) -> tuple[int, bool]:
    """The exit status of a command that gets a signal after its at-th such call, and whether there were so many.

    `told` is a file for what it says on standard error.
    """
    sys.stdout.flush()
    reached, reaching = os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(command, line, told, _after(at, number, reaching))
    os.close(reaching)
    _, ended = os.waitpid(pid, 0)
    with os.fdopen(reached, "rb") as stream:
        return os.waitstatus_to_exitcode(ended), bool(stream.read())


def _after(at: int, number: int, reaching: int) -> Callable[[], None]:
    calls = 0

    def called() -> None:
        nonlocal calls
        calls += 1
        if calls == at:
            os.write(reaching, b"x")
            os.kill(os.getpid(), number)

    return called


def _child(command: click.Command, line: str, told: Path, called: Callable[[], None]) -> None:
    """Never returns: what the caller has to tidy up at its own end is none of the child's business."""
    status: Any = BROKEN
    try:
        sink = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        sys.stdout, sys.stderr = (open(handle, "w", closefd=False) for handle in (1, 2))  # noqa: SIM115
        for name in CHANGING:
            setattr(os, name, _wrapped(getattr(os, name), called))
        command(line.split())
        status = 0
    except SystemExit as left:
        status = left.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else BROKEN)


def _wrapped(real: Callable[..., Any], called: Callable[[], None]) -> Callable[..., Any]:
    def function(*given: Any, **options: Any) -> Any:
        done = real(*given, **options)
        called()
        return done

    return function
