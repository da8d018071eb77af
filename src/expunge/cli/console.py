"""What every command shares: errors and their exit status, JSON, progress, tables."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import click
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table
from rich.text import Text

from expunge.certificate.check import FAILED
from expunge.cli.meter import Meter
from expunge.cli.sections import section
from expunge.cli.sets import FILE
from expunge.cli.streams import (
    Aside,
    OutputLost,
    Screen,
    end_stopped,
    lose_output,
    say_aside,
    say_json,
    shown,
    silence,
    terminable,
)
from expunge.errors import ExpungeError, FileError, Refused, VerificationFailed
from expunge.runtime.memory import out_of_memory

Function = TypeVar("Function", bound=Callable[..., Any])

as_json = section(
    "Output", click.option("--json", "json_output", is_flag=True, help="Print one JSON object instead of text.")
)
quiet = section("Output", click.option("--quiet", is_flag=True, help="No progress."))
on_device = section("Speed", click.option("--device", default="cpu", show_default=True, help="Any torch device."))

LINE_SECONDS = 10.0  # between two lines on one stage, where nobody watches
BAR_SECONDS = 0.1

REFUSED = Refused.exit_status

out = Screen()
err = Aside(stderr=True)


def written_to(what: str, *, required: bool = True) -> Callable[[Function], Function]:
    """The option `--out`: a path, handed over as `target`."""
    return section("Output", click.option("--out", "target", required=required, type=FILE, help=what))


def reporting(function: Function) -> Function:
    """Turn errors into one line on standard error (or JSON) and their exit status; never a traceback."""

    @functools.wraps(function)
    def wrapper(*args: Any, json_output: bool, **options: Any) -> None:
        try:
            with terminable():
                result = function(*args, json_output=json_output, **options)
                if json_output:
                    say_json(result)
                if isinstance(result, Mapping) and result.get("exit_status"):  # done, and not what was hoped for
                    sys.exit(result["exit_status"])
        except ExpungeError as error:
            _end(error, json_output)
        except OutputLost as lost:
            lose_output(lost)
        except KeyboardInterrupt as stopped:
            end_stopped(stopped, "nothing unfinished was written")
        except (MemoryError, RuntimeError, OSError) as error:
            ended: ExpungeError | None = out_of_memory(error)
            if ended is None and isinstance(error, OSError):
                name = error.filename or "a file"
                found, required = f"{name} could not be used ({error.strerror or error})", "a disk that works is needed"
                ended = FileError(found, required, "Check path, permissions and room, then run the command again.")
            if ended is None:
                raise
            _end(ended, json_output)

    return wrapper  # type: ignore[return-value]


def _end(error: ExpungeError, json_output: bool) -> NoReturn:
    """An error's line, its JSON where that is wanted, and its exit status; which counts even if nobody can be told."""
    parts = {"kind": type(error).__name__, "found": error.found, "required": error.required, "remedy": error.remedy}
    if json_output:
        try:
            failed = {"verdict": FAILED} if isinstance(error, VerificationFailed) else {}
            say_json({**failed, "error": parts})
        except OutputLost:
            silence(sys.stdout)
    say_aside(f"{'refused' if error.exit_status == REFUSED else 'error'}: {error}")
    sys.exit(error.exit_status)


@contextmanager
def progress(wanted: bool) -> Iterator[Callable[[str, int, int | None], None]]:
    """A progress callback: live bars on a terminal, plain lines elsewhere, now and then; nothing if not wanted.

    Both say how fast it goes and how long it will take, where that can be known.
    """
    if not wanted:
        yield lambda *_: None
        return
    meters: dict[str, Meter] = {}
    if not err.is_terminal:

        def line(stage: str, done: int, total: int | None) -> None:
            meter = meters.setdefault(stage, Meter(stage))
            meter.at(done, total)
            if meter.due(LINE_SECONDS):
                err.print(meter.line(), markup=False)

        yield line
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[reading]}", markup=False),
    )
    with Progress(*columns, console=err, transient=True) as live:
        tasks: dict[str, Any] = {}

        def advance(stage: str, done: int, total: int | None) -> None:
            meter = meters.setdefault(stage, Meter(stage))
            meter.at(done, total)
            if stage not in tasks:
                tasks[stage] = live.add_task(shown(meter.name), total=total, reading="")
            if meter.due(BAR_SECONDS) or done == total:
                live.update(tasks[stage], completed=done, total=total, reading=meter.reading())

        yield advance


def terms_table(bound: Mapping[str, Any]) -> Table:
    """A bound, term by term."""
    from expunge.bounds import TERMS

    table = Table(title=f"Bound on the distance to the retrained weights ({bound['kind']})", title_justify="left")
    table.add_column("term")
    table.add_column("value", justify="right")
    table.add_column("share", justify="right")
    table.add_column("what it stands for")
    for name, value in bound["terms"].items():
        table.add_row(
            name, f"{value:.3g}", f"{100 * value / bound['total']:.1f} %", TERMS[name].words if name in TERMS else ""
        )
    table.add_row("total", f"{bound['total']:.3g}", "", "", style="bold")
    return table


def print_certificate(content: Mapping[str, Any]) -> None:
    """What a certificate says, on the screen."""
    from expunge.certificate.wording import next_to_nothing, outside
    from expunge.runtime.rounding import up

    if little := next_to_nothing(content["epsilon"]):
        out.print(little, markup=False, style="bold")
    promise = f"epsilon {up(content['epsilon'])}   delta {up(content['delta'])}   sigma {content['sigma']:.4g}"
    out.print(Text.assemble("status   ", (shown(str(content["status"])), "bold"), f"   {promise}"))
    if beyond := outside(content["model"].get("preparation")):
        out.print(f"of the weights: {beyond}", markup=False, style="bold")
    out.print(terms_table(content["bound"]))
    for title, key in (("Assumed", "assumptions"), ("Noted", "notes"), ("Outside the certificate", "limits")):
        if content[key]:
            out.print(title, style="bold")
            for sentence in content[key]:
                out.print(f"  - {sentence}", markup=False)
