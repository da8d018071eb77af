"""`expunge desk request`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from expunge.cli.console import as_json, out, reporting
from expunge.cli.desk.options import another_person, desk_folder, say_clock, waiting
from expunge.cli.sections import Command
from expunge.cli.sets import FILE, label_column, read_rows


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
    "--reference",
    help="Your name for the request, such as a case number; never a person's name, nor one that somebody who asks "
    "could choose (default: the desk makes one that cannot be guessed).",
)
@another_person
@click.option("--due", help="Day by which it must be done, such as 2026-01-31 (default: the desk's number of days).")
@waiting
@as_json
@reporting
def request(
    desk: Path,
    forget: Path,
    label: str | None,
    reference: str | None,
    another_person: bool,
    due: str | None,
    timeout: float,
    json_output: bool,
) -> dict[str, Any]:
    """Ask a desk to forget rows. When this returns, the request is on disk; asking twice is one request.

    Who asks is checked before: the desk takes anybody's word. The answer may be passed on, and is the same whatever
    others asked for; what becomes of the request, and where a person has to decide first, `expunge desk status` says.

    \b
    expunge desk request desk/ --forget forget.npz
    expunge desk request desk/ --forget forget.npz --reference case-17
    """
    from expunge.desk import accept, open_desk
    from expunge.desk.state import served_model

    opened = open_desk(desk, timeout)
    rows = read_rows(forget, label, served_model(opened))
    accepted = accept(
        opened,
        rows[0],
        rows[1],
        reference,
        due,
        encoder=rows.encoder,
        feature_names=rows.feature_names,
        another_person=another_person,
    )
    say_clock(opened)
    told = accepted.answer
    if not json_output:
        out.print(f"accepted: {told.reference}, {told.n_rows} rows, due {told.due}")
    return asdict(told)
