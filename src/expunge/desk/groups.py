"""Which requests are served together, and which cannot be: these are set aside, and the others go on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from expunge.data import EncodedRows, as_labels, encoder_of, names_of
from expunge.desk.accept import whole_rows
from expunge.desk.desk import Desk
from expunge.desk.entries import Aside, RequestSetAside
from expunge.desk.ledger import Ledger, RequestRow
from expunge.desk.recognise import WHAT
from expunge.errors import BeyondPolicy, ExpungeError, InputError, Refused, RetrainNow, UselessModel, VacuousClaim

OF_THESE_ROWS = (BeyondPolicy, VacuousClaim, UselessModel, InputError)  # refusals that say nothing of other rows
RETRAIN = "Retrain without the rows of all requests, and open a new desk."
AGAIN = "Retrain without its rows; or withdraw it, or let the next run try it again: expunge desk resume."
Trial = Callable[[Sequence[RequestRow]], float]


@dataclass(frozen=True)
class Apart:
    """A group that cannot be served as one: who can now, who perhaps after that, and who cannot, with the reason."""

    within: list[RequestRow]
    later: list[RequestRow]
    beyond: list[tuple[RequestRow, ExpungeError]]


def taken_apart(group: Sequence[RequestRow], trial: Trial) -> Apart | None:
    """Who of a group that was refused can be served; None where all can, so that the refusal is not about their rows.

    `trial` gives the size of the region of some requests together, or refuses them. Those who cannot be served alone
    are beyond; of the others as many as fit together are within, those with the smallest regions first.
    """
    sizes: dict[int, float] = {}
    beyond: list[tuple[RequestRow, ExpungeError]] = []
    for request in group:
        try:
            sizes[request.id] = trial([request])
        except OF_THESE_ROWS as error:
            beyond.append((request, error))
    order = sorted((request for request in group if request.id in sizes), key=lambda request: sizes[request.id])
    if not beyond and _fits(order, trial):
        return None
    fits, most = min(len(order), 1), len(order) if beyond else len(order) - 1
    while fits < most:
        tried = (fits + most + 1) // 2
        fits, most = (tried, most) if _fits(order[:tried], trial) else (fits, tried - 1)
    by_number = [sorted(part, key=lambda request: request.id) for part in (order[:fits], order[fits:])]
    return Apart(by_number[0], by_number[1], beyond)


def _fits(requests: Sequence[RequestRow], trial: Trial) -> bool:
    try:
        trial(sorted(requests, key=lambda request: request.id))
    except OF_THESE_ROWS:
        return False
    return True


def grouped(desk: Desk, ledger: Ledger, *, each: bool) -> tuple[list[list[RequestRow]], ExpungeError | None]:
    """What waits, in groups of one model each; a request whose file is damaged is set aside, and why is said.

    Rows whose columns have other names, where the model's record names none, are not put together.
    """
    groups: dict[object, list[RequestRow]] = {}
    damaged: ExpungeError | None = None
    unnamed: list[RequestRow] = []
    for request in ledger.requests("pending"):
        try:
            names = names_of(whole_rows(desk, ledger, request.id))
        except InputError as error:
            set_aside(ledger, request, error)
            damaged = damaged or error
            continue
        if each:
            groups[request.id] = [request]
        elif names is None or desk.policy.kept:  # in a deposit every row was found as it is
            unnamed.append(request)
        else:
            groups.setdefault(names, []).append(request)
    made = list(groups.values())
    if unnamed:
        together = sorted([*unnamed, *(made.pop(0) if made else [])], key=lambda request: request.id)
        made.insert(0, together)
    return made, damaged


def set_aside(ledger: Ledger, request: RequestRow, error: ExpungeError) -> None:
    """Set a request aside for what a run said of it."""
    remedy = AGAIN if isinstance(error, Refused) else error.remedy
    ledger.append(RequestSetAside(request.id, Aside(type(error).__name__, f"{error.found}; {error.required}", remedy)))


def retrain(error: ExpungeError) -> ExpungeError:
    """A refusal as a desk says it; anything else as it is."""
    if not isinstance(error, Refused) or isinstance(error, RetrainNow):
        return error
    return RetrainNow(f"retrain now: {error.found}", error.required, RETRAIN)


def declared_others(ledger: Ledger, group: Sequence[RequestRow]) -> int:
    """Rows forgotten once these requests are served that were declared another person's."""
    last = ledger.last_model()
    return (0 if last is None else last.facts.others or 0) + sum(request.others for request in group)


def together(desk: Desk, ledger: Ledger, group: Sequence[RequestRow]) -> EncodedRows:
    """The rows of these requests; refuses a file that is not the one that was accepted."""
    parts = [whole_rows(desk, ledger, request.id) for request in group]
    encoders, names = {encoder_of(part) for part in parts}, {names_of(part) for part in parts}
    return EncodedRows(
        np.concatenate([features for features, _ in parts]),
        np.concatenate([as_labels(labels, len(features), WHAT) for features, labels in parts]),
        encoders.pop() if len(encoders) == 1 else None,
        names.pop() if len(names) == 1 else None,  # all are in the model's order
    )
