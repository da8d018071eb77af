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
    state = standing_of(opened)
    waiting = requests(opened, "pending", limit=LISTED)
    if not json_output:
        out.print(f"requests: {state.pending:,} pending ({state.overdue:,} overdue), {state.done:,} done")
        out.print(f"models: {state.models} published of {state.planned} planned, {state.models_left} more fit")
        out.print(f"all models together: epsilon {state.epsilon:.4g} of {state.limit:g}, delta {state.delta:g}")
        if state.reach is not None:
            out.print(
                f"reach of the deposit: {100 * state.reach:.3g} % used, {state.forgotten:,} rows forgotten; at 100 % "
                "a model must be retrained"
            )
        if state.rows_left is not None:
            out.print(
                f"about {state.rows_left:,} more rows like those so far are within reach, or {state.deletions_left:,} "
                "more runs; somebody very influential may be beyond it at any time"
            )
        elif state.deletions_left is not None:
            out.print(f"about {state.deletions_left} more deletions like those so far before a model must be retrained")
        if state.retrain:
            out.print(state.retrain, markup=False, style="bold red")
        if waiting:
            table = Table(title=f"Pending (first {len(waiting)})", title_justify="left")
            for heading in ("request", "reference", "accepted", "due", "rows"):
                table.add_column(heading)
            for row in waiting:
                table.add_row(str(row.id), escape(row.reference), row.accepted, row.due, str(row.n_rows))
            out.print(table)
    return state.to_json() | {"waiting": [asdict(row) for row in waiting]}
