"""`expunge verify`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from expunge.cli.attesting import Attest, attested
from expunge.cli.console import as_json, err, out, reporting
from expunge.cli.sections import Command, section
from expunge.cli.sets import FILE, label_column

NOT_SHOWN = "not given: that their rows left was not checked; auditors give them with --forget"


@click.command(cls=Command, short_help="Anybody: check a statement from its file.")
@section(
    "What is checked",
    click.argument("statement", type=FILE),
    click.option(
        "--model",
        type=FILE,
        help="The published model: digest, shape, type, grid and record are compared with the statement.",
    ),
    click.option(
        "--public-key",
        type=FILE,
        help="The issuer's public key: check the signature of a signed statement, before anything else.",
    ),
)
@section(
    "For the auditor",
    click.option(
        "--dossier",
        type=FILE,
        help="Hold the facts of the private dossier against each other, recompute every number, and that the "
        "statement follows from it.",
    ),
    click.option(
        "--deposit-after",
        type=FILE,
        help="With --dossier: the deposit that was left (private/model.deposit). Work out step, region and every fact "
        "anew from it.",
    ),
    click.option(
        "--deposit",
        type=FILE,
        help="With --deposit-after: the deposit the rows were taken out of. Check that so many rows can have left it; "
        "that they did, only --forget shows.",
    ),
    click.option(
        "--forget",
        type=FILE,
        help="With both deposits: the rows that were forgotten, as they were given then. Check that the one deposit is "
        "the other without them.",
    ),
    click.option(
        "--forget-class", help="With --forget, where a whole class was forgotten: of its rows those with this label."
    ),
    click.option(
        "--surrogate",
        type=FILE,
        help="With --deposit-after, where a surrogate stood beside the deposit: its rows, which the region rests on.",
    ),
    label_column,
)
@section("Output", click.option("--verbose", is_flag=True, help="Name every check, and everything that is wrong."))
@as_json
@reporting
@attested(
    "--svr",
    "With --model: write the verdict to a new file that other tools read, an in-toto Simple Verification Result. "
    "There is none of what fails.",
)
def verify(
    statement: Path,
    model: Path | None,
    dossier: Path | None,
    public_key: Path | None,
    verbose: bool,
    attest: Attest | None,
    json_output: bool,
    **deposits: Any,
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
                   --deposit model.deposit --deposit-after result/private/model.deposit --forget forget.npz
    expunge verify result/statement.json --model result/model.safetensors --svr verdict.json
    """
    from expunge.certificate.sign import open_file, verify_opened
    from expunge.certificate.verify import found_since
    from expunge.errors import VerificationFailed

    try:
        opened = open_file(statement, public_key)
        if attest is not None:
            _require_attestable(opened.document, model)
        checks = verify_opened(opened, statement, model, dossier)
        if any(given is not None for name, given in deposits.items() if name != "label"):
            checks += _with_deposits(dossier, model, **deposits)
    except VerificationFailed as failed:
        if json_output:
            raise
        _print_failed(failed, verbose)
        sys.exit(failed.exit_status)
    checked = {
        "model_checked": model is not None,
        "dossier_checked": dossier is not None,
        "deposits_checked": deposits["deposit_after"] is not None,
        "forgotten_checked": deposits["forget"] is not None,
        "signature_checked": public_key is not None,
    }
    if attest is not None:
        attest.write(_verdict(opened, checked))
    since = found_since(opened.document.content)
    if not json_output:
        _print_checked(opened.document, checks, since, verbose)
        if attest is not None:
            out.print(f"written: {attest.path}", markup=False)
    names = [check.name for check in checks]
    return {"verified": True, "status": opened.document.status, **checked, "checks": names, "found_since": list(since)}


def _require_attestable(document: Any, model: Path | None) -> None:
    """Only a public statement with its model is spoken of in public."""
    from expunge.certificate.statement import Statement
    from expunge.errors import FileError, OptionError

    if not isinstance(document, Statement):
        raise FileError(
            f"it has schema {document.content['schema']!r}",
            "a verdict for others is about a statement; this tells who left",
            "Give statement.json, with --dossier where the dossier is to be checked too.",
        )
    if model is None:
        raise OptionError(
            "--svr without --model", "the verdict is about a model and its statement", "Give the published model."
        )


def _verdict(opened: Any, checked: dict[str, bool]) -> dict[str, Any]:
    from expunge.certificate.attest import verification_result

    return verification_result(
        opened.document,
        opened.sha256,
        signature=checked["signature_checked"],
        dossier=checked["dossier_checked"],
        deposits=checked["deposits_checked"],
        forgotten=checked["forgotten_checked"],
    )


def _print_failed(failed: Any, verbose: bool) -> None:
    """The verdict, what is wrong in words, and what to do."""
    from expunge.certificate.check import MOST_SHOWN

    err.print("[bold]NOT VERIFIED[/bold]")
    wrong = failed.wrong
    for words in wrong if verbose else wrong[:MOST_SHOWN]:
        err.print(f"  wrong: {words}", markup=False)
    if len(wrong) > MOST_SHOWN and not verbose:
        err.print(f"  and {len(wrong) - MOST_SHOWN} more (--verbose names them)")
    err.print(f"{failed.required}. {failed.remedy}", markup=False)


def _print_checked(document: Any, checks: list[Any], since: tuple[str, ...], verbose: bool) -> None:
    """The verdict, what it rests on, what was not checked, and what is assumed."""
    from expunge.runtime.rounding import up

    promise = f"epsilon {up(document.epsilon)}, delta {up(document.delta)}"
    out.print(f"[bold]verified: {document.status}[/bold], {promise} ({len(checks)} checks, none failed)")
    for name, words in _rests_on(document, checks).items():
        out.print(f"  {name:<10} {words}", markup=False)
    for sentence in document.content["assumptions"]:
        out.print(f"  assumes: {sentence}", markup=False)
    for sentence in since:
        out.print(f"  found since it was issued: {sentence}", markup=False)
    if verbose:
        for check in checks:
            out.print(f"  ok  {check.name}", markup=False)


def _rests_on(document: Any, checks: list[Any]) -> dict[str, str]:
    """What was looked at, in a line each; and what was not."""
    from expunge.certificate.check import DEPOSIT, MODEL
    from expunge.certificate.statement import Statement

    public = isinstance(document, Statement)
    counts = {"signature": 0, "model": 0, "deposits": 0, "dossier": 0, "file": 0}
    for check in checks:
        about = {MODEL: "model", DEPOSIT: "deposits"}.get(check.about, "file")
        if check.name == "signature":
            about = "signature"
        elif public and about == "file" and "dossier" in check.name:
            about = "dossier"
        counts[about] += 1
    told = {("statement" if public else "file"): f"says what follows from its own numbers ({counts['file']} checks)"}
    told["model"] = "not checked; give it with --model"
    if counts["model"]:
        told["model"] = f"is the one that it was issued for, and has its noise ({counts['model']} checks)"
    if public:
        told["dossier"] = "not given: that the noise is enough was not recomputed; auditors give it with --dossier"
    if counts["dossier"]:
        told["dossier"] = f"every number recomputed, and the statement follows from it ({counts['dossier']} checks)"
    if counts["deposits"]:
        told["deposits"] = f"every fact worked out anew from them ({counts['deposits']} checks)"
        rows_left = any("without the forgotten rows" in check.name for check in checks)
        told["forgotten"] = "their rows left the deposit, and nothing else did" if rows_left else NOT_SHOWN
    told["signature"] = "fits the public key that was given"
    if not counts["signature"]:
        told["signature"] = "not signed, or not checked: anybody could have written this file; see --public-key"
    return told


def _with_deposits(
    dossier: Path | None,
    model: Path | None,
    *,
    deposit_after: Path | None,
    deposit: Path | None,
    forget: Path | None,
    forget_class: str | None,
    surrogate: Path | None,
    label: str | None,
) -> list[Any]:
    """What the deposits show beyond the files that are handed out and the dossier."""
    from expunge.certificate.content import read_certificate
    from expunge.cli.sets import read_rows
    from expunge.errors import OptionError
    from expunge.evidence.deposit.contents import read_deposit
    from expunge.evidence.deposit.verifying import verify_deposits
    from expunge.request.rows import of_class

    whole = forget_class is None or forget is not None
    if dossier is None or deposit_after is None or (forget is not None and deposit is None) or not whole:
        raise OptionError(
            "deposits, surrogate or forgotten rows, without what they are compared with",
            "--deposit-after goes with --dossier, --deposit and --surrogate with --deposit-after, --forget with both "
            "deposits, --forget-class with --forget",
            "Give these files too.",
        )
    after = read_deposit(deposit_after)
    before = None if deposit is None else read_deposit(deposit)
    rows = None if forget is None else read_rows(forget, label, after)
    if before is not None and rows is not None and forget_class is not None:
        rows = of_class(rows, forget_class, replace(before.record, class_counts=before.numbers.class_counts))
    return verify_deposits(
        read_certificate(dossier),
        after,
        before,
        rows,
        model,
        None if surrogate is None else read_rows(surrogate, label, after),
    )
