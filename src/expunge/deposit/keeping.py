"""Keeping a deposit of a source that is still there: everything is checked, then it is made (making.py)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from expunge.deposit.classes import by_class
from expunge.deposit.contents import Deposit, kept_head
from expunge.deposit.making import Made, Rehearsal, make_deposit, require_size
from expunge.deposit.setting import Penalty
from expunge.errors import DataError, ModelError, OptionError
from expunge.heads import RowSet
from expunge.model import LinearModel, from_matrix
from expunge.record import TrainingRecord
from expunge.request.declared import NOTHING_DECLARED, Declared, record_for
from expunge.request.door import HERE
from expunge.request.execution import Execution
from expunge.request.rows import Reading, is_labelled, rows_of
from expunge.request.subject import head_of
from expunge.rows.columns import match_record, prepare_frames
from expunge.rows.streams import Stream
from expunge.runtime.memory import Memory

NAME = "the source"


@dataclass(frozen=True)
class Kept:
    """The deposit, what was rehearsed for it, the optimum, and the rows it is of, made ready."""

    made: Made
    rows: RowSet

    @property
    def deposit(self) -> Deposit:
        return self.made.deposit

    @property
    def rehearsed(self) -> tuple[Rehearsal, ...]:
        return self.made.rehearsed

    def model(self, dtype: torch.dtype) -> LinearModel:
        """The model at the optimum, in the type it is to be stored in; the deposit's own anchor has noise."""
        own = self.deposit.record
        stored = from_matrix(self.made.optimum, bias=own.bias, dtype=dtype)
        record = replace(own, residual=0.0, noised=False, provenance="measured")
        size, lost = _gradient_size(stored, record, by_class(self.rows, record))
        return stored.with_record(replace(record, residual=size + lost))


def keep(
    model: LinearModel,
    source: tuple[Any, Any] | Stream,
    *,
    declared: Declared = NOTHING_DECLARED,
    execution: Execution = HERE,
    free_bias: bool = False,
    seed: int | None = None,
) -> Kept:
    """A deposit of the rows a model was trained on, as they were given then; in a group the first process has it.

    Of a model without a record, `declared` says what it minimised (l2, loss, max_norm); the rest is measured here.
    With `free_bias` the bias is no longer regularised: the deposit's own model is the one trained so. `seed` fixes
    key and rehearsal for tests.
    """
    if model.record is not None:
        source = prepare_frames(source, model.record, NAME)
    if not is_labelled(source):
        raise DataError(f"{NAME}: no labels", "its gradient needs them", "Give the rows as they were trained on.")
    if isinstance(source, Stream) and source.own_rows and execution.group.size > 1:
        raise DataError(
            f"{NAME}: a stream that gives every process its own rows",
            "the first process hashes all of them",
            "Give files that all processes see, or make the deposit in one process.",
        )
    record = _record(model, source, declared)
    place = execution.place
    require_size(kept_head(model, record), place)
    reading = Reading(Memory.of(execution.memory), execution.group, execution.progress)
    rows = rows_of(source, model, record, torch.float64, place, NAME, reading)
    require_trained_on(model, record, by_class(rows, record))
    if free_bias:
        record = _freed(record)
    given = match_record(source, record, model.n_features, NAME)
    made = make_deposit(
        model,
        record,
        rows,
        given if isinstance(given, Stream) else (given[0], given[1]),
        group=execution.group,
        progress=execution.progress,
        seed=seed,
    )
    return Kept(made, rows)


def _record(model: LinearModel, source: Any, declared: Declared) -> TrainingRecord:
    """What the model says of its training, or what is declared; what the source itself says need not be."""
    if model.record is None:
        known = source.n_rows if isinstance(source, Stream) else len(source[0])
        declared = replace(declared, n_source=declared.n_source or known, training_residual=0.0)
    record = record_for(model, declared)
    if record.noised:
        raise ModelError(
            "the model is an unlearned, noised one",
            "a deposit is of a model as it was trained",
            "Give the model from before the deletion.",
        )
    return record


def _freed(record: TrainingRecord) -> TrainingRecord:
    """The same training but for the bias; the optimum is another, so nothing is known of the gradient here."""
    if not record.bias:
        raise OptionError(
            "a free bias of a model without one", "there is nothing to free", "Train with a bias (--bias, bias=True)."
        )
    return replace(record, free_bias=True, residual=0.0, provenance="declared")


def require_trained_on(model: LinearModel, record: TrainingRecord, rows: RowSet) -> None:
    """Refuse rows that are not those the model says it was trained on, as far as that can be seen."""
    remedy = "Give the rows the model was trained on, all of them, as they were given then."
    if len(rows) != record.n_source:
        raise DataError(f"{NAME} has {len(rows):,} rows", f"the model was trained on {record.n_source:,}", remedy)
    if record.provenance != "measured" or record.residual is None:
        return
    size, lost = _gradient_size(model, record, rows)
    allowed = record.residual * (1.0 + 1e-6) + 2.0 * lost
    if record.rows_dtype != "float64":  # it was measured on rounded rows
        allowed += 2.0**-20 * (1.0 + record.row_bound) * (1.0 + float(model.matrix().norm()))
    if size > allowed:
        raise DataError(
            f"on the rows given as the source the gradient has norm {size:.3g}",
            f"at training it was {record.residual:.3g}",
            remedy,
        )


def _gradient_size(model: LinearModel, record: TrainingRecord, rows: RowSet) -> tuple[float, float]:
    """The norm of the objective's gradient at the model's weights, and what float64 may hide of it."""
    head, weights = head_of(model, record), model.matrix(rows.device)
    penalty = Penalty(record.l2, bool(record.free_bias)).diagonal(weights)
    gradient = replace(head, l2=0.0).gradient(weights, rows) + penalty * weights
    return float(gradient.norm()), head.rounding(weights, rows)
