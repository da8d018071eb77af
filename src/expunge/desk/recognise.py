"""One rule for recognising rows, and for what a request may take: whoever asks, in whatever precision.

Rows are recognised by keyed hashes (`digests.py`), here and in a deposit. With a deposit the source's own counts decide
how many times a row can leave. Without one nobody knows how often it was there: a row that was asked for before, by the
same request or by another, waits for a person to say whether it is somebody else with equal values.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch

from expunge.data import EncodedRows, as_features, as_labels, encode, prepare
from expunge.data.ordered import by_record, plain
from expunge.desk.desk import Desk
from expunge.desk.digests import Marks, class_digests, marks_of
from expunge.desk.entries import Aside
from expunge.desk.ledger import Ledger, RequestRow
from expunge.desk.state import State
from expunge.errors import DataError, InputError
from expunge.heads import Rows
from expunge.model import LinearModel
from expunge.record import TrainingRecord
from expunge.request.execution import DTYPES
from expunge.request.rows import require_encoder
from expunge.request.scaling import refuse_squashed

WHAT = "the rows to forget"
REPEAT, OVERDRAWN = "repeat", "overdrawn"  # why a request is set aside when it is made
DECIDE = (
    "If it is somebody else with equal values, take it up with expunge desk resume --another-person; "
    "if not, withdraw it."
)
FREED = (  # said once, and read when the other request may be anything
    "If the other request is withdrawn, take this one up with expunge desk resume; once that one is done these rows "
    "are gone with it, and this one is to be withdrawn."
)
ONCE = "Withdraw it, and ask again with each row as often as it was trained on (expunge member says how often)."
FEWER = (
    "If others are withdrawn, take it up with expunge desk resume; once they are done too few are left: withdraw it, "
    "or retrain."
)


@dataclass(frozen=True, repr=False)
class Asked:
    """Rows as a request gives them: in the model's order, as they were trained on, and what they are known by."""

    given: EncodedRows
    rows: Rows
    marks: Marks
    classes: Counter[str]  # by keyed digest
    labels: dict[str, int]  # the class that each digest is of

    def __len__(self) -> int:
        return len(self.rows)


def asked_rows(desk: Desk, state: State, given: EncodedRows) -> Asked:
    """The rows of a request; refuses what a later run could not use."""
    known = state.model.record
    assert known is not None
    require_encoder(given, known, WHAT)
    ordered = _as_arrays(plain(by_record(given, known, state.model.n_features, WHAT), WHAT))
    rows = _prepared(ordered, state.model)
    refuse_squashed(rows.scaling, WHAT, known.max_norm, desk.policy.force)
    indices = rows.labels.tolist()
    digests = class_digests(desk.key, indices)
    marks = marks_of(desk.key, rows, *ordered)
    return Asked(ordered, rows, marks, Counter(digests), dict(zip(digests, indices, strict=True)))


def _as_arrays(rows: EncodedRows) -> EncodedRows:
    """Whatever holds them, as arrays that any other request's can be put together with: labels in one dimension."""
    table = as_features(rows[0], WHAT).cpu()
    features = (table.float() if table.dtype == torch.bfloat16 else table).numpy()
    return rows.with_arrays(features, as_labels(rows[1], len(features), WHAT))


def _prepared(forget: EncodedRows, state: LinearModel) -> Rows:
    record = state.record
    assert record is not None
    features, labels = forget
    table = as_features(features, WHAT)
    indices = encode(as_labels(labels, table.shape[0], WHAT), record.classes, WHAT)
    return prepare(
        table,
        indices,
        max_norm=record.max_norm,
        bias=record.bias,
        dtype=DTYPES[record.rows_dtype],
        device=torch.device("cpu"),
        width=state.n_features,
        name=WHAT,
    ).rows


def is_of(ledger: Ledger, marks: Marks, request: RequestRow) -> bool:
    """Whether these are a request's rows, each as often, in any precision."""
    return any(
        request.n_rows == len(digests)
        and all(ledger.times(digest, request.id) >= count for digest, count in Counter(digests).items())
        for digests in marks.kinds
    )


def repeated(ledger: Ledger, marks: Marks, own: int | None = None) -> list[set[int]]:
    """For each row the other requests that hold it, and 0 where an earlier row of this one is the same.

    To a request that is there already (`own`), one that is set aside is nothing: two that wait for each other would
    both wait for ever. Whichever is taken up first, the other one is judged by it.
    """
    holders = ledger.holders(list(marks.every), own)
    if own is not None:
        aside = {request.id for request in ledger.requests("aside")}
        holders = {digest: held - aside for digest, held in holders.items()}
    seen: set[str] = set()
    found = []
    for digests in marks.by_row:
        held = set().union(*(holders.get(digest, ()) for digest in digests))
        found.append(held | ({0} if seen.intersection(digests) else set()))
        seen.update(digests)
    return found


def refuse_impossible(asked: Asked, trained: TrainingRecord) -> None:
    """Refuse more rows than were trained on, in all or of a class; what others ask for has no part in this."""
    if len(asked) >= trained.n_source:
        raise DataError(
            f"{len(asked):,} rows are to be forgotten",
            f"the model was trained on {trained.n_source:,}",
            "Delete the model instead.",
        )
    for digest, count in asked.classes.items():
        index = asked.labels[digest]
        if trained.class_counts is not None and count > trained.class_counts[index]:
            raise DataError(
                f"{count} rows of class {trained.classes[index]!r} are to be forgotten",
                f"the model was trained on {trained.class_counts[index]}",
                "Check the labels; these rows cannot all have been trained on.",
            )


def refuse_strangers(desk: Desk, state: State, asked: Asked) -> None:
    """With a deposit: refuse rows that are not there, and that no request holds: they were never trained on.

    Whether that is so does not depend on what others asked for, and no row but these is named. It stays so: what leaves
    a deposit is held by the request that it left for. So no lock is needed to find it out.
    """
    if state.deposit is None:
        return
    from expunge.desk.deposited import absent_rows

    absent = absent_rows(state.deposit, tuple(asked.given))
    if not absent:
        return
    marks = asked.marks.by_row
    with desk.reading() as ledger:
        held = ledger.holders([digest for row in absent for digest in marks[row]])
    strangers = [row for row in absent if not any(digest in held for digest in marks[row])]
    if strangers:
        raise _not_trained_on(strangers, len(asked))


def judged(
    desk: Desk, ledger: Ledger, state: State, asked: Asked, another_person: bool, own: int | None = None
) -> tuple[int, Aside | None]:
    """How many rows are declared to be another person's, and why the request must be set aside, if it must.

    `own` is the request's number where it is there already. With a deposit nothing is declared.
    """
    repeats = repeated(ledger, asked.marks, own)
    if state.deposit is not None:
        aside = _beyond_source(desk, ledger, state.deposit, asked, repeats)
        return 0, aside or _overdrawn(ledger, asked, state.record)
    count = sum(map(bool, repeats))
    if count and not another_person:
        were = "was" if count == 1 else "were"
        return 0, _repeat(f"{count} of {len(asked)} rows {were} asked for before ({_where(repeats)})")
    return count, _overdrawn(ledger, asked, state.record)


def _repeat(reason: str) -> Aside:
    return Aside(REPEAT, f"{reason}; a person's row is forgotten once", DECIDE)


def _where(repeats: list[set[int]]) -> str:
    """The requests that hold rows, in words."""
    holding = set().union(*repeats)
    named = [f"in request {number}" for number in sorted(holding - {0})[:5]]
    return ", ".join(named + (["twice in this one"] if 0 in holding else []))


def _beyond_source(desk: Desk, ledger: Ledger, deposit: Any, asked: Asked, repeats: list[set[int]]) -> Aside | None:
    """With a deposit: whether rows are asked for more often than they are left, pending requests included."""
    from expunge.desk.deposited import missing_rows

    features, labels = asked.given
    missing = missing_rows(deposit, [], (features, labels))
    holding = sorted(set().union(*repeats) - {0})
    if not missing and holding:
        missing = missing_rows(deposit, _pending(desk, ledger, holding), (features, labels))
    if not missing:
        return None
    are, them = ("is", "it") if len(missing) == 1 else ("are", "them")
    said = f"{len(missing)} of {len(asked)} rows {are} asked for more often than the source has {them} left"
    return Aside(REPEAT, f"{said} ({_where(repeats)}); each row leaves once", FREED if holding else ONCE)


def _not_trained_on(rows: list[int], count: int) -> DataError:
    named = ", ".join(str(row + 1) for row in rows[:5]) + (", ..." if len(rows) > 5 else "")
    are = "is" if len(rows) == 1 else "are"
    return DataError(
        f"{len(rows):,} of {count:,} rows (row {named}) {are} not in what is left of the source",
        "each row must have been trained on",
        "Check values, columns and labels against what was trained on (expunge member looks each row up).",
    )


def _pending(desk: Desk, ledger: Ledger, numbers: list[int]) -> list[tuple[Any, Any]]:
    """The rows of those of these requests that wait; one whose file is damaged keeps nobody else from asking."""
    found = []
    for number in numbers:
        request = ledger.request(number)
        if request is not None and request.state == "pending":
            with contextlib.suppress(InputError):
                found.append(desk.pending_rows(number))
    return found


def _overdrawn(ledger: Ledger, asked: Asked, left: TrainingRecord) -> Aside | None:
    """Whether more rows would leave than the source has left once pending requests are done, in all or of a class."""
    wanted = len(asked) + ledger.pending_rows()
    if wanted >= left.n_source:
        said = f"{wanted:,} rows would be forgotten, pending ones included; the source has {left.n_source:,} left"
        return Aside(OVERDRAWN, said, FEWER)
    for digest, count in asked.classes.items():
        index, wanted = asked.labels[digest], count + ledger.pending_of(digest)
        if left.class_counts is not None and wanted > left.class_counts[index]:
            said = f"{wanted:,} rows of class {left.classes[index]!r} would be forgotten, pending ones included"
            return Aside(OVERDRAWN, f"{said}; the source has {left.class_counts[index]:,} left", FEWER)
    return None
