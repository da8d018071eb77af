"""`expunge sign`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from expunge.cli.console import as_json, out, reporting, written_to
from expunge.cli.sections import Command
from expunge.cli.sets import FILE


@click.command(cls=Command, short_help="Sign the statement of a result that is there already.")
@click.argument("result", type=FILE)
@click.option("--sign-key", required=True, type=FILE, help="An Ed25519 private key (expunge keygen).")
@written_to("The signed statement, a new file (default: statement.signed.json in the result).", required=False)
@as_json
@reporting
def sign(result: Path, sign_key: Path, target: Path | None, json_output: bool) -> dict[str, Any]:
    """Sign the statement of a result that is there already, without unlearning again.

    Statement and model are verified first, and the dossier too where it lies in the result; what fails is not signed
    (exit status 1). Nothing is written over.

    \b
    expunge sign result/ --sign-key desk.key
    expunge sign desk/published/0001/ --sign-key desk.key --out statement-0001.signed.json
    """
    from expunge.certificate.sign import keyid_of, read_private_key
    from expunge.desk import sign_result

    key = read_private_key(sign_key)
    written, keyid = sign_result(result, key, target), keyid_of(key.public_key())
    if not json_output:
        out.print(f"written: {written}", markup=False)
        out.print(f"key id {keyid}")
    return {"signed_file": str(written), "keyid": keyid}
