"""`expunge keygen`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from expunge.cli.console import as_json, out, reporting, written_to
from expunge.cli.sections import Command


@click.command(cls=Command, short_help="Make a key pair for signing certificates.")
@written_to("The private key to write (mode 0600); the public key is written beside it, with .pub appended.")
@as_json
@reporting
def keygen(target: Path, json_output: bool) -> dict[str, Any]:
    """Make a key pair for signing certificates (Ed25519).

    Keep the private key where only those who issue certificates can read it, and hand the public key to whoever is to
    check them, by a way that cannot be tampered with.

    \b
    expunge keygen --out desk.key
    """
    from expunge.certificate.sign import generate_keys
    from expunge.data.output import require_absent
    from expunge.runtime.durable import PUBLIC, write_whole

    public = target.with_name(target.name + ".pub")
    require_absent(target)
    require_absent(public)
    target.parent.mkdir(parents=True, exist_ok=True)
    keys = generate_keys()
    write_whole(target, keys.private)
    write_whole(public, keys.public, PUBLIC)
    if not json_output:
        out.print(f"written: {target} (private, keep it so), {public}", markup=False)
        out.print(f"key id {keys.keyid}")
    return {"private_key": str(target), "public_key": str(public), "keyid": keys.keyid}
