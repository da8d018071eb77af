"""Anybody: `expunge verify`; and handing over: `keygen`, `sign`, `report`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from expunge.cli.console import err, out
from expunge.cli.files import LABEL, read_rows
from expunge.cli.options import argument, command, options_of, output_option
from expunge.runtime.values import option

GENUINE = "taken as genuine: whoever made a deposit could have made up its sums, and nothing in the file would show it"
NOT_SHOWN = "not given: that their rows left was not checked; auditors give them with --forget"
SIGN_KEY = "An Ed25519 private key (expunge keygen)"


@dataclass(frozen=True)
class Deposits:
    """What an auditor holds beyond the dossier: both deposits, the rows that left."""

    deposit_after: Path | None = option(
        "With --dossier: the deposit that was left (private/model.deposit). Work out step, region and every fact anew "
        "from it. Deposits are taken as genuine.",
        None,
        section="For the auditor",
    )
    deposit: Path | None = option(
        "With --deposit-after: the deposit the rows were taken out of. Check that the later one is this one with fewer "
        "rows; that these rows left it, only --forget shows.",
        None,
    )
    forget: Path | None = option(
        "With both deposits: the rows that were forgotten, as they were given then. Check that the one deposit is the "
        "other without them.",
        None,
    )
    label: str | None = option(LABEL, None)

    def check(self, dossier: Path | None, model: Path | None) -> list[Any]:
        """What the deposits show beyond the files that are handed out and the dossier; nothing, where none is given."""
        if all(value is None for name, value in vars(self).items() if name != "label"):
            return []
        from expunge.certificate.sign import read_dossier  # after that: they load torch
        from expunge.deposit.file import read_deposit
        from expunge.deposit.verify import verify_deposits
        from expunge.errors import OptionError

        if dossier is None or self.deposit_after is None or (self.forget is not None and self.deposit is None):
            raise OptionError(
                "deposits or forgotten rows, without what they are compared with",
                "--deposit-after goes with --dossier, --deposit with --deposit-after, --forget with both deposits",
                "Give these files too.",
            )
        after = _read_undamaged(self.deposit_after, read_deposit)
        before = None if self.deposit is None else _read_undamaged(self.deposit, read_deposit)
        rows = None if self.forget is None else read_rows(self.forget, self.label, after)
        checks: list[Any] = verify_deposits(read_dossier(dossier), after, before, rows, model)
        return checks


def _read_undamaged(path: Path, read: Callable[[Path], Any]) -> Any:
    """A deposit that is there; what is damaged fails the check."""
    from expunge.errors import InputError, VerificationFailed
    from expunge.runtime.files import readable

    readable(path)
    try:
        return read(path)
    except InputError as error:
        raise VerificationFailed(error.found, error.required, error.remedy) from error


@command()
def verify(
    statement: Path = argument(),
    model: Path | None = option(
        "The published model: digest, shape, type, grid and record are compared with the statement.",
        section="What is checked",
    ),
    public_key: Path | None = option(
        "The issuer's public key: check the signature of a signed statement, before anything else."
    ),
    require_signature: bool = option(
        "Fail (exit status 1) where nobody has signed the statement: anybody can write one that is consistent."
    ),
    dossier: Path | None = option(
        "Hold the facts of the private dossier against each other, recompute every number, and that the statement "
        "follows from it.",
        section="For the auditor",
    ),
    deposits: Deposits = options_of(Deposits),
    verbose: bool = option("Name every check, and everything that is wrong.", section="Output"),
) -> Any:
    """Check a statement: recompute from the file alone what follows from what it says, and its model.

    The verdict is consistent, authenticated or failed, and stands apart from the certificate's own status (proven,
    conditional, estimated). Anybody can write a statement that is consistent; only a signature, checked with a key that
    you have from the issuer, authenticates one.

    Fails (exit status 1) on any difference, on a damaged file and on another model, and never says what would have
    passed. What the statement assumes it lists. A dossier is checked by the same command: facts are held against each
    other, every term, Delta, sigma and delta at sigma recomputed.

    \b
    expunge verify result/statement.json --model result/model.safetensors
    expunge verify result/statement.signed.json --model result/model.safetensors --public-key desk.key.pub
    expunge verify result/statement.json --model result/model.safetensors --dossier result/private/dossier.json
    expunge verify result/statement.json --model result/model.safetensors --dossier result/private/dossier.json
                   --deposit model.deposit --deposit-after result/private/model.deposit --forget forget.npz
    """
    from expunge.certificate.sign import verify_file
    from expunge.errors import VerificationFailed

    try:
        document, verdict = verify_file(statement, public_key, model, dossier, require_signature=require_signature)
        verdict += deposits.check(dossier, model)
    except VerificationFailed as failed:
        if out.quiet:  # --json says it whole
            raise
        _print_failure(failed, verbose)
        raise SystemExit(failed.exit_status) from None
    checked = {
        "model_checked": model is not None,
        "dossier_checked": dossier is not None,
        "deposits_checked": deposits.deposit_after is not None,
        "forgotten_checked": deposits.forget is not None,
        "signature_checked": verdict.signed_by is not None,
    }
    _print_verdict(document, verdict, verbose)
    return {
        "verdict": verdict.word,
        "verdict_means": verdict.sentence,
        "signed_by": verdict.signed_by,
        "status": verdict.status,
        **checked,
        **({"deposits_are": GENUINE} if checked["deposits_checked"] else {}),
        "checks": [check.name for check in verdict],
    }


def _print_failure(failed: Any, verbose: bool) -> None:
    """The verdict, what is wrong in words, and what to do; never what would have passed."""
    from expunge.certificate.rules import MOST_SHOWN
    from expunge.certificate.verify import FAILED

    err.print(f"verdict: {FAILED}", style="bold")
    for words in failed.wrong if verbose else failed.wrong[:MOST_SHOWN]:
        err.print(f"  wrong: {words}")
    if len(failed.wrong) > MOST_SHOWN and not verbose:
        err.print(f"  and {len(failed.wrong) - MOST_SHOWN} more (--verbose names them)")
    err.print(f"{failed.required}. {failed.remedy}")


def _print_verdict(document: Any, verdict: Any, verbose: bool) -> None:
    """The verdict, the certificate's own status, what both rest on, what was not checked, and what is assumed."""
    from expunge.certificate.wording import outside
    from expunge.runtime.values import up

    out.bold(f"verdict: {verdict.sentence} ({len(verdict)} checks, none failed)")
    promise = f"epsilon {up(document.epsilon)}, delta {up(document.delta)}"
    out.print(f"the certificate's status: {verdict.status}, {promise}")
    if beyond := outside(document.content["model"].get("preparation")):
        out.bold(f"  of the weights: {beyond}")
    for name, words in _grounds(document, verdict).items():
        out.print(f"  {name:<10} {words}")
    out.listing(document.content["assumptions"], "  assumes: ")
    if verbose:
        out.listing([check.name for check in verdict], "  ok  ")


def _grounds(document: Any, checks: list[Any]) -> dict[str, str]:
    """What was looked at, in a line each; and what was not."""
    from expunge.certificate.rules import DEPOSIT, OF_MODEL
    from expunge.certificate.statement import Statement

    public = isinstance(document, Statement)
    own, private = "statement" if public else "file", {DEPOSIT: "deposits", OF_MODEL: "model"}
    counts = Counter(
        private.get(check.about, "dossier" if public and "dossier" in check.name else own)
        for check in checks
        if check.name != "signature"
    )
    given = {
        own: "says what follows from its own numbers",
        "model": "is the one that it was issued for, and has its noise",
        "dossier": "every number recomputed, and the statement follows from it",
        "deposits": "every fact worked out anew from them",
    }
    told = {name: f"{words} ({counts[name]} checks)" for name, words in given.items() if counts[name]}
    if not counts["model"]:
        told["model"] = "not checked; give it with --model"
    if public and not counts["dossier"]:
        told["dossier"] = "not given: that the noise is enough was not recomputed; auditors give it with --dossier"
    if counts["deposits"]:
        told["deposits"] += f"; {GENUINE}"
        rows_left = any("without the forgotten rows" in check.name for check in checks)
        told["forgotten"] = "their rows left the deposit, and nothing else did" if rows_left else NOT_SHOWN
    signed = any(check.name == "signature" for check in checks)
    unsigned = "there is none: anybody could have written this file; see --require-signature"
    told["signature"] = "fits the public key that was given" if signed else unsigned
    return told


@command()
def keygen(
    target: Path = option(
        "The private key to write (mode 0600); the public key is written beside it, with .pub appended.",
        names=("--out",),
    ),
) -> Any:
    """Make a key pair for signing certificates (Ed25519).

    Keep the private key where only those who issue certificates can read it, and hand the public key to whoever is to
    check them, by a way that cannot be tampered with. Both files are written or neither. Where the private key is there
    and the public one is not, that one is written anew: it follows from the other.

    \b
    expunge keygen --out desk.key
    """
    from expunge.certificate.sign import generate_keys, keys_of, read_private_key
    from expunge.errors import FileError
    from expunge.rows.output import require_absent, sweep, write_file, write_together
    from expunge.runtime.files import PRIVATE, PUBLIC

    public = target.with_name(target.name + ".pub")
    require_absent(public)
    new = not target.is_file()
    if new:
        require_absent(target)
        keys = generate_keys()
        write_together((target, keys.private, PRIVATE), (public, keys.public, PUBLIC))
        out.print(f"written: {target} (private, keep it so), {public}")
    else:
        try:
            keys = keys_of(read_private_key(target))
        except FileError:
            require_absent(target)  # it is something else, which is not written over
            raise
        sweep(target)  # a kill between the two names leaves the private key under another one
        write_file(public, keys.public)
        out.print(f"written: {public}, of the private key that was there: {target}")
    out.print(f"key id {keys.keyid}")
    return {"private_key": str(target), "public_key": str(public), "keyid": keys.keyid, "new": new}


@command()
def sign(
    result: Path = argument(),
    sign_key: Path = option(f"{SIGN_KEY}."),
    target: Path | None = option(
        "The signed statement, a new file (default: statement.signed.json in the result).", names=("--out",)
    ),
) -> Any:
    """Sign the statement of an existing result, without unlearning again.

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
    out.print(f"written: {written}")
    out.print(f"key id {keyid}")
    return {"signed_file": str(written), "keyid": keyid}


@command()
def report(
    result: Path = argument(),
    public_key: Path | None = option("Check the result's signature and say so on the page."),
    full: bool = option(
        "The full page, from the private dossier: every term and number. As private as that: it tells who left."
    ),
    target: Path = output_option("A new .html file."),
) -> Any:
    """A page about one result of `expunge unlearn` that people can read; its statement is verified first.

    The page begins with what was decided, and answers what was asked, how sure it is, what was assumed, what may be
    published and what to do next. It is one file without scripts that opens offline and prints well. It is made from
    the statement and may be handed out; with --full it is made from the dossier and may not. For a desk with all its
    requests and models: expunge desk report.

    \b
    expunge report result/ --out report.html
    expunge report result/ --full --out private.html
    """
    from expunge.desk import result_report
    from expunge.desk.policy import Layout
    from expunge.errors import FileError
    from expunge.rows.output import write_file
    from expunge.runtime.files import PRIVATE, PUBLIC

    if Layout(result).ledger.is_file():
        raise FileError(
            f"{result} is a desk", "a result of expunge unlearn is needed", f"Use expunge desk report {result}."
        )
    page = result_report(result, public_key, full=full)
    write_file(target, page, mode=PRIVATE if full else PUBLIC)
    out.print(f"written: {target}")
    return {"files": [str(target)]}
