"""The command line: options are built from dataclasses and signatures; nothing is computed here.

A command is a function in a module beside this one, which is imported when the command is asked for, and a line here.
"""

from __future__ import annotations

import click

from expunge import __version__
from expunge.cli.options import CommandGroup

COMMANDS = {
    "Start here": {"demo": ("demo", "Two deletions on real data, in seconds.")},
    "Train and delete": {
        "embed": ("networks", "Turn images into features with an encoder."),
        "train": ("train", "Train a classifier to its optimum, while its source exists."),
        "deposit": ("train", "Keep what later deletions need of the source, before it goes."),
        "plan": ("unlearn", "Foresee noise and accuracy at several epsilons and distances."),
        "unlearn": ("unlearn", "Forget rows without the source, with a certificate."),
        "tangent": ("networks", "Train and unlearn networks that are linearised at their weights."),
    },
    "Look and check": {
        "score": ("train", "Accuracy on labelled rows, before and after a deletion."),
        "predict": ("train", "Labels and probabilities of rows, as CSV."),
        "member": ("train", "Is this person in the model? Looks rows up in a deposit."),
        "verify": ("verify", "Check a statement from its file, as anybody can."),
        "distance": ("distance", "How far is the surrogate from a source that is gone? A heuristic."),
        "evaluate": ("evaluate", "Where the source still exists: did it forget, metric by metric."),
        "audit": ("evaluate", "Is the certificate true? Claimed against observed epsilon."),
    },
    "Hand over": {
        "keygen": ("verify", "Make a key pair for signing certificates."),
        "sign": ("verify", "Sign the statement of an existing result."),
        "report": ("verify", "Write a page about one result that people can read."),
    },
    "Requests over time": {"desk": ("desk", "A deletion desk: take requests, forget, publish, keep a ledger.")},
}


@click.group(
    cls=CommandGroup,
    listing=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="expunge")
def main() -> None:
    """Remove people's data from a trained classifier when the training data no longer exists.

    Exit status: 0 done, 1 a certificate failed verification or an audit (member: a row is not there), 2 bad input
    or too little memory, 3 refused (nothing is written).
    """


__all__ = ["main"]
