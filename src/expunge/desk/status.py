"""Where a desk stands: what waits, what was published, what is left."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from expunge.certificate.compose import deletions_left, models_left
from expunge.desk.desk import Desk
from expunge.desk.entries import Entry, Json, ModelPublished, ModelRow, RunRefused
from expunge.desk.ledger import Head, Ledger, RequestRow, now
from expunge.errors import RetrainNow

MOST_LISTED = 1000


@dataclass(frozen=True)
class Status:
    """`epsilon` is that of all published models together; `deletions_left` extrapolates the last bound's growth.

    With a deposit, `reach` is how much of the last of its radii the last model needed, and `forgotten` how many rows
    have left; None without one.
    """

    pending: int
    overdue: int
    done: int
    withdrawn: int
    models: int
    planned: int
    epsilon: float
    delta: float
    limit: float
    models_left: int
    deletions_left: int | None
    reach: float | None
    forgotten: int | None
    retrain: str | None
    head: Head
    time: str

    def to_json(self) -> Json:
        return asdict(self)


def status(desk: Desk) -> Status:
    """Counts, composed epsilon and remaining capacity; reads no rows and no weights."""
    with desk.reading() as ledger:
        return _status(desk, ledger)


def _status(desk: Desk, ledger: Ledger) -> Status:
    policy, counts, models = desk.policy, ledger.counts(), ledger.models()
    return Status(
        pending=counts.get("pending", 0),
        overdue=ledger.overdue(now()[:10]),
        done=counts.get("done", 0) + counts.get("prepared", 0),
        withdrawn=counts.get("withdrawn", 0),
        models=len(models),
        planned=policy.planned,
        epsilon=models[-1].facts.composition.epsilon if models else 0.0,
        delta=policy.delta,
        limit=policy.limit,
        models_left=_models_left(desk, models),
        deletions_left=_deletions_left(desk, models),
        reach=_reach(desk, models),
        forgotten=sum(model.facts.n_rows for model in models) if policy.kept else None,
        retrain=_retrain(ledger),
        head=ledger.head(),
        time=now(),
    )


def _models_left(desk: Desk, models: list[ModelRow]) -> int:
    left = desk.policy.planned - len(models)
    if not models:
        return left
    last = models[-1].facts
    squares = math.fsum(model.facts.mu**2 for model in models)
    delta = desk.policy.delta - last.failures
    return min(left, models_left(squares, last.mu, delta, desk.policy.limit))


def _deletions_left(desk: Desk, models: list[ModelRow]) -> int | None:
    """The bound grows with every deletion: how many like those so far until the noise that was set does not cover it.

    Where requests choose their noise: until it is as large as the weights. With a deposit the bound grows at most with
    the square of the rows forgotten, and ends at the last radius.
    """
    if not models:
        return None
    last, reach = models[-1].facts, _reach(desk, models)
    if reach is not None:
        return max(0, math.floor((math.sqrt(1.0 / max(reach, 1e-12)) - 1.0) * len(models)))
    if desk.policy.noise is not None:
        return max(0, math.floor((last.mu * desk.policy.noise - last.total) / last.total * len(models)))
    return deletions_left(last.total, last.terms["training"], last.noise_share)


def _reach(desk: Desk, models: list[ModelRow]) -> float | None:
    """The radius that the last model needed, over the last that the deposit has."""
    if not desk.policy.radii:
        return None
    return models[-1].facts.total / desk.policy.radii[-1] if models else 0.0


def _retrain(ledger: Ledger) -> str | None:
    """The reason of the last refusal, if nothing was published since."""
    last = ledger.last(RunRefused, ModelPublished)
    return last.reason if isinstance(last, RunRefused) and last.kind == RetrainNow.__name__ else None


def requests(desk: Desk, state: str | None = None, *, limit: int = -1) -> list[RequestRow]:
    """Requests in the order they were accepted; the latest ones where there is a limit."""
    with desk.reading() as ledger:
        after = 0 if limit < 0 or state is not None else max(0, ledger.next_request() - 1 - limit)
        return ledger.requests(state, limit=limit, after=after)


def models(desk: Desk) -> list[Json]:
    """Facts of every published model, as they are written, with the time."""
    with desk.reading() as ledger:
        return [model.facts.to_json() | {"time": model.time} for model in ledger.models()]


def history(desk: Desk, *, after: int = 0, limit: int = -1) -> list[Entry]:
    """The ledger's entries in order."""
    with desk.reading() as ledger:
        return list(ledger.entries(after, limit))


def as_row(request: RequestRow, today: str) -> dict[str, Any]:
    """A request for a page."""
    return asdict(request) | {"late": request.state == "pending" and request.due < today}
