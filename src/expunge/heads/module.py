"""Any torch module with softmax loss and L2, all its parameters trained together.

Not convex, so nothing about it is proven.

    L(w) = mean of (logsumexp(f(x; w)) - f_y(x; w)) + (l2/2) ||w||^2

Curvature products, a block of examples at a time, are those of Gauss-Newton, `J^T (diag(p) - p p^T) J + l2 I`, which
has no negative eigenvalues, or of the Hessian itself (forward over reverse).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vjp

from expunge.errors import DataError, ModelError, OptionError
from expunge.heads.network import Examples, ProductsOnly, class_scores, frozen_copy, require_real
from expunge.record import MODULE

CURVATURES = ("gauss-newton", "hessian")


class ModuleObjective:
    """The objective of a module's parameters, as one vector. Works on a copy, in float64 and evaluation mode.

    `damping` is that of the one step to take; None: as many as it takes, each with a damping of its own.
    """

    about = MODULE
    inexact = False

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
        self.module = frozen_copy(module, device)
        self.shapes = {name: value.shape for name, value in self.module.named_parameters()}
        if not self.shapes:
            raise ModelError("the module has no parameters", "something must be trained", "Give the whole network.")
        self.l2, self.kind, self.damping = l2, curvature, damping
        self.block, self.device = block, torch.device(device)
        self.weights = torch.cat([value.detach().reshape(-1) for value in self.module.parameters()])

    @property
    def n_parameters(self) -> int:
        return len(self.weights)

    def outputs(self, weights: Tensor, inputs: Tensor) -> Tensor:
        """`f(x; w)`, rows x K."""
        values = inputs.to(self.device, torch.float64)
        if len(values) == 1:  # torch 2.13 gets derivatives of some layers wrong for a lone example; see convolutions.py
            values = values.repeat_interleave(2, dim=0)
        scores: Tensor = functional_call(self.module, self.named(weights), (values,))
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
        """The same inputs with the trained network's own probabilities in the labels' place.

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
            total += grad(self._summed(rows.inputs[part], rows.labels[part]))(weights)
        return total / len(rows) + self.l2 * weights

    def change_mean(self, weights: Tensor, update: Tensor, rows: Examples) -> Tensor:
        """Mean change of the examples' gradients, without the regulariser's."""
        return self.gradient(weights + update, rows) - self.gradient(weights, rows) - self.l2 * update

    def curvature(self, weights: Tensor, rows: Examples) -> ProductsOnly:
        """Curvature at these weights. Of a set that is one block what all products share is computed once."""
        if self.kind == "hessian" and len(rows) <= self.block:
            return ProductsOnly(self._hessian_products(weights, rows))
        return ProductsOnly(lambda direction: self.product(weights, direction, rows))

    def working(self, rows: Examples, dtype: torch.dtype) -> Examples:
        """All is computed in float64."""
        return rows

    def accurate(self, dtype: torch.dtype) -> float:
        """Nothing is proven from the solution, and the residual is measured at the update handed over."""
        return 1e-6

    def dense_pays(self, rows: Examples) -> bool:
        """No matrix is formed."""
        return False

    def product(self, weights: Tensor, direction: Tensor, rows: Examples) -> Tensor:
        """Curvature of L over these examples times a direction."""
        total = torch.zeros_like(weights)
        inputs, labels = rows.inputs, rows.labels
        for part in self._blocks(len(inputs)):
            if self.kind == "hessian":
                total += jvp(grad(self._summed(inputs[part], labels[part])), (weights,), (direction,))[1]
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
        outputs, pushed = jvp(lambda at: self.outputs(at, inputs), (weights,), (direction,))[:2]
        predicted = outputs.softmax(dim=1)
        curved = predicted * (pushed - (predicted * pushed).sum(dim=1, keepdim=True))
        product: Tensor = vjp(lambda at: self.outputs(at, inputs), weights)[1](curved)[0]
        return product

    def _summed(self, inputs: Tensor, labels: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda at: nn.functional.cross_entropy(self.outputs(at, inputs), labels, reduction="sum")

    def _blocks(self, count: int) -> Iterator[slice]:
        for start in range(0, count, self.block):
            yield slice(start, min(start + self.block, count))
