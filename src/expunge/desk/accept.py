"""Taking in requests: on disk before they are acknowledged, and asked twice they are one.

One rule recognises rows, whoever asks and in whatever precision: keyed digests (`state.py`), here and in a deposit.
With a deposit the source's own counts decide how many times a row can leave. Without one nobody knows how often it was
there: a row that was asked for before, by the same request or by another, waits for a person to say whether it is
somebody else with equal values.

What whoever asked is told does not depend on what others asked for, now or later: no word of whether the request is
new, set aside or done.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import secrets
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from expunge.desk.desk import Desk
from expunge.desk.ledger import Aside, Ledger, RequestAccepted, RequestResumed, RequestRow, RequestWithdrawn, now
from expunge.desk.state import State, digest_rows, load_state, mac, npz_bytes
from expunge.errors import DataError, InputError, OptionError
from expunge.record import TrainingRecord
from expunge.request.sets import refuse_squashed, require_encoder
from expunge.rows import EncodedRows, as_features, as_labels, bound_rows, encode, encoder_of, names_of
from expunge.rows.columns import match_record, to_arrays
from expunge.rows.hashes import find_occurrences, hash_rows
from expunge.runtime.arrays import cast, dtype_name, engine_dtype, to_numpy
from expunge.runtime.files import remove, write_whole

if TYPE_CHECKING:
    from expunge.deposit.file import Deposit

LONGEST_REFERENCE = 200
REFERENCE_BYTES = 16  # of a reference that the desk makes: nobody guesses it
MOST_ROWS = 100_000  # of one request
FORGET = "the rows to forget"
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


@dataclass(frozen=True)
class Answer:
    """What whoever asks may be told: what was asked just now, and the last day for it. It says nothing of others."""

    reference: str
    n_rows: int
    due: str


@dataclass(frozen=True)
class Acceptance:
    """`answer` may be passed on. The request itself, and whether it is new, are for those who run the desk."""

    request: RequestRow
    new: bool
    answer: Answer


@dataclass(frozen=True, repr=False)
class RequestedRows:
    """Rows as a request gives them, in the model's order; what they are known by; and how many are of each class."""

    given: EncodedRows
    digests: tuple[list[str], ...]  # by kind, one digest a row in each
    classes: Counter[int]

    def __len__(self) -> int:
        return self.classes.total()


# Commands -------------------------------------------------------------------------------------------------------------


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
) -> Acceptance:
    """Take in a request to forget these rows; when this returns it is durable.

    Columns that have names (`feature_names`, or a data frame's own) are matched to the model's, and stored in its
    order. The same reference with the same rows, in any order and precision, is the request that is there already;
    with other rows it is another request, so that nobody learns by trying which rows a reference stands for. Without a
    reference the desk makes one that cannot be guessed.

    Rows that were asked for before, under another reference or twice in this request, are set aside for a person to
    decide, unless `another_person` declares that they are somebody else's with equal values: the certificate carries
    that. A desk with a deposit needs no such word: the source's own counts decide how many times a row can leave, and
    rows that were never in it are refused. A request for more rows than are left, pending ones included, is set aside.
    """
    reference = secrets.token_hex(REFERENCE_BYTES) if reference is None else _check_text(reference)
    due = _due_day(due, desk.policy.days)
    names = names_of(features) if feature_names is None else tuple(feature_names)
    given = EncodedRows(features, labels, encoder, names)
    shape = getattr(features, "shape", None)
    count = shape[0] if shape else len(features) if isinstance(features, (list, tuple)) else 0
    if count > MOST_ROWS:  # before anything is looked up
        raise DataError(
            f"{count:,} rows in one request", f"at most {MOST_ROWS:,} are taken at once", "Ask in several requests."
        )
    with desk.writing() as ledger:
        state = load_state(desk, ledger)
        asked = prepare_request(desk, state, given)
        assert state.model.record is not None
        impossible = _more_than_left(asked, state.model.record, lambda _: 0)  # what others ask for has no part in this
        if impossible is not None:
            raise DataError(impossible, "each row must have been trained on", "Check the labels; or delete the model.")
        _refuse_strangers(ledger, state, asked)
        answer = Answer(reference, len(asked), due)
        known = next((each for each in ledger.requests(reference=reference) if _is_same(ledger, asked, each)), None)
        if known is not None:
            if known.state == "aside" and another_person:
                # what was given now may be a rounded copy of the rows that leave; and a file that is damaged is for
                # those who run the desk, and no part of the answer
                with contextlib.suppress(InputError):
                    _resume(desk, ledger, state, known, another_person)
            return Acceptance(_find(ledger, known.id), False, answer)
        others, aside = judge_request(desk, ledger, state, asked, another_person)
        number = ledger.next_request()
        content = npz_bytes(*asked.given, encoder, names_of(asked.given))
        write_whole(desk.layout.rows_of(number), content)
        ledger.append(
            RequestAccepted(
                request=number,
                reference=reference,
                due=due,
                n_rows=len(asked),
                rows=tuple(itertools.chain(*asked.digests)),
                file_mac=mac(desk.key, "rows", content),
                classes={_digest_class(desk, index): count for index, count in asked.classes.items()},
                others=others,
                aside=aside,
            )
        )
        return Acceptance(_find(ledger, number), True, answer)


def withdraw(desk: Desk, request: int | str, reason: str) -> RequestRow:
    """Take back a request that waits or is set aside, by its number or its reference.

    Its rows are removed, the entry and the reason stay.
    """
    with desk.writing() as ledger:
        asked = _find(ledger, request)
        if not asked.open:
            raise OptionError(
                f"{_name_request(request)} is {asked.state}",
                "only what is not done can be withdrawn",
                "It stays as it is.",
            )
        ledger.append(RequestWithdrawn(asked.id, _check_text(reason)))
        remove(desk.layout.rows_of(asked.id))
        return _find(ledger, asked.id)


def resume(desk: Desk, request: int | str, *, another_person: bool = False) -> RequestRow:
    """Take up a request that was set aside: it waits again.

    Rows that were asked for before must be declared another person's; what still cannot be is refused, and says why.
    """
    with desk.writing() as ledger:
        asked = _find(ledger, request)
        if asked.state != "aside":
            raise OptionError(
                f"{_name_request(request)} is {asked.state}",
                "only one that is set aside is taken up",
                "It stays as it is.",
            )
        _resume(desk, ledger, load_state(desk, ledger), asked, another_person or asked.others > 0)
        return _find(ledger, asked.id)


def _resume(desk: Desk, ledger: Ledger, state: State, request: RequestRow, another_person: bool) -> None:
    """Let a request wait again; OptionError says why it cannot."""
    rows = prepare_request(desk, state, read_request_rows(desk, ledger, request.id))
    others, aside = judge_request(desk, ledger, state, rows, another_person, request.id)
    if aside is not None:
        raise OptionError(aside.reason, "it stays set aside", aside.remedy)
    ledger.append(RequestResumed(request.id, others))


def read_request_rows(desk: Desk, ledger: Ledger, number: int) -> EncodedRows:
    """The rows of a request that is not done; refuses a file that is not the one that was accepted."""
    path = desk.layout.rows_of(number)
    if not path.exists() or mac(desk.key, "rows", path.read_bytes()) != ledger.accepted_mac(number):
        raise DataError(
            f"the rows of request {number} are not those that were accepted",
            "its private file must be whole",
            "Restore the file and take the request up with expunge desk resume, or withdraw it and ask again.",
        )
    rows = desk.rows_in(path)
    return EncodedRows(*rows, encoder_of(rows), names_of(rows))


def _find(ledger: Ledger, request: int | str) -> RequestRow:
    """The request of a number; or the one of a reference, where of several just one is not done yet."""
    by_number = [ledger.request(request)] if isinstance(request, int) else ledger.requests(reference=request)
    found = [each for each in by_number if each is not None]
    waiting = [each for each in found if each.open]
    if not found:
        raise OptionError(
            f"{_name_request(request)} is unknown", "it must have been accepted", "See expunge desk status."
        )
    if len(waiting) > 1:
        numbers = ", ".join(str(each.id) for each in waiting)
        raise OptionError(
            f"{_name_request(request)} is that of requests {numbers}", "one is needed", "Give its number."
        )
    return waiting[0] if waiting else found[-1]


def _name_request(request: int | str) -> str:
    return f"request {request}" if isinstance(request, int) else f"reference {request!r}"


def _check_text(value: str) -> str:
    """A reference, or a reason: short, and nothing in it that a terminal would obey."""
    usable = 1 <= len(value) <= LONGEST_REFERENCE
    if not usable or any(unicodedata.category(character).startswith("C") for character in value):
        raise OptionError(
            f"reference {value[:40]!r}",
            f"from 1 to {LONGEST_REFERENCE} printable characters are needed",
            "Use a case number; it is shown in the desk's pages, so no name of a person.",
        )
    return value


def _due_day(value: str | datetime.date | None, days: int) -> str:
    today = datetime.date.fromisoformat(now()[:10])
    if value is None:
        return (today + datetime.timedelta(days=days)).isoformat()
    try:
        return (value if isinstance(value, datetime.date) else datetime.date.fromisoformat(value)).isoformat()[:10]
    except ValueError as error:
        raise OptionError(f"due date {value!r}", "a date such as 2026-01-31 is needed", "Write it that way.") from error


# Rows -----------------------------------------------------------------------------------------------------------------


def prepare_request(desk: Desk, state: State, given: EncodedRows) -> RequestedRows:
    """The rows of a request; refuses what a later run could not use."""
    record = state.model.record
    assert record is not None
    require_encoder(given, record, FORGET)
    ordered = to_arrays(match_record(given, record, state.model.n_features, FORGET), FORGET)
    table = as_features(ordered[0], FORGET)
    features = to_numpy(cast(table, "float32") if dtype_name(table.dtype) == "bfloat16" else table)
    ordered = ordered.with_arrays(features, as_labels(ordered[1], len(features), FORGET))  # labels in one dimension
    rows = bound_rows(
        as_features(features, FORGET),
        encode(ordered[1], record.classes, FORGET),
        max_norm=record.max_norm,
        bias=record.bias,
        dtype=engine_dtype(record.rows_dtype, "cpu"),
        device="cpu",
        width=state.model.n_features,
        name=FORGET,
    )
    refuse_squashed(rows.scaling, FORGET, record.max_norm, desk.policy.force)
    return RequestedRows(ordered, digest_rows(desk.key, rows, *ordered), Counter(rows.labels.tolist()))


def _digest_class(desk: Desk, index: int) -> str:
    return mac(desk.key, "class", str(index).encode())


def _is_same(ledger: Ledger, asked: RequestedRows, request: RequestRow) -> bool:
    """Whether these are a request's rows, each as often, in any precision."""
    return any(
        request.n_rows == len(kind)
        and all(ledger.times(digest, request.id) >= count for digest, count in Counter(kind).items())
        for kind in asked.digests
    )


def _more_than_left(asked: RequestedRows, left: TrainingRecord, waiting: Callable[[int | None], int]) -> str | None:
    """Whether more rows would leave than are left, in all or of a class, in a sentence; `waiting` counts others."""
    counts = [(len(asked) + waiting(None), left.n_source, "")]
    if left.class_counts is not None:
        counts += [
            (count + waiting(index), left.class_counts[index] + 1, f" of class {left.classes[index]!r}")
            for index, count in asked.classes.items()
        ]
    for rows, too_many, of in counts:
        if rows >= too_many:
            there = too_many - 1 if of else too_many
            return f"{rows:,} rows{of} would be forgotten, pending ones included; the source has {there:,} left"
    return None


def _refuse_strangers(ledger: Ledger, state: State, asked: RequestedRows) -> None:
    """With a deposit: refuse rows that are not there, and that no request holds: they were never trained on.

    Whether that is so does not depend on what others asked for: what leaves a deposit is held by the request that it
    left for. No row but these is named.
    """
    if state.deposit is None:
        return
    there = find_occurrences(hash_rows(state.deposit.key, *asked.given), state.deposit.hashes)
    absent = {int(row): [kind[row] for kind in asked.digests] for row in np.flatnonzero(~there)}
    if not absent:
        return
    held = ledger.holders([digest for digests in absent.values() for digest in digests])
    strangers = [row for row, digests in absent.items() if not held.keys() & set(digests)]
    if strangers:
        named = ", ".join(str(row + 1) for row in strangers[:5]) + (", ..." if len(strangers) > 5 else "")
        are = "is" if len(strangers) == 1 else "are"
        raise DataError(
            f"{len(strangers):,} of {len(asked):,} rows (row {named}) {are} not in what is left of the source",
            "each row must have been trained on",
            "Check values, columns and labels against what was trained on (expunge member looks each row up).",
        )


# Setting aside --------------------------------------------------------------------------------------------------------


def judge_request(
    desk: Desk, ledger: Ledger, state: State, asked: RequestedRows, another_person: bool, own: int | None = None
) -> tuple[int, Aside | None]:
    """How many rows are declared to be another person's, and why the request must be set aside, if it must.

    `own` is the request's number where it is there already. With a deposit nothing is declared.
    """
    repeats = _find_repeats(ledger, asked.digests, own)
    holding = set().union(*repeats)
    holders = [f"in request {number}" for number in sorted(holding - {0})[:5]]
    said = ", ".join(holders + (["twice in this one"] if 0 in holding else []))
    if state.deposit is not None:
        missing = _count_missing(desk, ledger, state.deposit, asked, sorted(holding - {0}))
        if missing:
            are, them = ("is", "it") if missing == 1 else ("are", "them")
            reason = f"{missing} of {len(asked)} rows {are} asked for more often than the source has {them} left"
            return 0, Aside(REPEAT, f"{reason} ({said}); each row leaves once", FREED if holders else ONCE)
        return 0, _overdrawn(desk, ledger, asked, state.record)
    count = sum(map(bool, repeats))
    if count and not another_person:
        reason = f"{count} of {len(asked)} rows {'was' if count == 1 else 'were'} asked for before ({said})"
        return 0, Aside(REPEAT, f"{reason}; a person's row is forgotten once", DECIDE)
    return count, _overdrawn(desk, ledger, asked, state.record)


def _find_repeats(ledger: Ledger, digests: tuple[list[str], ...], own: int | None = None) -> list[set[int]]:
    """For each row the other requests that hold it, and 0 where an earlier row of this one is the same.

    To a request that is there already (`own`), one that is set aside is nothing: two that wait for each other would
    both wait for ever. Whichever is taken up first, the other one is judged by it.
    """
    holders = ledger.holders(list(itertools.chain(*digests)), own)
    if own is not None:
        aside = {request.id for request in ledger.requests("aside")}
        holders = {digest: held - aside for digest, held in holders.items()}
    seen: set[str] = set()
    found = []
    for row in zip(*digests, strict=True):
        held = set().union(*(holders.get(digest, ()) for digest in row))
        found.append(held | ({0} if seen.intersection(row) else set()))
        seen.update(row)
    return found


def _count_missing(desk: Desk, ledger: Ledger, deposit: Deposit, asked: RequestedRows, holding: list[int]) -> int:
    """With a deposit: how many rows are asked for more often than they are left, pending requests included."""
    from expunge.deposit.membership import look_up

    parts: list[tuple[Any, Any]] = [asked.given[:2]]
    missing = look_up(deposit, *parts[0]).missing
    if missing or not holding:
        return len(missing)
    for number in holding:
        request = ledger.request(number)
        if request is not None and request.state == "pending":
            with contextlib.suppress(InputError):  # a file that is damaged keeps nobody else from asking
                parts.append(desk.rows_in(desk.layout.rows_of(number)))
    features, labels = (np.concatenate([np.asarray(part[at]) for part in parts]) for at in (0, 1))
    return len(look_up(deposit, features, labels).missing)


def _overdrawn(desk: Desk, ledger: Ledger, asked: RequestedRows, left: TrainingRecord) -> Aside | None:
    """Whether more rows would leave than the source has left once pending requests are done, in all or of a class."""

    def waiting(index: int | None) -> int:
        return ledger.pending_rows(None if index is None else _digest_class(desk, index))

    said = _more_than_left(asked, left, waiting)
    return None if said is None else Aside(OVERDRAWN, said, FEWER)
