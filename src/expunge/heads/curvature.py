"""The Hessian of a linear head over one set: products, the dense matrix, factors for preconditioning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from expunge.heads.rows import Block, RowSet, kept

if TYPE_CHECKING:
    from expunge.heads.linear import LinearHead

SAMPLE_BLOCK = 4096  # rows: square matrix products run at full speed from about here
DENSE_COLUMNS, DENSE_BYTES = 256, 1 << 21  # products of features at a time, and their size: they stay in cache
CLASS_MULTIPLE = 4  # thin matrix products run faster on a multiple of this many rows than on fewer


def padded(matrix: Tensor) -> Tensor:
    """The matrix with rows of zeros appended up to a multiple of `CLASS_MULTIPLE`."""
    missing = -matrix.shape[0] % CLASS_MULTIPLE
    return torch.nn.functional.pad(matrix, (0, 0, 0, missing)) if missing else matrix


@dataclass(frozen=True)
class CoupledRows:
    """Rows whose `C(p) = diag(p) - p p^T` is kept whole, in float64.

    `index` counts the sampled rows, `shares` are weight / rows.
    """

    index: Tensor
    features: Tensor
    predictions: Tensor
    shares: Tensor


def few_at_a_time(device: torch.device) -> bool:
    """Whether small products that stay in cache are faster than half as many large ones: not on a GPU."""
    return device.type == "cpu"


def product_means(
    rows: RowSet, pieces: Iterable[tuple[Block, Tensor]], entries_of: Callable[[Tensor], Tensor], classes: int
) -> Tensor:
    """Mean over the rows of `E kron x x^T`, K d x K d, from each row's values, classes first.

    `entries_of` makes the entries of each row's symmetric K x K matrix E, on and above the diagonal, from its values.
    """
    pairs = torch.triu_indices(classes, classes, device=rows.device)
    width, quarter = rows.n_features, rows.total(_quarter(rows, pieces, entries_of, pairs.shape[1])) / len(rows)
    half = quarter.triu() + quarter.triu(1).mT
    matrix = torch.empty((classes, classes, width, width), dtype=rows.dtype, device=rows.device)
    matrix[pairs[0], pairs[1]] = half
    matrix[pairs[1], pairs[0]] = half
    return matrix.transpose(1, 2).reshape(classes * width, classes * width)


def _quarter(
    rows: RowSet, pieces: Iterable[tuple[Block, Tensor]], entries_of: Callable[[Tensor], Tensor], n_pairs: int
) -> Tensor:
    """Sums of `E_kl x_i x_j` for k <= l and i <= j; entries below the diagonals are of no use."""
    width = rows.n_features
    total = torch.zeros((n_pairs, width, width), dtype=rows.dtype, device=rows.device)
    if not few_at_a_time(total.device):
        for block, values in pieces:
            entries = entries_of(values)
            if block.weights is not None:
                entries = entries * block.weights.to(entries.dtype)
            for pair, entry in zip(total, entries, strict=True):
                pair.addmm_((block.features * entry[:, None]).T, block.features)
        return total
    together = max(1, DENSE_COLUMNS // width)
    most = max(16, DENSE_BYTES // (together * width * total.element_size()))
    for block, values in pieces:
        for start in range(0, len(block), most):
            features = block.features[start : start + most].T.contiguous()  # long rows multiply faster
            entries = entries_of(values[:, start : start + most])
            if block.weights is not None:
                entries = entries * block.weights[start : start + most].to(entries.dtype)
            for first in range(0, width, together):
                last = min(first + together, width)
                products = (features[first:last, None] * features[None, first:]).reshape(-1, features.shape[1])
                total[:, first:last, first:] += (entries @ products.T).reshape(n_pairs, last - first, width - first)
    return total


class Curvature:
    """The Hessian of `L` over one set at fixed weights: products, the dense matrix, and factors for preconditioning.

    Predictions are kept where the rows allow it, since they are K/d of the data and every product needs them; classes
    first, padded, which is the layout the matrix products are fastest in. Works in the rows' own dtype.
    """

    def __init__(self, objective: LinearHead, weights: Tensor, rows: RowSet) -> None:
        self.objective = objective
        self.rows = rows
        self.weights = weights.to(rows.dtype)
        self.height = objective.n_classes + -objective.n_classes % CLASS_MULTIPLE
        self.predicted = kept(rows, self._predict, self.height)

    def _predict(self, block: Block) -> Tensor:
        predictions = torch.zeros((self.height, len(block)), dtype=self.weights.dtype, device=self.weights.device)
        predictions[: self.objective.n_classes] = self.objective.predictions(block.features @ self.weights.T).T
        return predictions

    def product(self, direction: Tensor) -> Tensor:
        """`H V`, in two matrix products a block and one pass between them."""
        wide = padded(direction)
        total = torch.zeros_like(wide)
        for block, predictions in self.predicted():
            curved = self.objective.curve(predictions, wide @ block.features.T)
            total.addmm_(block.weighted(curved, 1), block.features)
        total = self.rows.total(total)[: len(direction)]
        return total.div_(len(self.rows)).add_(direction, alpha=self.objective.l2)

    def dense(self) -> Tensor:
        """The p x p Hessian, weights in row-major order.

        `C(p)` and `x x^T` are both symmetric: a quarter of the entries says it all. They are the matrix product of the
        entries of `C(p)` above the diagonal with the products `x_i x_j`, i <= j, which are formed for a few i at a
        time (`product_means`).
        """
        objective, rows = self.objective, self.rows
        if objective.constant_curvature:
            flat = torch.kron(self.class_factor(), self.feature_factor())
        else:
            classes = objective.n_classes
            pieces = ((block, predictions[:classes]) for block, predictions in self.predicted())
            flat = product_means(rows, pieces, objective.curvature_entries, classes)
        flat.diagonal().add_(objective.l2)
        return flat

    def class_factor(self) -> Tensor:
        """Mean of `C(p)` over the rows, K x K."""
        classes = self.objective.n_classes
        total = torch.zeros((classes, classes), dtype=self.weights.dtype, device=self.weights.device)
        for block, predictions in self.predicted():
            weights = predictions.new_ones(len(block)) if block.weights is None else block.weights.to(predictions)
            total += self.objective.curvature_sum(predictions[:classes], weights)
        return self.rows.total(total) / len(self.rows)

    def feature_factor(self, most: int | None = None) -> Tensor:
        """Mean of `x x^T` over the rows, d x d; over about `most` of them, evenly spread, where that is enough."""
        width, step = self.objective.n_features, 1 if most is None else max(1, len(self.rows) // most)
        total = torch.zeros((width, width), dtype=self.weights.dtype, device=self.weights.device)
        count = torch.zeros((), dtype=torch.float64)
        for block in self.rows.blocks():
            part = slice(-(self.rows.n_before + block.start) % step, None, step)
            features = block.features[part]
            weighted = features if block.weights is None else features * block.weights[part, None].to(features.dtype)
            total.addmm_(weighted.T, features)
            count += len(features)
        return self.rows.total(total) / float(self.rows.total(count))

    def class_blocks(self, most: int | None = None, without: Tensor | None = None) -> Tensor:
        """Mean of `c_k(p) x x^T` for each class k, K x d x d; over about `most` rows, evenly spread.

        Sampled rows whose numbers are in `without` count as rows and add nothing.
        """
        classes, width = self.objective.n_classes, self.objective.n_features
        total = torch.zeros((classes, width, width), dtype=self.weights.dtype, device=self.weights.device)
        count = torch.zeros((), dtype=torch.float64)
        for features, predictions, weights in self._sampled(most):
            separated = self.objective.separated(predictions)
            if without is not None:
                here = without - int(count)
                separated[:, here[(here >= 0) & (here < len(features))]] = 0.0
            for index in range(classes):
                total[index].addmm_((features * (separated[index] * weights)[:, None]).T, features)
            count += len(features)
        return self.rows.total(total).div_(float(self.rows.total(count)))

    def coupled_rows(self, most: int | None, n_chosen: int) -> CoupledRows:
        """Of the same sample, at most `n_chosen` rows with the largest `w coupling(p) ||x||^2`.

        This process's rows only.
        """
        device = self.weights.device
        scores = torch.zeros(0, dtype=torch.float64, device=device)
        index = torch.zeros(0, dtype=torch.int64, device=device)
        kept_features = torch.zeros((0, self.objective.n_features), dtype=torch.float64, device=device)
        kept_weights = scores
        count = 0
        for features, predictions, weights in self._sampled(most) if n_chosen else ():
            wide = features.double()
            block_scores = self.objective.coupling(predictions.double()) * weights * wide.square().sum(dim=1)
            scores = torch.cat([scores, block_scores])
            best = torch.sort(scores, descending=True, stable=True).indices[:n_chosen]
            best = best[scores[best] > 0]
            numbers = torch.arange(count, count + len(features), device=device)
            scores, index = scores[best], torch.cat([index, numbers])[best]
            kept_features = torch.cat([kept_features, wide])[best]
            kept_weights = torch.cat([kept_weights, weights.double()])[best]
            count += len(features)
        predicted = self.objective.predictions(kept_features @ self.weights.double().T)
        return CoupledRows(index, kept_features, predicted, kept_weights / max(1, count))

    def _sampled(self, most: int | None) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """About `most` rows, joined to large blocks: features, predictions (classes first) and weights."""
        step = 1 if most is None else max(1, len(self.rows) // most)
        waiting: list[tuple[Tensor, Tensor]] = []
        for block in self.rows.blocks():
            part = slice(-(self.rows.n_before + block.start) % step, None, step)
            features = block.features[part].clone()  # the block's memory may be used again for the next one
            block_weights = (
                features.new_ones(len(features)) if block.weights is None else block.weights[part].to(features)
            )
            waiting.append((features, block_weights.clone()))
            if sum(len(each) for _, each in waiting) >= SAMPLE_BLOCK:
                yield self._joined(waiting)
                waiting = []
        if waiting:
            yield self._joined(waiting)

    def _joined(self, parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
        features = torch.cat([features for features, _ in parts])
        predictions = self.objective.predictions(features @ self.weights.T).T.contiguous()
        return features, predictions, torch.cat([weights for _, weights in parts])
