"""Surrogate rows added to a request with a deposit: checked as they would be without one, before any work."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from expunge.certificate.claim import PublicNote
from expunge.deposit.file import Deposit
from expunge.deposit.sums import require_equal
from expunge.distance import Distance, Estimation
from expunge.errors import OptionError
from expunge.heads.rows import RowSet
from expunge.record import TrainingRecord
from expunge.request.columns import column_notes
from expunge.request.door import Request
from expunge.request.multiplicities import Multiplicities
from expunge.request.past import without
from expunge.request.promise import wanted_distance
from expunge.request.rows import Reading, encoder_notes, is_labelled, matched_rows, require_enough, rows_of
from expunge.request.scaling import SURROGATE, refuse_squashed
from expunge.request.survey import class_notes, notes_on, survey
from expunge.rows.columns import prepare_frames

FORGET = "the forget set"


def with_surrogate(
    request: Request,
    forget: Any,
    surrogate: Any,
    distance: Distance | Estimation | str | None,
    *,
    match_classes: bool = False,
    reading: Reading | None = None,
) -> Request:
    """A request with a deposit, and these rows beside it, as far from what is retained as is declared.

    `forget` are the rows to forget as they were given. Where neither surrogate nor distance is, nothing is added.
    """
    if surrogate is None and distance is None and not match_classes:
        return request
    if surrogate is None or distance is None:
        raise OptionError(
            "a surrogate without a distance, or a distance without a surrogate, beside a deposit",
            "how far the one is from what is retained is the other",
            "Give both, for example --distance same (distance='same'), or neither.",
        )
    require_equal(request.record)
    if request.promise.series is not None:
        raise OptionError(
            "a surrogate beside a deposit in a series of deletions",
            "what is spent on surrogate rows is spent for one model",
            "Leave the surrogate out: with the deposit alone nothing is spent, however many models follow.",
        )
    declared = declared_distance(wanted_distance(distance, match_classes)[0])
    rows, notes = surrogate_rows(request, forget, surrogate, declared, reading or Reading())
    promise = replace(request.promise, distance=declared, step="converged")
    fresh = tuple(note for note in notes if note not in request.notes)
    return replace(request, surrogate=rows, promise=promise, notes=request.notes + fresh)


def declared_distance(distance: Distance | Estimation) -> Distance:
    """Refuse what is not declared, or not of rows that stand in for others."""
    if isinstance(distance, Distance) and distance.is_source:
        raise OptionError(
            "distance source beside a deposit",
            "the deposit has all that the bound needs of the source's rows",
            "Leave surrogate and distance out.",
        )
    if not isinstance(distance, Distance) or not distance.law.stands_in or distance.provenance != "declared":
        raise OptionError(
            f"distance {distance} beside a deposit",
            "how far the surrogate is from what is retained has to be declared; an estimate is for models without a "
            "deposit",
            "Declare one, for example same or chi2:0.1, or leave the surrogate out.",
        )
    return distance


def surrogate_rows(
    request: Request, forget: Any, surrogate: Any, distance: Distance, reading: Reading
) -> tuple[RowSet, tuple[str, ...]]:
    """The surrogate made ready, refused or remarked on."""
    deposit, record, force = request.deposit, request.record, request.promise.force
    assert isinstance(deposit, Deposit)
    surrogate = prepare_frames(surrogate, record, SURROGATE)
    labelled, gone = is_labelled(surrogate), request.forget
    left = replace(record, n_source=deposit.numbers.n_rows, class_counts=deposit.numbers.class_counts)
    rows = rows_of(surrogate, deposit.model, record, torch.float64, request.weights.device, SURROGATE, reading)
    seen = survey(gone, rows, len(record.classes), reading.progress, Multiplicities.of(distance))
    notes = encoder_notes(record, forget, surrogate)
    notes += notes_on(gone, rows, seen, left, distance, has_labels=labelled, force=force)
    notes += class_notes(gone, seen, left, None, distance, has_labels=labelled)
    notes += tuple(map(PublicNote, refuse_squashed(rows.scaling, SURROGATE, record.max_norm, force)))
    notes += column_notes(record, {FORGET: forget, SURROGATE: surrogate})
    n_before = len(rows)
    rows = counted(rows, without(left, gone), distance, labelled, seen.counts)
    if len(rows) < n_before:
        notes += (f"{n_before - len(rows)} surrogate rows of classes of which nothing is retained were left out",)
    return rows, notes


def counted(rows: RowSet, retained: TrainingRecord, distance: Distance, labelled: bool, counts: Any) -> RowSet:
    """Weighted by class where that is asked for, and enough of them."""
    if distance.matched:
        rows = matched_rows(rows, retained, labelled, counts)
    if distance.samples_rows:
        require_enough(rows)
    return rows
