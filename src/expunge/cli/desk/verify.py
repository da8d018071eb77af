"""`expunge ledger`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from expunge.cli.console import as_json, out, reporting


@click.group()
def ledger() -> None:
    """Check a desk's ledger, or save its head.

    \b
    expunge ledger verify desk/ --head saved-head.json --json
    expunge ledger head desk/ --out saved-head.json
    """


@ledger.command()
@click.argument("desk", type=click.Path(path_type=Path, readable=False))
@click.option(
    "--head",
    "heads",
    multiple=True,
    type=click.Path(path_type=Path, readable=False),
    help="A head saved earlier, outside the desk: shows whether entries were cut off. May be given several times.",
)
@as_json
@reporting
def verify(desk: Path, heads: tuple[Path, ...], json_output: bool) -> dict[str, Any]:
    """Check every entry, the chain, the root, and every published file, offline. Fails with exit status 1.

    \b
    expunge ledger verify desk/ --head saved-head.json
    """
    from expunge.desk.check import verify_folder
    from expunge.desk.layout import Layout
    from expunge.desk.ledger import saved_head

    saved = [saved_head(path) for path in heads]
    found = verify_folder(Layout(desk), saved)
    if not json_output:
        out.print(f"verified: {found.head.size:,} entries, {found.models} published models")
        if not saved:
            out.print(
                "no saved head was given: that entries were cut off at the end could not be seen; see expunge ledger head"
            )
        if not found.sealed:
            out.print(
                "the file is newer than its seal (a command was killed): entries were checked, unused bytes were not"
            )
        if found.absent:
            out.print("folders taken away: " + ", ".join(f"{number:04d}" for number in found.absent))
    return {
        "verified": True,
        "head": found.head.to_json(),
        "sealed": found.sealed,
        "models": found.models,
        "absent": list(found.absent),
        "saved_heads": len(saved),
    }


@ledger.command()
@click.argument("desk", type=click.Path(path_type=Path, readable=False))
@click.option(
    "--out", "target", type=click.Path(path_type=Path, readable=False), help="A new file to save it in (else: printed)."
)
@as_json
@reporting
def head(desk: Path, target: Path | None, json_output: bool) -> dict[str, Any]:
    """The ledger's head: number of entries and Merkle root. Keep it where the desk cannot reach.

    \b
    expunge ledger head desk/ --out saved-head.json
    """
    import json

    from expunge.data.output import write_file
    from expunge.desk import open_desk

    with open_desk(desk).reading() as opened:
        found = opened.head()
    if target is not None:
        write_file(target, json.dumps(found.to_json()).encode() + b"\n")
    if not json_output:
        out.print(f"{found.size} {found.root}" if target is None else f"written: {target}", markup=False)
    return found.to_json()
