"""Unlearning a whole network: damped steps, constants declared, nothing proven.

The retained rows' equation (`solve/newton.py`) is solved by damped steps (`iterated_step`, there too) until 1 % of
it is left or no less can be had. Surrogate rows take part with the network's own probabilities in their labels' place
(`ModuleObjective.as_predicted`). Whether the steps led towards retraining can be looked at without the source: that
residual would be 0 there if the surrogate were the retained rows and the network trained to rest. With a damping of
one's own it is one step, Algorithm 1:

    u = m (n H_S - m H_U + damping n I)^-1 g_U

The loss is not convex, so the constants of the paper's bound (alpha above all) are not true of it, and the certificate
is `estimated`: it states what was done and with which numbers, and guarantees nothing.
"""

from __future__ import annotations

import copy
import hashlib
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from expunge.bounds import PaperConstants
from expunge.bounds.calibration import Scale
from expunge.certificate.claim import Json, PublicNote
from expunge.distance import Distance
from expunge.door import ask
from expunge.errors import OptionError
from expunge.heads.network import Examples, ModuleObjective
from expunge.mechanism import Unlearned, carry_out
from expunge.networks.encoders import add_tensor
from expunge.record import MODULE, Label, TrainingRecord
from expunge.request.promise import Promise, computing_device
from expunge.request.request import Request
from expunge.request.sets import SURROGATE
from expunge.rows import as_labels, encode
from expunge.runtime.arrays import Array
from expunge.runtime.progress import Progress, silent
from expunge.runtime.values import positive
from expunge.solve.linear import Step

NOT_CONVEX = PublicNote(
    "the loss of this network is not convex: the declared constants cannot be true of it, and neither the bound nor "
    "the guarantee is proven"
)
BUFFERS = PublicNote(
    "buffers of the network (running statistics) were neither unlearned nor noised; they were computed from the "
    "source, forgotten rows included"
)


@dataclass(frozen=True)
class ModuleSubject:
    """A network with all its parameters. Its published model is a copy with noised weights."""

    network: nn.Module
    head: ModuleObjective
    record: TrainingRecord
    notes: tuple[str, ...] = ()
    as_predicted: bool = False

    def rows(self, arrays: tuple[Any, Any], name: str) -> Examples:
        """Surrogate rows with the network's own probabilities in their labels' place, where that is wanted."""
        values = self.head.checked(torch.as_tensor(arrays[0]), len(arrays[1]))
        labels = encode(as_labels(arrays[1], len(values), name), self.record.classes, name)
        examples = Examples(values, torch.as_tensor(labels, device=self.head.device))
        return self.head.as_predicted(examples) if self.as_predicted and name == SURROGATE else examples

    @property
    def weights(self) -> Tensor:
        return self.head.weights

    @property
    def n_features(self) -> int:
        return self.head.n_parameters

    @property
    def sha256(self) -> str:
        return _parameters_digest(self.network)

    def published(self, noised: Array, record: TrainingRecord) -> nn.Module:
        return _with_weights(self.network, self.head, torch.as_tensor(noised))

    def describe(self, published: nn.Module) -> Json:
        return {
            "before": {"sha256": self.sha256},
            "after": {"sha256": _parameters_digest(published)},
            "loss": self.record.loss,
            "l2": self.record.l2,
            "row_bound": None,
            "bias": False,
            "dtype": str(next(self.network.parameters()).dtype).removeprefix("torch."),
            "record": self.record.provenance,
        }

    def describe_step(self, step: Step, kind: str) -> Json:
        return {
            "kind": kind,
            "method": step.method,
            "curvature": self.head.kind,
            "iterations": step.iterations,
            "inner_iterations": step.inner_iterations,
            "relative_residual": step.relative_residual,
            "positive_definite": step.positive_definite,
            "damping": step.pull if math.isfinite(step.pull) else None,
            "residual": step.residual,
            "residual_at_start": step.residual_at_start,
        }


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
    curvature: str = "hessian",
    damping: float | None = None,
    force: bool = False,
    noise: float | str | Scale | None = None,
    block: int = 256,
    device: str = "cpu",
    insecure_test_seed: int | None = None,
    progress: Progress = silent,
) -> Unlearned:
    """Damped steps, noise by the paper's bound. `constants` None: those the paper's experiments set.

    `classes` are the labels in the order of the network's outputs; None: 0, 1, 2, ... `damping` None: as many steps
    as it takes; a number: one step with it, Algorithm 1. The model that comes back is a copy of the network. `noise`
    is as for `unlearn`, but a number or None.
    """
    paper_constants = constants or PaperConstants.of_the_experiments(float(l2))
    promise = Promise(epsilon, delta, distance, bound="paper", constants=paper_constants, force=force, noise=noise)
    request = module_request(
        network,
        forget,
        surrogate,
        promise,
        n_source=n_source,
        l2=l2,
        classes=classes,
        curvature=curvature,
        damping=damping,
        block=block,
        device=device,
    )
    result = carry_out(request, progress=progress, insecure_test_seed=insecure_test_seed)
    assert result is not None  # there is one process
    return result


def module_request(
    network: nn.Module,
    forget: tuple[Any, Any],
    surrogate: tuple[Any, Any],
    promise: Promise,
    *,
    n_source: int,
    l2: float,
    classes: tuple[Label, ...] | None = None,
    curvature: str = "hessian",
    damping: float | None = None,
    block: int = 256,
    device: str = "cpu",
) -> Request:
    """A request about a network, with everything checked that can be before any work is done."""
    positive(l2, "l2", "Give the lambda of (lambda/2)||w||^2 added to the mean loss.")
    if damping is not None and not 0 <= damping < math.inf:
        raise OptionError(f"damping {damping}", "a finite number, at least 0, is needed", "0.01 is usual.")
    head = ModuleObjective(
        network,
        l2=float(l2),
        curvature=curvature,
        damping=damping,
        block=block,
        device=computing_device(device),
    )
    known = _classes(head, torch.as_tensor(forget[0]), classes)
    record = TrainingRecord(
        n_source=n_source,
        classes=known,
        class_counts=None,
        l2=float(l2),
        loss=MODULE.name,
        max_norm=math.inf,
        bias=False,
        residual=None,
        provenance="declared",
    )
    notes = (NOT_CONVEX, *((BUFFERS,) if any(b.is_floating_point() for b in network.buffers()) else ()))
    as_predicted = damping is None and not promise.distance.is_source
    return ask(ModuleSubject(network, head, record, notes, as_predicted), forget, surrogate, promise)


def _classes(head: ModuleObjective, inputs: Tensor, classes: tuple[Label, ...] | None) -> tuple[Label, ...]:
    """The labels in the order of the network's outputs."""
    outputs = int(head.outputs(head.weights, head.checked(inputs, len(inputs))[:1]).shape[1])
    known = tuple(range(outputs)) if classes is None else classes
    if len(known) != outputs:
        raise OptionError(f"{len(known)} classes", f"the network has {outputs} outputs", "Name one an output.")
    return known


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
        add_tensor(digest, name, value)
    return digest.hexdigest()
