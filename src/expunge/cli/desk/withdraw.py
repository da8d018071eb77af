"""`expunge desk withdraw`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from expunge.cli.console import as_json, out, reporting
from expunge.cli.desk.options import desk_folder
from expunge.cli.sections import Command


@click.command(cls=Command, short_help="Take back a pending request.")
@desk_folder
@click.argument("number", type=int)
@click.option("--reason", default="withdrawn", show_default=True, help="Why, for the ledger.")
@as_json
@reporting
def withdraw(desk: Path, number: int, reason: str, json_output: bool) -> dict[str, Any]:
    """Take back the pending request of this NUMBER; the ledger keeps that it was asked and why it was not done.

    \b
    expunge desk withdraw desk/ 3 --reason "asked by mistake"
    """
    from expunge.desk import open_desk
    from expunge.desk import withdraw as take_back

    withdrawn = take_back(open_desk(desk), number, reason)
    if not json_output:
        out.print(f"withdrawn: request {withdrawn.id}")
    return asdict(withdrawn)
