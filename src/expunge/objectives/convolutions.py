"""Convolutions as matrix products: the same function and the same parameters, in an order that suits float64 and torch.func.

Libraries tune convolutions for float32. In float64, and for one gradient an example, patches times a matrix is faster: on a GPU
by far, since matrix products in float64 are what its tensor cores have.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class UnfoldedConv2d(nn.Module):
    """`weight (out x in k k) times patches (in k k x positions)`. Shares its parameters with the layer it stands for."""

    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.kernel, self.stride, self.padding, self.dilation = (
            tuple(int(part) for part in given)
            for given in (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        down, across = self.padding
        padded = nn.functional.pad(inputs, (across, across, down, down)) if down or across else inputs
        height, width = (
            (size - spread * (kernel - 1) - 1) // step + 1
            for size, kernel, step, spread in zip(
                padded.shape[-2:], self.kernel, self.stride, self.dilation, strict=True
            )
        )

        def seen(row: int, column: int) -> Tensor:
            """What one entry of the kernel meets, position by position, channels last."""
            first, left = row * self.dilation[0], column * self.dilation[1]
            rows = slice(first, first + self.stride[0] * (height - 1) + 1, self.stride[0])
            columns = slice(left, left + self.stride[1] * (width - 1) + 1, self.stride[1])
            return padded[:, :, rows, columns].permute(0, 2, 3, 1)

        # slices and one copy: torch's own unfold starts a kernel for every example
        entries = [seen(row, column) for row in range(self.kernel[0]) for column in range(self.kernel[1])]
        patches = torch.stack(entries, dim=-1).flatten(0, 2).flatten(1)
        found = nn.functional.linear(patches, self.weight.flatten(1), self.bias)
        # contiguous: torch 2.13 gets batch normalisation's derivatives wrong for one example with the strides of a transpose
        return found.reshape(len(inputs), height, width, -1).permute(0, 3, 1, 2).contiguous()


def unfold_convolutions(module: nn.Module) -> nn.Module:
    """Replace, in place, each plain `Conv2d` (no groups, padding with zeros); names of parameters stay as they are."""
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
    )
