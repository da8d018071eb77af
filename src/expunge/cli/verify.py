"""`expunge verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from expunge.cli.console import as_json, out, reporting
from expunge.cli.sections import Command
from expunge.cli.sets import FILE


@click.command(cls=Command, short_help="Anybody: check a certificate from its file.")
@click.argument("certificate", type=FILE)
@click.option(
    "--model",
    type=FILE,
    help="The published model; its digest is compared with the certificate's.",
)
@click.option(
    "--public-key",
    type=FILE,
    help="The issuer's public key: check the signature of a signed certificate, before anything else.",
)
@as_json
@reporting
def verify(certificate: Path, model: Path | None, public_key: Path | None, json_output: bool) -> dict[str, Any]:
    """Check a certificate: recompute every term, Delta, sigma, and delta at sigma from the file alone.

    Fails (exit status 1) on any difference. It checks that the certificate says what follows from its own numbers; what
    it assumes, it lists.

    \b
    expunge verify result/certificate.json --model result/model.safetensors
    expunge verify result/certificate.signed.json --model result/model.safetensors --public-key desk.key.pub
    """
    from expunge.certificate.sign import verify_file

    checked, checks = verify_file(certificate, public_key, model)
    if not json_output:
        for check in checks:
            out.print(f"  ok  {check.name}", markup=False)
        out.print(f"verified: {len(checks)} checks; status [bold]{checked.status}[/bold]")
        if model is None:
            out.print("the model was not checked; give it with --model")
        if public_key is None:
            out.print("not signed, or not checked: anybody could have written this file; see --public-key")
        for sentence in checked.content["assumptions"]:
            out.print(f"  assumes: {sentence}", markup=False)
    return {
        "verified": True,
        "status": checked.status,
        "model_checked": model is not None,
        "signature_checked": public_key is not None,
        "checks": [check.name for check in checks],
    }
