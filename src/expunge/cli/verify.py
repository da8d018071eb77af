"""`expunge verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from expunge.cli.console import as_json, out, reporting
from expunge.cli.sections import Command
from expunge.cli.sets import FILE, label_column


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
    "--deposit-after",
    type=FILE,
    help="For the auditor, with --dossier: the deposit that was left (private/model.deposit). Work out step, region "
    "and every fact anew from it.",
)
@click.option(
    "--deposit",
    type=FILE,
    help="With --deposit-after: the deposit the rows were taken out of. Check that the one is the other without them.",
)
@click.option("--forget", type=FILE, help="With both deposits: the rows that were forgotten; everything is recomputed.")
@label_column
@click.option(
    "--public-key",
    type=FILE,
    help="The issuer's public key: check the signature of a signed statement, before anything else.",
)
@as_json
@reporting
def verify(
    statement: Path,
    model: Path | None,
    dossier: Path | None,
    deposit_after: Path | None,
    deposit: Path | None,
    forget: Path | None,
    label: str | None,
    public_key: Path | None,
    json_output: bool,
) -> dict[str, Any]:
    """Check a statement: recompute from the file alone what follows from what it says, and its model.

    Fails (exit status 1) on any difference, and on another model. What the statement assumes it lists. A dossier, and
    certificates of earlier versions, are checked by the same command: facts are held against each other, every term,
    Delta, sigma and delta at sigma recomputed; and what was found since such a certificate was issued is said.

    \b
    expunge verify result/statement.json --model result/model.safetensors
    expunge verify result/statement.signed.json --model result/model.safetensors --public-key desk.key.pub
    expunge verify result/statement.json --model result/model.safetensors --dossier result/private/dossier.json
    expunge verify result/statement.json --model result/model.safetensors --dossier result/private/dossier.json
                   --deposit model.deposit --deposit-after result/private/model.deposit
    """
    from expunge.certificate.sign import verify_file
    from expunge.certificate.verify import found_since

    checked, checks = verify_file(statement, public_key, model, dossier)
    if deposit is not None or deposit_after is not None or forget is not None:
        checks += _with_deposits(dossier, model, deposit_after, deposit, forget, label)
    since = found_since(checked.content)
    if not json_output:
        _print_checked(checked, checks, since, model is not None, public_key is not None)
    return {
        "verified": True,
        "status": checked.status,
        "model_checked": model is not None,
        "dossier_checked": dossier is not None,
        "deposits_checked": deposit_after is not None,
        "signature_checked": public_key is not None,
        "checks": [check.name for check in checks],
        "found_since": list(since),
    }


def _print_checked(checked: Any, checks: list[Any], since: tuple[str, ...], model: bool, signed: bool) -> None:
    """What was checked, what was not, and what is assumed."""
    from expunge.certificate.check import DEPOSIT, POSSIBLE

    counted = {
        POSSIBLE: "rules that the facts of a certificate obey",
        DEPOSIT: "comparisons with the deposits, every fact worked out anew",
    }
    for check in checks:
        if check.about not in counted:
            out.print(f"  ok  {check.name}", markup=False)
    for about, what in counted.items():
        rules = sum(check.about == about for check in checks)
        if rules:
            out.print(f"  ok  {rules} {what} (--json names them)", markup=False)
    out.print(f"verified: {len(checks)} checks; status [bold]{checked.status}[/bold]")
    if not model:
        out.print("the model was not checked; give it with --model")
    if not signed:
        out.print("not signed, or not checked: anybody could have written this file; see --public-key")
    for sentence in checked.content["assumptions"]:
        out.print(f"  assumes: {sentence}", markup=False)
    for sentence in since:
        out.print(f"  found since it was issued: {sentence}", markup=False)


def _with_deposits(
    dossier: Path | None,
    model: Path | None,
    after: Path | None,
    before: Path | None,
    forget: Path | None,
    label: str | None,
) -> list[Any]:
    """What the deposits show beyond the files that are handed out and the dossier."""
    from expunge.certificate.content import read_certificate
    from expunge.data import read_data
    from expunge.errors import OptionError
    from expunge.evidence.deposit.contents import read_deposit
    from expunge.evidence.deposit.verifying import verify_deposits

    if dossier is None or after is None or (forget is not None and before is None):
        raise OptionError(
            "deposits, or forgotten rows, without what they are compared with",
            "--deposit-after goes with --dossier, --deposit with --deposit-after, --forget with both deposits",
            "Give these files too.",
        )
    return verify_deposits(
        read_certificate(dossier),
        read_deposit(after),
        None if before is None else read_deposit(before),
        None if forget is None else read_data(forget, label).rows,
        model,
    )
