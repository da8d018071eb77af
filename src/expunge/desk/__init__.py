"""The deletion desk: requests over time, with a ledger, private state, published models and their certificates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from expunge.runtime import load_lazily

if TYPE_CHECKING:
    from expunge.desk.accept import Acceptance, Answer, accept, resume, withdraw
    from expunge.desk.create import create_desk
    from expunge.desk.desk import Desk, open_desk
    from expunge.desk.handover import desk_report, result_report, sign_result
    from expunge.desk.ledger import Entry, Head, RequestRow, read_head
    from expunge.desk.policy import Policy
    from expunge.desk.run import Outcome, PublishedModel, run
    from expunge.desk.status import DeskCheck, Status, history, models, requests, status, verify_desk

__all__ = [
    "Acceptance",
    "Answer",
    "Desk",
    "DeskCheck",
    "Entry",
    "Head",
    "Outcome",
    "Policy",
    "PublishedModel",
    "RequestRow",
    "Status",
    "accept",
    "create_desk",
    "desk_report",
    "history",
    "models",
    "open_desk",
    "read_head",
    "requests",
    "result_report",
    "resume",
    "run",
    "sign_result",
    "status",
    "verify_desk",
    "withdraw",
]

_HOMES = {
    "accept": "Acceptance Answer accept resume withdraw",
    "create": "create_desk",
    "desk": "Desk open_desk",
    "handover": "desk_report result_report sign_result",
    "ledger": "Entry Head RequestRow read_head",
    "policy": "Policy",
    "run": "Outcome PublishedModel run",
    "status": "DeskCheck Status history models requests status verify_desk",
}
load_lazily(__name__, {name: module for module, names in _HOMES.items() for name in names.split()})
