"""`expunge desk report`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from expunge.cli.console import as_json, out, reporting, written_to
from expunge.cli.desk.options import desk_folder
from expunge.cli.report import naming
from expunge.cli.sections import Command, section


@click.command(cls=Command, short_help="Pages people can read, of all requests and models.")
@desk_folder
@section("Names", *naming)
@written_to("A new folder; private, for it shows references.")
@as_json
@reporting
def report(
    desk: Path, organisation: str | None, model_name: str | None, target: Path, json_output: bool
) -> dict[str, Any]:
    """Pages people can read, of a desk with all its requests and models.

    Each page is one file without scripts that opens offline and prints well; the tables come as CSV too.

    \b
    expunge desk report desk/ --out desk-report/
    """
    from expunge.data.output import require_absent, write_private_folder
    from expunge.desk import desk_report, open_desk

    require_absent(target)
    files = desk_report(open_desk(desk), organisation=organisation, model_name=model_name)
    write_private_folder(target, files)
    written = [str(target / name) for name in sorted(files)]
    if not json_output:
        out.print("written: " + ", ".join(written), markup=False)
    return {"files": written}
