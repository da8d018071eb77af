"""`expunge desk run`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from expunge.cli.console import as_json, out, progress, quiet, reporting
from expunge.cli.desk.options import desk_folder, saved_heads, say_clock, waiting
from expunge.cli.sections import Command
from expunge.cli.sets import FILE, label_column, read_rows

if TYPE_CHECKING:
    from expunge.desk import Outcome, PublishedModel


@click.command(cls=Command, short_help="Forget what is pending, publish, certify.")
@desk_folder
@click.option(
    "--each", is_flag=True, help="One model a request: more models, which say more together than one model for all."
)
@click.option("--sign-key", type=FILE, help="An Ed25519 private key (expunge keygen).")
@click.option(
    "--test",
    type=FILE,
    help="Labelled rows on which to measure accuracy before and after.",
)
@label_column
@saved_heads(
    "A head saved earlier, outside the desk (expunge desk head, or head.json of a published folder): a ledger that is "
    "older is refused (exit status 1), since the desk was put back."
)
@waiting
@quiet
@as_json
@reporting
def run(
    desk: Path,
    each: bool,
    sign_key: Path | None,
    test: Path | None,
    label: str | None,
    heads: tuple[Path, ...],
    timeout: float,
    quiet: bool,
    json_output: bool,
) -> dict[str, Any]:
    """Forget the rows of all pending requests and publish one model for all of them, with certificate and report.

    Killed half-way, it is enough to run it again. A request that cannot be served is set aside with its reason, and the
    others go on (`expunge desk status` lists them). Exit status 3 means: retrain now, with the reason; models that were
    published stay published.

    \b
    expunge desk run desk/ --sign-key desk.key --test test.npz --head saved-head.json
    """
    from expunge.certificate.sign import read_private_key
    from expunge.desk import open_desk
    from expunge.desk import run as process
    from expunge.desk.ledger import saved_head
    from expunge.desk.state import served_model

    opened = open_desk(desk, timeout)
    saved = [saved_head(path) for path in heads]
    key = None if sign_key is None else read_private_key(sign_key)
    rows = None if test is None else read_rows(test, label, served_model(opened))
    with progress(not quiet) as advance:
        outcome = process(
            opened,
            each=each,
            sign_key=key,
            test=rows,
            heads=saved,
            progress=advance,
        )
    say_clock(opened)
    if not json_output:
        _print(outcome)
    if outcome.refused is not None:
        raise outcome.refused
    return {
        "published": [_described(made) for made in outcome.published],
        "pending": outcome.pending,
        "aside": outcome.aside,
    }


def _print(outcome: Outcome) -> None:
    for made in outcome.published:
        answered = ", ".join(str(number) for number in made.requests)
        out.print(
            f"published model {made.number} for request {answered}: {made.certificate.status}, "
            f"sigma {made.certificate.sigma:.4g}; all models together: epsilon {made.composition.epsilon:.4g}"
        )
    if not outcome.published and outcome.refused is None:
        out.print("nothing was pending")
    if outcome.aside:
        out.print(f"{outcome.aside:,} set aside: see expunge desk status")


def _described(made: PublishedModel) -> dict[str, Any]:
    return {
        "model": made.number,
        "requests": list(made.requests),
        "sigma": made.certificate.sigma,
        "status": made.certificate.status,
        "composition": made.composition.to_json(),
    }
