"""A command as a process of its own that gets a signal just after one of its calls that change a file."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

CALLS = ("fsync", "rename", "replace", "link", "unlink", "mkdir", "rmdir")
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
        for name in CALLS:
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
