"""The command line: one file a command; nothing is computed here."""

from __future__ import annotations

import click

from expunge import __version__
from expunge.cli.audit import audit
from expunge.cli.card import card
from expunge.cli.demo import demo
from expunge.cli.deposit import deposit
from expunge.cli.desk import desk
from expunge.cli.distance import distance
from expunge.cli.embed import embed
from expunge.cli.evaluate import evaluate
from expunge.cli.keygen import keygen
from expunge.cli.member import member
from expunge.cli.plan import plan
from expunge.cli.predict import predict
from expunge.cli.report import report
from expunge.cli.score import score
from expunge.cli.sections import Group
from expunge.cli.sign import sign
from expunge.cli.tangent import tangent
from expunge.cli.train import train
from expunge.cli.unlearn import unlearn
from expunge.cli.verify import verify


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="expunge")
def main() -> None:
    """Remove people's data from a trained classifier when the training data no longer exists.

    Exit status: 0 done, 1 a certificate failed verification or an audit (member: a row is not there), 2 bad input
    or too little memory, 3 refused (nothing is written).
    """


main.add_section("Start here", demo)
main.add_section("Train and delete", embed, train, deposit, plan, unlearn, tangent)
main.add_section("Look and check", score, predict, member, verify, distance, evaluate, audit)
main.add_section("Hand over", keygen, sign, report, card)
main.add_section("Requests over time", desk)

__all__ = ["main"]
