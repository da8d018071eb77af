"""Making a deposit, while the source is still there."""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from expunge.bounds.deposit import deposit_bound
from expunge.bounds.scale import LARGEST_SCALE
from expunge.data.row_hashes import KEY_BYTES, NOTHING, RowHashes, row_hashes, streamed_hashes
from expunge.data.streams import Stream
from expunge.errors import DataError, ModelError
from expunge.evidence.deposit.blocks import Blocks, Norm, cholesky_error, largest, square_of
from expunge.evidence.deposit.classes import by_class
from expunge.evidence.deposit.contents import SCHEMA, Deposit, Numbers, kept_head
from expunge.evidence.deposit.radii import radii_for, sizes_for, two_digits
from expunge.evidence.deposit.routes import found
from expunge.evidence.deposit.setting import Penalty, Setting, not_definite, shape_of
from expunge.evidence.deposit.sums import NU, Gauge, Sums, gauges_of, is_joint, sums_of
from expunge.evidence.deposit.third import has_third
from expunge.heads import LinearHead, Logistic, Ridge, Rows, RowSet, Softmax
from expunge.heads.jacobians import JacobianRidge, JacobianRows
from expunge.model import LinearModel, from_matrix
from expunge.record import TrainingRecord
from expunge.request.description import timestamp
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
USUAL = 0.9  # of the groups of a size: one very influential row among 24 groups must not set the noise of all
FINEST = 1e-8  # of the weights: the part of the noise that is drawn exactly is not below it


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
    def usual(self) -> float:
        """What nine in ten of the groups that have a radius need at most; infinite where none has."""
        finite = self.finite
        return finite[math.ceil(USUAL * len(finite)) - 1] if finite else math.inf

    @property
    def radius(self) -> float:
        """The largest that is finite; infinite where none is."""
        return max(self.finite, default=math.inf)


def make_deposit(
    model: LinearModel,
    record: TrainingRecord,
    rows: RowSet,
    given: tuple[Any, Any] | Stream,
    *,
    group: Group = ALONE,
    progress: Progress = silent,
    seed: int | None = None,
) -> tuple[Deposit, tuple[Rehearsal, ...]]:
    """A deposit of these rows for this model; `given` are the same rows as they came, for their hashes.

    The anchor is the optimum, reached from the model's weights; tangent weights, whose loss is a square, are taken as
    they are. `seed` fixes key and rehearsal for tests. In a group only the first process looks at the rows as they
    came, and its deposit alone is whole.
    """
    head = replace(kept_head(model, record), l2=0.0)
    require_size(head, rows.device)
    tangent = isinstance(rows, JacobianRows)
    if isinstance(rows, JacobianRows) and isinstance(head, JacobianRidge):
        head = replace(head, longest_target=rows.longest_target)
    require_whole(record, rows)
    rows = by_class(rows, record)
    penalty = Penalty(record.l2, bool(record.free_bias))
    setting = Setting(model.matrix(rows.device), head.row_bound, (), isinstance(head, Ridge), isinstance(head, Softmax))
    anchor = setting.anchor if tangent else optimum(head, rows, setting, penalty, progress)
    progress("Sums over the source", 0, None)
    gauges = () if setting.quadratic else gauges_of(rows, len(NU) if anchor.numel() <= FEW_WEIGHTS else 1)
    sums = sums_of(head, anchor, rows, gauges, third=has_third(head))
    stiff = float(sums.curvature.values.diagonal(dim1=-2, dim2=-1).mean())
    setting = replace(setting, anchor=anchor, gauges=gauges, stiff=stiff)
    shape = shape_of(setting, sums, penalty)
    numbers = _numbers(head, setting, shape, sums, rows, gauges, seed)
    kept = from_matrix(anchor, bias=record.bias, dtype=torch.float64)
    kept = kept.with_record(_record_at(record, setting, penalty, sums, numbers))
    deposit = Deposit(kept, numbers, sums, gauges, shape, NO_HASHES)
    ordinary, large = (
        rehearse(deposit, rows, sizes, most, progress=progress, seed=seed)
        for sizes, most in zip(sizes_for(len(rows)), (GROUPS[0][1], FEW_GROUPS), strict=True)
    )
    numbers = replace(numbers, radii=radii_for(ordinary, least_radius(deposit), large))
    hashes = hashes_of(bytes.fromhex(numbers.key), given, len(rows), progress) if group.first else NO_HASHES
    return replace(deposit, numbers=numbers, hashes=hashes).on(torch.device("cpu")), (*ordinary, *large)


def _record_at(
    record: TrainingRecord, setting: Setting, penalty: Penalty, sums: Sums, numbers: Numbers
) -> TrainingRecord:
    """The record of the anchor, which was trained here, on these rows: nothing in it is only declared."""
    left = setting.centred(sums.gradient + penalty.diagonal(setting.anchor) * setting.anchor)
    return replace(
        record,
        n_source=numbers.n_rows,
        class_counts=numbers.class_counts,
        residual=float(left.norm()) + sums.gradient_error,
        provenance="measured",
    )


def hashes_of(key: bytes, given: tuple[Any, Any] | Stream, n_rows: int, progress: Progress = silent) -> RowHashes:
    """Hashes of the rows as they came, in no order that says anything."""
    if isinstance(given, Stream):
        hashes = _sorted(streamed_hashes(key, given, "the source", lambda done: progress(HASHING, done, n_rows)))
        given.require_as_opened()
    else:
        progress(HASHING, 0, n_rows)
        hashes = _sorted(row_hashes(key, *given, "the source"))
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
    head: LinearHead,
    setting: Setting,
    shape: Tensor,
    sums: Sums,
    rows: RowSet,
    gauges: tuple[Gauge, ...],
    seed: int | None,
) -> Numbers:
    matrix = Blocks(square_of(shape), is_joint(head))
    error = cholesky_error(matrix)  # of the product, which is the matrix of the noise exactly
    norm = Norm(matrix.plus(-error), shape)
    if norm.least <= 0.0:
        raise not_definite()
    n_copies = 1 if len(shape) > 1 or matrix.joint else len(setting.anchor)
    inverse = torch.linalg.solve_triangular(
        shape, torch.eye(shape.shape[-1], dtype=shape.dtype, device=shape.device), upper=False
    )
    if isinstance(rows, JacobianRows):
        noise, spread = tangent_outputs(setting, inverse, rows, sums)
    else:
        noise, spread = outputs_of(setting, inverse, rows)
    key = secrets.token_bytes(KEY_BYTES) if seed is None else np.random.default_rng(seed).bytes(KEY_BYTES)
    return Numbers(
        SCHEMA,
        key.hex(),
        len(rows),
        0,
        0,
        class_counts(head, rows),
        head.row_bound,
        setting.stiff,
        tuple(gauge.kappa for gauge in gauges),
        sums.gradient_error,
        sums.curvature_error,
        sums.weighted_errors,
        sums.third_error,
        two_digits(largest(matrix.plus(error)) * (1.0 + 2.0**-20)),  # it is published, as what is drawn exactly
        norm.least / (1.0 + 2.0**-20),
        n_copies * float(inverse.square().sum()) * (1.0 + 2.0**-30),
        noise,
        spread,
        (),
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


def tangent_outputs(setting: Setting, inverse: Tensor, rows: JacobianRows, sums: Sums) -> tuple[float, float]:
    """The same as `outputs_of` where an example is as many rows as it has outputs: their moments are the Hessian."""
    noise = float((inverse.mT @ inverse * sums.curvature.values).sum())
    return math.sqrt(noise / rows.outputs), math.sqrt(float(rows.predictions(setting.anchor).square().mean()))


def outputs_of(setting: Setting, inverse: Tensor, rows: RowSet) -> tuple[float, float]:
    """On a typical row: the deviation that noise of scale 1 gives an output, and the size of the model's own."""
    classes, width = setting.anchor.shape
    moments = torch.zeros((width, width), dtype=torch.float64, device=rows.device)
    for block in rows.blocks():
        features = block.features.double()
        moments.addmm_(features.T, features)
    moments = rows.total(moments) / len(rows)
    centred = setting.centred(setting.anchor)
    spread = math.sqrt(float((centred @ moments * centred).sum()) / classes)
    covariance = inverse.mT @ inverse
    if len(covariance) == 1 and covariance.shape[-1] == classes * width and classes > 1:
        view = covariance[0].view(classes, width, classes, width)
        own, all_pairs = torch.einsum("kikj->ij", view), torch.einsum("kilj->ij", view)
        seen = own - all_pairs / classes if setting.shift_free else own
        return math.sqrt(float((seen * moments).sum()) / classes), spread
    return math.sqrt(float((covariance.mean(dim=0) * moments).sum())), spread


def _sorted(hashes: RowHashes) -> RowHashes:
    """In the order of the first hash: the order of the source is nobody's business."""
    order = np.lexsort(hashes.digests[0].T[::-1])
    first, second, third = (each[order] for each in hashes.digests)
    return RowHashes((first, second, third))


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
    gone = sums_of(deposit.head, deposit.anchor, rows, deposit.gauges, third=deposit.sums.third is not None)
    retained = deposit.sums.without(gone)
    result = found(deposit.setting, retained, deposit.penalty(retained.count), deposit.shape)
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


def least_radius(deposit: Deposit) -> float:
    """Below this, noise would no longer be far above what float64 makes of the weights."""
    weights = 1.0 + float(deposit.model.matrix().norm())
    return FINEST * weights / deposit.ellipsoid.smallest(1.0)
