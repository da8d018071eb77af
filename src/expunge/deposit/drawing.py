"""Noise with a deposit's shape where the shape is on a GPU: drawn there, by the same arithmetic.

Of n weights the shape has n^2 numbers; to send them over and to go through them with twice the digits on a processor
takes many times as long as all the rest of a request. Sums and products of float64 are rounded on a GPU as they are
anywhere, operation by operation: none of those below is fused with another, since each is a call of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from expunge.bounds.ellipsoid import TWICE, TWO_FACTORS, Ellipsoid

Array = NDArray[np.float64]
TOGETHER = 1 << 25  # products at a time


@dataclass(frozen=True)
class DeviceEllipsoid(Ellipsoid):
    """The same with its factors, b x q x q, on a device."""

    shape: Tensor | None = None

    def whitened(self, vectors: Array) -> Array:
        assert self.shape is not None
        parts = torch.from_numpy(vectors.reshape(len(vectors), *self._parts)).to(self.shape)
        if len(self.shape) == 1:
            return np.asarray((parts @ self.shape[0]).reshape(len(vectors), -1).cpu())
        by_block = torch.bmm(parts.transpose(0, 1), self.shape)  # a broadcast product would copy the shape for each
        return np.asarray(by_block.transpose(0, 1).reshape(len(vectors), -1).cpu())

    @property
    def _parts(self) -> tuple[int, int]:
        assert self.shape is not None
        size = int(self.shape.shape[-1])
        return self.n_parameters // size, size

    def _shared(self, normals: Array) -> Iterator[tuple[Any, Array]]:
        assert self.shape is not None
        if len(self.shape) == 1:
            yield self.shape[0], normals
        else:
            yield from zip(self.shape, normals[:, None], strict=True)

    def _backward(self, factor: Any, rows: Array) -> Array:
        columns = torch.from_numpy(np.ascontiguousarray(rows.T)).to(factor)
        return np.asarray(torch.linalg.solve_triangular(factor.T, columns, upper=True).T.cpu())

    def _left(self, factor: Any, solutions: Array, beyond: Array, normals: Array) -> tuple[Array, Array]:
        own, more, goal = (
            torch.from_numpy(np.ascontiguousarray(each)).to(factor) for each in (solutions, beyond, normals)
        )
        left, squares = torch.empty_like(goal), torch.zeros(len(own), dtype=torch.float64, device=factor.device)
        step = max(1, TOGETHER // own.numel())
        for start in range(0, len(factor), step):
            columns = slice(start, start + step)
            transposed = factor[start:, columns].T.contiguous()  # above the diagonal there is nothing
            left[:, columns] = _left(transposed, own[:, None, start:], more[:, None, start:], goal[:, columns])
            squares += (own[:, start:].abs() @ transposed.abs().T).square().sum(dim=1)
        unseen = squares.sqrt() * ((len(factor) + 64) * TWICE)
        return np.asarray(left.cpu()), np.asarray(unseen.cpu())


def _left(transposed: Tensor, solutions: Tensor, beyond: Tensor, normals: Tensor) -> Tensor:
    """`z - L' (y + beyond)` with twice the digits of float64, for some columns of L."""
    products, lost = _two_product(transposed, solutions)
    smaller = (lost + transposed * beyond).sum(dim=2)
    total, off = _exact_sum(products)
    difference, rounded = _two_sum(normals, -total)
    return difference + (rounded - off - smaller)


def _two_sum(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """The sum in float64, and exactly what it lost (Knuth)."""
    total = first + second
    added = total - first
    return total, (first - (total - added)) + (second - added)


def _two_product(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """The product in float64, and exactly what it lost (Dekker)."""
    product = first * second
    (high, low), (other_high, other_low) = _halves(first), _halves(second)
    return product, ((high * other_high - product) + high * other_low + low * other_high) + low * other_low


def _halves(values: Tensor) -> tuple[Tensor, Tensor]:
    scaled = TWO_FACTORS * values
    high = scaled - (scaled - values)
    return high, values - high


def _exact_sum(terms: Tensor) -> tuple[Tensor, Tensor]:
    """Sums along the last axis, in pairs, and what they lost."""
    lost = torch.zeros(terms.shape[:-1], dtype=terms.dtype, device=terms.device)
    while terms.shape[-1] > 1:
        half = terms.shape[-1] // 2
        pairs, off = _two_sum(terms[..., :half], terms[..., half : 2 * half])
        lost += off.sum(dim=-1)
        terms = torch.cat([pairs, terms[..., 2 * half :]], dim=-1)
    return terms[..., 0], lost
