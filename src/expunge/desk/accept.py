"""Accepting a request: on disk before it is acknowledged, and asked twice it is one request."""

from __future__ import annotations

import datetime
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from expunge.data import EncodedRows, encoder_of, names_of
from expunge.desk.desk import Desk
from expunge.desk.digests import arrays_bytes, fingerprint, mac
from expunge.desk.entries import RequestAccepted, RequestResumed, RequestWithdrawn
from expunge.desk.ledger import Ledger, RequestRow, now
from expunge.desk.recognise import Asked, asked_rows, is_of, judged, refuse_impossible
from expunge.desk.state import State, current_state
from expunge.errors import DataError, OptionError
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
    feature_names: Sequence[str] | None = None,
    *,
    another_person: bool = False,
) -> Accepted:
    """Take in a request to forget these rows; when this returns it is durable.

    Columns that have names (`feature_names`, or a data frame's own) are matched to the model's, and kept in its order.
    The same reference with the same rows, in any order and precision, is the request that is there already; a reference
    that stands for other rows is refused.

    Rows that were asked for before, under another reference or twice in this request, are set aside for a person to
    decide, unless `another_person` declares that they are somebody else's with equal values: the certificate carries
    that. A desk with a deposit needs no such word: the source's own counts decide how many times a row can leave, and
    rows that were never in it are refused. A request for more rows than are left, pending ones included, is set aside.
    """
    checked = _reference(reference)
    deadline = _due(due, desk.policy.days)
    names = names_of(features) if feature_names is None else tuple(feature_names)
    with desk.writing() as ledger:
        state = current_state(desk, ledger)
        asked = asked_rows(desk, state, EncodedRows(features, labels, encoder, names))
        known = ledger.find(checked)
        if known is not None:
            return Accepted(_again(desk, ledger, state, asked, known, another_person), new=False)
        assert state.model.record is not None
        refuse_impossible(asked, state.model.record)
        others, aside = judged(desk, ledger, state, asked, another_person)
        number = ledger.next_request()
        content = arrays_bytes(*asked.given, encoder, names_of(asked.given))
        write_whole(desk.layout.rows_of(number), content)
        ledger.append(
            RequestAccepted(
                request=number,
                reference=checked,
                due=deadline,
                n_rows=len(asked),
                rows=asked.marks.every,
                fingerprint=fingerprint(desk.key, checked, asked.marks.kinds[0]),
                file_mac=mac(desk.key, "rows", content),
                classes=dict(asked.classes),
                others=others or None,
                aside=aside,
            )
        )
        made = ledger.request(number)
        assert made is not None
    return Accepted(made, new=True)


def _again(
    desk: Desk, ledger: Ledger, state: State, asked: Asked, known: RequestRow, another_person: bool
) -> RequestRow:
    """The request that has this reference already; one that was set aside is taken up if the word for it is given."""
    if not is_of(ledger, asked.marks, known):
        raise OptionError(
            f"reference {known.reference!r} stands for other rows, or for a request that was withdrawn",
            "a reference stands for one request",
            "Choose another reference.",
        )
    if known.state != "aside" or not another_person:
        return known
    kept = asked_rows(desk, state, whole_rows(desk, ledger, known.id))  # those that leave; these may be a copy of them
    others, aside = judged(desk, ledger, state, kept, another_person, known.id)
    return known if aside is not None else _resumed(ledger, known.id, others)


def _resumed(ledger: Ledger, number: int, others: int) -> RequestRow:
    ledger.append(RequestResumed(number, others))
    found = ledger.request(number)
    assert found is not None
    return found


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


def withdraw(desk: Desk, request: int | str, reason: str) -> RequestRow:
    """Take back a request that waits or is set aside, by its number or its reference.

    Its rows are removed, the entry and the reason stay.
    """
    with desk.writing() as ledger:
        asked = _found(ledger, request)
        if not asked.open:
            raise OptionError(
                f"{_named(request)} is {asked.state}", "only what is not done can be withdrawn", "It stays as it is."
            )
        ledger.append(RequestWithdrawn(asked.id, _reference(reason)))
        remove(desk.layout.rows_of(asked.id))
        taken = ledger.request(asked.id)
        assert taken is not None
    return taken


def resume(desk: Desk, request: int | str, *, another_person: bool = False) -> RequestRow:
    """Take up a request that was set aside: it waits again.

    Rows that were asked for before must be declared another person's; what still cannot be is refused, and says why.
    """
    with desk.writing() as ledger:
        asked = _found(ledger, request)
        if asked.state != "aside":
            raise OptionError(
                f"{_named(request)} is {asked.state}", "only one that is set aside is taken up", "It stays as it is."
            )
        rows = asked_rows(desk, state := current_state(desk, ledger), whole_rows(desk, ledger, asked.id))
        others, aside = judged(desk, ledger, state, rows, another_person or asked.others > 0, asked.id)
        if aside is not None:
            raise OptionError(aside.reason, "it stays set aside", aside.remedy)
        return _resumed(ledger, asked.id, others)


def whole_rows(desk: Desk, ledger: Ledger, number: int) -> EncodedRows:
    """The rows of a request that is not done; refuses a file that is not the one that was accepted."""
    path = desk.layout.rows_of(number)
    if not path.exists() or mac(desk.key, "rows", path.read_bytes()) != ledger.accepted_mac(number):
        raise DataError(
            f"the rows of request {number} are not those that were accepted",
            "its private file must be whole",
            "Restore the file and take the request up with expunge desk resume, or withdraw it and ask again.",
        )
    rows = desk.pending_rows(number)
    return EncodedRows(*rows, encoder_of(rows), names_of(rows))


def _named(request: int | str) -> str:
    return f"request {request}" if isinstance(request, int) else f"reference {request!r}"


def _found(ledger: Ledger, request: int | str) -> RequestRow:
    found = ledger.request(request) if isinstance(request, int) else ledger.find(request)
    if found is None:
        raise OptionError(f"{_named(request)} is unknown", "it must have been accepted", "See expunge desk status.")
    return found
