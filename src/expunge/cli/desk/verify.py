"""`expunge desk verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from expunge.cli.console import as_json, out, reporting
from expunge.cli.desk.options import desk_folder, saved_heads
from expunge.cli.sections import Command


@click.command(cls=Command, short_help="Check the ledger and every published file, offline.")
@desk_folder
@saved_heads("A head saved earlier, outside the desk: shows whether entries were cut off.")
@as_json
@reporting
def verify(desk: Path, heads: tuple[Path, ...], json_output: bool) -> dict[str, Any]:
    """Check every entry, the chain, the root, every published file and every dossier, offline; exit status 1 if not.

    Whoever made the folder: only plain files inside it are read, none larger than it should be. A file that the ledger
    does not know of fails, too.

    \b
    expunge desk verify desk/ --head saved-head.json
    """
    from expunge.desk.check import verify_folder
    from expunge.desk.layout import Layout
    from expunge.desk.ledger import saved_head

    saved = [saved_head(path) for path in heads]
    checked = verify_folder(Layout(desk), saved)
    if not json_output:
        models = "1 published model" if checked.models == 1 else f"{checked.models:,} published models"
        out.print(f"verified: {checked.head.size:,} entries, {models}")
        if not saved:
            out.print(
                "no saved head was given: that entries were cut off at the end could not be seen; see expunge desk head"
            )
        if not checked.sealed:
            out.print(
                "the file is newer than its seal (a command was killed): entries were checked, unused bytes were not"
            )
        if len(checked.dossiers) < checked.models:
            out.print(
                f"dossiers at hand: {len(checked.dossiers):,}; statements without theirs were checked by themselves"
            )
        if checked.absent:
            out.print("folders taken away: " + ", ".join(f"{number:04d}" for number in checked.absent))
        if checked.backwards:
            out.print(
                "a clock was set back: dated before the one before are entries "
                + ", ".join(str(number) for number in checked.backwards[:20])
            )
    return {
        "verified": True,
        "head": checked.head.to_json(),
        "sealed": checked.sealed,
        "models": checked.models,
        "dossiers": list(checked.dossiers),
        "absent": list(checked.absent),
        "backwards": list(checked.backwards),
        "saved_heads": len(saved),
    }
