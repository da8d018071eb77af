"""Unlearning a whole network: Algorithm 1 with damped curvature, constants declared, nothing proven.

    u = m (n H_S - m H_U + damping n I)^-1 g_U

A Newton step of a loss that is not convex may lead anywhere. Whether it leads towards retraining can be looked at without the source: the
residual `a(u) = n (g_S(w + u) - g_S(w)) - m g_U(w + u)` would be 0 there if the surrogate were the source. Where no damping is given,
that with the smallest residual is taken, or no step at all.

The loss is not convex, so the constants of the paper's bound (alpha above all) are not true of it, and the certificate is
`estimated`: it states what was done and with which numbers, and guarantees nothing.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from expunge.bounds import PaperConstants
from expunge.certificate.content import Certificate, build
from expunge.certificate.derive import derive
from expunge.certificate.facts import Claim, Fact
from expunge.data import as_labels, encode
from expunge.data.prepare import Label
from expunge.distance import Distance, parse_distance
from expunge.distance.inequalities import tv_upper_from_chi_square, tv_upper_from_kl
from expunge.errors import DataError, OptionError
from expunge.heads.module import ModuleObjective
from expunge.issuing import described_sizes, generator_named, issued_with, refuse_unsound, with_noise
from expunge.request.execution import computing_device
from expunge.request.guarantee import Budget
from expunge.runtime.checks import positive
from expunge.runtime.progress import Progress, silent
from expunge.solve.conjugate import solve_conjugate
from expunge.solve.operators import MatrixFree
from expunge.solve.outcome import LinearSolution

TOLERANCE = 1e-6  # nothing is proven from it, and the residual is measured at the update handed over
DAMPINGS = (0.0, 1e-3, 1e-2, 1e-1, 1.0)
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
    damping: float | None = None,
    force: bool = False,
    block: int = 256,
    device: str = "cpu",
    insecure_test_seed: int | None = None,
    progress: Progress = silent,
) -> UnlearnedModule:
    """One damped Newton step, noise by the paper's bound. `constants` None: those the paper's experiments set.

    `classes` are the labels in the order of the network's outputs; None: 0, 1, 2, ... `damping` None: that of `DAMPINGS` with the smallest
    residual on surrogate and forget set.
    """
    budget = Budget(epsilon, delta)
    positive(l2, "l2", "Give the lambda of (lambda/2)||w||^2 beside the mean loss.")
    if damping is not None and not 0 <= damping < math.inf:
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
    step = searched_step(
        objective, leaving, standing, n_source, DAMPINGS if damping is None else (damping,), progress=progress
    )
    solved = step.solved
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
        generator=generator_named(insecure_test_seed),
        tuned=True,
    )
    derived = derive(claim)
    refuse_unsound(claim, derived, objective.weights, force)
    noised = with_noise(objective.weights + step.update, derived, insecure_test_seed)
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
        sizes=described_sizes(
            n_source=n_source,
            n_forget=m,
            n_surrogate=len(standing[0]),
            parameters=objective.n_parameters,
            classes=int(objective.outputs(objective.weights, standing[0][:1]).shape[1]),
            features=objective.n_parameters,
        ),
        step={
            "kind": "newton",
            "method": solved.method,
            "curvature": curvature,
            "iterations": 1,
            "inner_iterations": solved.iterations,
            "relative_residual": solved.relative_residual,
            "positive_definite": solved.positive_definite,
            "damping": step.damping if math.isfinite(step.damping) else None,
            "residual": step.residual,
            "residual_at_start": step.residual_at_start,
        },
        data={},
        estimate=None,
        notes=(NOT_CONVEX, *((BUFFERS,) if any(b.is_floating_point() for b in network.buffers()) else ())),
        **issued_with(),
    )
    return UnlearnedModule(module, certificate)


@dataclass(frozen=True)
class WholeStep:
    """The update, the damping it was made with (infinite: no step), and `||a(u)||` before and after."""

    update: Tensor
    solved: LinearSolution
    damping: float
    residual: float
    residual_at_start: float


def searched_step(
    objective: ModuleObjective,
    forget: tuple[Tensor, Tensor],
    surrogate: tuple[Tensor, Tensor],
    n_source: int,
    dampings: Sequence[float],
    *,
    progress: Progress = silent,
) -> WholeStep:
    """The step whose residual is smallest; with several dampings, none at all where all of them would raise it."""
    w, m = objective.weights, len(forget[0])
    before, gradient = objective.gradient(w, *surrogate), objective.gradient(w, *forget)
    start = m * float(gradient.norm())
    best: WholeStep | None = None
    for number, damping in enumerate(dampings):
        progress("Steps tried", number, len(dampings))
        solved = damped_step(objective, gradient, forget, surrogate, n_source, damping)
        at = w + solved.solution
        left = n_source * (objective.gradient(at, *surrogate) - before) - m * objective.gradient(at, *forget)
        size = float(left.norm())
        if best is None or size < best.residual:
            best = WholeStep(solved.solution, solved, damping, size, start)
    assert best is not None
    if len(dampings) > 1 and not best.residual < start:
        return WholeStep(torch.zeros_like(w), best.solved, math.inf, start, start)
    return best


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

    return solve_conjugate(MatrixFree(product), m * gradient, TOLERANCE, torch.float64)


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
