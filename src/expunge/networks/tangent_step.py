"""The step on tangent weights, and what the bound needs to know of it.

The problem is ridge regression on Jacobian features (`objectives/tangent.py`), so the identity behind the residual bound
holds word for word with phi_u(x) = s^2 J^T J u, and one Newton step, solved by conjugate gradients, is exact.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from expunge.certificate.facts import Fact
from expunge.data import as_labels, encode
from expunge.distance import Distance
from expunge.errors import DataError, ModelError
from expunge.evidence.moments import Moments
from expunge.heads import Rows
from expunge.heads.tangent import NETWORK_ROUNDOFFS, Tangent, TangentRows
from expunge.issuing import facts_of_step, failures_for
from expunge.mechanism import Measured
from expunge.networks.tangent_model import TangentModel, objective_of
from expunge.networks.tangent_training import ACCURATE, MAX_REFINEMENTS
from expunge.record import TrainingRecord
from expunge.request.rows import FEWEST_SAMPLED_ROWS, check_sizes
from expunge.request.survey import class_notes, notes_on, survey
from expunge.runtime.progress import Progress, silent
from expunge.solve.conjugate import solve_conjugate
from expunge.solve.lanczos import EIGENVALUE_SLACK, largest_eigenvalue_upper
from expunge.solve.newton import CONVERGED
from expunge.solve.operators import MatrixFree
from expunge.solve.outcome import Step


@dataclass(frozen=True)
class TangentTask:
    """What is asked, checked. There is no field for the source."""

    objective: Tangent
    record: TrainingRecord
    weights: Tensor
    forget: TangentRows
    surrogate: TangentRows
    distance: Distance
    notes: tuple[str, ...]

    def residual(self, update: Tensor) -> Tensor:
        """`a(u) = n (E_S phi_u + l2 u) - m g_U(v + u)`."""
        changed = self.objective.product(update, self.surrogate)
        left = self.objective.gradient(self.weights + update, self.forget)
        return self.record.n_source * changed - len(self.forget) * left

    def curvature(self, direction: Tensor) -> Tensor:
        """`(n H_S - m H_U) d`."""
        kept = self.record.n_source * self.objective.product(direction, self.surrogate)
        return kept - len(self.forget) * self.objective.product(direction, self.forget)


def tangent_task(
    network: nn.Module,
    model: TangentModel,
    forget: tuple[Any, Any],
    surrogate: tuple[Any, Any],
    distance: Distance,
    *,
    block: int = 64,
    device: str = "cpu",
    force: bool = False,
) -> TangentTask:
    """Check everything that can be checked before any work is done."""
    return _task(objective_of(network, model, block, device), model, forget, surrogate, distance, force)


def measure_tangent(
    task: TangentTask, *, delta: float, seed: int | None = None, progress: Progress = silent
) -> Measured:
    """The step, and every number the bound needs. Private: `step.update` is the model before noise."""
    step = tangent_step(task, progress)
    failures = failures_for(task.distance, delta)
    moments = tangent_moments(task, step.update, failures.get("eigenvalue"), seed, progress)
    objective, record, updated = task.objective, task.record, task.weights + step.update
    n, m = record.n_source, len(task.forget)
    rounding = n * objective.rounding(task.weights, task.surrogate) + n * objective.rounding(updated, task.surrogate)
    rounding += m * objective.rounding(updated, task.forget)
    facts = facts_of_step(
        record,
        n_source=n,
        n_forget=m,
        n_surrogate=len(task.surrogate),
        training=_training_residual(task),
        rounding=Fact(rounding, "declared"),  # no one has derived what a pass through this network loses
        step=step,
        moments=moments,
        sampling=failures.get("sampling", 0.0),
    )
    return Measured(step, facts, failures, task.distance)


def tangent_step(task: TangentTask, progress: Progress = silent) -> Step:
    """Newton's method on `a(u)`, which is affine: conjugate gradients, and refinement for what rounding left."""
    update = torch.zeros_like(task.weights)
    current = task.residual(update)
    start = size = float(current.norm())
    operator = MatrixFree(task.curvature)
    iterations = inner = 0
    definite, damping = True, 0.0
    while iterations < MAX_REFINEMENTS and size > CONVERGED * start:
        progress("Conjugate gradients", iterations, None)
        solved = solve_conjugate(operator, -current, ACCURATE, torch.float64)
        inner, iterations = inner + solved.iterations, iterations + 1
        definite, damping = definite and solved.positive_definite, max(damping, solved.damping)
        trial = update + solved.solution
        image = task.residual(trial)
        if not float(image.norm()) < size:
            break
        update, current, size = trial, image, float(image.norm())
    done = size <= CONVERGED * start
    return Step(update, size, start, iterations, inner, "conjugate gradients", definite, damping, done, 0.0)


def tangent_moments(
    task: TangentTask, update: Tensor, failure: float | None, seed: int | None, progress: Progress = silent
) -> Moments:
    """Moments of `f = phi_u` over the surrogate; c is their mean. Neither f of all rows nor a covariance is formed.

    With `e = s J u`, `f = s J^T e`: the inner product of f with any d is that of e with `s J d`, and sums of f are
    products with J^T. Only the norms of f need J^T e example by example, a block at a time.
    """
    objective, rows = task.objective, task.surrogate
    images = objective.features_times(update, rows)
    mean = objective.back(images, rows) / len(rows)
    sizes = torch.cat([found.square().sum(dim=1) for found in objective.each(images, rows)])
    mean_square = mean.square().sum()
    along = (images * objective.features_times(mean, rows)).sum(dim=1)
    cancellation = (NETWORK_ROUNDOFFS + 64) * 2.0**-52
    squares = (sizes - 2 * along + mean_square + cancellation * (sizes + mean_square)).clamp(min=0.0)
    trace, largest = float(squares.mean()), math.sqrt(float(squares.max()))
    eigenvalue = trace
    if failure is not None and trace > 0:
        generator = torch.Generator().manual_seed(secrets.randbits(63) if seed is None else seed)
        first = torch.randn(mean.shape, dtype=torch.float64, generator=generator).to(mean.device)

        def covariance(direction: Tensor) -> Tensor:
            inner = (images * objective.features_times(direction, rows)).sum(dim=1) - (mean @ direction)
            total = objective.back(images * inner[:, None], rows)
            return (total - mean * inner.sum()) / len(rows)

        found = largest_eigenvalue_upper(
            covariance,
            first,
            failure,
            lambda done, total: progress("Lanczos, covariance", done, total),
            EIGENVALUE_SLACK,
        )
        eigenvalue = min(trace, found + cancellation * (trace + float(mean_square)))
    return Moments(
        mean_norm=float(mean.norm()),
        trace=trace,
        fourth=float(squares.square().mean()),
        largest=largest,
        supremum=objective.change_sup(update),
        eigenvalue_upper=eigenvalue,
        fourth_eigenvalue_upper=largest**2 * eigenvalue,
        longest_row=float(rows.lengths.max()),
        sampled_trace=trace,
        sampled_eigenvalue_upper=eigenvalue,
        sampled_largest=largest,
    )


def _task(
    objective: Tangent,
    model: TangentModel,
    forget: tuple[Any, Any],
    surrogate: tuple[Any, Any],
    distance: Distance,
    force: bool,
) -> TangentTask:
    record = model.record
    if record.noised:
        raise ModelError(
            "this model is the noised result of an earlier unlearning",
            "the bound needs a model near its optimum",
            "Unlearn both requests together from the model before noise, or retrain.",
        )
    if distance.matched:
        raise DataError("matched classes", "tangent models do not know them", "Declare the distance without matching.")
    leaving, standing = (
        _rows(objective, given, record, name)
        for given, name in ((forget, "the forget set"), (surrogate, "the surrogate set"))
    )
    check_sizes(len(leaving), record, force)
    if distance.samples_rows and len(standing) < FEWEST_SAMPLED_ROWS:
        raise DataError(
            f"the surrogate set has {len(standing)} rows",
            f"at least {FEWEST_SAMPLED_ROWS} are needed before its moments can stand for its population's",
            "Add surrogate rows.",
        )
    flat = [Rows(part.inputs.flatten(1), part.labels) for part in (leaving, standing)]
    # whatever they are kept in, all is computed in float64
    kept = replace(record, rows_dtype=str(standing.inputs.dtype).removeprefix("torch."))
    seen = survey(flat[0], flat[1], len(record.classes))
    notes = notes_on(flat[0], flat[1], seen, kept, distance, has_labels=True)
    notes += class_notes(flat[0], seen, record, None, has_labels=True)
    weights = model.weights.to(objective.device)
    return TangentTask(objective, record, weights, leaving, standing, distance, notes)


def _rows(objective: Tangent, given: tuple[Any, Any], record: TrainingRecord, name: str) -> TangentRows:
    inputs = torch.as_tensor(given[0])
    return objective.rows(inputs, encode(as_labels(given[1], len(inputs), name), record.classes, name))


def _training_residual(task: TangentTask) -> Fact:
    record = task.record
    assert record.residual is not None
    if task.distance.kind != "source":
        return Fact(record.residual, record.provenance)
    found = float(task.objective.gradient(task.weights, task.surrogate).norm())
    slack = task.objective.rounding(task.weights, task.surrogate)
    if found > record.residual * (1 + 1e-6) + 2 * slack:
        raise DataError(
            f"on the rows given as the source the gradient has norm {found:.3g}",
            f"at training it was {record.residual:.3g}",
            "These are not the rows the model was trained on; declare another distance.",
        )
    return Fact(found + slack, "measured")
