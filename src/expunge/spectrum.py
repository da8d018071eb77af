"""Moments of the change of gradient `f = phi_u` over the surrogate rows; its covariance is never formed."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from expunge.objectives import LinearHead, Rows
from expunge.objectives.linear import CLASS_MULTIPLE, padded

EIGENVALUE_SLACK = 0.02
SAMPLING_SLACK = 0.1  # where the eigenvalue only enters the sampling term's excess, fewer steps are worth more


@dataclass(frozen=True)
class Moments:
    """What the bound needs to know of `f = phi_u` on the surrogate; c is its mean. Rows count by their weights.

    `trace` is the trace of the covariance and `eigenvalue_upper` bounds its largest eigenvalue; `fourth` is the mean of
    `||f - c||^4` and `fourth_eigenvalue_upper` bounds the largest eigenvalue of the mean of `||f - c||^2 (f - c)(f - c)^T`;
    `largest` is the largest `||f - c||` seen; `supremum` bounds `||f||` over every admissible row. `longest_row` is the
    largest norm of a surrogate row. `sampled_*` are what a weighted mean varies by: trace, bound on the largest eigenvalue and
    largest norm of the weight times `f - c`. Without weights they equal trace, `eigenvalue_upper` and `largest`.
    """

    mean_norm: float
    trace: float
    fourth: float
    largest: float
    supremum: float
    eigenvalue_upper: float
    fourth_eigenvalue_upper: float
    longest_row: float
    sampled_trace: float
    sampled_eigenvalue_upper: float
    sampled_largest: float


def lanczos_steps(n_parameters: int, failure: float, slack: float = EIGENVALUE_SLACK) -> int:
    """Steps k after which `lambda_max <= theta_k/(1-slack)` fails with probability at most `failure`.

    Kuczynski and Wozniakowski 1992, Gaussian start: `1.648 sqrt(p) exp(-sqrt(slack) (2k-1))`.

    >>> lanczos_steps(5120, 4e-12, slack=0.05)
    70
    """
    needed = math.log(1.648 * math.sqrt(n_parameters) / failure) / math.sqrt(slack)
    return max(1, math.ceil((needed + 1.0) / 2.0))


def largest_eigenvalue_upper(
    product: Callable[[Tensor], Tensor],
    start: Tensor,
    failure: float,
    advance: Callable[[int, int], None] | None = None,
    slack: float = EIGENVALUE_SLACK,
) -> float:
    """Upper bound on the largest eigenvalue of a positive semi-definite map, by Lanczos with full reorthogonalisation.

    `start` must be a standard Gaussian draw, independent of the map. The bound fails with probability at most
    `failure`, unless the Krylov space is exhausted, when it is exact.
    """
    parameters = start.numel()
    steps = lanczos_steps(parameters, failure, slack)
    if parameters <= 2 * steps:
        steps = parameters  # for a little more work the result is exact
    basis = torch.empty((steps, parameters), dtype=torch.float64, device=start.device)
    diagonal, off, largest = [], [], 0.0
    vector = start.reshape(-1) / start.norm()
    exhausted = steps == parameters
    for step in range(steps):
        basis[step] = vector
        image = product(vector.reshape(start.shape)).reshape(-1)
        diagonal.append(float(vector @ image))
        for _ in range(2):
            image = image - basis[: step + 1].T @ (basis[: step + 1] @ image)
        length = float(image.norm())
        if advance is not None:
            advance(step + 1, steps)
        largest = max(largest, abs(diagonal[-1]))
        if length <= 1e-13 * largest or step == steps - 1:
            exhausted = exhausted or step < steps - 1
            break
        off.append(length)
        vector = image / length
    size = len(diagonal)
    tridiagonal = np.diag(diagonal) + np.diag(off[: size - 1], 1) + np.diag(off[: size - 1], -1)
    ritz = max(0.0, float(np.linalg.eigvalsh(tridiagonal)[-1]))
    return ritz * (1.0 + 1e-9) if exhausted else ritz / (1.0 - slack)


def change_moments(
    objective: LinearHead,
    weights: Tensor,
    update: Tensor,
    surrogate: Rows,
    *,
    failure: float | None,
    heavy: bool,
    slack: float = EIGENVALUE_SLACK,
    seed: int | None = None,
    advance: Callable[[str, int, int | None], None] = lambda stage, done, total: None,
) -> Moments:
    """Moments of `phi_update` over the surrogate. `seed` fixes Lanczos' start for tests; else it is drawn afresh.

    The bounds on eigenvalues fail with probability at most `failure` together. With `failure` None they are not needed,
    and without `heavy` the fourth one is not: larger values that follow from the others stand in for them. They are at
    most 1/(1 - `slack`) too large.
    """
    rows = len(surrogate)
    height = objective.n_classes + -objective.n_classes % CLASS_MULTIPLE
    changes = torch.zeros((height, rows), dtype=torch.float64, device=weights.device)  # classes first, as in Curvature
    total = torch.zeros((height, objective.n_features), dtype=torch.float64, device=weights.device)
    for part in surrogate.blocks():
        features = surrogate.features[part].double()
        changes[: objective.n_classes, part] = objective.change(weights, update, features).T
        total.addmm_(surrogate.weighted(changes[:, part], part, 1), features)
    mean = total / rows
    # of ||f||^2: what float64 may lose of ||f - c||^2 where the spread is far below the mean
    cancellation = (objective.n_features + objective.n_classes + 64) * 2.0**-52
    longest = 0.0
    squares = torch.empty(rows, dtype=torch.float64, device=weights.device)  # ||f - c||^2
    for part in surrogate.blocks():
        features = surrogate.features[part].double()
        along = (mean @ features.T).mul_(changes[:, part]).sum(dim=0)
        lengths = features.square().sum(dim=1)
        longest = max(longest, float(lengths.max()))
        sizes = changes[:, part].square().sum(dim=0) * lengths
        squares[part] = sizes - 2 * along + mean.square().sum() + cancellation * (sizes + mean.square().sum())
    squares.clamp_(min=0.0)
    each = torch.ones_like(squares) if surrogate.weights is None else surrogate.weights
    trace, largest = float((each * squares).mean()), math.sqrt(float(squares.max()))
    sampled_trace = float((each.square() * squares).mean())
    eigenvalue, fourth_eigenvalue, sampled_eigenvalue = trace, largest**2 * trace, sampled_trace
    if failure is not None and trace > 0:
        generator = torch.Generator().manual_seed(secrets.randbits(63) if seed is None else seed)

        runs = 1 + int(heavy) + int(surrogate.weights is not None)

        def bounded(stage: str, weighting: Tensor | None) -> float:
            start = torch.randn(weights.shape, dtype=torch.float64, generator=generator).to(weights.device)
            return largest_eigenvalue_upper(
                lambda direction: _covariance_product(direction, mean, changes, surrogate, weighting),
                start,
                failure / runs,
                lambda done, total: advance(stage, done, total),
                slack,
            )

        hidden = cancellation * (trace + float(mean.square().sum()))
        eigenvalue = min(trace, hidden + bounded("Lanczos, covariance", surrogate.weights))
        fourth_eigenvalue = largest**2 * eigenvalue
        sampled_eigenvalue = min(sampled_trace, surrogate.largest_weight * eigenvalue)
        if surrogate.weights is not None:
            found = bounded("Lanczos, weighted rows", each.square())
            sampled_eigenvalue = min(sampled_eigenvalue, surrogate.largest_weight * hidden + found)
        if heavy:
            fourth_eigenvalue = min(fourth_eigenvalue, bounded("Lanczos, fourth moment", each * squares))
    return Moments(
        mean_norm=float(mean.norm()),
        trace=trace,
        fourth=float((each * squares.square()).mean()),
        largest=largest,
        supremum=objective.change_sup(update),
        eigenvalue_upper=eigenvalue,
        fourth_eigenvalue_upper=fourth_eigenvalue,
        longest_row=math.sqrt(longest),
        sampled_trace=sampled_trace,
        sampled_eigenvalue_upper=sampled_eigenvalue,
        sampled_largest=math.sqrt(float((each.square() * squares).max())),
    )


def _covariance_product(
    direction: Tensor, mean: Tensor, changes: Tensor, surrogate: Rows, weighting: Tensor | None
) -> Tensor:
    """Mean over rows of `weighting (f - c) <f - c, direction>`, without forming f."""
    wide = padded(direction)
    centre = float((wide * mean).sum())
    total, along_sum = torch.zeros_like(wide), 0.0
    for part in surrogate.blocks():
        features = surrogate.features[part].double()
        along = (wide @ features.T).mul_(changes[:, part]).sum(dim=0) - centre
        if weighting is not None:
            along *= weighting[part]
        along_sum += float(along.sum())
        total.addmm_(changes[:, part] * along, features)
    return total.sub_(mean, alpha=along_sum)[: len(direction)].div_(len(surrogate))
