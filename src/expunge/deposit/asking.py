"""A request about a model of whose source a deposit was kept: checked at the door, before any work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from expunge.bounds.scale import REHEARSAL, asked_scale
from expunge.certificate.claim import PublicNote
from expunge.deposit.file import Deposit
from expunge.deposit.membership import Membership, look_up, require_members
from expunge.distance import Distance
from expunge.errors import DataError, ModelError, OptionError
from expunge.heads import Rows
from expunge.heads.rows import in_memory
from expunge.model import LinearModel
from expunge.record import Label, TrainingRecord
from expunge.request.columns import column_notes
from expunge.request.declared import Declared
from expunge.request.door import HERE, Request
from expunge.request.execution import Execution
from expunge.request.promise import Promise, budget_notes
from expunge.request.rows import Reading, encoder_notes, is_labelled, of_class, rows_of, whole_set
from expunge.request.series import Series
from expunge.request.subject import LinearSubject
from expunge.rows.columns import match_record
from expunge.runtime.memory import Memory

DISTANCE = Distance("deposit", 0.0)
BOUND = "deposit"
NAME = "the forget set"
SAME = ("loss", "classes", "features", "encoder", "free_bias", "fixed_c", "preparation", "table")
ITS_MODEL = "Give the model and the deposit that was made for it, or for a deletion from it."


def deposit_promise(
    epsilon: float, delta: float, *, force: bool = False, noise: Any = None, series: Series | None = None
) -> Promise:
    """What is promised with a deposit; its noise is one of a few levels, or set beforehand (`exact` for audits)."""
    scale = asked_scale(noise)
    if scale.kind == REHEARSAL:
        raise OptionError(
            f"noise as for {scale.rows} rows with a deposit",
            "there are no rows to rehearse with",
            "Give a number, one of those that expunge plan shows, or leave --noise (noise) out.",
        )
    return Promise(epsilon, delta, DISTANCE, step="newton", bound=BOUND, force=force, noise=scale, series=series)


USUAL = {"step": None, "bound": "residual", "constants": None, "sizes": "source", "dtype": "float64"}


def require_fitting(declared: Declared, terms: Mapping[str, Any], usual: Mapping[str, Any] = USUAL) -> None:
    """Refuse what a deposit decides by itself, in Python and on the command line alike, where it is not the usual.

    That is step, bound, constants, sizes and dtype, and everything that is declared of a model without a record.
    """
    chosen = {name: value for name, value in terms.items() if value != usual[name]}
    facts = {name: value for name, value in vars(declared).items() if value is not None}
    require_alone(**chosen, **facts)


def require_alone(**beside: Any) -> None:
    """Refuse what does not go with a deposit: choices of step and bound, and a surrogate where it is used alone."""
    given = [name for name, value in beside.items() if value is not None and value is not False]
    if "surrogate" in given or "distance" in given:
        raise OptionError(
            "a surrogate, or a distance, beside a deposit",
            "here the deposit is used alone; beside a surrogate it is for one deletion at a time (expunge unlearn)",
            "Leave --surrogate and --distance (surrogate, distance) out.",
        )
    if given:
        raise OptionError(
            f"{', '.join('--' + name.replace('_', '-') for name in given)} with a deposit",
            "the deposit has what these options are about",
            "Leave them out.",
        )


def require_its_model(model: LinearModel, deposit: Deposit) -> None:
    """Refuse a model that the deposit was not made for, as far as shape and record tell; it may be a published one."""
    kept = deposit.record
    shape = (*model.weight.shape, model.bias is not None)
    own = (*deposit.model.weight.shape, deposit.model.bias is not None)
    if shape != own:
        raise ModelError(
            f"a model of {shape[0]} x {shape[1]} weights, {'with' if shape[2] else 'without'} a bias",
            f"the deposit is of one of {own[0]} x {own[1]}, {'with' if own[2] else 'without'}",
            ITS_MODEL,
        )
    if model.record is None:
        return
    own_anchor = model.record.weights_sha256 == kept.weights_sha256
    if model.record.noised and deposit.numbers.generation == 0 and not own_anchor:
        raise ModelError(
            "the model is a published one, which rows were taken out of",
            "none has left this deposit yet: whoever was forgotten would be back",
            "Give the deposit that was written with that model (private/model.deposit), and destroy this one.",
        )
    require_its_record(model.record, kept)


def require_its_record(record: TrainingRecord, kept: TrainingRecord) -> None:
    """Refuse a model whose record is of another training than the deposit's.

    A published model's says less, and since rows leave a deposit, it counts other rows than the model from before; a
    fixed C makes another l2 of them.
    """
    more: tuple[str, ...] = () if kept.fixed_c is not None else ("l2",)
    more += () if record.noised else ("class_weights", "max_norm")
    for name in SAME + more:
        said, known = getattr(record, name), getattr(kept, name)
        if said != known:
            raise ModelError(
                f"the model's record says {name} {_short(said)}", f"the deposit's says {_short(known)}", ITS_MODEL
            )


def require_linear(deposit: Deposit) -> None:
    """Refuse a deposit whose rows only a network can form."""
    if deposit.of_network:
        raise OptionError(
            "a deposit of a network's tangent weights",
            "rows leave it with the network at hand",
            "Use expunge tangent unlearn --deposit (in Python unlearn_tangent).",
        )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def ask_deposit(
    deposit: Deposit,
    forget: Any,
    promise: Promise,
    *,
    model: LinearModel | None = None,
    forget_class: Label | None = None,
    execution: Execution = HERE,
    store: torch.dtype | None = None,
    model_sha256: str | None = None,
) -> Request:
    """A request to take these rows out; `store` is the type that weights are published in, the model's unless given."""
    require_linear(deposit)
    record, place = deposit.record, execution.place
    if model is not None:
        require_its_model(model, deposit)
    _require_one_process(execution)
    forget = _labelled(whole_set(forget, _reading(execution), NAME, record))
    if forget_class is not None:
        forget = of_class(forget, forget_class, replace(record, class_counts=deposit.numbers.class_counts))
    rows = in_memory(rows_of(forget, deposit.model, record, torch.float64, place, NAME), "what is to be forgotten")
    membership = look_up(deposit, *as_given(forget, deposit))
    require_members(membership)
    require_some_left(deposit, len(rows))
    before = model_sha256 or (None if model is None else model.sha256())
    subject = LinearSubject.of(deposit.model, record, place, before, None)
    published = store or (torch.float64 if model is None else model.weight.dtype)
    subject = replace(subject, head=deposit.head, dtype=published)
    notes = encoder_notes(record, forget, None) + budget_notes(promise.delta, deposit.numbers.n_rows - len(rows))
    notes += column_notes(record, {NAME: forget}) + notes_on(membership, deposit) + _notes_on_classes(deposit, rows)
    return Request(subject, rows, None, promise, None, notes, deposit.on(place), membership)


def _reading(execution: Execution) -> Reading:
    return Reading(Memory.of(execution.memory), progress=execution.progress)


def require_some_left(deposit: Deposit, n_forget: int) -> None:
    """Refuse to forget everything."""
    if n_forget >= deposit.numbers.n_rows:
        raise DataError(
            f"all {deposit.numbers.n_rows:,} rows that are left",
            "something must be retained",
            "Delete the model and its deposit.",
        )


def _require_one_process(execution: Execution) -> None:
    if execution.group.size > 1:
        raise OptionError(
            f"{execution.group.size} processes for a deletion from a deposit",
            "there are no rows to share out among them",
            "Start one process, without torchrun.",
        )


def _labelled(forget: Any) -> Any:
    if not is_labelled(forget):
        raise DataError(f"{NAME}: no labels", "a row is known by its label too", "Give (features, labels).")
    return forget


def notes_on(membership: Membership, deposit: Deposit) -> tuple[str, ...]:
    """What is said of copies, and of deletions before this one."""
    notes: tuple[str, ...] = ()
    recognised = [membership.count(level) for level in (1, 2)]
    if any(recognised):
        notes += (
            f"{sum(recognised):,} rows are copies of source rows ({recognised[0]:,} to float32, {recognised[1]:,} to "
            "six decimals); the difference is charged",
        )
    if deposit.numbers.forgotten:
        notes += (
            f"{deposit.numbers.forgotten:,} rows had left the deposit before, in {deposit.numbers.generation} "
            f"{'deletion' if deposit.numbers.generation == 1 else 'deletions'}; the bound is that of all of them "
            "together",
        )
    return notes


def _notes_on_classes(deposit: Deposit, rows: Rows) -> tuple[str, ...]:
    """Classes of which no row is retained: what is handed out has their names still."""
    gone = Counter(rows.labels.tolist())
    counted = zip(deposit.record.classes, deposit.numbers.class_counts, strict=True)
    empty = [repr(value) for index, (value, count) in enumerate(counted) if count <= gone[index]]
    if not empty:
        return ()
    said = (
        f"no retained row is of class {', '.join(empty[:12])}, which the model still names: that somebody of it was "
        "there can be seen; retraining would have no such class"
    )
    return (PublicNote(said),)


def as_given(forget: Any, deposit: Deposit) -> tuple[Any, Any]:
    """Features in the order of the model's columns, and labels, as they are hashed."""
    ordered = match_record(forget, deposit.record, deposit.model.n_features, NAME)
    return ordered[0], ordered[1]
