"""The command line: one file a command; nothing is computed here."""

from __future__ import annotations

import click

from expunge import __version__
from expunge.cli.audit import audit
from expunge.cli.demo import demo
from expunge.cli.distance import distance
from expunge.cli.embed import embed
from expunge.cli.evaluate import evaluate
from expunge.cli.history import history
from expunge.cli.init import init
from expunge.cli.keygen import keygen
from expunge.cli.ledger import ledger
from expunge.cli.plan import plan
from expunge.cli.report import report
from expunge.cli.reproduce import reproduce
from expunge.cli.request import request
from expunge.cli.run import run
from expunge.cli.status import status
from expunge.cli.tangent import tangent
from expunge.cli.train import train
from expunge.cli.unlearn import unlearn
from expunge.cli.verify import verify


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="expunge")
def main() -> None:
    """Remove people's data from a trained classifier when the training data no longer exists.

    \b
    expunge embed     images through an encoder into features
    expunge train     while the source exists: train to the optimum, keep a record
    expunge unlearn   later, without it: forget rows, with a certificate
    expunge plan      before: noise and accuracy at several epsilons and distances
    expunge tangent   networks linearised at their weights: train, and unlearn
    expunge verify    anybody: check a certificate from its file
    expunge distance  how far is the surrogate from a source that is gone? estimates, labelled as such
    expunge evaluate  where the source still exists: did it forget, metric by metric
    expunge audit     is the certificate true? claimed against observed epsilon
    expunge reproduce the paper's tables and figures beside ours
    expunge init      open a deletion desk: requests over time
    expunge request   ask a desk to forget rows
    expunge run       forget what is pending, publish, certify
    expunge status    where a desk stands
    expunge history   what it did
    expunge ledger    check its ledger, save its head
    expunge report    pages people can read
    expunge keygen    make a key pair for signing certificates
    expunge demo      the whole story on real data, in seconds

    Exit status: 0 done, 1 a certificate failed verification or an audit, 2 bad input, 3 refused (nothing is written).
    """


COMMANDS = (
    embed,
    train,
    plan,
    unlearn,
    tangent,
    verify,
    distance,
    evaluate,
    audit,
    reproduce,
    init,
    request,
    run,
    status,
    history,
    ledger,
    report,
    keygen,
    demo,
)
for command in COMMANDS:
    main.add_command(command)

__all__ = ["main"]
