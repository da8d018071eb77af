"""The deletion desk: requests over time, with a ledger, private state, published models and their certificates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from expunge._lazy import load_lazily

if TYPE_CHECKING:
    from expunge.desk.accept import Accepted, accept, withdraw
    from expunge.desk.check import Checked, verify_desk
    from expunge.desk.compose import Composition, compose
    from expunge.desk.desk import Desk, open_desk
    from expunge.desk.ledger import Entry, Head, RequestRow, read_head
    from expunge.desk.opening import create_desk
    from expunge.desk.pages import desk_report, result_report
    from expunge.desk.plan import Plan, plan
    from expunge.desk.policy import Policy
    from expunge.desk.run import Outcome, PublishedModel, run
    from expunge.desk.status import Status, history, models, requests, status

__all__ = [
    "Accepted",
    "Checked",
    "Composition",
    "Desk",
    "Entry",
    "Head",
    "Outcome",
    "Plan",
    "Policy",
    "PublishedModel",
    "RequestRow",
    "Status",
    "accept",
    "compose",
    "create_desk",
    "desk_report",
    "history",
    "models",
    "open_desk",
    "plan",
    "read_head",
    "requests",
    "result_report",
    "run",
    "status",
    "verify_desk",
    "withdraw",
]

load_lazily(
    __name__,
    {
        "Accepted": "accept",
        "Checked": "check",
        "Composition": "compose",
        "Desk": "desk",
        "Entry": "ledger",
        "Head": "ledger",
        "Outcome": "run",
        "Plan": "plan",
        "Policy": "policy",
        "PublishedModel": "run",
        "RequestRow": "ledger",
        "Status": "status",
        "accept": "accept",
        "compose": "compose",
        "create_desk": "opening",
        "desk_report": "pages",
        "history": "status",
        "models": "status",
        "open_desk": "desk",
        "plan": "plan",
        "read_head": "ledger",
        "requests": "status",
        "result_report": "pages",
        "run": "run",
        "status": "status",
        "verify_desk": "check",
        "withdraw": "accept",
    },
)
