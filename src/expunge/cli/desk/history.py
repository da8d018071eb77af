"""`expunge desk history`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from expunge.cli.console import as_json, out, reporting
from expunge.cli.desk.options import desk_folder
from expunge.cli.sections import Command

SHOWN = ("request", "requests", "reference", "model", "due", "reason")


@click.command(cls=Command, short_help="What the desk did: the ledger's entries.")
@desk_folder
@click.option("--after", default=0, show_default=True, help="Only entries after this number.")
@click.option("--limit", default=1000, show_default=True, help="At most so many.")
@as_json
@reporting
def history(desk: Path, after: int, limit: int, json_output: bool) -> dict[str, Any]:
    """The ledger's entries, oldest first.

    \b
    expunge desk history desk/ --after 100
    """
    from expunge.desk import history as entries_of
    from expunge.desk import open_desk

    entries = entries_of(open_desk(desk), after=after, limit=limit)
    if not json_output:
        for entry in entries:
            body = entry.body.to_json()
            shown = {name: body[name] for name in SHOWN if name in body}
            facts = ", ".join(f"{name} {value}" for name, value in shown.items())
            out.print(f"{entry.number:>6}  {entry.time}  {entry.kind:<10} {facts}", markup=False)
    return {"entries": [entry.to_json() for entry in entries]}
