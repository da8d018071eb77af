"""The command line: options are built from dataclasses and signatures; nothing is computed here."""

from __future__ import annotations

import click

from expunge import __version__
from expunge.cli.demo import demo
from expunge.cli.desk import desk
from expunge.cli.distance import distance
from expunge.cli.evaluate import audit, evaluate
from expunge.cli.networks import embed, tangent
from expunge.cli.options import CommandGroup
from expunge.cli.train import deposit, member, predict, score, train
from expunge.cli.unlearn import plan, unlearn
from expunge.cli.verify import card, keygen, report, sign, verify


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
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
