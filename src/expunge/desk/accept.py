"""Accepting a request: on disk before it is acknowledged, and asked twice it is one request."""

from __future__ import annotations

import contextlib
import datetime
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from expunge.data import EncodedRows, as_features, as_labels, encode, in_order, names_of, prepare
from expunge.data.ordered import plain
from expunge.desk.desk import Desk
from expunge.desk.digests import Marks, arrays_bytes, fingerprint, mac, marks_of
from expunge.desk.entries import RequestAccepted, RequestWithdrawn
from expunge.desk.ledger import Ledger, RequestRow, now
from expunge.desk.state import current_state
from expunge.errors import DataError, InputError, OptionError
from expunge.heads import Rows
from expunge.model import LinearModel
from expunge.record import TrainingRecord
from expunge.request.execution import DTYPES
from expunge.request.rows import require_encoder
from expunge.request.scaling import refuse_squashed
from expunge.runtime.durable import remove, write_whole

LONGEST_REFERENCE = 200
WHAT = "the rows to forget"


@dataclass(frozen=True)
class Accepted:
    """The request, and whether it is new."""

    request: RequestRow
    new: bool


def accept(
    desk: Desk,
    features: Any,
    labels: Any,
    reference: str,
    due: str | datetime.date | None = None,
    encoder: str | None = None,
    feature_names: Sequence[str] | None = None,
) -> Accepted:
    """Take in a request to forget these rows; when this returns it is durable.

    Columns that have names (`feature_names`, or a data frame's own) are matched to the model's, and kept in its order.
    The same rows again, in any order and under any reference, are the request that is already there, also as a copy in
    float32 or with six decimals. A reference that stands for other rows, and rows some of which are in another request,
    are refused: a row can be forgotten once.

    A desk with a deposit looks the rows up in it: rows that are not in what is left of the source, or are asked for
    more often than they are there, pending requests included, are refused; two people with the same row are two
    requests, under two references.
    """
    checked = _reference(reference)
    deadline = _due(due, desk.policy.days)
    with desk.writing() as ledger:
        state = current_state(desk, ledger)
        known = state.model.record
        assert known is not None
        names = names_of(features) if feature_names is None else tuple(feature_names)
        asked = EncodedRows(features, labels, encoder, names)
        require_encoder(asked, known, WHAT)
        asked = in_order(asked, known.features, state.model.n_features, WHAT)
        rows = _rows(asked, state.model)
        refuse_squashed(rows.scaling, WHAT, known.max_norm, desk.policy.force)
        marks = marks_of(desk.key, rows, *plain(asked, WHAT))
        mark = fingerprint(desk.key, marks.kinds[0])
        same = ledger.find("fingerprint", mark) or _copied(ledger, marks)
        if state.deposit is not None:
            same = _known(desk, ledger, state.deposit, checked, marks, same, plain(asked, WHAT))
        if same is not None:
            return Accepted(same, new=False)
        if state.deposit is None:
            _refuse_reuse(ledger, checked, marks)
        else:
            mark = _another(desk, ledger, mark)
        _refuse_overdrawn(ledger, rows, state.record)
        number = ledger.next_request()
        content = arrays_bytes(*plain(asked, WHAT), encoder, names_of(asked))
        write_whole(desk.layout.rows_of(number), content)
        ledger.append(
            RequestAccepted(
                request=number,
                reference=checked,
                due=deadline,
                n_rows=len(rows),
                rows=marks.every,
                fingerprint=mark,
                file_mac=mac(desk.key, "rows", content),
            )
        )
        (request,) = ledger.requests(after=number - 1, limit=1)
    return Accepted(request, new=True)


def _reference(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        value = ""
    if not 1 <= len(value) <= LONGEST_REFERENCE or any(unicodedata.category(c).startswith("C") for c in value):
        raise OptionError(
            f"reference {value[:40]!r}",
            f"from 1 to {LONGEST_REFERENCE} printable characters are needed",
            "Use a case number; it is shown in the desk's pages, so no name of a person.",
        )
    return value


def _due(value: str | datetime.date | None, days: int) -> str:
    today = datetime.date.fromisoformat(now()[:10])
    if value is None:
        return (today + datetime.timedelta(days=days)).isoformat()
    try:
        return (value if isinstance(value, datetime.date) else datetime.date.fromisoformat(value)).isoformat()[:10]
    except ValueError as error:
        raise OptionError(f"due date {value!r}", "a date such as 2026-01-31 is needed", "Write it that way.") from error


def _rows(forget: EncodedRows, state: LinearModel) -> Rows:
    """The rows as they were trained on; refuses what a later run could not use."""
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


def _copied(ledger: Ledger, marks: Marks) -> RequestRow | None:
    """The request whose rows these are, each as often, in another precision."""
    for digests in marks.kinds[1:]:
        wanted = Counter(digests)
        request = next(iter(ledger.holders(digests[:1]).values()), None)
        if request is None or any(ledger.times(digest, request) != count for digest, count in wanted.items()):
            continue
        (found,) = ledger.requests(after=request - 1, limit=1)
        if found.n_rows == len(digests):
            return found
    return None


def _known(
    desk: Desk,
    ledger: Ledger,
    deposit: Any,
    reference: str,
    marks: Marks,
    same: RequestRow | None,
    asked: EncodedRows,
) -> RequestRow | None:
    """With a deposit: the request that this is already, None for a new one; refuses rows that are not there for it."""
    from expunge.desk.deposited import require_available

    other = ledger.find("reference", reference)
    if other is not None:
        if _is_of(ledger, marks, other):
            return other
        raise _reused(reference, other)
    try:
        require_available(deposit, _pending(desk, ledger), (asked[0], asked[1]))
    except DataError:
        if same is None:
            raise
        return same  # it can only be that one, asked again under another reference
    return None


def _pending(desk: Desk, ledger: Ledger) -> list[tuple[Any, Any]]:
    """The rows of pending requests; one whose file is damaged keeps nobody else from asking, and a run will name it."""
    found = []
    for request in ledger.requests("pending"):
        with contextlib.suppress(InputError):
            found.append(desk.pending_rows(request.id))
    return found


def _is_of(ledger: Ledger, marks: Marks, request: RequestRow) -> bool:
    """Whether these are a request's rows, each as often, in any precision."""
    return any(
        request.n_rows == len(digests)
        and all(ledger.times(digest, request.id) >= count for digest, count in Counter(digests).items())
        for digests in marks.kinds
    )


def _another(desk: Desk, ledger: Ledger, mark: str) -> str:
    """A mark that no request has: the same rows may be those of another person."""
    made, number = mark, 1
    while ledger.find("fingerprint", made) is not None:
        number += 1
        made = mac(desk.key, "request", f"{mark} {number}".encode())
    return made


def _reused(reference: str, other: RequestRow) -> OptionError:
    return OptionError(
        f"reference {reference!r} stands for request {other.id}, which is {other.state}",
        "a reference stands for one request",
        "Choose another reference.",
    )


def _refuse_reuse(ledger: Ledger, reference: str, marks: Marks) -> None:
    other = ledger.find("reference", reference)
    if other is not None:
        raise _reused(reference, other)
    holders = ledger.holders(list(marks.every))
    held = [next((holders[digest] for digest in row if digest in holders), 0) for row in marks.by_row]
    if any(held):
        where = ", ".join(str(request) for request in sorted(set(held) - {0})[:5])
        raise DataError(
            f"{sum(map(bool, held))} of {len(held)} rows are already in request {where}",
            "a row can be forgotten once",
            "Ask for the others alone.",
        )


def _refuse_overdrawn(ledger: Ledger, rows: Rows, record: TrainingRecord) -> None:
    """Refuse more rows than the source has left once pending requests are done, or than it has of a class."""
    asked = len(rows) + ledger.pending_rows()
    if asked >= record.n_source:
        raise DataError(
            f"{asked:,} rows are to be forgotten, pending ones included",
            f"the source has {record.n_source:,} left",
            "Delete the model instead.",
        )
    for index, count in Counter(rows.labels.tolist()).items():
        if record.class_counts is not None and count > record.class_counts[index]:
            raise DataError(
                f"{count} rows of class {record.classes[index]!r} are to be forgotten",
                f"the source has {record.class_counts[index]} left",
                "Check the labels; these rows cannot all have been trained on.",
            )


def withdraw(desk: Desk, request: int, reason: str) -> RequestRow:
    """Take back a request that is still pending; its rows are removed, the entry and the reason stay."""
    with desk.writing() as ledger:
        asked = next(iter(ledger.requests(after=request - 1, limit=1)), None)
        if asked is None or asked.id != request or asked.state != "pending":
            raise OptionError(
                f"request {request} is {'unknown' if asked is None or asked.id != request else asked.state}",
                "only a pending request can be withdrawn",
                "See expunge desk status.",
            )
        ledger.append(RequestWithdrawn(request, _reference(reason)))
        remove(desk.layout.rows_of(request))
        (taken,) = ledger.requests(after=request - 1, limit=1)
    return taken
