"""Where a desk stands: what waits, what was published, what is left."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from expunge.bounds.calibration import deletions_left, models_left
from expunge.desk.desk import Desk
from expunge.desk.ledger import Entry, Head, Json, Ledger, ModelRow, RequestRow, RunRefused, now
from expunge.errors import OptionError, RetrainNow


@dataclass(frozen=True)
class Status:
    """`epsilon` is that of all published models together; `deletions_left` extrapolates the last bound's growth.

    With a deposit, `reach` is how much of it the last model used: of the largest region its noise hides, or of the way
    to where no region is finite any more, whichever is more; `forgotten` is how many rows have left, and `rows_left`
    how many more like them it reaches; None without one. `retrain` is why the last run refused requests that are not
    done yet. `overdue` counts those that wait and those that are set aside; `clock` says so where this machine's clock
    is behind the last entry.
    """

    pending: int
    aside: int
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
    rows_left: int | None
    retrain: str | None
    clock: str | None
    head: Head
    time: str

    def to_json(self) -> Json:
        return asdict(self)


def status(desk: Desk) -> Status:
    """Counts, composed epsilon and remaining capacity; reads no rows and no weights."""
    with desk.reading() as ledger:
        policy, counts, models = desk.policy, ledger.counts(), ledger.models()
        last = models[-1].facts if models else None
        reach = forgotten = rows_left = None
        if policy.with_deposit:
            reach, forgotten = (0.0, 0) if last is None else (last.reach, last.forgotten or 0)
            if reach is not None and forgotten:  # what is used grows at most with the square of what was forgotten
                rows_left = max(0, math.floor((math.sqrt(1.0 / max(reach, 1e-12)) - 1.0) * forgotten))
        planned_left = policy.planned - len(models)
        if last is not None:
            squares = math.fsum(model.facts.mu**2 for model in models)
            planned_left = min(planned_left, models_left(squares, last.mu, policy.delta - last.failures, policy.limit))
        return Status(
            pending=counts.get("pending", 0),
            aside=counts.get("aside", 0),
            overdue=ledger.overdue(now()[:10]),
            done=counts.get("done", 0) + counts.get("prepared", 0),
            withdrawn=counts.get("withdrawn", 0),
            models=len(models),
            planned=policy.planned,
            epsilon=0.0 if last is None else last.composition.epsilon,
            delta=policy.delta,
            limit=policy.limit,
            models_left=planned_left,
            deletions_left=_deletions_left(desk, models, rows_left),
            reach=reach,
            forgotten=forgotten,
            rows_left=rows_left,
            retrain=_retrain(ledger),
            clock=clock_behind(ledger),
            head=ledger.head(),
            time=now(),
        )


def _deletions_left(desk: Desk, models: list[ModelRow], rows_left: int | None) -> int | None:
    """The bound grows with every deletion: how many like those so far until the noise that was set does not cover it.

    Where requests choose their noise: until it is as large as the weights.
    """
    if not models:
        return None
    last = models[-1].facts
    if rows_left is not None:
        return rows_left * len(models) // sum(model.facts.n_rows for model in models)
    if desk.policy.noise is not None:
        return max(0, math.floor((last.mu * desk.policy.noise - last.total) / last.total * len(models)))
    return deletions_left(last.total, last.terms["training"], last.noise_share)


def _retrain(ledger: Ledger) -> str | None:
    """The reason of the last refusal, if all requests that were refused still wait, or are set aside."""
    last = ledger.last(RunRefused)
    if not isinstance(last, RunRefused) or last.kind != RetrainNow.__name__:
        return None
    refused = [ledger.request(number) for number in last.requests]
    return last.reason if all(request is not None and request.open for request in refused) else None


def clock_behind(ledger: Ledger) -> str | None:
    """What is wrong with the clock, in a sentence; None where nothing is seen."""
    last, present = ledger.latest(), now()
    if present >= last:
        return None
    return (
        f"this machine's clock says {present}, before the last entry ({last}): it was set back, or was ahead then. "
        "Entries are dated as the last one until it has caught up; see whether due dates are right"
    )


def requests(
    desk: Desk, state: str | None = None, *, limit: int = -1, reference: str | None = None
) -> list[RequestRow]:
    """Requests in the order they were accepted, those of a state or of a reference; the latest ones up to a limit.

    For those who run the desk: the state of a request depends on what others asked for.
    """
    with desk.reading() as ledger:
        narrowed = limit < 0 or state is not None or reference is not None
        after = 0 if narrowed else max(0, ledger.next_request() - 1 - limit)
        found = ledger.requests(state, limit, after, reference)
    if reference is not None and not found:
        raise OptionError(f"reference {reference!r} is unknown", "one that was accepted is needed", "Check it.")
    return found


def models(desk: Desk) -> list[Json]:
    """Facts of every published model, as they are written, with the time."""
    with desk.reading() as ledger:
        return [model.facts.to_json() | {"time": model.time} for model in ledger.models()]


def history(desk: Desk, *, after: int = 0, limit: int = -1) -> list[Entry]:
    """The ledger's entries in order."""
    with desk.reading() as ledger:
        return list(ledger.entries(after, limit))


def as_row(request: RequestRow, today: str) -> Json:
    """A request for a page."""
    return asdict(request) | {"late": request.open and request.due < today}
