"""Mixed-linear networks: tangent weights of a network linearised at fixed weights, trained, unlearned, certified.

The problem is ridge regression on Jacobian features (`objectives/tangent.py`), so the identity behind the residual bound
holds word for word with phi_u(x) = s^2 J^T J u, and one Newton step, solved by conjugate gradients, is exact.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import math
import os
import platform
import secrets
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as safetensors_bytes
from torch import Tensor, nn

from expunge._version import __version__
from expunge.certificate import INSECURE, Certificate, Claim, Fact, Json, build, derive
from expunge.data import as_labels, encode
from expunge.data.files import read_safetensors, readable, without_duplicates
from expunge.data.memory import require_fits
from expunge.data.prepare import Label
from expunge.distance import Distance, parse_distance
from expunge.errors import DataError, ModelError
from expunge.mechanism import Measured, failures_for, refuse_unsound
from expunge.model import METADATA_KEY, TrainingRecord
from expunge.networks.digest import module_digest
from expunge.noise import add_noise, seeded_bytes
from expunge.objectives import Rows
from expunge.objectives.tangent import NETWORK_ROUNDOFFS, Tangent, TangentRows
from expunge.options import Budget, computing_device, positive
from expunge.sets import FEWEST_SAMPLED_ROWS, check_sizes, class_notes, notes_on, survey
from expunge.solve import CONVERGED, Progress, Step, silent, solve_conjugate
from expunge.spectrum import EIGENVALUE_SLACK, Moments, largest_eigenvalue_upper

MAX_REFINEMENTS = 5
ACCURATE = 1e-10  # relative residual of one run of conjugate gradients


@dataclass(frozen=True)
class TangentModel:
    """Tangent weights (float64, length P), the names of the parameters they belong to, and the training record."""

    weights: Tensor
    names: tuple[str, ...]
    record: TrainingRecord

    def to_bytes(self) -> bytes:
        """The safetensors file: tensor `tangent`, record and names in its metadata."""
        # one key: safetensors writes several in any order, and the file's digest would not be one
        told = json.dumps({"record": self.record.to_json(), "parameters": self.names})
        return safetensors_bytes({"tangent": self.weights.contiguous()}, metadata={METADATA_KEY: told})

    def sha256(self) -> str:
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def predict(self, network: nn.Module, inputs: Any, *, block: int = 64, device: str = "cpu") -> np.ndarray[Any, Any]:
        """Predicted labels of the linearised network."""
        objective = _objective(network, self, block, device)
        given = torch.as_tensor(inputs)
        rows = objective.rows(given, torch.zeros(len(given), dtype=torch.int64))
        outputs = objective.predictions(self.weights.to(objective.device), rows)
        found: np.ndarray[Any, Any] = np.asarray(self.record.classes)[outputs.argmax(dim=1).cpu().numpy()]
        return found


@dataclass(frozen=True)
class UnlearnedTangent:
    """What may be published."""

    model: TangentModel
    certificate: Certificate


def read_tangent(path: str | Path) -> TangentModel:
    """A model from its file."""
    location = readable(Path(path))
    require_fits(location.stat().st_size, location, "the model")
    tensors, metadata = read_safetensors(location.read_bytes(), location)
    try:
        told = json.loads(metadata[METADATA_KEY], object_pairs_hook=without_duplicates)
        names, text = tuple(map(str, told["parameters"])), str(told["record"])
        weights = torch.from_numpy(np.array(tensors["tangent"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelError(
            f"{location} holds no tangent weights ({type(error).__name__}: {error})",
            "tensor tangent, its record and the names of its parameters are needed",
            "Use the file as it was written.",
        ) from error
    model = TangentModel(weights, names, TrainingRecord.from_json(text, str(location)))
    if weights.dtype != torch.float64 or weights.ndim != 1 or not bool(torch.isfinite(weights).all()):
        raise ModelError(
            f"{location}: tangent {weights.dtype} {tuple(weights.shape)}", "finite float64", "Write it again."
        )
    if model.record.loss != Tangent.name or model.record.weights_sha256 != _weights_digest(weights):
        raise ModelError(
            f"{location}: the weights are not those the record was made for", "they must agree", "Use the original."
        )
    return model


def train_tangent(
    network: nn.Module,
    inputs: Any,
    labels: Any,
    *,
    l2: float,
    max_norm: float,
    names: tuple[str, ...] | None = None,
    block: int = 64,
    device: str = "cpu",
    progress: Progress = silent,
) -> TangentModel:
    """Train tangent weights to the optimum, while the source exists. `names`: see `last_parameters`; None is all of them."""
    positive(l2, "l2", "Give the lambda of (lambda/2)||v||^2 beside the mean loss.")
    positive(max_norm, "max_norm", "Choose it before looking at the rows.")
    place = computing_device(device)
    objective = Tangent(network, l2=float(l2), max_norm=float(max_norm), names=names, block=block, device=place)
    given = torch.as_tensor(inputs)
    values = as_labels(labels, len(given), "the source")
    unique, counts = np.unique(values, return_counts=True)
    classes: tuple[Label, ...] = tuple(value.item() for value in unique)
    progress("Jacobian norms", 0, None)
    rows = objective.rows(given, encode(values, classes, "the source"))
    if rows.offsets.shape[1] != len(classes):
        raise DataError(
            f"the network has {rows.offsets.shape[1]} outputs and the source {len(classes)} classes",
            "one output a class is needed",
            "Replace the network's last layer by one with as many outputs.",
        )
    weights = torch.zeros(objective.n_parameters, dtype=torch.float64, device=place)
    operator = Operator(lambda direction: objective.product(direction, rows))
    gradient = objective.gradient(weights, rows)
    for done in range(MAX_REFINEMENTS):
        progress("Conjugate gradients", done, None)
        trial = weights + solve_conjugate(operator, -gradient, ACCURATE, torch.float64).solution
        image = objective.gradient(trial, rows)
        if not float(image.norm()) < 0.5 * float(gradient.norm()):
            break
        weights, gradient = trial, image
    record = TrainingRecord(
        n_source=len(rows),
        classes=classes,
        class_counts=tuple(int(count) for count in counts),
        l2=float(l2),
        loss=Tangent.name,
        max_norm=float(max_norm),
        bias=False,
        residual=float(gradient.norm()) + objective.rounding(weights, rows),
        weights_sha256=_weights_digest(weights.cpu()),
        encoder=_network_digest(network, objective.names),
    )
    return TangentModel(weights.cpu(), objective.names, record)


def unlearn_tangent(
    network: nn.Module,
    model: TangentModel,
    forget: tuple[Any, Any],
    surrogate: tuple[Any, Any],
    *,
    epsilon: float,
    delta: float,
    distance: Distance | str,
    force: bool = False,
    block: int = 64,
    device: str = "cpu",
    insecure_test_seed: int | None = None,
    progress: Progress = silent,
) -> UnlearnedTangent:
    """Remove the forget examples from tangent weights whose source is gone; a whole class by giving all its rows."""
    budget = Budget(epsilon, delta)
    objective = _objective(network, model, block, device)
    task = _task(
        objective, model, forget, surrogate, parse_distance(distance) if isinstance(distance, str) else distance, force
    )
    measured = measure_tangent(task, delta=delta, seed=insecure_test_seed, progress=progress)
    claim = Claim(
        epsilon=budget.epsilon,
        delta=budget.delta,
        bound="residual",
        facts=measured.facts,
        distance=task.distance,
        failures=measured.failures,
        n_parameters=objective.n_parameters,
        generator="operating system" if insecure_test_seed is None else INSECURE,
    )
    derived = derive(claim)
    refuse_unsound(claim, derived, task.weights, force)
    random_bytes = os.urandom if insecure_test_seed is None else seeded_bytes(insecure_test_seed)
    updated = (task.weights + measured.step.update).cpu().numpy()
    noised = torch.from_numpy(add_noise(updated, derived.sigma, derived.grid_exponent, random_bytes))
    gone = Counter(task.forget.labels.tolist())
    counts = model.record.class_counts
    record = replace(
        model.record,
        n_source=model.record.n_source - len(task.forget),
        class_counts=None if counts is None else tuple(count - gone[index] for index, count in enumerate(counts)),
        residual=None,
        noised=True,
        weights_sha256=_weights_digest(noised),
    )
    published = TangentModel(noised, model.names, record)
    certificate = build(
        claim,
        derived,
        model=_model_facts(model, published),
        sizes={
            "n_source": model.record.n_source,
            "n_forget": len(task.forget),
            "n_surrogate": len(task.surrogate),
            "n_retain": record.n_source,
            "parameters": objective.n_parameters,
            "classes": len(record.classes),
            "features": objective.n_parameters,
        },
        step=_step_facts(measured.step),
        data={
            "rows_scaled_to_max_norm": {
                "forget": int((task.forget.scales < 1.0).sum()),
                "surrogate": int((task.surrogate.scales < 1.0).sum()),
            },
            "surrogate_dtype": "float64",
            "effective_surrogate_rows": float(len(task.surrogate)),
        },
        estimate=None,
        notes=task.notes,
        software={
            "expunge": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
    return UnlearnedTangent(published, certificate)


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
    return _task(_objective(network, model, block, device), model, forget, surrogate, distance, force)


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
    facts = {
        "n_source": Fact(n, record.provenance),
        "n_forget": Fact(m, "measured"),
        "n_surrogate": Fact(len(task.surrogate), "measured"),
        "l2": Fact(record.l2, record.provenance),
        "training_residual": _training_residual(task),
        "solver_residual": Fact(step.residual, "measured"),
        "rounding": Fact(rounding, "declared"),  # no one has derived what a pass through this network loses
        "change_mean": Fact(moments.mean_norm, "measured"),
        "change_eigenvalue": Fact(moments.eigenvalue_upper, "measured"),
        "change_trace": Fact(moments.trace, "measured"),
        "change_fourth": Fact(moments.fourth, "measured"),
        "change_fourth_eigenvalue": Fact(moments.fourth_eigenvalue_upper, "measured"),
        "change_largest": Fact(moments.largest, "measured"),
        "change_supremum": Fact(moments.supremum, "derived"),
        "longest_row": Fact(moments.longest_row, "measured"),
        "row_bound": Fact(record.row_bound, record.provenance),
        "sampling_failure": Fact(failures.get("sampling", 0.0), "derived"),
    }
    return Measured(step, facts, failures, task.distance)


def tangent_step(task: TangentTask, progress: Progress = silent) -> Step:
    """Newton's method on `a(u)`, which is affine: conjugate gradients, and refinement for what rounding left."""
    update = torch.zeros_like(task.weights)
    current = task.residual(update)
    start = size = float(current.norm())
    operator = Operator(task.curvature)
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
    sizes = torch.cat(
        [
            objective.pull_each(rows.inputs[part], images[part] * rows.scales[part, None]).square().sum(dim=1)
            for part in objective._blocks(len(rows))
        ]
    )
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


class Operator:
    """A symmetric map for `solve_conjugate`, without a preconditioner."""

    def __init__(self, product: Any) -> None:
        self.product = product

    def dense(self) -> Tensor:
        raise NotImplementedError

    def precondition(self, residual: Tensor) -> Tensor:
        return residual.clone()


def _objective(network: nn.Module, model: TangentModel, block: int, device: str) -> Tangent:
    record = model.record
    objective = Tangent(
        network,
        l2=record.l2,
        max_norm=record.max_norm,
        names=model.names,
        block=block,
        device=computing_device(device),
    )
    if len(model.weights) != objective.n_parameters or _network_digest(network, model.names) != record.encoder:
        raise ModelError(
            "this network is not the one the tangent weights were trained on",
            "their digests must agree",
            "Load the network with the weights it was linearised at.",
        )
    return objective


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
    seen = survey(flat[0], flat[1], len(record.classes))
    notes = notes_on(flat[0], flat[1], seen, record, distance, has_labels=True)
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


def _network_digest(network: nn.Module, names: tuple[str, ...]) -> str:
    return hashlib.sha256(f"{module_digest(network)}\n{chr(10).join(names)}".encode()).hexdigest()


def _weights_digest(weights: Tensor) -> str:
    return hashlib.sha256(weights.contiguous().numpy().tobytes()).hexdigest()


def _model_facts(model: TangentModel, published: TangentModel) -> Json:
    record = model.record
    return {
        "before": {"sha256": model.sha256()},
        "after": {"sha256": published.sha256()},
        "loss": record.loss,
        "l2": record.l2,
        "max_norm": record.max_norm,
        "row_bound": record.row_bound,
        "bias": False,
        "dtype": "float64",
        "record": record.provenance,
        "encoder": record.encoder,
    }


def _step_facts(step: Step) -> Json:
    return {
        "kind": "converged",
        "method": step.method,
        "iterations": step.iterations,
        "inner_iterations": step.inner_iterations,
        "residual": step.residual,
        "positive_definite": step.positive_definite,
        "damping": step.damping if math.isfinite(step.damping) else None,
        "converged": step.converged,
        "pull": 0.0,
    }
