"""Unlearning a whole network: Algorithm 1 with damped curvature, constants declared, nothing proven.

    u = m (n H_S - m H_U + damping n I)^-1 g_U

The loss is not convex, so the constants of the paper's bound (alpha above all) are not true of it, and the certificate is
`estimated`: it states what was done and with which numbers, and guarantees nothing.
"""

from __future__ import annotations

import copy
import datetime
import hashlib
import math
import os
import platform
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from expunge._version import __version__
from expunge.bounds import PaperConstants
from expunge.certificate import INSECURE, Certificate, Claim, Fact, build, derive
from expunge.data import as_labels, encode
from expunge.data.prepare import Label
from expunge.distance import Distance, parse_distance
from expunge.distance.inequalities import tv_upper_from_chi_square, tv_upper_from_kl
from expunge.errors import DataError, OptionError
from expunge.mechanism import refuse_unsound
from expunge.networks.mixed_linear import Operator
from expunge.noise import add_noise, seeded_bytes
from expunge.objectives.module import ModuleObjective
from expunge.options import Budget, computing_device, positive
from expunge.solve import LinearSolution, Progress, silent, solve_conjugate

TOLERANCE = 1e-8
NOT_CONVEX = "the loss of this network is not convex: the declared constants cannot be true of it, and neither the bound nor the guarantee is proven"
BUFFERS = "buffers of the network (running statistics) were neither unlearned nor noised; they were computed from the source, forgotten rows included"


@dataclass(frozen=True)
class UnlearnedModule:
    """A copy of the network with noised weights, and its certificate, whose status is `estimated`."""

    module: nn.Module
    certificate: Certificate


def unlearn_module(
    network: nn.Module,
    forget: tuple[Any, Any],
    surrogate: tuple[Any, Any],
    *,
    n_source: int,
    l2: float,
    epsilon: float,
    delta: float,
    distance: Distance | str,
    classes: tuple[Label, ...] | None = None,
    constants: PaperConstants | None = None,
    curvature: str = "gauss-newton",
    damping: float = 0.0,
    force: bool = False,
    block: int = 256,
    device: str = "cpu",
    insecure_test_seed: int | None = None,
    progress: Progress = silent,
) -> UnlearnedModule:
    """One damped Newton step, noise by the paper's bound. `constants` None: those the paper's experiments set.

    `classes` are the labels in the order of the network's outputs; None: 0, 1, 2, ...
    """
    budget = Budget(epsilon, delta)
    positive(l2, "l2", "Give the lambda of (lambda/2)||w||^2 beside the mean loss.")
    if not 0 <= damping < math.inf:
        raise OptionError(f"damping {damping}", "a finite number, at least 0, is needed", "0.01 is usual.")
    declared = parse_distance(distance) if isinstance(distance, str) else distance
    objective = ModuleObjective(
        network, l2=float(l2), curvature=curvature, block=block, device=computing_device(device)
    )
    leaving, standing = (
        _examples(objective, given, classes, name)
        for given, name in ((forget, "the forget set"), (surrogate, "the surrogate set"))
    )
    m = len(leaving[0])
    if not m < n_source:
        raise DataError(f"{m} rows to forget of {n_source}", "at least one must be retained", "Check n_source.")
    gradient = objective.gradient(objective.weights, *leaving)
    progress("Conjugate gradients", 0, None)
    solved = damped_step(objective, gradient, leaving, standing, n_source, damping)
    given = constants or PaperConstants.of_the_experiments(float(l2))
    facts = _facts(given, declared, n_source, m, len(standing[0]), float(gradient.norm()))
    claim = Claim(
        epsilon=budget.epsilon,
        delta=budget.delta,
        bound="paper",
        facts=facts,
        distance=declared,
        failures={},
        n_parameters=objective.n_parameters,
        generator="operating system" if insecure_test_seed is None else INSECURE,
        tuned=True,
    )
    derived = derive(claim)
    refuse_unsound(claim, derived, objective.weights, force)
    random_bytes = os.urandom if insecure_test_seed is None else seeded_bytes(insecure_test_seed)
    updated = (objective.weights + solved.solution).cpu().numpy()
    noised = torch.from_numpy(add_noise(updated, derived.sigma, derived.grid_exponent, random_bytes))
    module = _with_weights(network, objective, noised)
    certificate = build(
        claim,
        derived,
        model={
            "before": {"sha256": _parameters_digest(network)},
            "after": {"sha256": _parameters_digest(module)},
            "loss": ModuleObjective.name,
            "l2": float(l2),
            "row_bound": None,
            "bias": False,
            "dtype": str(next(network.parameters()).dtype).removeprefix("torch."),
            "record": "declared",
        },
        sizes={
            "n_source": n_source,
            "n_forget": m,
            "n_surrogate": len(standing[0]),
            "n_retain": n_source - m,
            "parameters": objective.n_parameters,
            "classes": int(objective.outputs(objective.weights, standing[0][:1]).shape[1]),
            "features": objective.n_parameters,
        },
        step={
            "kind": "newton",
            "method": solved.method,
            "curvature": curvature,
            "iterations": 1,
            "inner_iterations": solved.iterations,
            "relative_residual": solved.relative_residual,
            "positive_definite": solved.positive_definite,
            "damping": damping,
        },
        data={},
        estimate=None,
        notes=(NOT_CONVEX, *((BUFFERS,) if any(b.is_floating_point() for b in network.buffers()) else ())),
        software={
            "expunge": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
    return UnlearnedModule(module, certificate)


def damped_step(
    objective: ModuleObjective,
    gradient: Tensor,
    forget: tuple[Tensor, Tensor],
    surrogate: tuple[Tensor, Tensor],
    n_source: int,
    damping: float,
) -> LinearSolution:
    """`m (n H_S - m H_U + damping n I)^-1 g_U` by conjugate gradients, which add a shift where that is not positive definite."""
    weights, m = objective.weights, len(forget[0])

    def product(direction: Tensor) -> Tensor:
        kept = objective.product(weights, direction, *surrogate) + damping * direction
        return n_source * kept - m * objective.product(weights, direction, *forget)

    return solve_conjugate(Operator(product), m * gradient, TOLERANCE, torch.float64)


def _examples(
    objective: ModuleObjective, given: tuple[Any, Any], classes: tuple[Label, ...] | None, name: str
) -> tuple[Tensor, Tensor]:
    inputs = torch.as_tensor(given[0])
    values = objective.checked(inputs, len(given[1]))
    outputs = objective.outputs(objective.weights, values[:1]).shape[1]
    known: tuple[Label, ...] = tuple(range(outputs)) if classes is None else classes
    if len(known) != outputs:
        raise OptionError(f"{len(known)} classes", f"the network has {outputs} outputs", "Name one an output.")
    return values, encode(as_labels(given[1], len(values), name), known, name).to(objective.device)


def _facts(
    constants: PaperConstants, distance: Distance, n: int, m: int, s: int, gradient_norm: float
) -> dict[str, Fact]:
    tv = {
        "tv": distance.value,
        "kl": tv_upper_from_kl(distance.value),
        "chi2": tv_upper_from_chi_square(distance.value),
    }
    return {
        "n_source": Fact(n, "declared"),
        "n_forget": Fact(m, "measured"),
        "n_surrogate": Fact(s, "measured"),
        "alpha": Fact(constants.strong_convexity, "declared"),
        "beta": Fact(constants.smoothness, "declared"),
        "lipschitz": Fact(constants.lipschitz, "declared"),
        "gamma": Fact(constants.hessian_lipschitz, "declared"),
        "lipschitz_power": Fact(constants.lipschitz_power, "declared"),
        "gradient_norm": Fact(gradient_norm, "measured"),
        "tv_upper": Fact(tv.get(distance.kind, 0.0), "derived"),
    }


def _with_weights(network: nn.Module, objective: ModuleObjective, weights: Tensor) -> nn.Module:
    """A copy of the network with these weights, in its own dtype; a parameter used in several places is set once."""
    made = copy.deepcopy(network).eval()
    values = objective.named(weights)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            parameter.copy_(values[name])
    return made


def _parameters_digest(module: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, value in module.named_parameters():
        digest.update(f"{name} {value.dtype} {list(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
