"""What every command shares: errors and their exit status, JSON, progress, tables."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from expunge.errors import ExpungeError

Command = TypeVar("Command", bound=Callable[..., Any])

as_json = click.option("--json", "json_output", is_flag=True, help="Print one JSON object instead of text.")
quiet = click.option("--quiet", is_flag=True, help="No progress.")

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def reporting(function: Command) -> Command:
    """Turn Expunge's errors into one line on standard error (or JSON) and their exit status; never a traceback."""

    @functools.wraps(function)
    def wrapper(*args: Any, json_output: bool, **options: Any) -> None:
        try:
            result = function(*args, json_output=json_output, **options)
        except ExpungeError as error:
            if json_output:
                click.echo(
                    json.dumps(
                        {
                            "error": {
                                "kind": type(error).__name__,
                                "found": error.found,
                                "required": error.required,
                                "remedy": error.remedy,
                            }
                        }
                    )
                )
            prefix = "refused" if error.exit_status == 3 else "error"
            click.echo(f"{prefix}: {error}", err=True)
            sys.exit(error.exit_status)
        except KeyboardInterrupt:
            click.echo("stopped; nothing unfinished was written", err=True)
            sys.exit(130)
        except MemoryError:
            click.echo(
                "error: out of memory; less data at once is needed. Use fewer surrogate rows or --dtype float32.",
                err=True,
            )
            sys.exit(2)
        if json_output:
            click.echo(json.dumps(result, allow_nan=False))

    return wrapper  # type: ignore[return-value]


@contextmanager
def progress(wanted: bool) -> Iterator[Callable[[str, int, int | None], None]]:
    """A progress callback: a live bar on a terminal, a plain line a stage elsewhere, nothing if not wanted."""
    if not wanted:
        yield lambda stage, done, total: None
        return
    if not err.is_terminal:
        seen: set[str] = set()

        def line(stage: str, done: int, total: int | None) -> None:
            if stage not in seen:
                seen.add(stage)
                err.print(f"{stage} ...")

        yield line
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=err, transient=True) as live:
        tasks: dict[str, Any] = {}

        def advance(stage: str, done: int, total: int | None) -> None:
            if stage not in tasks:
                tasks[stage] = live.add_task(stage, total=total)
            live.update(tasks[stage], completed=done, total=total)

        yield advance


def terms_table(bound: Mapping[str, Any]) -> Table:
    """A bound, term by term."""
    meaning = {
        "training": "how far training stopped from the optimum",
        "solver": "what the step left unsolved",
        "surrogate": "surrogate and source differ",
        "sampling": "both are finite samples",
        "rounding": "float64 arithmetic",
        "grid": "weights rounded before the noise",
        "newton": "what one Newton step leaves out",
    }
    table = Table(title=f"Bound on the distance to the retrained weights ({bound['kind']})", title_justify="left")
    table.add_column("term")
    table.add_column("value", justify="right")
    table.add_column("share", justify="right")
    table.add_column("what it stands for")
    for name, value in bound["terms"].items():
        table.add_row(name, f"{value:.3g}", f"{100 * value / bound['total']:.1f} %", meaning.get(name, ""))
    table.add_row("total", f"{bound['total']:.3g}", "", "", style="bold")
    return table


def print_certificate(content: Mapping[str, Any]) -> None:
    """What a certificate says, on the screen."""
    out.print(
        f"status   [bold]{content['status']}[/bold]   epsilon {content['epsilon']:g}   delta {content['delta']:g}   sigma {content['sigma']:.4g}"
    )
    out.print(terms_table(content["bound"]))
    for title, key in (("Assumed", "assumptions"), ("Noted", "notes"), ("Not proven", "limits")):
        if content[key]:
            out.print(f"[bold]{title}[/bold]")
            for sentence in content[key]:
                out.print(f"  - {sentence}", markup=False)
