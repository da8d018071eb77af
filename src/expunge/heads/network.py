"""Networks as heads use them: frozen copies and their examples; and any torch module, all its parameters trained."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vjp

from expunge.errors import DataError, ModelError, OptionError
from expunge.record import MODULE

# A network as heads use it: a frozen copy, convolutions as matrix products, examples, and what both must be ---------

# Libraries tune convolutions for float32. In float64, and for one gradient an example, patches times a matrix is
# faster: on a GPU by far, since matrix products in float64 are what its tensor cores have.


class UnfoldedConv2d(nn.Conv2d):
    """`weight (out x in k k) times patches (in k k x positions)`.

    Shares its parameters with the layer it stands for.
    """

    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__(layer.in_channels, layer.out_channels, 1, bias=False, device="meta")
        self.kernel_size, self.stride, self.dilation = layer.kernel_size, layer.stride, layer.dilation
        self.padding = layer.padding
        self.weight, self.bias = layer.weight, layer.bias
        self.around = tuple(int(part) for part in layer.padding)

    def forward(self, input: Tensor) -> Tensor:
        patches = self._shifted(input) if input.is_cuda else self._unfolded(input)
        # positions as rows: one large product for all examples, and one for the gradient of the weights
        products = nn.functional.linear(patches, self.weight.flatten(1), self.bias).transpose(1, 2)
        # contiguous: torch 2.13 gets batch normalisation's derivatives wrong for one example with the strides of a
        # transpose
        return products.reshape(len(input), -1, *self._positions(input)).contiguous()

    def _unfolded(self, input: Tensor) -> Tensor:
        """Patches, examples x positions x in k k; on a GPU torch starts a kernel for each example."""
        return nn.functional.unfold(
            input, self.kernel_size, dilation=self.dilation, padding=self.around, stride=self.stride
        ).transpose(1, 2)

    def _shifted(self, input: Tensor) -> Tensor:
        """The same patches from the shifted copies of all images, one for each place of the kernel."""
        padded = nn.functional.pad(input, (self.around[1], self.around[1], self.around[0], self.around[0]))
        down, across = (
            [slice(at * spread, at * spread + (count - 1) * step + 1, step) for at in range(kernel)]
            for count, kernel, step, spread in zip(
                self._positions(input), self.kernel_size, self.stride, self.dilation, strict=True
            )
        )
        copies = [padded[:, :, rows, columns].permute(0, 2, 3, 1) for rows in down for columns in across]
        return torch.stack(copies, dim=4).flatten(3).flatten(1, 2)

    def _positions(self, input: Tensor) -> tuple[int, int]:
        height, width = (
            (size + 2 * around - spread * (kernel - 1) - 1) // step + 1
            for size, kernel, step, around, spread in zip(
                input.shape[-2:], self.kernel_size, self.stride, self.around, self.dilation, strict=True
            )
        )
        return height, width


def unfold_convolutions(module: nn.Module) -> nn.Module:
    """Replace, in place, each plain `Conv2d` (no groups, padding with zeros, no hooks).

    Names of parameters stay as they are.
    """
    if _plain(module):
        assert isinstance(module, nn.Conv2d)
        return UnfoldedConv2d(module)
    made: dict[int, nn.Module] = {}  # a layer used in several places stays one
    for parent in list(module.modules()):
        for name, child in list(parent._modules.items()):  # named_children would skip a layer seen before
            if child is not None and _plain(child):
                assert isinstance(child, nn.Conv2d)
                setattr(parent, name, made.setdefault(id(child), UnfoldedConv2d(child)))
    return module


def _plain(module: nn.Module) -> bool:
    return (
        type(module) is nn.Conv2d
        and module.groups == 1
        and module.padding_mode == "zeros"
        and not isinstance(module.padding, str)
        and not torch.nn.utils.parametrize.is_parametrized(module)
        # a hook may change what goes in or comes out, or make the weight anew (weight_norm, spectral_norm)
        and not (module._forward_hooks or module._forward_pre_hooks)
    )


# What every network, and every example given to one, must be; each is refused with a remedy ------------------------

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


# Any torch module with softmax loss and L2, all its parameters trained together -------------------------------------
# Not convex, so nothing about it is proven.
#
#     L(w) = mean of (logsumexp(f(x; w)) - f_y(x; w)) + (l2/2) ||w||^2
#
# Curvature products, a block of examples at a time, are those of Gauss-Newton, `J^T (diag(p) - p p^T) J + l2 I`, which
# has no negative eigenvalues, or of the Hessian itself (forward over reverse).

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
