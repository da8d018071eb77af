"""`expunge card`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from expunge.cli.console import as_json, out, reporting, written_to
from expunge.cli.sections import Command
from expunge.cli.sets import FILE


@click.command(cls=Command, short_help="A model card with what was done, of one result.")
@click.argument("result", type=FILE)
@click.option("--public-key", type=FILE, help="Check the result's signature and name the key on the card.")
@written_to("A new Markdown file (else: printed).", required=False)
@as_json
@reporting
def card(result: Path, public_key: Path | None, target: Path | None, json_output: bool) -> dict[str, Any]:
    """A model card of one result of `expunge unlearn`: front matter as the Hugging Face Hub reads it, and a short text.

    It says that rows were removed, epsilon, delta and the status, what is assumed, and where the statement is. It is
    made from the statement alone, which is verified first, and may be handed out: it says nothing of who left.

    \b
    expunge card result/ --out README.md
    """
    from expunge.desk import result_card
    from expunge.rows.output import require_absent, write_file

    if target is not None:
        require_absent(target)
    text = result_card(result, public_key)
    if target is not None:
        write_file(target, text.encode())
    if not json_output and target is None:
        out.lines(text.rstrip("\n"))
    elif not json_output:
        out.print(f"written: {target}")
    return {"card": text, "file": None if target is None else str(target)}
