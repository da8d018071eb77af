"""`expunge desk run`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from expunge.cli.console import as_json, out, progress, quiet, reporting
from expunge.cli.desk.options import desk_folder
from expunge.cli.sections import Command
from expunge.cli.sets import FILE, label_column


@click.command(cls=Command, short_help="Forget what is pending, publish, certify.")
@desk_folder
@click.option("--batch", is_flag=True, help="One model for all pending requests: less noise than one model a request.")
@click.option("--sign-key", type=FILE, help="An Ed25519 private key (expunge keygen).")
@click.option(
    "--test",
    type=FILE,
    help="Labelled rows on which to measure accuracy before and after.",
)
@label_column
@quiet
@as_json
@reporting
def run(
    desk: Path, batch: bool, sign_key: Path | None, test: Path | None, label: str | None, quiet: bool, json_output: bool
) -> dict[str, Any]:
    """Forget the rows of all pending requests and publish models with certificates and reports.

    Killed half-way, it is enough to run it again. Exit status 3 means: retrain now, with the reason; models published
    before that stay published, the other requests stay pending. With a deposit, requests that are beyond its reach are
    left out and wait; the others are served.

    \b
    expunge desk run desk/ --batch --sign-key desk.key --test test.npz
    """
    from expunge.certificate.sign import read_private_key
    from expunge.data import read_data
    from expunge.desk import open_desk
    from expunge.desk import run as process

    key = None if sign_key is None else read_private_key(sign_key)
    rows = None if test is None else read_data(test, label)
    with progress(not quiet) as advance:
        outcome = process(
            open_desk(desk),
            batch=batch,
            sign_key=key,
            test=None if rows is None else rows.rows,
            progress=advance,
        )
    if not json_output:
        for made in outcome.published:
            answered = ", ".join(str(number) for number in made.requests)
            out.print(
                f"published model {made.number} for request {answered}: {made.certificate.status}, "
                f"sigma {made.certificate.sigma:.4g}; all models together: epsilon {made.composition.epsilon:.4g}"
            )
        if not outcome.published and outcome.refused is None:
            out.print("nothing was pending")
    if outcome.refused is not None:
        raise outcome.refused
    return {
        "published": [
            {
                "model": made.number,
                "requests": list(made.requests),
                "sigma": made.certificate.sigma,
                "status": made.certificate.status,
                "composition": made.composition.to_json(),
            }
            for made in outcome.published
        ],
        "pending": outcome.pending,
    }
