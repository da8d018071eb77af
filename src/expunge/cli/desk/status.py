"""`expunge status`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from expunge.cli.console import as_json, out, reporting

LISTED = 20


@click.command()
@click.argument("desk", type=click.Path(path_type=Path, readable=False))
@as_json
@reporting
def status(desk: Path, json_output: bool) -> dict[str, Any]:
    """Where a desk stands: what waits, what was published, what all models together say, what is left.

    \b
    expunge status desk/
    """
    from rich.markup import escape

    from expunge.desk import open_desk, requests
    from expunge.desk import status as find

    opened = open_desk(desk)
    found = find(opened)
    waiting = requests(opened, "pending", limit=LISTED)
    if not json_output:
        out.print(f"requests: {found.pending:,} pending ({found.overdue:,} overdue), {found.done:,} done")
        out.print(f"models: {found.models} published of {found.planned} planned, {found.models_left} more fit")
        out.print(f"all models together: epsilon {found.epsilon:.4g} of {found.limit:g}, delta {found.delta:g}")
        if found.deletions_left is not None:
            out.print(f"about {found.deletions_left} more deletions like the last before the noise swamps the model")
        if found.retrain:
            out.print(found.retrain, markup=False, style="bold red")
        if waiting:
            table = Table(title=f"Pending (first {len(waiting)})", title_justify="left")
            for heading in ("request", "reference", "accepted", "due", "rows"):
                table.add_column(heading)
            for row in waiting:
                table.add_row(str(row.id), escape(row.reference), row.accepted, row.due, str(row.n_rows))
            out.print(table)
    return found.to_json() | {"waiting": [asdict(row) for row in waiting]}
