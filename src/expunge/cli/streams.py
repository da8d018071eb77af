"""Standard output and standard error, which may be full, closed or gone like any other file.

What cannot be printed ends a command with exit status 2 and one line on standard error, never with a traceback, and
never with status 1, which says that a certificate failed. A reader that has seen enough (`| head`) gets no such line.
What cannot be said on standard error is not said.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import sys
import threading
import unicodedata
from collections.abc import Iterator
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from expunge.errors import FileError
from expunge.runtime.launched import launched_as_group

LOST = 2  # exit status where the output was lost
STOPPED, TERMINATED = 130, 143
STEERING = ("Cc", "Cf", "Cs", "Zl", "Zp")  # categories: controls, format, halves of a character, breaks


class OutputLost(Exception):  # noqa: N818 - not an error of Expunge's: nobody is there to be told
    """Standard output could not be written."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error.strerror or str(error))
        self.reader_gone = error.errno == errno.EPIPE


def shown(text: str) -> str:
    r"""Text as a terminal may have it: what would steer it, or show nothing, is written out.

    Names of columns, labels, files and requests are somebody else's, and all that is printed goes through here: an
    escape sequence could rewrite what stands above it, a line break forge a line, a mark of direction turn words.

    >>> print(shown("a\x1b[2Kb\n"))
    a\x1b[2Kb\n
    """
    return "".join(
        char.encode("unicode_escape", "surrogatepass").decode() if unicodedata.category(char) in STEERING else char
        for char in text
    )


class Plain(Console):
    """A console to which every text is text: no markup in it counts, and nothing in it reaches the terminal as is."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, soft_wrap=True, markup=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """Where rich makes something of a text, in a cell or a title of a table, too."""
        return super().render_str(shown(text), **options | {"markup": False, "emoji": False})

    def lines(self, text: str) -> None:
        """Print a text of several lines."""
        for line in text.split("\n"):
            self.print(line)


class Screen(Plain):
    """Standard output. A cell of a table that is too wide goes on below: cut off, chi2:0.01 would read as chi2:0.1."""

    def print(self, *parts: Any, **options: Any) -> None:
        for table in parts:
            for column in table.columns if isinstance(table, Table) else ():
                column.overflow = "fold"
        try:
            super().print(*parts, **options)
        except OSError as error:
            raise OutputLost(error) from error

    def on_broken_pipe(self) -> None:
        """rich would end with status 1."""
        raise OutputLost(BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)))


class Aside(Plain):
    """Standard error: progress and remarks, which are never worth stopping for."""

    def print(self, *parts: Any, **options: Any) -> None:
        with contextlib.suppress(OSError):
            super().print(*parts, **options)

    def on_broken_pipe(self) -> None:
        """Nobody listens, and the work goes on."""


def say_json(content: Any) -> None:
    """One JSON object on standard output."""
    try:
        text = json.dumps(content, allow_nan=False)
    except ValueError as error:
        raise FileError(
            "a number that is not finite", "JSON has none", "Look at the text output; a file given holds odd numbers."
        ) from error
    try:
        click.echo(text)
    except OSError as error:
        raise OutputLost(error) from error


def say_aside(text: str) -> None:
    """A line on standard error."""
    with contextlib.suppress(OSError):
        click.echo(shown(text), err=True)


def lose_output(lost: OutputLost) -> NoReturn:
    """End the command: say so where somebody may still read it, and let Python's own last flush go nowhere."""
    if not lost.reader_gone:
        say_aside(
            f"error: standard output could not be written ({lost}); room for it is needed. Files that the command "
            "writes may be there already; look before it is run again."
        )
    silence(sys.stdout)
    sys.exit(LOST)


def silence(stream: Any) -> None:
    """Lead a broken stream to nowhere, so that what is still in its buffer raises nothing when Python ends."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


class Terminated(KeyboardInterrupt):
    """SIGTERM: like Ctrl-C, so that whatever is half-written is removed on the way out."""


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM as an exception while a command runs.

    Nothing is changed in a thread, which can have no handlers, nor in a process of a group: one that waits for the
    others would never come to hear of it.
    """

    def stop(_signal: int, _frame: object) -> NoReturn:
        raise Terminated

    if threading.current_thread() is not threading.main_thread() or launched_as_group():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def end_stopped(stopped: KeyboardInterrupt, what: str) -> NoReturn:
    """End a command that was stopped, and say what is left of its work."""
    say_aside(f"stopped; {what}")
    sys.exit(TERMINATED if isinstance(stopped, Terminated) else STOPPED)
