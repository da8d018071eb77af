"""Convolutions as matrix products.

The same function and the same parameters, in an order that suits float64 and torch.func.

Libraries tune convolutions for float32. In float64, and for one gradient an example, patches times a matrix is faster:
on a GPU by far, since matrix products in float64 are what its tensor cores have.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


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
