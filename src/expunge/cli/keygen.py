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
    check them, by a way that cannot be tampered with. Both files are written or neither. Where the private key is there
    and the public one is not, that one is written anew: it follows from the other.

    \b
    expunge keygen --out desk.key
    """
    from expunge.certificate.sign import generate_keys, keys_of, read_private_key
    from expunge.errors import FileError
    from expunge.rows.output import require_absent, sweep, write_file, write_pair
    from expunge.runtime.durable import PRIVATE, PUBLIC

    public = target.with_name(target.name + ".pub")
    require_absent(public)
    new = not target.is_file()
    if new:
        require_absent(target)
        keys = generate_keys()
        write_pair((target, keys.private, PRIVATE), (public, keys.public, PUBLIC))
    else:
        try:
            keys = keys_of(read_private_key(target))
        except FileError:
            require_absent(target)  # it is something else, which is not written over
            raise
        sweep(target)  # a kill between the two names leaves the private key under another one
        write_file(public, keys.public)
    if not json_output:
        words = f"written: {target} (private, keep it so), {public}"
        out.print(words if new else f"written: {public}, of the private key that was there: {target}", markup=False)
        out.print(f"key id {keys.keyid}")
    return {"private_key": str(target), "public_key": str(public), "keyid": keys.keyid, "new": new}
