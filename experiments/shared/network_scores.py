"""The paper's columns for networks: accuracies, membership attack and relearn time of weights given as one vector."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from experiments.shared.paper_noise import PAPER_DELTA, PAPER_EPSILON
from expunge.bounds import PaperConstants, paper_bound
from expunge.bounds.calibration import sigma_classical
from expunge.evaluate.metrics import WITHIN, attack_membership, of_other_classes, relearn
from expunge.heads.tangent import Tangent, TangentRows

Scores = dict[str, float | None]

NOTHING_LEFT = (
    "RT is 0 where the forget accuracy never fell by half a point: the trained network knows its source "
    "hardly better than other images, so there is nothing to relearn."
)


@dataclass(frozen=True)
class NetworkTask:
    """What is asked of a trained network. Parts are `retain`, `forget` and `test`.

    `outputs(weights, part)` are rows x K; `losses(outputs, labels)` one number a row, without the regulariser;
    `gradient(weights, batch)` is that of the training objective on these forget rows. `original` are the trained
    weights. `splits` are the membership attack's.
    """

    labels: Mapping[str, Tensor]
    outputs: Callable[[Tensor, str], Tensor]
    losses: Callable[[Tensor, Tensor], Tensor]
    gradient: Callable[[Tensor, Tensor], Tensor]
    original: Tensor
    splits: int = 5

    def accuracy(self, weights: Tensor, part: str) -> float:
        return share_right(self.outputs(weights, part), self.labels[part])

    def scores(self, weights: Tensor, seed: int) -> Scores:
        """Train, test, retain and forget accuracy, MIA and RT; None where a metric means nothing."""
        outputs = {part: self.outputs(weights, part) for part in self.labels}
        scores: Scores = {part: share_right(outputs[part], self.labels[part]) for part in ("test", "retain", "forget")}
        sizes = {part: len(self.labels[part]) for part in ("retain", "forget")}
        right = sum(sizes[part] * float(scores[part] or 0.0) for part in sizes)
        scores["train"] = right / sum(sizes.values())
        scores["mia"] = self._membership(outputs, seed)
        scores["rt"] = relearn(
            weights,
            sizes["forget"],
            goal=self.accuracy(self.original, "forget") - WITHIN,
            accuracy_at=lambda at: self.accuracy(at, "forget"),
            gradient_at=self.gradient,
            seed=seed,
        ).value
        return scores

    def _membership(self, outputs: Mapping[str, Tensor], seed: int) -> float | None:
        labels = {part: self.labels[part].cpu().numpy() for part in ("forget", "test")}
        if of_other_classes(labels["forget"], labels["test"]):
            return None
        losses = {part: self.losses(outputs[part], self.labels[part]).cpu().double().numpy() for part in labels}
        return attack_membership(losses["forget"], losses["test"], seed, self.splits).value


def tangent_task(head: Tangent, trained: Tensor, rows: Mapping[str, TangentRows]) -> NetworkTask:
    """The columns' view of tangent weights."""

    def losses(outputs: Tensor, labels: Tensor) -> Tensor:
        targets = torch.nn.functional.one_hot(labels, outputs.shape[1]).double() * 2 - 1
        return (outputs - targets).square().sum(dim=1) / 2

    return NetworkTask(
        labels={name: part.labels for name, part in rows.items()},
        outputs=lambda weights, name: head.predictions(weights, rows[name]),
        losses=losses,
        gradient=lambda weights, batch: head.gradient(weights, rows["forget"][batch.to(head.device)]),
        original=trained,
    )


def share_right(outputs: Tensor, labels: Tensor) -> float:
    return float((outputs.argmax(dim=1) == labels).double().mean())


def with_noise(weights: Tensor, sigma: float, generator: np.random.Generator) -> Tensor:
    """Weights as they would be published, but for the grid that no metric sees."""
    return weights + sigma * torch.from_numpy(generator.standard_normal(weights.shape)).to(weights.device)


def paper_delta(l2: float, n_source: int, n_forget: int, n_surrogate: int, gradient_norm: float, kl: float) -> float:
    """Delta of the paper's theorem with the constants of its experiments, lambda being l2/2 as its loss is written."""
    return paper_bound(
        PaperConstants.of_the_experiments(l2 / 2.0),
        n_source=n_source,
        n_forget=n_forget,
        n_surrogate=n_surrogate,
        gradient_norm=gradient_norm,
        kl=kl,
    ).radius


def paper_sigma(delta: float) -> float:
    """Noise as in the paper's experiments (epsilon 5 e^3, delta 1): it certifies nothing."""
    return sigma_classical(delta, PAPER_EPSILON, PAPER_DELTA)
