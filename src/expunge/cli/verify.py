"""`expunge verify`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from expunge.cli.attesting import Attest, attested
from expunge.cli.console import as_json, err, out, reporting
from expunge.cli.sections import Command, section
from expunge.cli.sets import FILE, label_column

GENUINE = "taken as genuine: whoever made a deposit could have made up its sums, and nothing in the file would show it"
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
    click.option(
        "--require-signature",
        is_flag=True,
        help="Fail (exit status 1) where nobody has signed the statement: anybody can write one that is consistent.",
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
        "anew from it. Deposits are taken as genuine.",
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
    require_signature: bool,
    verbose: bool,
    attest: Attest | None,
    json_output: bool,
    **deposits: Any,
) -> dict[str, Any]:
    """Check a statement: recompute from the file alone what follows from what it says, and its model.

    The verdict is consistent, authenticated or failed, and stands apart from the certificate's own status (proven,
    conditional, estimated). Anybody can write a statement that is consistent; only a signature, checked with a key that
    you have from the issuer, authenticates one.

    Fails (exit status 1) on any difference, on a damaged file and on another model, and never says what would have
    passed. What the statement assumes it lists. A dossier, and certificates of earlier versions, are checked by the
    same command: facts are held against each other, every term, Delta, sigma and delta at sigma recomputed; and what
    was found since such a certificate was issued is said.

    \b
    expunge verify result/statement.json --model result/model.safetensors
    expunge verify result/statement.signed.json --model result/model.safetensors --public-key desk.key.pub
    expunge verify result/statement.json --model result/model.safetensors --dossier result/private/dossier.json
    expunge verify result/statement.json --model result/model.safetensors --dossier result/private/dossier.json
                   --deposit model.deposit --deposit-after result/private/model.deposit --forget forget.npz
    expunge verify result/statement.json --model result/model.safetensors --svr verdict.json
    """
    from expunge.certificate.sign import open_file, verify_opened
    from expunge.errors import VerificationFailed

    try:
        opened = open_file(statement, public_key, require_signature=require_signature)
        if attest is not None:
            _require_attestable(opened.document, model)
        verdict = verify_opened(opened, statement, model, dossier)
        if any(given is not None for name, given in deposits.items() if name != "label"):
            verdict += _with_deposits(dossier, model, **deposits)
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
        "signature_checked": verdict.signed_by is not None,
    }
    if attest is not None:
        attest.write(_attestation(opened, checked))
    if not json_output:
        _print_checked(opened.document, verdict, verbose)
        if attest is not None:
            out.print(f"written: {attest.path}", markup=False)
    return {
        "verdict": verdict.word,
        "verdict_means": verdict.sentence,
        "signed_by": verdict.signed_by,
        "status": verdict.status,
        **checked,
        **({"deposits_are": GENUINE} if checked["deposits_checked"] else {}),
        "checks": [check.name for check in verdict],
        "found_since": list(verdict.found_since),
    }


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


def _attestation(opened: Any, checked: dict[str, bool]) -> dict[str, Any]:
    from expunge.certificate.sign import verification_result

    return verification_result(
        opened.document,
        opened.sha256,
        signed_by=opened.signed_by,
        dossier=checked["dossier_checked"],
        deposits=checked["deposits_checked"],
        forgotten=checked["forgotten_checked"],
    )


def _print_failed(failed: Any, verbose: bool) -> None:
    """The verdict, what is wrong in words, and what to do; never what would have passed."""
    from expunge.certificate.check import FAILED, MOST_SHOWN

    err.print(f"verdict: {FAILED}", style="bold")
    wrong = failed.wrong
    for words in wrong if verbose else wrong[:MOST_SHOWN]:
        err.print(f"  wrong: {words}", markup=False)
    if len(wrong) > MOST_SHOWN and not verbose:
        err.print(f"  and {len(wrong) - MOST_SHOWN} more (--verbose names them)")
    err.print(f"{failed.required}. {failed.remedy}", markup=False)


def _print_checked(document: Any, verdict: Any, verbose: bool) -> None:
    """The verdict, the certificate's own status, what both rest on, what was not checked, and what is assumed."""
    from expunge.certificate.wording import outside
    from expunge.runtime.rounding import up

    promise = f"epsilon {up(document.epsilon)}, delta {up(document.delta)}"
    out.print(f"verdict: {verdict.sentence} ({len(verdict)} checks, none failed)", markup=False, style="bold")
    out.print(f"the certificate's status: {verdict.status}, {promise}", markup=False)
    if beyond := outside(document.content["model"].get("preparation")):
        out.print(f"  of the weights: {beyond}", markup=False, style="bold")
    for name, words in _rests_on(document, verdict).items():
        out.print(f"  {name:<10} {words}", markup=False)
    for sentence in document.content["assumptions"]:
        out.print(f"  assumes: {sentence}", markup=False)
    for sentence in verdict.found_since:
        out.print(f"  found since it was issued: {sentence}", markup=False)
    if verbose:
        for check in verdict:
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
        told["deposits"] = f"every fact worked out anew from them ({counts['deposits']} checks); {GENUINE}"
        rows_left = any("without the forgotten rows" in check.name for check in checks)
        told["forgotten"] = "their rows left the deposit, and nothing else did" if rows_left else NOT_SHOWN
    told["signature"] = "fits the public key that was given"
    if not counts["signature"]:
        told["signature"] = "there is none: anybody could have written this file; see --require-signature"
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
    from expunge.certificate.sign import read_dossier
    from expunge.cli.sets import read_rows
    from expunge.deposit.contents import read_deposit
    from expunge.deposit.verifying import verify_deposits
    from expunge.errors import OptionError
    from expunge.request.rows import of_class

    whole = forget_class is None or forget is not None
    if dossier is None or deposit_after is None or (forget is not None and deposit is None) or not whole:
        raise OptionError(
            "deposits, surrogate or forgotten rows, without what they are compared with",
            "--deposit-after goes with --dossier, --deposit and --surrogate with --deposit-after, --forget with both "
            "deposits, --forget-class with --forget",
            "Give these files too.",
        )
    after = _undamaged(deposit_after, read_deposit)
    before = None if deposit is None else _undamaged(deposit, read_deposit)
    rows = None if forget is None else read_rows(forget, label, after)
    if before is not None and rows is not None and forget_class is not None:
        rows = of_class(rows, forget_class, replace(before.record, class_counts=before.numbers.class_counts))
    return verify_deposits(
        read_dossier(dossier),
        after,
        before,
        rows,
        model,
        None if surrogate is None else read_rows(surrogate, label, after),
    )


def _undamaged(path: Path, read: Callable[[Path], Any]) -> Any:
    """A deposit that is there; what is damaged fails the check."""
    from expunge.errors import InputError, VerificationFailed
    from expunge.runtime.paths import readable

    readable(path)
    try:
        return read(path)
    except InputError as error:
        raise VerificationFailed(error.found, error.required, error.remedy) from error
