"""`expunge member`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from expunge.cli.console import as_json, out, reporting
from expunge.cli.sections import Command
from expunge.cli.sets import FILE, deposit_option, label_column, read_prepared, read_rows
from expunge.cli.streams import say_json

LISTED = 50
AS_IS = ("to the last digit", "as a copy in float32", "as a copy with six decimals")


@click.command(cls=Command, short_help="Is this person in the model? Rows looked up in a deposit.")
@deposit_option("What was kept of the source (expunge deposit).", required=True)
@click.option("--rows", required=True, type=FILE, help="The rows to look up, with their labels.")
@label_column
@as_json
@reporting
def member(deposit: Path, rows: Path, label: str | None, json_output: bool) -> dict[str, Any]:
    """Is this person in the model? Whether each row is in what is left of the source, and how often.

    A row is known by its values and its label, as they were trained on; a copy in float32, or written with six
    decimals, is recognised. A row that is asked for twice must be there twice. Rows that were forgotten are gone.
    Exit status 0 if all rows are there, 1 if some are not. The answer is as private as the deposit.

    \b
    expunge member --deposit model.deposit --rows person.csv --label income
    """
    from expunge.cli.swaps import require_deposit
    from expunge.deposit.contents import read_deposit
    from expunge.deposit.membership import answers

    require_deposit(deposit, None)
    kept = read_deposit(deposit)
    found = answers(kept, read_prepared(rows) if kept.of_network else read_rows(rows, label, kept))
    there = sum(answer.there for answer in found)
    content = {
        "n_rows": len(found),
        "members": there,
        "source_rows_left": kept.numbers.n_rows,
        "rows": [answer.to_json() for answer in found],
    }
    if not json_output:
        _print_answers(found, there, kept.numbers.n_rows)
    if there < len(found):
        if json_output:
            say_json(content)
        sys.exit(1)
    return content


def _print_answers(found: Any, there: int, left: int) -> None:
    table = Table(title=None)
    for heading in ("row", "in the source", "recognised", "times there"):
        table.add_column(heading, justify="right" if heading in ("row", "times there") else "left")
    for answer in found[:LISTED]:
        known = AS_IS[answer.precision] if answer.there else "-"
        table.add_row(str(answer.row), "yes" if answer.there else "no", known, f"{answer.times:,}")
    out.print(table)
    if len(found) > LISTED:
        out.print(f"  and {len(found) - LISTED:,} more rows (--json lists all)")
    out.print(f"{there:,} of {len(found):,} rows are in what is left of the source ({left:,} rows)")
    if there < len(found):
        out.print(
            "a row that is not there was never trained on, or not with these values and this label, or is asked for "
            "more often than it is there, or was forgotten"
        )
