"""Many models at once: descent on all of them side by side, and what a peer hands back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from expunge.evaluate.methods import MethodResult
from expunge.heads import LinearHead, Rows
from expunge.noise import Noise
from expunge.runtime.arrays import (
    Array,
    Device,
    add_to_diagonal,
    namespace,
    namespace_of,
    on_cpu,
    put,
    solve_triangular,
    zeros,
)

RETAINED = "retained rows"
TINY = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True)
class Forgotten(MethodResult):
    """What a peer ends with: models that were drawn, or weights and noise as any method has them.

    `steps` are passes over the retained rows at deletion, `seconds` what one deletion took of one core, `redrawn` how
    many of the models had to be trained anew.
    """

    models: Array | None = None  # draws x K x d
    steps: int = 0
    seconds: float = 0.0
    redrawn: int = 0
    needs: str = field(default=RETAINED)

    def ensemble(self, count: int, generator: np.random.Generator, noise: Noise | None = None) -> Array:
        """`count` models: those that were drawn, in order, and drawn from anew where more are asked for."""
        if self.models is None:
            return super().ensemble(count, generator, noise)
        known = len(self.models)
        more = generator.integers(known, size=max(0, count - known))
        drawn = self.models[put(np.concatenate([np.arange(min(count, known)), more]), self.models)]
        if noise is None:
            return drawn
        draws = np.stack([noise.shape.sample(noise.scale, generator) for _ in range(count)])
        return drawn + put(draws.reshape(drawn.shape), drawn)


def pull_of(head: LinearHead, rows: Rows) -> Array:
    """What the labels have of every gradient's sum, K x d: no weights change it, so a descent needs it once."""
    pull = namespace_of(rows.dtype).zeros((head.n_classes, head.n_features), dtype=rows.dtype, device=rows.device)
    for block in rows.blocks():
        pull += block.weighted(head.targets(block.labels, pull.dtype), 0).T @ block.features
    return pull


def gradients(head: LinearHead, models: Array, rows: Rows, pull: Array) -> Array:
    """Gradients of the regularised objective at each model, models x K x d; `pull` is the rows' own."""
    count, classes, width = models.shape
    flat = models.reshape(count * classes, width)
    total = zeros(flat)
    for block in rows.blocks():
        outputs = (block.features @ flat.T).reshape(-1, classes)
        predicted = head.predictions(outputs).reshape(len(block), -1)
        total += block.weighted(predicted, 0).T @ block.features
    return (total.reshape(models.shape) - pull) / len(rows) + head.l2 * models


def descend(head: LinearHead, models: Array, rows: Rows, steps: int, step: float) -> Array:
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


def within(vectors: Array, radius: float) -> Array:
    """Each model scaled down to this norm where it is longer."""
    xp = namespace(vectors)
    norms = xp.linalg.vector_norm(vectors.reshape(len(vectors), -1), axis=1)[:, None, None]
    return vectors * xp.clip(radius / xp.clip(norms, TINY, None), None, 1.0)


def standard_normal(like: Array, generator: np.random.Generator) -> Array:
    """Gaussian numbers of this shape; on another device than the processor drawn there, from a seed drawn here."""
    if on_cpu(like.device):
        return put(generator.standard_normal(tuple(like.shape)), like)
    there = torch.Generator(like.device).manual_seed(int(generator.integers(2**62)))
    return torch.randn(tuple(like.shape), generator=there, dtype=like.dtype, device=like.device)


def hessian(head: LinearHead, weights: Array, rows: Rows) -> Array:
    """The Hessian as blocks x size x size: one of all weights, or where classes do not touch one for each of them."""
    if head.shift_invariant or head.n_classes == 1:
        return head.curvature(weights, rows).dense()[None]
    slopes = head.slopes(head.predictions(rows.features @ weights.T).T)
    blocks = namespace(weights).stack([(rows.features * own[:, None]).T @ rows.features for own in slopes])
    return add_to_diagonal(blocks / len(rows), head.l2)


def solved(factors: Array, values: Array) -> Array:
    """What solves `(L L') x = values` for the lower factor L of each block; of the shape of the values."""
    columns = values.reshape(len(factors), -1, 1)
    half = solve_triangular(factors, columns)
    return solve_triangular(factors.mT, half, upper=True).reshape(values.shape)


class Clock:
    """Seconds of one core; on another device seconds on the clock, once all that was asked of it is done."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.began = self._now()

    def seconds(self) -> float:
        """Since it was made."""
        return self._now() - self.began

    def _now(self) -> float:
        if on_cpu(self.device):
            return time.process_time()
        if torch.device(self.device).type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def timed(delete: Callable[[Array], Array], starts: Array, alone: bool = True) -> tuple[Array, float]:
    """The deletion of each start, and the seconds that one took: the first is done alone, then the rest.

    Where nobody asks how long one takes, all are done together, and the seconds are of all of them.
    """
    clock = Clock(starts.device)
    first = delete(starts[:1] if alone else starts)
    seconds = clock.seconds()
    return (first if len(first) == len(starts) else namespace(first).concat([first, delete(starts[1:])])), seconds
