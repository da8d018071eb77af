"""What a deletion hands over: a folder with the model, its statement and, apart and private, the dossier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from expunge.cli.console import out, print_certificate


def write_result(target: Path, result: Any, key: Any = None) -> tuple[str, ...]:
    """The folder, whole or not at all; the names of the files that may be handed out."""
    from expunge.rows.output import write_folder
    from expunge.rows.results import PRIVATE, result_files

    public, private = result_files(result, key)
    write_folder(target, public, private={PRIVATE: private})
    return tuple(public)


def told_result(
    target: Path, result: Any, names: tuple[str, ...], json_output: bool, before: Path | None = None
) -> dict[str, Any]:
    """What was written and certified, on the screen or for JSON; `before` is the deposit the rows were taken out of.

    JSON, which programs log, has public things and paths alone; the screen also shows the bound, which is private.
    """
    from expunge.rows.results import DEPOSIT, DOSSIER, MODEL, PRIVATE, STATEMENT

    dossier, kept = target / PRIVATE / DOSSIER, target / PRIVATE / DEPOSIT
    if not json_output:
        print_certificate(result.certificate.content)
        out.print("may be handed out: " + ", ".join(str(target / name) for name in names), markup=False)
        out.print(f"private, for the auditor alone, since it tells who left: {dossier}", markup=False)
        if before is not None:
            _print_deposits(result.certificate, kept, before)
    told = {
        "model": str(target / MODEL),
        "statement_file": str(target / STATEMENT),
        "statement": result.statement.content,
        "dossier_file": str(dossier),
    }
    return told if before is None else told | {"deposit_file": str(kept), "destroy": str(before)}


def _print_deposits(dossier: Any, kept: Path, before: Path) -> None:
    """What the noise does to outputs, which is private, and what is to become of the two deposits."""
    facts = dossier.content["bound"]["inputs"]
    moved, spread = dossier.sigma * facts["output_noise"]["value"], facts["output_spread"]["value"]
    out.print(f"the noise moves an output by about {moved:.3g}; the model's own are about {spread:.3g}")
    out.print(f"private, for the next deletion: {kept} is the deposit of what is retained", markup=False)
    out.print(
        f"destroy {before}, and every copy: the forgotten rows are still in it, and beside the new one it tells who "
        "left (an auditor who is to check both has to do so first)",
        markup=False,
        style="bold",
    )
