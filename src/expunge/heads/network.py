"""Networks as heads use them: frozen copies and their examples; and any torch module, all its parameters trained."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from expunge.errors import DataError, ModelError, OptionError
from expunge.heads.rows import WholeSet
from expunge.record import MODULE
from expunge.runtime.arrays import LazyTorch
from expunge.runtime.arrays import copy as copied

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
else:
    torch = LazyTorch("a network")

# What every network, and every example given to one, must be; each is refused with a remedy ------------------------

# what a network's own code raises
FAILED = (RuntimeError, TypeError, ValueError, AttributeError, IndexError, KeyError, AssertionError)


@dataclass(frozen=True)
class Examples(WholeSet):
    """Inputs as they were given and their class indices."""

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True)
class MatrixFree:
    """A symmetric map that is known by its products; `inverse`, where there is one, is roughly its inverse."""

    product: Callable[[Tensor], Tensor]
    inverse: Callable[[Tensor], Tensor] | None = None

    def dense(self) -> Tensor:
        raise NotImplementedError

    def precondition(self, residual: Tensor) -> Tensor:
        return copied(residual) if self.inverse is None else self.inverse(residual)


class NetworkHead:
    """What objectives of a network have in common: a frozen copy, gone over a block of examples at a time, in float64.

    A product is two passes through the network and an iteration four, so systems are solved once, accurately, and no
    matrix is formed.
    """

    inexact = False

    def __init__(self, module: nn.Module, l2: float, block: int, device: torch.device | str) -> None:
        self.module = frozen_copy(module, device)
        self.l2, self.block, self.device = l2, block, torch.device(device)

    def working(self, rows: Any, dtype: torch.dtype) -> Any:
        """The rows as they are."""
        return rows

    def dense_pays(self, rows: Any) -> bool:
        """Whether forming the Hessian pays: never for a network."""
        return False

    def _blocks(self, count: int) -> Iterator[slice]:
        for start in range(0, count, self.block):
            yield slice(start, min(start + self.block, count))


def frozen_copy(module: nn.Module, device: torch.device | str) -> nn.Module:
    """A copy in float64 and evaluation mode, nothing of it trainable."""
    require_running_statistics(module)
    return copy.deepcopy(module).to(device=device, dtype=torch.float64).eval().requires_grad_(False)


def require_running_statistics(module: nn.Module) -> None:
    """Refuse batch normalisation that stores no statistics: it would use those of whatever batch a row is in."""
    for name, part in module.named_modules():
        if isinstance(part, torch.nn.modules.batchnorm._BatchNorm) and part.running_mean is None:
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


# Any torch module with softmax loss and L2, all its parameters trained together -------------------------------------
# Not convex, so nothing about it is proven.
#
#     L(w) = mean of (logsumexp(f(x; w)) - f_y(x; w)) + (l2/2) ||w||^2
#
# Curvature products, a block of examples at a time, are those of Gauss-Newton, `J^T (diag(p) - p p^T) J + l2 I`, which
# has no negative eigenvalues, or of the Hessian itself (forward over reverse).

CURVATURES = ("gauss-newton", "hessian")


class ModuleObjective(NetworkHead):
    """The objective of a module's parameters, as one vector. Works on a copy, in float64 and evaluation mode.

    `damping` is that of the one step to take; None: as many as it takes, each with a damping of its own.
    """

    about = MODULE

    def __init__(
        self,
        module: nn.Module,
        *,
        l2: float,
        curvature: str = "gauss-newton",
        damping: float | None = None,
        block: int = 256,
        device: torch.device | str = "cpu",
    ) -> None:
        if curvature not in CURVATURES:
            raise OptionError(
                f"curvature {curvature!r}", f"it is one of {', '.join(CURVATURES)}", "Choose one of them."
            )
        super().__init__(module, l2, block, device)
        self.shapes = {name: value.shape for name, value in self.module.named_parameters()}
        if not self.shapes:
            raise ModelError("the module has no parameters", "something must be trained", "Give the whole network.")
        self.kind, self.damping = curvature, damping
        self.weights = torch.cat([value.detach().reshape(-1) for value in self.module.parameters()])

    @property
    def n_parameters(self) -> int:
        return len(self.weights)

    def outputs(self, weights: Tensor, inputs: Tensor) -> Tensor:
        """`f(x; w)`, rows x K."""
        values = inputs.to(self.device, torch.float64)
        if len(values) == 1:  # torch 2.13 gets derivatives of some layers wrong for a lone example
            values = values.repeat_interleave(2, dim=0)
        scores: Tensor = torch.func.functional_call(self.module, self.named(weights), (values,))
        return scores[: len(inputs)]

    def named(self, weights: Tensor) -> dict[str, Tensor]:
        """The vector cut into parameters."""
        pieces = torch.split(weights, [shape.numel() for shape in self.shapes.values()])
        return {name: piece.reshape(shape) for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)}

    def checked(self, inputs: Tensor, n_labels: int) -> Tensor:
        """The inputs as they are, if the module can take them; a block at a time is converted when it is used."""
        require_real(inputs)
        if len(inputs) == 0 or len(inputs) != n_labels:
            raise DataError(f"{len(inputs)} inputs, {n_labels} labels", "one label an input is needed", "Check both.")
        class_scores(lambda values: self.outputs(self.weights, values), inputs[:2])
        return inputs

    def as_predicted(self, rows: Examples) -> Examples:
        """The rows' inputs, with the trained network's own probabilities in the labels' place.

        A network fits the labels it was trained on better than others, and with those of others the curvature at the
        trained weights has negative directions that the source's has not. With its own the loss of these rows is at
        its minimum there, as the source's is, and as for a linear head no label enters the change of their gradients.
        """
        parts = [self.outputs(self.weights, rows.inputs[part]).softmax(dim=1) for part in self._blocks(len(rows))]
        return Examples(rows.inputs, torch.cat(parts))

    def gradient(self, weights: Tensor, rows: Examples) -> Tensor:
        """Gradient of L over these examples."""
        total = torch.zeros_like(weights)
        for part in self._blocks(len(rows)):
            total += torch.func.grad(self._summed(rows.inputs[part], rows.labels[part]))(weights)
        return total / len(rows) + self.l2 * weights

    def change_mean(self, weights: Tensor, update: Tensor, rows: Examples) -> Tensor:
        """Mean change of the examples' gradients, without the regulariser's."""
        return self.gradient(weights + update, rows) - self.gradient(weights, rows) - self.l2 * update

    def curvature(self, weights: Tensor, rows: Examples) -> MatrixFree:
        """Curvature at these weights. Of a set that is one block what all products share is computed once."""
        if self.kind == "hessian" and len(rows) <= self.block:
            return MatrixFree(self._hessian_products(weights, rows))
        return MatrixFree(lambda direction: self.product(weights, direction, rows))

    def accurate(self, dtype: torch.dtype) -> float:
        """Nothing is proven from the solution, and the residual is measured at the update handed over."""
        return 1e-6

    def product(self, weights: Tensor, direction: Tensor, rows: Examples) -> Tensor:
        """Curvature of L over these examples times a direction."""
        total = torch.zeros_like(weights)
        inputs, labels = rows.inputs, rows.labels
        for part in self._blocks(len(inputs)):
            if self.kind == "hessian":
                total += torch.func.jvp(
                    torch.func.grad(self._summed(inputs[part], labels[part])), (weights,), (direction,)
                )[1]
            else:
                total += self._gauss_newton(weights, direction, inputs[part])
        return total / len(inputs) + self.l2 * direction

    def _hessian_products(self, weights: Tensor, rows: Examples) -> Callable[[Tensor], Tensor]:
        at = weights.detach().clone().requires_grad_()
        loss = self._summed(rows.inputs, rows.labels)(at) / len(rows)
        (slope,) = torch.autograd.grad(loss, at, create_graph=True)

        def product(direction: Tensor) -> Tensor:
            (bent,) = torch.autograd.grad(slope, at, direction, retain_graph=True)
            return bent + self.l2 * direction

        return product

    def _gauss_newton(self, weights: Tensor, direction: Tensor, inputs: Tensor) -> Tensor:
        outputs, pushed = torch.func.jvp(lambda at: self.outputs(at, inputs), (weights,), (direction,))[:2]
        predicted = outputs.softmax(dim=1)
        curved = predicted * (pushed - (predicted * pushed).sum(dim=1, keepdim=True))
        product: Tensor = torch.func.vjp(lambda at: self.outputs(at, inputs), weights)[1](curved)[0]
        return product

    def _summed(self, inputs: Tensor, labels: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda at: torch.nn.functional.cross_entropy(self.outputs(at, inputs), labels, reduction="sum")
