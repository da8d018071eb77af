"""`expunge desk withdraw`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from expunge.cli.console import as_json, out, reporting
from expunge.cli.desk.options import desk_folder, say_clock, waiting
from expunge.cli.sections import Command


@click.command(cls=Command, short_help="Take back a pending request.")
@desk_folder
@click.argument("number", type=int, required=False)
@click.option("--reference", help="The request's reference, in the place of its number.")
@click.option("--reason", default="withdrawn", show_default=True, help="Why, for the ledger.")
@waiting
@as_json
@reporting
def withdraw(
    desk: Path, number: int | None, reference: str | None, reason: str, timeout: float, json_output: bool
) -> dict[str, Any]:
    """Take back the request of this NUMBER, or of a reference, that waits or is set aside.

    The ledger keeps that it was asked and why it was not done.

    \b
    expunge desk withdraw desk/ 3 --reason "asked by mistake"
    expunge desk withdraw desk/ --reference case-17
    """
    from expunge.desk import open_desk
    from expunge.desk import withdraw as take_back
    from expunge.errors import OptionError

    named = [given for given in (number, reference) if given is not None]
    if len(named) != 1:
        given = "a number and a reference" if named else "neither a number nor a reference"
        raise OptionError(given, "one of the two names the request", "Give one.")
    opened = open_desk(desk, timeout)
    withdrawn = take_back(opened, named[0], reason)
    say_clock(opened)
    if not json_output:
        out.print(f"withdrawn: {withdrawn.reference}")
    return asdict(withdrawn)
