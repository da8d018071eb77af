"""Accepting a request: on disk before it is acknowledged, and asked twice it is one request."""

from __future__ import annotations

import datetime
import unicodedata
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch

from expunge.data import EncodedRows, as_features, as_labels, encode, prepare
from expunge.desk.desk import Desk
from expunge.desk.digests import arrays_bytes, fingerprint, mac, row_digests
from expunge.desk.entries import RequestAccepted, RequestWithdrawn
from expunge.desk.ledger import Ledger, RequestRow, now
from expunge.desk.state import current_state
from expunge.errors import DataError, OptionError
from expunge.heads import Rows
from expunge.model import LinearModel
from expunge.request.execution import DTYPES
from expunge.request.rows import require_encoder
from expunge.runtime.durable import remove, write_whole

LONGEST_REFERENCE = 200


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
) -> Accepted:
    """Take in a request to forget these rows; when this returns it is durable.

    The same rows again, in any order and under any reference, are the request that is already there. A reference that
    stands for other rows, and rows some of which are in another request, are refused: a row can be forgotten once.
    """
    checked = _reference(reference)
    deadline = _due(due, desk.policy.days)
    with desk.writing() as ledger:
        state = current_state(desk, ledger).model
        rows = _rows(EncodedRows(features, labels, encoder), state)
        digests = row_digests(desk.key, rows)
        mark = fingerprint(desk.key, digests)
        same = ledger.find("fingerprint", mark)
        if same is not None:
            return Accepted(same, new=False)
        _refuse_reuse(ledger, checked, digests)
        _refuse_overdrawn(ledger, rows, state)
        number = ledger.next_request()
        content = arrays_bytes(features, labels, encoder)
        write_whole(desk.layout.rows_of(number), content)
        ledger.append(
            RequestAccepted(
                request=number,
                reference=checked,
                due=deadline,
                n_rows=len(rows),
                rows=tuple(digests),
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
    require_encoder(forget, record, "the rows to forget")
    features, labels = forget
    table = as_features(features, "the rows to forget")
    indices = encode(as_labels(labels, table.shape[0], "the rows to forget"), record.classes, "the rows to forget")
    return prepare(
        table,
        indices,
        max_norm=record.max_norm,
        bias=record.bias,
        dtype=DTYPES[record.rows_dtype],
        device=torch.device("cpu"),
        width=state.n_features,
        name="the rows to forget",
    ).rows


def _refuse_reuse(ledger: Ledger, reference: str, digests: list[str]) -> None:
    other = ledger.find("reference", reference)
    if other is not None:
        raise OptionError(
            f"reference {reference!r} stands for request {other.id}, which is {other.state}",
            "a reference stands for one request",
            "Choose another reference.",
        )
    held = ledger.holders(digests)
    if held:
        where = ", ".join(str(request) for request in sorted(set(held.values()))[:5])
        raise DataError(
            f"{len(held)} of {len(digests)} rows are already in request {where}",
            "a row can be forgotten once",
            "Ask for the others alone.",
        )


def _refuse_overdrawn(ledger: Ledger, rows: Rows, state: LinearModel) -> None:
    """Refuse more rows than the source has left once pending requests are done, or than it has of a class."""
    record = state.record
    assert record is not None
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
