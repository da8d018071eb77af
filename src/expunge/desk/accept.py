"""Accepting a request: on disk before it is acknowledged, and asked twice it is one request.

What whoever asked is told does not depend on what others asked for, now or later: no word of whether the request is
new, set aside or done. Rows are looked up, and strangers refused, before the writer's lock is taken.
"""

from __future__ import annotations

import datetime
import secrets
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from expunge.data import EncodedRows, encoder_of, names_of
from expunge.desk.desk import Desk
from expunge.desk.digests import arrays_bytes, fingerprint, mac
from expunge.desk.entries import RequestAccepted, RequestResumed, RequestWithdrawn
from expunge.desk.ledger import Ledger, RequestRow, now
from expunge.desk.recognise import Asked, asked_rows, is_of, judged, refuse_impossible, refuse_strangers
from expunge.desk.state import State, current_state, is_current, served_state
from expunge.errors import DataError, InputError, OptionError
from expunge.runtime.durable import remove, write_whole

LONGEST_REFERENCE = 200
REFERENCE_BYTES = 16  # of a reference that the desk makes: nobody guesses it
MOST_ROWS = 100_000  # of one request


@dataclass(frozen=True)
class Answer:
    """What whoever asks may be told: what was asked just now, and the last day for it. It says nothing of others."""

    reference: str
    n_rows: int
    due: str


@dataclass(frozen=True)
class Accepted:
    """`answer` may be passed on. The request itself, and whether it is new, are for those who run the desk."""

    request: RequestRow
    new: bool
    answer: Answer


def accept(
    desk: Desk,
    features: Any,
    labels: Any,
    reference: str | None = None,
    due: str | datetime.date | None = None,
    encoder: str | None = None,
    feature_names: Sequence[str] | None = None,
    *,
    another_person: bool = False,
) -> Accepted:
    """Take in a request to forget these rows; when this returns it is durable.

    Columns that have names (`feature_names`, or a data frame's own) are matched to the model's, and kept in its order.
    The same reference with the same rows, in any order and precision, is the request that is there already; with other
    rows it is another request, so that nobody learns by trying which rows a reference stands for. Without a reference
    the desk makes one that cannot be guessed.

    Rows that were asked for before, under another reference or twice in this request, are set aside for a person to
    decide, unless `another_person` declares that they are somebody else's with equal values: the certificate carries
    that. A desk with a deposit needs no such word: the source's own counts decide how many times a row can leave, and
    rows that were never in it are refused. A request for more rows than are left, pending ones included, is set aside.
    """
    checked = secrets.token_hex(REFERENCE_BYTES) if reference is None else _reference(reference)
    deadline = _due(due, desk.policy.days)
    names = names_of(features) if feature_names is None else tuple(feature_names)
    given = EncodedRows(features, labels, encoder, names)
    state = served_state(desk)
    asked = _looked_up(desk, state, given)
    answer = Answer(checked, len(asked), deadline)
    with desk.writing() as ledger:
        if not is_current(ledger, state):  # a run came in between
            state = current_state(desk, ledger)
            asked = asked_rows(desk, state, given)
        known = next((each for each in ledger.named(checked) if is_of(ledger, asked.marks, each)), None)
        if known is not None:
            return Accepted(_again(desk, ledger, state, known, another_person), False, answer)
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
    return Accepted(made, True, answer)


def _looked_up(desk: Desk, state: State, given: EncodedRows) -> Asked:
    """The rows of a request, without the lock; refuses what no desk could do, whatever others asked for."""
    shape = getattr(given[0], "shape", None)
    count = shape[0] if shape else len(given[0]) if isinstance(given[0], (list, tuple)) else 0
    if count > MOST_ROWS:
        raise DataError(
            f"{count:,} rows in one request", f"at most {MOST_ROWS:,} are taken at once", "Ask in several requests."
        )
    asked = asked_rows(desk, state, given)
    assert state.model.record is not None
    refuse_impossible(asked, state.model.record)
    refuse_strangers(desk, state, asked)
    return asked


def _again(desk: Desk, ledger: Ledger, state: State, known: RequestRow, another_person: bool) -> RequestRow:
    """The request that is there already; one that was set aside is taken up if the word for it is given."""
    if known.state != "aside" or not another_person:
        return known
    try:
        kept = asked_rows(
            desk, state, whole_rows(desk, ledger, known.id)
        )  # those that leave; these may be a copy of them
    except InputError:  # its file is damaged: for those who run the desk, and no part of the answer
        return known
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
    """The request of a number; or the one of a reference, where of several just one is not done yet."""
    named = [ledger.request(request)] if isinstance(request, int) else list(ledger.named(request))
    found = [each for each in named if each is not None]
    waiting = [each for each in found if each.open]
    if not found:
        raise OptionError(f"{_named(request)} is unknown", "it must have been accepted", "See expunge desk status.")
    if len(waiting) > 1:
        numbers = ", ".join(str(each.id) for each in waiting)
        raise OptionError(f"{_named(request)} is that of requests {numbers}", "one is needed", "Give its number.")
    return waiting[0] if waiting else found[-1]
