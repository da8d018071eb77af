"""`expunge desk status`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from expunge.cli.console import as_json, out, reporting
from expunge.cli.desk.options import desk_folder
from expunge.cli.sections import Command

LISTED = 20


@click.command(cls=Command, short_help="What waits, what was published, what is left.")
@desk_folder
@as_json
@reporting
def status(desk: Path, json_output: bool) -> dict[str, Any]:
    """Where a desk stands: what waits, what was published, what all models together say, what is left.

    \b
    expunge desk status desk/
    """
    from rich.markup import escape

    from expunge.desk import open_desk, requests
    from expunge.desk import status as standing_of

    opened = open_desk(desk)
    standing = standing_of(opened)
    waiting = requests(opened, "pending", limit=LISTED)
    if not json_output:
        out.print(f"requests: {standing.pending:,} pending ({standing.overdue:,} overdue), {standing.done:,} done")
        out.print(f"models: {standing.models} published of {standing.planned} planned, {standing.models_left} more fit")
        out.print(
            f"all models together: epsilon {standing.epsilon:.4g} of {standing.limit:g}, delta {standing.delta:g}"
        )
        if standing.deletions_left is not None:
            out.print(f"about {standing.deletions_left} more deletions like the last before the noise swamps the model")
        if standing.retrain:
            out.print(standing.retrain, markup=False, style="bold red")
        if waiting:
            table = Table(title=f"Pending (first {len(waiting)})", title_justify="left")
            for heading in ("request", "reference", "accepted", "due", "rows"):
                table.add_column(heading)
            for row in waiting:
                table.add_row(str(row.id), escape(row.reference), row.accepted, row.due, str(row.n_rows))
            out.print(table)
    return standing.to_json() | {"waiting": [asdict(row) for row in waiting]}
