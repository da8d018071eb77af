"""What the desk's commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from expunge.cli.sets import FILE
from expunge.cli.streams import say_aside

if TYPE_CHECKING:
    from expunge.desk import Desk

Function = TypeVar("Function", bound=Callable[..., Any])

desk_folder = click.argument("desk", type=FILE)
another_person = click.option(
    "--another-person",
    is_flag=True,
    help="Declare that rows asked for before are somebody else's with equal values; the certificate carries that. A "
    "desk with a deposit needs no such word: the source's own counts decide.",
)
waiting = click.option(
    "--timeout",
    default=600.0,
    show_default=True,
    type=click.FloatRange(min=0.0, max=1e9),
    help="Seconds to wait while another command writes in this desk; 0: not at all.",
)


def saved_heads(what: str) -> Callable[[Function], Function]:
    """The option `--head`: files with saved heads, handed over as `heads`."""
    return click.option("--head", "heads", multiple=True, type=FILE, help=f"{what} May be given several times.")


def say_clock(opened: Desk) -> None:
    """Say on standard error what is wrong with the clock, if anything is."""
    from expunge.desk.status import clock_note

    note = clock_note(opened)
    if note is not None:
        say_aside(f"note: {note}")
