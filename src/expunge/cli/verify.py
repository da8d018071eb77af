"""`expunge verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from expunge.cli.console import as_json, out, reporting
from expunge.cli.sections import Command
from expunge.cli.sets import FILE


@click.command(cls=Command, short_help="Anybody: check a statement from its file.")
@click.argument("statement", type=FILE)
@click.option(
    "--model",
    type=FILE,
    help="The published model: digest, shape, type, grid and record are compared with the statement.",
)
@click.option(
    "--dossier",
    type=FILE,
    help="For the auditor: hold the facts of the private dossier against each other, recompute every number, and that "
    "the statement follows from it.",
)
@click.option(
    "--public-key",
    type=FILE,
    help="The issuer's public key: check the signature of a signed statement, before anything else.",
)
@as_json
@reporting
def verify(
    statement: Path, model: Path | None, dossier: Path | None, public_key: Path | None, json_output: bool
) -> dict[str, Any]:
    """Check a statement: recompute from the file alone what follows from what it says, and its model.

    Fails (exit status 1) on any difference, and on another model. What the statement assumes it lists. A dossier, and
    certificates of earlier versions, are checked by the same command: facts are held against each other, every term,
    Delta, sigma and delta at sigma recomputed; and what was found since such a certificate was issued is said.

    \b
    expunge verify result/statement.json --model result/model.safetensors
    expunge verify result/statement.signed.json --model result/model.safetensors --public-key desk.key.pub
    expunge verify result/statement.json --model result/model.safetensors --dossier result/private/dossier.json
    """
    from expunge.certificate.check import POSSIBLE
    from expunge.certificate.sign import verify_file
    from expunge.certificate.verify import found_since

    checked, checks = verify_file(statement, public_key, model, dossier)
    since = found_since(checked.content)
    if not json_output:
        rules = sum(check.about == POSSIBLE for check in checks)
        for check in checks:
            if check.about != POSSIBLE:
                out.print(f"  ok  {check.name}", markup=False)
        if rules:  # a statement has no facts to obey them
            out.print(f"  ok  {rules} rules that the facts of a certificate obey (--json names them)", markup=False)
        out.print(f"verified: {len(checks)} checks; status [bold]{checked.status}[/bold]")
        if model is None:
            out.print("the model was not checked; give it with --model")
        if public_key is None:
            out.print("not signed, or not checked: anybody could have written this file; see --public-key")
        for sentence in checked.content["assumptions"]:
            out.print(f"  assumes: {sentence}", markup=False)
        for sentence in since:
            out.print(f"  found since it was issued: {sentence}", markup=False)
    return {
        "verified": True,
        "status": checked.status,
        "model_checked": model is not None,
        "dossier_checked": dossier is not None,
        "signature_checked": public_key is not None,
        "checks": [check.name for check in checks],
        "found_since": list(since),
    }
