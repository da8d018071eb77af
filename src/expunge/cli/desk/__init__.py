"""`expunge desk`: requests over time, one file a command."""

from __future__ import annotations

import click

from expunge.cli.desk.head import head
from expunge.cli.desk.history import history
from expunge.cli.desk.init import init
from expunge.cli.desk.report import report
from expunge.cli.desk.request import request
from expunge.cli.desk.resume import resume
from expunge.cli.desk.run import run
from expunge.cli.desk.status import status
from expunge.cli.desk.verify import verify
from expunge.cli.desk.withdraw import withdraw
from expunge.cli.sections import Group


@click.group(cls=Group, short_help="A deletion desk: take requests, forget, publish, keep a ledger.")
def desk() -> None:
    """A deletion desk: a folder that takes requests, forgets, publishes and keeps a ledger.

    \b
    expunge desk init    desk/ --model model.safetensors --surrogate surrogate.npz
                         --epsilon 1 --delta 1e-5 --distance chi2:0.1
    expunge desk request desk/ --forget forget.npz --reference case-17
    expunge desk run     desk/
    expunge desk head    desk/ --out saved-head.json
    """


desk.add_section("Work", init, request, withdraw, resume, run)
desk.add_section("Look", status, history, report)
desk.add_section("The ledger", head, verify)

__all__ = ["desk"]
