"""`expunge desk head`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from expunge.cli.console import as_json, out, reporting, written_to
from expunge.cli.desk.options import desk_folder
from expunge.cli.sections import Command


@click.command(cls=Command, short_help="The ledger's head: number of entries and Merkle root.")
@desk_folder
@written_to("A new file to save it in (else: printed).", required=False)
@as_json
@reporting
def head(desk: Path, target: Path | None, json_output: bool) -> dict[str, Any]:
    """The ledger's head: number of entries and Merkle root. Keep it where the desk cannot reach.

    With a head saved earlier, `expunge desk verify` shows whether entries were cut off or changed since.

    \b
    expunge desk head desk/ --out saved-head.json
    """
    from expunge.data.output import write_file
    from expunge.desk import open_desk
    from expunge.desk.heads import head_bytes

    with open_desk(desk).reading() as ledger:
        present = ledger.head()
    if target is not None:
        write_file(target, head_bytes(present))
    if not json_output:
        out.print(f"{present.size} {present.root}" if target is None else f"written: {target}", markup=False)
    return present.to_json()
