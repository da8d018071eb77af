"""`expunge desk status`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from expunge.cli.console import as_json, out, reporting
from expunge.cli.desk.options import desk_folder
from expunge.cli.sections import Command

if TYPE_CHECKING:
    from expunge.desk import RequestRow

LISTED = 20


@click.command(cls=Command, short_help="What waits, what was published, what is left.")
@desk_folder
@click.option("--reference", help="Only the requests with this reference.")
@as_json
@reporting
def status(desk: Path, reference: str | None, json_output: bool) -> dict[str, Any]:
    """Where a desk stands: what waits, what is set aside, what was published, what all models say, what is left.

    For those who run the desk: what is said of one request depends on what others asked for.

    \b
    expunge desk status desk/
    expunge desk status desk/ --reference case-17
    """
    from expunge.desk import named, open_desk, requests
    from expunge.desk import status as standing_of

    opened = open_desk(desk)
    if reference is not None:
        found = named(opened, reference)
        if not json_output:
            for row in found:
                out.print(_line(row))
        return {"requests": [asdict(row) for row in found]}
    state = standing_of(opened)
    waiting, apart = requests(opened, "pending", limit=LISTED), requests(opened, "aside", limit=LISTED)
    if not json_output:
        out.print(
            f"requests: {state.pending:,} pending, {state.aside:,} set aside ({state.overdue:,} overdue), "
            f"{state.done:,} done"
        )
        out.print(
            f"models: {state.models} published of {state.planned} planned; epsilon allows {state.models_left:,} more, "
            "one a run"
        )
        out.print(f"all models together: epsilon {state.epsilon:.4g} of {state.limit:g}, delta {state.delta:g}")
        if state.reach is not None:
            out.print(
                f"reach of the deposit: {100 * state.reach:.3g} % used, {state.forgotten:,} rows forgotten; at 100 % "
                "a model must be retrained"
            )
        if state.rows_left is not None:
            out.print(
                f"the deposit reaches for about {state.rows_left:,} more rows like those so far, which is "
                f"{state.deletions_left:,} runs of that size; somebody very influential may be beyond it at any time"
            )
        elif state.deletions_left is not None:
            out.print(
                f"the noise covers about {state.deletions_left:,} more runs like those so far, then a model must "
                "be retrained"
            )
        if state.deletions_left is not None:
            other = "the noise" if state.reach is None else "the deposit"
            first = "epsilon" if state.models_left <= state.deletions_left else other
            left = min(state.models_left, state.deletions_left)
            out.print(f"of these limits {first} comes first: about {left:,} more runs")
        if state.clock:
            out.print(f"note: {state.clock}", markup=False)
        if state.retrain:
            out.print(state.retrain, markup=False, style="bold red")
        _listed(waiting, apart)
    return state.to_json() | {"waiting": [asdict(row) for row in waiting], "set_aside": [asdict(row) for row in apart]}


def _listed(waiting: list[RequestRow], apart: list[RequestRow]) -> None:
    if waiting:
        table = Table(title=f"Pending (first {len(waiting)})", title_justify="left")
        for heading in ("request", "reference", "accepted", "due", "rows"):
            table.add_column(heading)
        for row in waiting:
            table.add_row(str(row.id), row.reference, row.accepted, row.due, str(row.n_rows))
        out.print(table)
    if apart:
        out.print(f"Set aside (first {len(apart)}), for a person to decide:")
    for row in apart:
        out.print(f"  {_line(row)}")


def _line(row: RequestRow) -> str:
    why = f"{row.aside.reason}. {row.aside.remedy}" if row.aside is not None else row.state
    return f"request {row.id}, {row.reference}, {row.n_rows} rows, due {row.due}: {why}"
