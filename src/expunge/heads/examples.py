"""What every network, and every example given to one, must be; each is refused with a remedy."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from expunge.errors import DataError, ModelError
from expunge.heads.convolutions import unfold_convolutions

# what a network's own code raises
FAILED = (RuntimeError, TypeError, ValueError, AttributeError, IndexError, KeyError, AssertionError)


class WholeSet(ABC):
    """A set of examples in the memory of one process, each counted once, computed with in float64."""

    inputs: Tensor
    labels: Tensor
    dtype = torch.float64
    has_weights = False
    largest_weight = 1.0

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def effective(self) -> float:
        return float(len(self))

    @property
    @abstractmethod
    def n_scaled(self) -> int:
        """How many had to be scaled to the norm bound."""

    def agreed(self, value: Tensor) -> Tensor:
        """What the only process has of it."""
        return value


@dataclass(frozen=True)
class Examples(WholeSet):
    """Inputs as they were given and their class indices."""

    inputs: Tensor
    labels: Tensor

    @property
    def n_scaled(self) -> int:
        return 0


@dataclass(frozen=True)
class ProductsOnly:
    """A Hessian that is known by its products alone: no matrix, and nothing to precondition by."""

    product: Callable[[Tensor], Tensor]

    def dense(self) -> Tensor:
        raise NotImplementedError


def frozen_copy(module: nn.Module, device: torch.device | str) -> nn.Module:
    """A copy in float64 and evaluation mode, convolutions as matrix products, nothing of it trainable."""
    require_running_statistics(module)
    copied = copy.deepcopy(module).to(device=device, dtype=torch.float64).eval().requires_grad_(False)
    return unfold_convolutions(copied)


def require_running_statistics(module: nn.Module) -> None:
    """Refuse batch normalisation that stores no statistics: it would use those of whatever batch a row is in."""
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.running_mean is None:
            raise ModelError(
                f"{name!r} ({type(part).__name__}) keeps no running statistics",
                "an output must not depend on the other rows of its batch",
                "Use track_running_stats=True, or another normalisation.",
            )


def require_real(inputs: Tensor) -> None:
    """Refuse whole numbers: they have no derivatives, and bytes are rarely meant as they are."""
    if not inputs.is_floating_point():
        raise DataError(
            f"inputs of dtype {inputs.dtype}",
            "real numbers are needed",
            "Convert them, for example x.float() / 255.",
        )


def class_scores(run: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
    """What the network gives for these inputs, one row of scores each; its own errors in words."""
    try:
        scores = run(inputs)
    except FAILED as error:
        raise DataError(
            f"the network does not take inputs of shape {tuple(inputs.shape)} ({error})",
            "inputs as it was trained on are needed",
            "Check their shape.",
        ) from error
    if scores.ndim != 2 or len(scores) != len(inputs):
        raise ModelError(
            f"the network gives {tuple(scores.shape)} for {len(inputs)} inputs",
            "one row of class scores an input is needed",
            "Flatten or pool its outputs.",
        )
    return scores
