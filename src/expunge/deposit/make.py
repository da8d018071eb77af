"""Making a deposit of a source that is still there: everything is checked, then it is made."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from expunge.bounds.calibration import power_of_two
from expunge.deposit.file import SCHEMA, Deposit, Numbers, deposit_head
from expunge.deposit.forecast import (
    Foresight,
    Trial,
    choose,
    loudest,
    nearly_all_leave,
    random_groups,
    steps_of,
    try_people,
)
from expunge.deposit.matrices import Gram, Norm, gram_of, not_definite, rested, shape_of
from expunge.deposit.region import Penalty, Setting
from expunge.deposit.sums import NU, Sums, by_class, gauges_of, has_third, is_joint, means_of, sums_of
from expunge.errors import DataError, ModelError, OptionError
from expunge.heads import LinearHead, Logistic, Ridge, Rows, RowSet, Softmax
from expunge.heads.network import MatrixFree
from expunge.heads.rows import evenly
from expunge.heads.tangent import JacobianRidge, JacobianRows
from expunge.model import LinearModel, from_matrix
from expunge.record import TrainingRecord
from expunge.request.promise import HERE, NOTHING_DECLARED, Declared, Execution
from expunge.request.request import head_of, record_for, timestamp
from expunge.request.sets import is_labelled, rows_of
from expunge.rows.columns import match_record, prepare_frames
from expunge.rows.hashes import KEY_BYTES, NOTHING, RowHashes, hash_rows, hash_stream
from expunge.rows.streams import Stream
from expunge.runtime.arrays import (
    Array,
    Device,
    Dtype,
    engine_dtype,
    few_threads,
    load_torch,
    namespace,
    norm,
    put,
    size,
    solve_triangular,
    to_numpy,
    zeros,
)
from expunge.runtime.group import ALONE, Group
from expunge.runtime.progress import Progress, silent
from expunge.solve.linear import SymmetricOperator, precondition
from expunge.solve.newton import Manner, newton_step

NAME = "the source"
NO_HASHES = RowHashes((NOTHING, NOTHING, NOTHING))
MOST_WEIGHTS = 12_000  # of one block: a matrix of their square is kept, and several while it is made
COPIES = 18  # matrices of that size that a deletion needs room for at once
FEW_WEIGHTS = 2_000  # up to here all gauges are kept, beyond one
ACCURATE = 1e-10  # of a linear system that is solved with factors of its matrix, which rounding makes inexact
HASHING = "Row hashes (rows)"
ANCHOR_FACTOR = 4.0  # of the anchor's noise at most: times how far one ordinary row moves the optimum; the list of
ANCHOR_STEP = math.sqrt(2.0)  # scales goes down in such steps, to where the noise
AS_PEOPLE = 25  # in all is as long as so many rows that leave together move the optimum: taken without being tried
SHARE_OF_SOURCE = 1 / 200  # that they are of the source, at most
FREE_FACTOR = 16.0  # where it costs nothing
SHOWN = 16_384  # rows at most, evenly spread, that the choice of a scale begins from


@dataclass(frozen=True)
class NewDeposit:
    """The deposit, what random single rows of it need to leave, the rows it is of, and the optimum itself, K x d: no
    part of the deposit, which has noise."""

    deposit: Deposit
    people: tuple[Trial, ...]
    optimum: Array
    rows: RowSet

    def model(self, dtype: Dtype) -> LinearModel:
        """The model at the optimum, in the type it is to be stored in; the deposit's own anchor has noise."""
        own = self.deposit.record
        stored = from_matrix(self.optimum, bias=own.bias, dtype=dtype)
        record = replace(own, residual=0.0, noised=False, provenance="measured")
        length, lost = _gradient_size(stored, record, by_class(self.rows, record))
        return stored.with_record(replace(record, residual=length + lost))


def make_deposit(
    model: LinearModel,
    source: tuple[Any, Any] | Stream,
    *,
    declared: Declared = NOTHING_DECLARED,
    execution: Execution = HERE,
    free_bias: bool = False,
    seed: int | None = None,
) -> NewDeposit:
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
    if model.record is None:  # what the source itself says need not be declared
        known = source.n_rows if isinstance(source, Stream) else len(source[1])
        declared = replace(declared, n_source=declared.n_source or known, training_residual=0.0)
    record, place = record_for(model, declared), execution.place
    require_possible(model, record, place)
    rows = rows_of(source, model, record, engine_dtype("float64", place), place, NAME, execution, sparse=True)
    _require_trained_on(model, record, by_class(rows, record))
    if free_bias and not record.bias:
        raise OptionError(
            "a free bias of a model without one", "there is nothing to free", "Train with a bias (--bias, bias=True)."
        )
    if free_bias:  # the optimum is another, so nothing is known of the gradient here
        record = replace(record, free_bias=True, residual=0.0, provenance="declared")
    given = match_record(source, record, model.n_features, NAME)
    given = given if isinstance(given, Stream) else (given[0], given[1])
    return make_from_rows(model, record, rows, given, group=execution.group, progress=execution.progress, seed=seed)


def make_from_rows(
    model: LinearModel,
    record: TrainingRecord,
    rows: RowSet,
    given: tuple[Any, Any] | Stream,
    *,
    group: Group = ALONE,
    progress: Progress = silent,
    seed: int | None = None,
) -> NewDeposit:
    """A deposit of these rows for this model; `given` are the same rows as they came, for their hashes.

    The anchor is the optimum, reached from the model's weights, and noise; tangent weights, whose loss is a square, are
    taken for the optimum as they are. `seed` fixes key, noise and rehearsal for tests. In a group only the first
    process looks at the rows as they came, and its deposit alone is whole.
    """
    with few_threads(len(rows), size(model.matrix())):
        require_possible(model, record.check(), rows.device)
        head, given_rows = replace(deposit_head(model, record), l2=0.0), rows
        if isinstance(rows, JacobianRows) and isinstance(head, JacobianRidge):
            head = replace(head, longest_target=power_of_two(rows.longest_target))
        require_whole(record, rows)
        rows = by_class(rows, record)
        penalty = Penalty(record.l2, bool(record.free_bias))
        setting = Setting(
            model.matrix(rows.device), head.row_bound, (), isinstance(head, Ridge), isinstance(head, Softmax)
        )
        best = (
            setting.anchor if isinstance(given_rows, JacobianRows) else optimum(head, rows, setting, penalty, progress)
        )
        progress("Sums over the source", 0, None)
        gram, secret = gram_of(rows), secret_numbers(rows, seed)
        noise = setting.centred(anchor_noise(head, gram, penalty, best, 1.0, secret))
        n_gauges = len(NU) if size(best) <= FEW_WEIGHTS else 1
        gauges = () if setting.quadratic else gauges_of(rows, gram, secret, n_gauges)
        key = secrets.token_bytes(KEY_BYTES) if seed is None else np.random.default_rng(seed).bytes(KEY_BYTES)
        counts, created = class_counts(head, rows), timestamp()
        known = replace(record, class_counts=counts, residual=None, noised=True, provenance="measured")

        def with_anchor(anchor: Array, sums: Sums, scale: float) -> Deposit:
            numbers = Numbers(
                schema=SCHEMA,
                key=key.hex(),
                n_rows=len(rows),
                forgotten=0,
                generation=0,
                class_counts=counts,
                row_bound=head.row_bound,
                anchor_noise=scale,
                kappas=tuple(gauge.kappa for gauge in gauges),
                created=created,
                longest_target=head.longest_target if isinstance(head, JacobianRidge) else 0.0,
            )
            stored = from_matrix(anchor, bias=record.bias, dtype="float64").with_record(known)
            return Deposit(stored, numbers, sums, gauges, NO_HASHES)

        def with_noise(scale: float) -> Deposit:
            anchor = rested(best + scale * noise, gram, penalty.diagonal(best)[0])[0]
            return with_anchor(anchor, sums_of(head, anchor, rows, gauges, third=third, gram=gram), scale)

        third, first = has_third(head), 0
        scales = anchor_scales(size(best), len(rows), quadratic=setting.quadratic)
        if len(scales) > 1:
            some = by_class(evenly(rows, SHOWN), record) if isinstance(rows, Rows) else rows
            at_rest = with_anchor(best, replace(sums_of(head, best, some, gauges, gram=gram), count=len(rows)), 0.0)
            people = [choose(rows, each) for each in random_groups(at_rest, rows, 1, seed)]
            moved = rested(noise, gram, penalty.diagonal(best)[0])[0]  # as an anchor is moved by it
            foreseen = first_quiet(at_rest, moved, scales, people, third=third)
            first = int(rows.agreed(np.array(float(foreseen))))  # in a group each process has foreseen one
        deposit, trials = with_most_noise(
            with_noise, scales, lambda each: try_people(each, rows, seed, progress), first
        )
        deposit = replace(deposit)  # without the factors that were made for trying it
        hashes = hashes_of(key, given, len(rows), progress) if group.first else NO_HASHES
        place = load_torch("a network").device("cpu") if deposit.of_network else "cpu"
        return NewDeposit(replace(deposit, hashes=hashes).on(place), trials, put(best, model.weight), given_rows)


# Checks ---------------------------------------------------------------------------------------------------------------


def most_weights(device: Device) -> int:
    """How many weights a block may have: a fixed number, or on a GPU what its memory holds if that is more."""
    if getattr(device, "type", device) != "cuda":
        return MOST_WEIGHTS
    torch = load_torch("a GPU")
    memory = torch.cuda.get_device_properties(device).total_memory
    return max(MOST_WEIGHTS, math.isqrt(memory // (8 * COPIES)))


def require_possible(model: LinearModel, record: TrainingRecord, device: Device) -> None:
    """Refuse a model that was unlearned, has a loss without formulas here, or a Hessian too large to be kept."""
    if record.noised:
        raise ModelError(
            "the model is an unlearned, noised one",
            "a deposit is of a model as it was trained",
            "Give the model from before the deletion.",
        )
    head = deposit_head(model, record)
    order, most = head.n_parameters if is_joint(head) else head.n_features, most_weights(device)
    if order > most:
        remedy = "Use fewer features, for example their principal components."
        if isinstance(head, JacobianRidge):
            remedy = (
                "Train the tangent weights of fewer parameters (--last), or a linear head on what the network makes."
            )
        elif head.n_features <= most:
            remedy = (
                "Train a ridge head (loss ridge), whose Hessian is of features by features, one for all classes: it "
                "takes seconds, and with a hundred classes loses a point or two of accuracy. One-vs-rest keeps one for "
                "each class; or use fewer features, for example their principal components."
            )
        required = f"a deposit keeps one of at most {most:,} weights"
        raise ModelError(f"a Hessian of {order:,} x {order:,}", required, remedy)


def require_whole(record: TrainingRecord, rows: RowSet) -> None:
    """Refuse rows that are not as many as the model was trained on, or another C than the record's l2 is of."""
    if len(rows) != record.n_source:
        raise DataError(
            f"{NAME} has {len(rows):,} rows",
            f"the model was trained on {record.n_source:,}",
            "Give all the rows it was trained on, as they were given then, and no others.",
        )
    if record.fixed_c is not None and not math.isclose(record.l2 * record.fixed_c * len(rows), 1.0, rel_tol=1e-9):
        raise ModelError(
            f"l2 {record.l2:g} with C {record.fixed_c:g} on {len(rows):,} rows",
            "a fixed C is l2 = 1/(C n)",
            "Record one of the two.",
        )


def _require_trained_on(model: LinearModel, record: TrainingRecord, rows: RowSet) -> None:
    """Refuse rows that are not those the model says it was trained on, as far as that can be seen."""
    require_whole(record, rows)
    if record.provenance != "measured" or record.residual is None:
        return
    length, lost = _gradient_size(model, record, rows)
    allowed = record.residual * (1.0 + 1e-6) + 2.0 * lost
    if record.rows_dtype != "float64":  # it was measured on rounded rows
        allowed += 2.0**-20 * (1.0 + record.row_bound) * (1.0 + norm(model.matrix()))
    if length > allowed:
        raise DataError(
            f"on the rows given as the source the gradient has norm {length:.3g}",
            f"at training it was {record.residual:.3g}",
            "Give the rows the model was trained on, all of them, as they were given then.",
        )


def _gradient_size(model: LinearModel, record: TrainingRecord, rows: RowSet) -> tuple[float, float]:
    """The norm of the objective's gradient at the model's weights, and what float64 may hide of it."""
    head, weights = head_of(model, record), model.matrix(rows.device)
    penalty = Penalty(record.l2, bool(record.free_bias)).diagonal(weights)
    gradient = replace(head, l2=0.0).gradient(weights, rows) + penalty * weights
    return norm(gradient), head.rounding(weights, rows)


# Anchor, hashes, counts -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AnchorEquation:
    """`g(w + u) + reg (w + u) = 0`, by factors of the dense Hessian: preconditioned by them conjugate gradients take a
    step or two, which correct what rounding made of the factors. Of wide softmax, where forming it takes longer than
    many products with it, by these and the Kronecker factors of its means."""

    head: LinearHead
    weights: Array
    rows: RowSet
    setting: Setting
    penalty: Penalty
    scale = 1

    @property
    def n_rows(self) -> int:
        return len(self.rows)

    def objective(self, update: Array) -> float:
        at = self.weights + update
        squares = self.penalty.diagonal(at) * namespace(at).square(at)
        return self.head.loss(at, self.rows) + 0.5 * float(squares.sum())

    def residual(self, update: Array) -> Array:
        at = self.weights + update
        return self.setting.centred(self.head.gradient(at, self.rows) + self.penalty.diagonal(at) * at)

    @cached_property
    def by_products(self) -> bool:
        return is_joint(self.head) and not self.head.dense_pays(self.rows)

    def jacobian(self, update: Array, pull: float, last: SymmetricOperator | None) -> SymmetricOperator:
        at, penalty, centred = self.weights + update, self.penalty.diagonal(update), self.setting.centred
        if self.by_products:
            curvature = self.head.curvature(at, self.rows)
            near = precondition(curvature, 1.0, self.penalty.l2)
            return MatrixFree(
                lambda direction: centred(curvature.product(direction) + penalty * direction),
                None if near is None else lambda residual: centred(near.solve(residual)),
            )
        matrix = self.setting.stiffened(means_of(self.head, at, self.rows).curvatures[0])
        matrix = self.setting.penalised(matrix, self.penalty)
        factors, damping = Norm.of(matrix), 1e-14 * matrix.largest_entry
        while factors is None and damping < math.inf:
            factors, damping = Norm.of(matrix.plus(damping)), 10.0 * damping
        return MatrixFree(matrix.product, None if factors is None else factors.solved)

    def manner(self) -> Manner:
        return Manner(dense=False, working=self.weights.dtype, accurate=ACCURATE, inexact=self.by_products)

    def agreed(self, step: Array) -> Array:
        return self.setting.centred(self.rows.agreed(step))


def optimum(head: LinearHead, rows: RowSet, setting: Setting, penalty: Penalty, progress: Progress = silent) -> Array:
    """The optimum of the head's loss with this penalty, by Newton's method from the setting's anchor, to where float64
    ends.

    It begins at zero where the objective is lower there: far out, where predictions are all certain, it is nearly flat.
    """
    weights = setting.centred(setting.anchor)
    nothing = zeros(weights)
    head = replace(head, l2=0.0)  # the penalty is all the regulariser there is
    equation = AnchorEquation(head, weights, rows, replace(setting, stiff=1.0), penalty)
    at_zero = replace(equation, weights=nothing)
    if not equation.objective(nothing) <= at_zero.objective(nothing):
        equation = at_zero
    goal = head.rounding(equation.weights, rows)
    return equation.weights + newton_step(equation, goal=goal, objective=equation.objective, progress=progress).update


def secret_numbers(rows: RowSet, seed: int | None) -> np.random.Generator:
    """The source of noise that is drawn once and kept nowhere; the same in every process of a group."""
    words = rows.agreed(np.array([float(secrets.randbits(53)) for _ in range(5)]))
    return np.random.default_rng([int(word) for word in words] if seed is None else seed)


def anchor_scales(n_weights: int, n_rows: int, *, quadratic: bool) -> tuple[float, ...]:
    """The scales that the noise in an anchor may have, by its shape, from the largest: where one ordinary row moves the
    optimum by about `sqrt(p)/n`, a few times that in every direction, and down to noise that is in all no longer than
    so many ordinary rows move it together. With that the noise hides what a row was still, if not that it was there.

    Where the loss is a square, noise costs nothing. With many weights there is no room for more than the least.
    """
    root, n_rows = math.sqrt(n_weights), 1 << (n_rows - 1).bit_length()
    if quadratic:
        return (FREE_FACTOR * root / n_rows,)
    most, least = ANCHOR_FACTOR * root, math.sqrt(min(AS_PEOPLE, SHARE_OF_SOURCE * n_rows))
    if most <= least or n_weights > FEW_WEIGHTS:
        return (min(most, least) / n_rows,)
    steps = math.ceil(math.log(most / least) / math.log(ANCHOR_STEP) - 1e-9)
    return *(most / ANCHOR_STEP**step / n_rows for step in range(steps)), least / n_rows


def with_most_noise(
    with_noise: Callable[[float], Deposit],
    scales: tuple[float, ...],
    tried: Callable[[Deposit], tuple[Trial, ...]],
    first: int = 0,
) -> tuple[Deposit, tuple[Trial, ...]]:
    """The deposit with the first of these scales, from `first` on, that nearly all people can leave, or with the last;
    and what they need."""
    for scale in scales[first:]:
        deposit = with_noise(scale)
        people = tried(deposit)
        if scale == scales[-1] or nearly_all_leave([each.radius for each in people], loudest(deposit)):
            break
    return deposit, people


def first_quiet(
    at_rest: Deposit, noise: Array, scales: tuple[float, ...], people: Sequence[RowSet], *, third: bool
) -> int:
    """By number, the first of these scales of the noise with which nearly all of these rows are foreseen to leave, from
    a deposit whose anchor has none: an update leads back from the noise, and on to where the row is gone."""
    if len(scales) == 1 or not at_rest.problem.solvable:
        return 0
    foresight, most = Foresight.by(at_rest.problem, third=third), loudest(at_rest)
    steps = steps_of(at_rest, people)

    def quiet(scale: float) -> bool:
        return nearly_all_leave([foresight.radius(step - scale * noise) for step in steps], most)

    return next((number for number, scale in enumerate(scales) if quiet(scale)), len(scales) - 1)


def anchor_noise(
    head: LinearHead, gram: Gram, penalty: Penalty, weights: Array, scale: float, generator: np.random.Generator
) -> Array:
    """`N(0, s^2 M_0^-1)`, K x d."""
    factor = shape_of(head, gram, penalty.diagonal(weights)[0])
    if factor is None:
        raise not_definite()
    normals = put(generator.normal(size=tuple(weights.shape)), weights)
    return scale * solve_triangular(factor[0].T, normals.T, upper=True).T


def hashes_of(key: bytes, given: tuple[Any, Any] | Stream, n_rows: int, progress: Progress = silent) -> RowHashes:
    """Hashes of the rows as they came, in the order of the first hash: the order of the source is nobody's business."""
    if isinstance(given, Stream):
        hashes = hash_stream(key, given, NAME, lambda done: progress(HASHING, done, n_rows))
        given.require_unchanged()
    else:
        progress(HASHING, 0, n_rows)
        hashes = hash_rows(key, *given, NAME)
    if len(hashes) != n_rows:
        raise DataError(f"{len(hashes)} rows as given, {n_rows} as used", "they are the same rows", "Check them.")
    order = np.lexsort(hashes.digests[0].T[::-1])
    first, second, third = (each[order] for each in hashes.digests)
    return RowHashes((first, second, third))


def class_counts(head: LinearHead, rows: RowSet) -> tuple[int, ...]:
    """Rows of each class."""
    if isinstance(rows, JacobianRows):
        return tuple(np.bincount(to_numpy(rows.labels), minlength=rows.outputs).tolist())
    counts = np.zeros(2 if isinstance(head, Logistic) else head.n_classes)
    for block in rows.blocks():
        counts += np.bincount(to_numpy(block.labels), minlength=len(counts))
    return tuple(int(count) for count in rows.total(counts))
