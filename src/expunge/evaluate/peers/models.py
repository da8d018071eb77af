"""Many models at once: descent on all of them side by side, and what a peer hands back."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from expunge.evaluate.methods import Outcome
from expunge.heads import LinearHead, Rows
from expunge.noise import Noise

RETAINED = "retained rows"


@dataclass(frozen=True)
class Forgotten(Outcome):
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
        ).reshape(drawn.shape)


def gradients(head: LinearHead, models: Tensor, rows: Rows) -> Tensor:
    """Gradients of the regularised objective at each model, models x K x d."""
    count, classes, width = models.shape
    flat = models.reshape(count * classes, width)
    total = torch.zeros_like(flat)
    for block in rows.blocks():
        outputs = (block.features @ flat.T).reshape(-1, classes)
        residuals = head.predictions(outputs).reshape(len(block), count, classes)
        residuals = residuals - head.targets(block.labels, residuals.dtype)[:, None, :]
        total += block.weighted(residuals, 0).reshape(len(block), -1).T @ block.features
    return total.reshape(models.shape) / len(rows) + head.l2 * models


def descend(head: LinearHead, models: Tensor, rows: Rows, steps: int, step: float) -> Tensor:
    """So many steps of plain descent."""
    for _ in range(steps):
        models = models - step * gradients(head, models, rows)
    return models


def within(vectors: Tensor, radius: float) -> Tensor:
    """Each model scaled down to this norm where it is longer."""
    norms = vectors.flatten(1).norm(dim=1)[:, None, None]
    return vectors * torch.clamp(radius / norms.clamp(min=torch.finfo(vectors.dtype).tiny), max=1.0)


def standard_normal(like: Tensor, generator: np.random.Generator) -> Tensor:
    """Gaussian numbers of this shape."""
    return torch.from_numpy(generator.standard_normal(tuple(like.shape)))


def timed(delete: Callable[[Tensor], Tensor], starts: Tensor) -> tuple[Tensor, float]:
    """The deletion of each start, and the seconds of one core that one took: the first is done alone, then the rest."""
    began = time.process_time()
    first = delete(starts[:1])
    seconds = time.process_time() - began
    return (first if len(starts) == 1 else torch.cat([first, delete(starts[1:])])), seconds
