"""`expunge request`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from expunge.cli.console import as_json, out, reporting


@click.command()
@click.argument("desk", type=click.Path(path_type=Path, readable=False))
@click.option(
    "--forget",
    type=click.Path(path_type=Path, readable=False),
    help="The rows to forget, with their labels. The desk keeps a private copy until they are forgotten.",
)
@click.option("--label", help="Label column of a .csv or .parquet file (default: y, or label).")
@click.option("--reference", help="Your name for the request, such as a case number; never a person's name.")
@click.option("--due", help="Day by which it must be done, such as 2026-01-31 (default: the desk's number of days).")
@click.option("--withdraw", type=int, help="Take back the pending request of this number.")
@click.option("--reason", default="withdrawn", show_default=True, help="With --withdraw: why, for the ledger.")
@as_json
@reporting
def request(
    desk: Path,
    forget: Path | None,
    label: str | None,
    reference: str | None,
    due: str | None,
    withdraw: int | None,
    reason: str,
    json_output: bool,
) -> dict[str, Any]:
    """Ask a desk to forget rows. When this returns, the request is on disk; asking twice is one request.

    \b
    expunge request desk/ --forget forget.npz --reference case-17
    expunge request desk/ --withdraw 3 --reason "asked by mistake"
    """
    from expunge.data import read_data
    from expunge.desk import accept, open_desk
    from expunge.desk import withdraw as take_back
    from expunge.errors import OptionError

    found = open_desk(desk)
    if withdraw is not None:
        taken = take_back(found, withdraw, reason)
        if not json_output:
            out.print(f"withdrawn: request {taken.id}")
        return asdict(taken)
    if forget is None or reference is None:
        raise OptionError("no rows or no reference", "both are needed", "Give --forget and --reference.")
    rows = read_data(forget, label)
    accepted = accept(found, rows.features, rows.labels, reference, due, encoder=rows.encoder)
    if not json_output:
        known = "accepted" if accepted.new else f"known already ({accepted.request.state})"
        out.print(f"{known}: request {accepted.request.id}, {accepted.request.n_rows} rows, due {accepted.request.due}")
    return asdict(accepted.request) | {"new": accepted.new}
