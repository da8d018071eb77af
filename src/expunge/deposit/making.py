"""Making a deposit, while the source is still there."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from expunge.bounds.calibration import mu_for
from expunge.bounds.deposit import deposit_bound
from expunge.bounds.scale import LARGEST_SCALE, power_of_two
from expunge.certificate.claim import ARITHMETIC_SHARE
from expunge.deposit.blocks import Norm
from expunge.deposit.classes import by_class
from expunge.deposit.contents import HARMLESS, SCHEMA, Deposit, Numbers, kept_head, stiff_of
from expunge.deposit.routes import found
from expunge.deposit.setting import Penalty, Setting, not_definite
from expunge.deposit.shape import Gram, gram_of, rested, shape_of
from expunge.deposit.sums import NU, Gauge, Sums, gauges_of, is_joint, sums_of
from expunge.deposit.third import has_third
from expunge.errors import DataError, ModelError
from expunge.heads import LinearHead, Logistic, Ridge, Rows, RowSet, Softmax
from expunge.heads.jacobians import JacobianRidge, JacobianRows
from expunge.model import LinearModel, from_matrix
from expunge.record import TrainingRecord, require_range
from expunge.request.description import timestamp
from expunge.rows.hashes import KEY_BYTES, NOTHING, RowHashes, hash_rows, hash_stream
from expunge.rows.streams import Stream
from expunge.runtime.group import ALONE, Group
from expunge.runtime.progress import Progress, silent

NO_HASHES = RowHashes((NOTHING, NOTHING, NOTHING))
MOST_WEIGHTS = 12_000  # of one block: a matrix of their square is kept, and several while it is made
COPIES = 18  # matrices of that size that a deletion needs room for at once
FEW_WEIGHTS = 2_000  # up to here all gauges are kept, beyond one
MAX_NEWTON = 100
NEAR = 1e-11  # of the objective: gains of this size are lost in its rounding long before the weights are at rest
HASHING = "Row hashes (rows)"
GROUPS = ((200, 24), (1_000, 8), (2_000, 4), (10**9, 2))  # rehearsed of a size: up to so many weights, so many
FEW_GROUPS = 2  # of a good part of the source, since each takes long: the list goes on to ten times what they need
SIZES = (1, 10, 100)  # rows that are rehearsed with, and one in a hundred of the source, and one in ten
ANCHOR_FACTOR = 4.0  # of the anchor's noise at most: times how far one ordinary row moves the optimum; the list of
ANCHOR_STEP = math.sqrt(2.0)  # scales goes down in such steps, to where the noise
AS_PEOPLE = 25  # in all is as long as so many rows that leave together move the optimum: taken without being tried
SHARE_OF_SOURCE = 1 / 200  # that they are of the source, at most
FREE_FACTOR = 16.0  # where it costs nothing
NEARLY_ALL = 0.9  # of single rows that must be able to leave at epsilon 1, for a scale to be taken, with
QUIET = 0.25  # of the noise that moves outputs by a hundredth: a desk has such noise, for many who leave


@dataclass(frozen=True)
class Trial:
    """One group of rows forgotten on trial: the radius it needs, infinite where there is none, and its update."""

    radius: float
    update: Tensor | None


@dataclass(frozen=True)
class Rehearsal:
    """What random groups of so many rows of the source would need, each of them tried."""

    rows: int
    trials: tuple[Trial, ...]

    @property
    def finite(self) -> list[float]:
        """The radii of the groups that have one, from the smallest."""
        return sorted(each.radius for each in self.trials if math.isfinite(each.radius))

    @property
    def none(self) -> int:
        """How many groups had no finite region."""
        return len(self.trials) - len(self.finite)

    @property
    def radius(self) -> float:
        """The largest that is finite; infinite where none is."""
        return max(self.finite, default=math.inf)


@dataclass(frozen=True)
class Made:
    """A deposit, what was rehearsed with it, and the optimum itself, K x d: no part of the deposit, which has noise."""

    deposit: Deposit
    rehearsed: tuple[Rehearsal, ...]
    optimum: Tensor


def make_deposit(
    model: LinearModel,
    record: TrainingRecord,
    rows: RowSet,
    given: tuple[Any, Any] | Stream,
    *,
    group: Group = ALONE,
    progress: Progress = silent,
    seed: int | None = None,
) -> Made:
    """A deposit of these rows for this model; `given` are the same rows as they came, for their hashes.

    The anchor is the optimum, reached from the model's weights, and noise; tangent weights, whose loss is a square, are
    taken for the optimum as they are. `seed` fixes key, noise and rehearsal for tests. In a group only the first
    process looks at the rows as they came, and its deposit alone is whole.
    """
    require_range(record)
    head = replace(kept_head(model, record), l2=0.0)
    require_size(head, rows.device)
    tangent = isinstance(rows, JacobianRows)
    if isinstance(rows, JacobianRows) and isinstance(head, JacobianRidge):
        head = replace(head, longest_target=power_of_two(rows.longest_target))
    require_whole(record, rows)
    rows = by_class(rows, record)
    penalty = Penalty(record.l2, bool(record.free_bias))
    setting = Setting(model.matrix(rows.device), head.row_bound, (), isinstance(head, Ridge), isinstance(head, Softmax))
    best = setting.anchor if tangent else optimum(head, rows, setting, penalty, progress)
    progress("Sums over the source", 0, None)
    gram, secret = gram_of(rows), secret_numbers(rows, seed)
    noise = setting.centred(anchor_noise(head, gram, penalty, best, 1.0, secret))
    few = best.numel() <= FEW_WEIGHTS
    gauges = () if setting.quadratic else gauges_of(rows, gram, secret, len(NU) if few else 1)

    def with_noise(scale: float) -> Deposit:
        anchor = rested(best + scale * noise, gram, penalty.diagonal(best)[0])[0]
        sums = sums_of(head, anchor, rows, gauges, third=has_third(head), gram=gram)
        numbers = _numbers(head, sums, rows, gauges, scale, seed)
        kept = from_matrix(anchor, bias=record.bias, dtype=torch.float64)
        known = replace(record, class_counts=numbers.class_counts, residual=None, noised=True, provenance="measured")
        return Deposit(kept.with_record(known), numbers, sums, gauges, NO_HASHES)

    scales = anchor_scales(best.numel(), len(rows), quadratic=setting.quadratic)
    deposit = with_most_noise(with_noise, scales, lambda made: _quiet(made, rows, seed))
    key = bytes.fromhex(deposit.numbers.key)
    ordinary, large = (
        rehearse(deposit, rows, sizes, most, progress=progress, seed=seed)
        for sizes, most in zip(sizes_for(len(rows)), (GROUPS[0][1], FEW_GROUPS), strict=True)
    )
    hashes = hashes_of(key, given, len(rows), progress) if group.first else NO_HASHES
    return Made(replace(deposit, hashes=hashes).on(torch.device("cpu")), (*ordinary, *large), best.cpu())


def secret_numbers(rows: RowSet, seed: int | None) -> np.random.Generator:
    """The source of noise that is drawn once and kept nowhere; the same in every process of a group."""
    words = torch.tensor([secrets.randbits(53) for _ in range(5)], dtype=torch.float64)
    return np.random.default_rng([int(rows.agreed(word)) for word in words] if seed is None else seed)


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
    with_noise: Callable[[float], Deposit], scales: tuple[float, ...], quiet: Callable[[Deposit], bool]
) -> Deposit:
    """The deposit with the first of these scales that is quiet, by bisection; with the last where none is."""
    kept, first, last = None, 0, len(scales) - 1
    while first < last:
        middle = (first + last) // 2
        tried = with_noise(scales[middle])
        if quiet(tried):
            kept, last = tried, middle
        else:
            first = middle + 1
    return kept if kept is not None and kept.numbers.anchor_noise == scales[last] else with_noise(scales[last])


def _quiet(deposit: Deposit, rows: RowSet, seed: int | None) -> bool:
    """Whether nearly all single rows can leave at epsilon 1 with noise that hardly moves outputs."""
    (tried,) = rehearse(deposit, rows, (1,), GROUPS[0][1], seed=seed) or (Rehearsal(1, ()),)
    most = QUIET * HARMLESS / deposit.output_noise * mu_for(1.0, (1.0 - ARITHMETIC_SHARE) / max(2, len(rows)))
    return sum(each.radius < most for each in tried.trials) > NEARLY_ALL * len(tried.trials)


def anchor_noise(
    head: LinearHead, gram: Gram, penalty: Penalty, weights: Tensor, scale: float, generator: np.random.Generator
) -> Tensor:
    """`N(0, s^2 M_0^-1)`, K x d."""
    factor = shape_of(head, gram, penalty.diagonal(weights)[0])
    if factor is None:
        raise not_definite()
    normals = torch.from_numpy(generator.normal(size=tuple(weights.shape))).to(weights)
    drawn: Tensor = torch.linalg.solve_triangular(factor[0].T, normals.T, upper=True).T
    return scale * drawn


def hashes_of(key: bytes, given: tuple[Any, Any] | Stream, n_rows: int, progress: Progress = silent) -> RowHashes:
    """Hashes of the rows as they came, in no order that says anything."""
    if isinstance(given, Stream):
        hashes = _sorted(hash_stream(key, given, "the source", lambda done: progress(HASHING, done, n_rows)))
        given.require_unchanged()
    else:
        progress(HASHING, 0, n_rows)
        hashes = _sorted(hash_rows(key, *given, "the source"))
    if len(hashes) != n_rows:
        raise DataError(f"{len(hashes)} rows as given, {n_rows} as used", "they are the same rows", "Check them.")
    return hashes


def most_weights(device: torch.device) -> int:
    """How many weights a block may have: a fixed number, or on a GPU what its memory holds if that is more."""
    if device.type != "cuda":
        return MOST_WEIGHTS
    memory = torch.cuda.get_device_properties(device).total_memory
    return max(MOST_WEIGHTS, math.isqrt(memory // (8 * COPIES)))


def require_size(head: LinearHead, device: torch.device) -> None:
    """Refuse a head whose Hessian is too large to be kept."""
    size, most = head.n_parameters if is_joint(head) else head.n_features, most_weights(device)
    if size > most:
        raise ModelError(
            f"a Hessian of {size:,} x {size:,}",
            f"a deposit keeps one of at most {most:,} weights",
            "Train the tangent weights of fewer parameters (--last), or a linear head on what the network makes."
            if isinstance(head, JacobianRidge)
            else "Train one-vs-rest or ridge, whose Hessian is of features by features, or use fewer features (for "
            "example their principal components).",
        )


def require_whole(record: TrainingRecord, rows: RowSet) -> None:
    """Refuse rows that are not as many as the model was trained on, or another C than the record's l2 is of."""
    if len(rows) != record.n_source:
        raise DataError(
            f"{len(rows):,} rows",
            f"the model was trained on {record.n_source:,}",
            "Give all the rows it was trained on, and no others.",
        )
    if record.fixed_c is not None and not math.isclose(record.l2 * record.fixed_c * len(rows), 1.0, rel_tol=1e-9):
        raise ModelError(
            f"l2 {record.l2:g} with C {record.fixed_c:g} on {len(rows):,} rows",
            "a fixed C is l2 = 1/(C n)",
            "Record one of the two.",
        )


def optimum(head: LinearHead, rows: RowSet, setting: Setting, penalty: Penalty, progress: Progress = silent) -> Tensor:
    """Newton's method with the dense Hessian, from the given weights to where float64 ends.

    Near the optimum rounding hides what a step gains: there the gradient, measured by the Hessian, decides.
    It begins at zero where the objective is lower there: far out, where predictions are all certain, it is nearly flat.
    """
    weights = setting.centred(setting.anchor.clone())
    stiff = replace(setting, stiff=1.0)

    def objective(at: Tensor) -> float:
        return head.loss(at, rows) + 0.5 * float((penalty.diagonal(at) * at.square()).sum())

    value, at_zero = objective(weights), objective(torch.zeros_like(weights))
    if not value <= at_zero:
        weights, value = torch.zeros_like(weights), at_zero
    least = math.inf
    for iteration in range(MAX_NEWTON):
        progress("Newton iterations to the anchor", iteration, None)
        sums = sums_of(head, weights, rows)
        gradient = setting.centred(sums.gradient + penalty.diagonal(weights) * weights)
        matrix = stiff.penalised(stiff.stiffened(sums.curvature), penalty)
        factor, damping = torch.linalg.cholesky_ex(matrix.values), 1e-14 * matrix.largest_entry
        while bool(factor.info.any()):
            factor, damping = torch.linalg.cholesky_ex(matrix.plus(damping).values), 10.0 * damping
        direction = setting.centred(-Norm(matrix, factor.L).solved(gradient))
        length, slope, moved = 1.0, float((gradient * direction).sum()), False
        near = -slope <= NEAR * (1.0 + abs(value))
        while length > 1e-8 and not moved:
            trial = weights + length * direction
            reached = objective(trial)
            moved = -slope < 0.5 * least if near else reached <= value + 1e-4 * length * slope
            length = 0.0 if near else length / 2
        least = -slope if near else least
        small = float(direction.norm()) <= 1e-12 * (1.0 + float(weights.norm()))
        if not moved or small:
            return weights + direction if small else weights
        weights, value = trial, reached
    return weights


def _numbers(
    head: LinearHead, sums: Sums, rows: RowSet, gauges: tuple[Gauge, ...], scale: float, seed: int | None
) -> Numbers:
    key = secrets.token_bytes(KEY_BYTES) if seed is None else np.random.default_rng(seed).bytes(KEY_BYTES)
    return Numbers(
        SCHEMA,
        key.hex(),
        len(rows),
        0,
        0,
        class_counts(head, rows),
        head.row_bound,
        scale,
        tuple(gauge.kappa for gauge in gauges),
        sums.gradient_error,
        sums.curvature_error,
        sums.weighted_errors,
        sums.third_error,
        timestamp(),
        head.longest_target if isinstance(head, JacobianRidge) else 0.0,
    )


def class_counts(head: LinearHead, rows: RowSet) -> tuple[int, ...]:
    """Rows of each class."""
    if isinstance(rows, JacobianRows):
        return tuple(torch.bincount(rows.labels, minlength=rows.outputs).tolist())
    counts = torch.zeros(2 if isinstance(head, Logistic) else head.n_classes, dtype=torch.float64)
    for block in rows.blocks():
        counts += torch.bincount(block.labels.cpu(), minlength=len(counts)).double()
    return tuple(int(count) for count in rows.total(counts))


def _sorted(hashes: RowHashes) -> RowHashes:
    """In the order of the first hash: the order of the source is nobody's business."""
    order = np.lexsort(hashes.digests[0].T[::-1])
    first, second, third = (each[order] for each in hashes.digests)
    return RowHashes((first, second, third))


def sizes_for(count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How many rows of a source are rehearsed with: as requests usually have, and as large ones have, if that is more.

    >>> sizes_for(30_000), sizes_for(700)
    (((1, 10, 100, 300), (3000,)), ((1, 7, 10, 100), ()))
    """
    ordinary = tuple(sorted({*SIZES, count // 100} - {0}))
    return ordinary, (count // 10,) if count // 10 > ordinary[-1] else ()


def rehearse(
    deposit: Deposit,
    rows: RowSet,
    sizes: tuple[int, ...],
    most: int,
    *,
    progress: Progress = silent,
    seed: int | None = None,
) -> tuple[Rehearsal, ...]:
    """Forget so many random groups, at most, of each size on trial, up to the noise; not more than half of the rows."""
    drawn = torch.tensor(secrets.randbits(53) if seed is None else seed, dtype=torch.float64)
    generator = np.random.default_rng(int(rows.agreed(drawn)))
    weights = deposit.model.matrix().numel()
    groups = min(most, next(count for limit, count in GROUPS if weights <= limit))
    if deposit.setting.quadratic and weights > GROUPS[0][0]:
        groups = 1  # a square leaves nothing to rehearse but rounding
    made = []
    for size in sizes:
        if 2 * size > len(rows):
            break
        trials: list[Trial] = []
        for done in range(groups):
            progress(f"Rehearsals with {size:,} rows", done, groups)
            trials.append(trial(deposit, taken(rows, generator.choice(len(rows), size, replace=False))))
        made.append(Rehearsal(size, tuple(trials)))
    return tuple(made)


def trial(deposit: Deposit, rows: RowSet) -> Trial:
    """What forgetting these rows would need."""
    rows = by_class(rows, deposit.record)
    gone = sums_of(
        deposit.head, deposit.anchor, rows, deposit.gauges, third=deposit.sums.third is not None, gram=gram_of(rows)
    )
    retained = deposit.sums.without(gone)
    assert retained.gram is not None
    penalty = deposit.penalty(retained.count)
    shape = shape_of(deposit.head, retained.gram, penalty.diagonal(deposit.anchor)[0])
    setting = replace(deposit.setting, stiff=stiff_of(retained))
    result = None if shape is None else found(setting, retained, penalty, shape)
    radius = math.inf if result is None else deposit_bound(result.facts).radius
    if result is None or radius > LARGEST_SCALE:  # no noise is that large
        return Trial(math.inf, None)
    return Trial(radius, result.update.cpu())


def taken(rows: RowSet, chosen: Any) -> RowSet:
    """Some rows of a set, by number, in every process that has a share of it."""
    wanted = torch.as_tensor(np.sort(np.asarray(chosen)))
    if isinstance(rows, JacobianRows):
        return rows.taken(wanted)
    features = torch.zeros((len(wanted), rows.n_features), dtype=torch.float64, device=rows.device)
    labels = torch.zeros(len(wanted), dtype=torch.float64, device=rows.device)
    for block in rows.blocks():
        start = rows.n_before + block.start
        places = torch.nonzero((wanted >= start) & (wanted < start + len(block))).reshape(-1)
        inside, places = (wanted[places] - start).to(rows.device), places.to(rows.device)
        features[places] = block.features[inside].double()
        labels[places] = block.labels[inside].double()
    return Rows(rows.total(features), rows.total(labels).long())
