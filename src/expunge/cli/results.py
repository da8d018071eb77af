"""What a deletion hands over: a folder with the model, its statement and, apart and private, the dossier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from expunge.cli.console import out, print_certificate

MODEL, STATEMENT, SIGNED, DOSSIER = "model.safetensors", "statement.json", "statement.signed.json", "dossier.json"
PRIVATE = "private"


def result_files(result: Any, key: Any = None) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """The files of a result by name: those that may be handed out, and those that may not."""
    from expunge.certificate.sign import seal

    public = {MODEL: result.model.to_bytes(), STATEMENT: result.statement.to_json().encode()}
    if key is not None:
        public[SIGNED] = seal(result.statement, key)
    return public, {DOSSIER: result.certificate.to_json().encode()}


def write_result(target: Path, result: Any, key: Any = None) -> tuple[str, ...]:
    """The folder, whole or not at all; the names of the files that may be handed out."""
    from expunge.data.output import write_folder

    public, private = result_files(result, key)
    write_folder(target, public, private={PRIVATE: private})
    return tuple(public)


def told_result(target: Path, result: Any, names: tuple[str, ...], json_output: bool) -> dict[str, Any]:
    """What was written and certified, on the screen or for JSON."""
    dossier = target / PRIVATE / DOSSIER
    if not json_output:
        print_certificate(result.certificate.content)
        out.print("may be handed out: " + ", ".join(str(target / name) for name in names), markup=False)
        out.print(f"private, for the auditor alone, since it tells who left: {dossier}", markup=False)
    return {
        "model": str(target / MODEL),
        "statement_file": str(target / STATEMENT),
        "statement": result.statement.content,
        "dossier_file": str(dossier),
        "certificate": result.certificate.content,
    }
