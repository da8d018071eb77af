"""Mixed-linear networks: tangent weights of a network linearised at fixed weights, trained, unlearned, certified."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from expunge.certificate.content import Certificate, build
from expunge.certificate.derive import derive
from expunge.certificate.facts import Claim, Json
from expunge.distance import Distance, parse_distance
from expunge.errors import OptionError
from expunge.heads.tangent import last_parameters
from expunge.issuing import (
    described_sizes,
    described_step,
    generator_named,
    issued_with,
    record_after,
    refuse_unsound,
    with_noise,
)
from expunge.networks.tangent_model import TangentModel, read_tangent, weights_digest
from expunge.networks.tangent_step import measure_tangent, tangent_task
from expunge.networks.tangent_training import train_tangent
from expunge.request.guarantee import Budget
from expunge.runtime.progress import Progress, silent

__all__ = ["TangentModel", "UnlearnedTangent", "last_parameters", "read_tangent", "train_tangent", "unlearn_tangent"]


@dataclass(frozen=True)
class UnlearnedTangent:
    """What may be published."""

    model: TangentModel
    certificate: Certificate


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
    if distance == "estimate":
        raise OptionError(
            "distance estimate", "for tangent models a distance must be declared", "Write for example chi2:0.1 or same."
        )
    declared = parse_distance(distance) if isinstance(distance, str) else distance
    task = tangent_task(network, model, forget, surrogate, declared, block=block, device=device, force=force)
    objective = task.objective
    measured = measure_tangent(task, delta=delta, seed=insecure_test_seed, progress=progress)
    claim = Claim(
        epsilon=budget.epsilon,
        delta=budget.delta,
        bound="residual",
        facts=measured.facts,
        distance=task.distance,
        failures=measured.failures,
        n_parameters=objective.n_parameters,
        generator=generator_named(insecure_test_seed),
    )
    derived = derive(claim)
    refuse_unsound(claim, derived, task.weights, force)
    noised = with_noise(task.weights + measured.step.update, derived, insecure_test_seed)
    record = replace(record_after(model.record, task.forget.labels), weights_sha256=weights_digest(noised))
    published = TangentModel(noised, model.names, record)
    certificate = build(
        claim,
        derived,
        model=_model_facts(model, published),
        sizes=described_sizes(
            n_source=model.record.n_source,
            n_forget=len(task.forget),
            n_surrogate=len(task.surrogate),
            parameters=objective.n_parameters,
            classes=len(record.classes),
            features=objective.n_parameters,
        ),
        step=described_step(measured.step, "converged"),
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
        **issued_with(),
    )
    return UnlearnedTangent(published, certificate)


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
