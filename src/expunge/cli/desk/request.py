"""`expunge desk request`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from expunge.cli.console import as_json, out, reporting
from expunge.cli.desk.options import desk_folder
from expunge.cli.sections import Command
from expunge.cli.sets import FILE, label_column


@click.command(cls=Command, short_help="Ask a desk to forget rows.")
@desk_folder
@click.option(
    "--forget",
    required=True,
    type=FILE,
    help="The rows to forget, with their labels. The desk keeps a private copy until they are forgotten.",
)
@label_column
@click.option(
    "--reference", required=True, help="Your name for the request, such as a case number; never a person's name."
)
@click.option("--due", help="Day by which it must be done, such as 2026-01-31 (default: the desk's number of days).")
@as_json
@reporting
def request(
    desk: Path, forget: Path, label: str | None, reference: str, due: str | None, json_output: bool
) -> dict[str, Any]:
    """Ask a desk to forget rows. When this returns, the request is on disk; asking twice is one request.

    \b
    expunge desk request desk/ --forget forget.npz --reference case-17
    """
    from expunge.data import read_data
    from expunge.desk import accept, open_desk

    opened = open_desk(desk)
    rows = read_data(forget, label)
    accepted = accept(
        opened,
        rows.features,
        rows.labels,
        reference,
        due,
        encoder=rows.encoder,
        feature_names=rows.feature_names,
    )
    if not json_output:
        known = "accepted" if accepted.new else f"known already ({accepted.request.state})"
        out.print(f"{known}: request {accepted.request.id}, {accepted.request.n_rows} rows, due {accepted.request.due}")
    return asdict(accepted.request) | {"new": accepted.new}
