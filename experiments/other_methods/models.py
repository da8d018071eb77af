"""Many models at once: descent on all of them side by side, and what a peer hands back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from expunge.evaluate.methods import MethodResult
from expunge.heads import LinearHead, Rows
from expunge.noise import Noise

RETAINED = "retained rows"


@dataclass(frozen=True)
class Forgotten(MethodResult):
    """What a peer ends with: models that were drawn, or weights and noise as any method has them.

    `steps` are passes over the retained rows at deletion, `seconds` what one deletion took of one core, `redrawn` how
    many of the models had to be trained anew.
    """

    models: Tensor | None = None  # draws x K x d
    steps: int = 0
    seconds: float = 0.0
    redrawn: int = 0
    needs: str = field(default=RETAINED)

    def ensemble(self, count: int, generator: np.random.Generator, noise: Noise | None = None) -> Tensor:
        """`count` models: those that were drawn, in order, and drawn from anew where more are asked for."""
        if self.models is None:
            return super().ensemble(count, generator, noise)
        known = len(self.models)
        more = generator.integers(known, size=max(0, count - known))
        drawn = self.models[torch.from_numpy(np.concatenate([np.arange(min(count, known)), more]))]
        if noise is None:
            return drawn
        return drawn + torch.from_numpy(
            np.stack([noise.shape.sample(noise.scale, generator) for _ in range(count)])
        ).reshape(drawn.shape).to(drawn.device)


def pull_of(head: LinearHead, rows: Rows) -> Tensor:
    """What the labels have of every gradient's sum, K x d: no weights change it, so a descent needs it once."""
    pull = torch.zeros((head.n_classes, head.n_features), dtype=rows.dtype, device=rows.device)
    for block in rows.blocks():
        pull += block.weighted(head.targets(block.labels, pull.dtype), 0).T @ block.features
    return pull


def gradients(head: LinearHead, models: Tensor, rows: Rows, pull: Tensor) -> Tensor:
    """Gradients of the regularised objective at each model, models x K x d; `pull` is the rows' own."""
    count, classes, width = models.shape
    flat = models.reshape(count * classes, width)
    total = torch.zeros_like(flat)
    for block in rows.blocks():
        outputs = (block.features @ flat.T).reshape(-1, classes)
        predicted = head.predictions(outputs).reshape(len(block), -1)
        total += block.weighted(predicted, 0).T @ block.features
    return (total.reshape(models.shape) - pull) / len(rows) + head.l2 * models


def descend(head: LinearHead, models: Tensor, rows: Rows, steps: int, step: float) -> Tensor:
    """So many steps of plain descent."""
    pull = pull_of(head, rows)
    for _ in range(steps):
        models = models - step * gradients(head, models, rows, pull)
    return models


def left_by_requests(rows: Mapping[str, Rows], sequence: bool) -> list[Rows]:
    """What is retained after each request: all rows to forget at once, or one by one.

    They are the last of all rows.
    """
    if not sequence:
        return [rows["retain"]]
    train, kept = rows["train"], len(rows["retain"])
    return [Rows(train.features[:stay], train.labels[:stay]) for stay in range(len(train) - 1, kept - 1, -1)]


def within(vectors: Tensor, radius: float) -> Tensor:
    """Each model scaled down to this norm where it is longer."""
    norms = vectors.flatten(1).norm(dim=1)[:, None, None]
    return vectors * torch.clamp(radius / norms.clamp(min=torch.finfo(vectors.dtype).tiny), max=1.0)


def standard_normal(like: Tensor, generator: np.random.Generator) -> Tensor:
    """Gaussian numbers of this shape; on another device than the processor drawn there, from a seed drawn here."""
    if like.device.type == "cpu":
        return torch.from_numpy(generator.standard_normal(tuple(like.shape)))
    there = torch.Generator(like.device).manual_seed(int(generator.integers(2**62)))
    return torch.randn(tuple(like.shape), generator=there, dtype=like.dtype, device=like.device)


def hessian(head: LinearHead, weights: Tensor, rows: Rows) -> Tensor:
    """The Hessian as blocks x size x size: one of all weights, or where classes do not touch one for each of them."""
    if head.shift_invariant or head.n_classes == 1:
        return head.curvature(weights, rows).dense()[None]
    slopes = head.slopes(head.predictions(rows.features @ weights.T).T)
    blocks = torch.stack([(rows.features * own[:, None]).T @ rows.features for own in slopes]) / len(rows)
    blocks.diagonal(dim1=1, dim2=2).add_(head.l2)
    return blocks


def solved(factors: Tensor, values: Tensor) -> Tensor:
    """What solves `(L L') x = values` for the lower factor L of each block; of the shape of the values."""
    columns = values.reshape(len(factors), -1, 1)
    return torch.cholesky_solve(columns, factors).reshape(values.shape)


class Clock:
    """Seconds of one core; on another device seconds on the clock, once all that was asked of it is done."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.began = self._now()

    def seconds(self) -> float:
        """Since it was made."""
        return self._now() - self.began

    def _now(self) -> float:
        if self.device.type == "cpu":
            return time.process_time()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def timed(delete: Callable[[Tensor], Tensor], starts: Tensor, alone: bool = True) -> tuple[Tensor, float]:
    """The deletion of each start, and the seconds that one took: the first is done alone, then the rest.

    Where nobody asks how long one takes, all are done together, and the seconds are of all of them.
    """
    clock = Clock(starts.device)
    first = delete(starts[:1] if alone else starts)
    seconds = clock.seconds()
    return (first if len(first) == len(starts) else torch.cat([first, delete(starts[1:])])), seconds
