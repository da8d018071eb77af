"""What every command says and how it ends: text, JSON, progress, errors, signals, and streams that are full or gone.

What cannot be printed ends a command with exit status 2 and one line on standard error, never with a traceback, and
never with status 1, which says that a certificate failed. A reader that has seen enough (`| head`) gets no such line.
What cannot be said on standard error is not said.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import signal
import sys
import threading
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, Task, TextColumn
from rich.table import Table
from rich.text import Text

from expunge.errors import ExpungeError, FileError, Refused, VerificationFailed
from expunge.runtime.group import launched_as_group
from expunge.runtime.memory import out_of_memory

REFUSED = Refused.exit_status
LOST = 2  # exit status where the output was lost
STOPPED, TERMINATED = 130, 143
STEERING = ("Cc", "Cf", "Cs", "Zl", "Zp")  # categories: controls, format, halves of a character, breaks
LINE_SECONDS = 10.0  # between two lines on one stage, where nobody watches
BAR_SECONDS = 0.1


def escape_text(text: str) -> str:
    r"""Text as a terminal may have it: what would steer it, or show nothing, is written out.

    Names of columns, labels, files and requests are somebody else's, and all that is printed goes through here: an
    escape sequence could rewrite what stands above it, a line break forge a line, a mark of direction turn words.

    >>> print(escape_text("a\x1b[2Kb\n"))
    a\x1b[2Kb\n
    """
    return "".join(
        char.encode("unicode_escape", "surrogatepass").decode() if unicodedata.category(char) in STEERING else char
        for char in text
    )


@contextlib.contextmanager
def guard_output() -> Iterator[None]:
    """End the command where standard output fails, which is told from what goes wrong with files.

    That is said where somebody may still read it, and Python's own last flush goes nowhere.
    """
    try:
        yield
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            say_aside(
                f"error: standard output could not be written ({error.strerror or error}); room for it is needed. "
                "Files that the command writes may be there already; look before it is run again."
            )
        silence(sys.stdout)
        sys.exit(LOST)


class Plain(Console):
    """A console to which every text is text: no markup in it counts, and nothing in it reaches the terminal as is."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, soft_wrap=True, markup=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """Where rich makes something of a text, in a cell or a title of a table, too."""
        return super().render_str(escape_text(text), **options | {"markup": False, "emoji": False})


class Screen(Plain):
    """Standard output, which says nothing while `quiet`: with --json.

    A cell of a table that is too wide goes on below: cut off, chi2:0.01 would read as chi2:0.1.
    """

    def print(self, *parts: Any, **options: Any) -> None:
        for table in parts:
            for column in table.columns if isinstance(table, Table) else ():
                column.overflow = "fold"
        with guard_output():
            super().print(*parts, **options)

    def on_broken_pipe(self) -> None:
        """rich would end with status 1."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    def lines(self, text: str) -> None:
        """Print a text of several lines."""
        self.listing(text.split("\n"), "")

    def bold(self, text: str) -> None:
        self.print(text, style="bold")

    def listing(self, sentences: Iterable[str], lead: str = "  - ") -> None:
        """Print a line for each."""
        for sentence in sentences:
            self.print(lead + sentence)

    def table(
        self, headings: Sequence[str], rows: Sequence[Sequence[str]], title: str = "", left: Sequence[str] = ()
    ) -> None:
        """Print a table of numbers; columns of words are named in `left`."""
        self.print(table_of(headings, rows, title, left))


def table_of(
    headings: Sequence[str], rows: Sequence[Sequence[str]], title: str = "", left: Sequence[str] = ()
) -> Table:
    """A table whose columns stand to the right, but for those that `left` names."""
    table = Table(title=title or None, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in left else "right")
    for row in rows:
        table.add_row(*row)
    return table


def percent(share: float | None, digits: int = 1) -> str:
    """
    >>> percent(0.1234), percent(None)
    ('12.3 %', '-')
    """
    return "-" if share is None else f"{100 * share:.{digits}f} %"


class StandardError(Plain):
    """Standard error: progress and remarks, which are never worth stopping for."""

    def print(self, *parts: Any, **options: Any) -> None:
        with contextlib.suppress(OSError):
            super().print(*parts, **options)

    def on_broken_pipe(self) -> None:
        """Nobody listens, and the work goes on."""


out = Screen()
err = StandardError(stderr=True)


def say_json(content: Any) -> None:
    """One JSON object on standard output."""
    try:
        text = json.dumps(content, allow_nan=False)
    except ValueError as error:
        raise FileError(
            "a number that is not finite", "JSON has none", "Look at the text output; a file given holds odd numbers."
        ) from error
    with guard_output():
        click.echo(text)


def say_aside(text: str) -> None:
    """A line on standard error."""
    with contextlib.suppress(OSError):
        click.echo(escape_text(text), err=True)


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


def report_errors(function: Callable[..., Any]) -> Callable[..., None]:
    """Turn errors into one line on standard error (or JSON) and their exit status; never a traceback.

    The function returns what --json prints, or that and an exit status: it is done, and not what was hoped for.
    """

    def wrapper(*, json_output: bool, quiet: bool = False, **options: Any) -> None:
        out.quiet, err.quiet = json_output, quiet
        try:
            with terminable():
                answer = function(**options)
                content, status = answer if isinstance(answer, tuple) else (answer, 0)
                if json_output:
                    say_json(content)
                if status:
                    sys.exit(status)
        except ExpungeError as error:
            _end(error, json_output)
        except KeyboardInterrupt as stopped:
            end_stopped(stopped, "nothing unfinished was written")
        except (MemoryError, RuntimeError, OSError) as error:
            ended: ExpungeError | None = out_of_memory(error)
            if ended is None and isinstance(error, OSError):
                found = f"{error.filename or 'a file'} could not be used ({error.strerror or error})"
                remedy = "Check path, permissions and room, then run the command again."
                ended = FileError(found, "a disk that works is needed", remedy)
            if ended is None:
                raise
            _end(ended, json_output)
        finally:
            out.quiet = err.quiet = False

    return wrapper


def _end(error: ExpungeError, json_output: bool) -> NoReturn:
    """An error's line, its JSON where that is wanted, and its exit status."""
    parts = {"kind": type(error).__name__, "found": error.found, "required": error.required, "remedy": error.remedy}
    if json_output:
        failed = {"verdict": "failed"} if isinstance(error, VerificationFailed) else {}
        with contextlib.suppress(SystemExit):  # nobody can be told
            say_json({**failed, "error": parts})
    say_aside(f"{'refused' if error.exit_status == REFUSED else 'error'}: {error}")
    sys.exit(error.exit_status)


@contextlib.contextmanager
def progress(wanted: bool = True) -> Iterator[Callable[[str, int, int | None], None]]:
    """A progress callback: live bars on a terminal, plain lines elsewhere, now and then; nothing with --quiet.

    Both say how fast it goes and how long it will take, where that can be known. A stage that counts something says
    what in parentheses: `Lanczos (rows)`.
    """
    if not wanted or err.quiet:
        yield lambda *_: None
        return
    live = err.is_terminal
    stages: dict[str, Task] = {}
    told: dict[str, float] = {}
    words = [TextColumn(text, markup=False) for text in ("{task.description}", "{task.fields[reading]}")]
    columns = (SpinnerColumn(), words[0], BarColumn(bar_width=24), words[1])
    with Progress(*columns, console=err, transient=True, disable=not live, get_time=time.monotonic) as bars:

        def advance(stage: str, done: int, total: int | None) -> None:
            name, _, unit = stage.removesuffix(")").partition(" (")
            if stage not in stages:
                bars.add_task(escape_text(name), total=total, reading="")
                stages[stage] = bars.tasks[-1]
            task = stages[stage]
            if done < task.completed:  # it has begun anew
                bars.reset(task.id)
            task.total = total  # by `update` a new total would forget how fast it goes
            bars.update(task.id, completed=done)
            now, pause = time.monotonic(), BAR_SECONDS if live else LINE_SECONDS
            if now - told.get(stage, -math.inf) < pause and not (live and done == total):
                return
            told[stage] = now
            if live:
                bars.update(task.id, reading=describe_pace(task, unit))
            else:
                err.print(f"{name}: {describe_pace(task, unit)}" if done or total else f"{name} ...")

        yield advance


def describe_pace(task: Task, unit: str) -> str:
    """How far a stage is, how fast it goes, how long it will take."""
    unit = f" {unit}" if unit else ""
    parts = [f"{task.completed:,}" + ("" if task.total is None else f" of {task.total:,}") + unit]
    if task.speed:
        parts.append(f"{task.speed:,.0f}{unit}/s" if task.speed >= 10 else f"{task.speed:.2g}{unit}/s")
        if task.time_remaining is not None:
            parts.append(f"{timedelta(seconds=round(task.time_remaining))} left")
    return ", ".join(parts)


def print_certificate(content: Mapping[str, Any]) -> None:
    """What a certificate says, on the screen."""
    from expunge.bounds import TERMS
    from expunge.certificate.wording import next_to_nothing, outside
    from expunge.runtime.values import up

    if little := next_to_nothing(content["epsilon"]):
        out.bold(little)
    promise = f"epsilon {up(content['epsilon'])}   delta {up(content['delta'])}   sigma {content['sigma']:.4g}"
    out.print(Text.assemble("status   ", (escape_text(str(content["status"])), "bold"), f"   {promise}"))
    if beyond := outside(content["model"].get("preparation")):
        out.bold(f"of the weights: {beyond}")
    bound = content["bound"]
    rows = [
        (name, f"{value:.3g}", f"{100 * value / bound['total']:.1f} %", TERMS[name].words if name in TERMS else "")
        for name, value in bound["terms"].items()
    ]
    title = f"Bound on the distance to the retrained weights ({bound['kind']})"
    table = table_of(("term", "value", "share", "what it stands for"), rows, title, ("term", "what it stands for"))
    table.add_row("total", f"{bound['total']:.3g}", "", "", style="bold")
    out.print(table)
    for title, key in (("Assumed", "assumptions"), ("Noted", "notes"), ("Outside the certificate", "limits")):
        if content[key]:
            out.bold(title)
            out.listing(content[key])
