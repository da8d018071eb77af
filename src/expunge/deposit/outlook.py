"""What forgetting would cost, seen while the source is still there: accuracy on it after rehearsed deletions.

Groups of random rows were forgotten on trial when the deposit was made (making.py). Here each gets the noise that its
request would get: the smallest level that covers it at the mu of (epsilon, delta). `at once` is one
model without all of them; `one at a time` is a model after each, the last of them, all together at the same epsilon:
Gaussians compose by the sum of squares, so k models leave each `mu / sqrt(k)`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from expunge.bounds.calibration import mu_for
from expunge.certificate.claim import ARITHMETIC_SHARE
from expunge.deposit.blocks import norm_of
from expunge.deposit.classes import by_class
from expunge.deposit.contents import Deposit
from expunge.deposit.making import Made, Rehearsal, taken
from expunge.heads import RowSet
from expunge.heads.jacobians import JacobianRows
from expunge.heads.rows import evenly
from expunge.runtime.progress import Progress, silent

EPSILONS = (0.1, 1.0, 5.0)
POINT = 0.01
MOST_ROWS = 20_000  # of the source, to measure accuracy on
MOST_EXAMPLES = 1_000  # where each has to go through a network
MOST_GROUPS = 8  # of a size, to measure it for
LISTED = 200  # rows, at most, of the list that somebody is looked for in
UNUSUAL = 0.95  # of them are told less of


@dataclass(frozen=True)
class Forecast:
    """Forgetting so many random rows at this epsilon: the accuracy lost, or None where all groups were refused.

    `refused` of the groups need more noise than the last level, or have no finite region.
    """

    rows: int
    epsilon: float
    at_once: float | None
    one_at_a_time: float | None
    refused: int


@dataclass(frozen=True)
class Size:
    """A size that was rehearsed: `refused` of `groups` had no finite region."""

    rows: int
    groups: int
    refused: int


@dataclass(frozen=True)
class Affordable:
    """The largest size that was rehearsed at which most groups could be forgotten and lost no more than a point."""

    epsilon: float
    at_once: int
    one_at_a_time: int


@dataclass(frozen=True)
class Verdict:
    """Of so many random people, tried one by one: how many can leave at this epsilon with noise that is no larger than
    the model's outputs, and with noise that moves no output by more than a hundredth."""

    epsilon: float
    people: int
    can_leave: int
    unnoticed: int

    @property
    def serves(self) -> bool:
        """Whether at least half of them can leave."""
        return 2 * self.can_leave >= self.people


@dataclass(frozen=True)
class Traces:
    """What the anchor still tells of a row that left: somebody with the deposit of what is left, and a list of whole
    rows, ranks the right one above this share of the others, and one row in twenty above so many. Half is guessing."""

    ordinary: float
    unusual: float


class ServesFew(UserWarning):
    """A deposit was made that most people in it could not leave."""


@dataclass(frozen=True)
class Outlook:
    """What was found, at this delta; `accuracy` is that of the model, on rows of the source."""

    delta: float
    accuracy: float
    sizes: tuple[Size, ...]
    forecasts: tuple[Forecast, ...]
    verdict: Verdict
    traces: Traces | None = None

    @property
    def affordable(self) -> tuple[Affordable, ...]:
        epsilons = dict.fromkeys(each.epsilon for each in self.forecasts)
        return tuple(Affordable(e, self._most(e, "at_once"), self._most(e, "one_at_a_time")) for e in epsilons)

    def _most(self, epsilon: float, manner: str) -> int:
        most = 0
        for size in self.sizes:
            (found,) = [f for f in self.forecasts if (f.rows, f.epsilon) == (size.rows, epsilon)]
            lost = getattr(found, manner)
            if 2 * found.refused > size.groups or lost is None or lost > POINT:
                break
            most = size.rows
        return most

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {
            "affordable": [asdict(each) for each in self.affordable],
            "verdict": asdict(self.verdict) | {"serves": self.verdict.serves},
        }


def outlook(
    deposit: Deposit,
    rehearsed: Sequence[Rehearsal],
    rows: RowSet,
    *,
    epsilons: Sequence[float] = EPSILONS,
    progress: Progress = silent,
) -> Outlook:
    """The accuracy that rehearsed deletions would leave, at delta = 1/n."""
    judged, delta = judge(rows), 1.0 / max(2, len(rows))

    def accuracy(weights: Tensor) -> float:
        right = judged(weights)
        correct, count = rows.total(torch.tensor([float(right.sum()), float(len(right))], dtype=torch.float64))
        return float(correct / count)

    generator = np.random.default_rng(1)  # not the noise that protects: nothing of this is published
    anchor = deposit.model.matrix()
    before, sizes, forecasts = accuracy(deposit.settled.cpu()), [], []
    for index, rehearsal in enumerate(rehearsed):
        progress("Accuracy after rehearsed deletions", index, len(rehearsed))
        sizes.append(Size(rehearsal.rows, len(rehearsal.trials), rehearsal.none))
        for epsilon in epsilons:
            mu = mu_for(epsilon, delta * (1.0 - ARITHMETIC_SHARE))
            lost: list[float | None] = []
            for models in (1, rehearsal.rows):
                after: list[float] = []
                refused = 0
                for trial in rehearsal.trials:
                    scale = covering(deposit, trial.radius * math.sqrt(models) / mu)
                    if scale is None or trial.update is None:
                        refused += 1
                    elif len(after) < MOST_GROUPS:
                        noise = deposit.ellipsoid.sample(scale, generator)
                        after.append(accuracy(anchor + trial.update + torch.from_numpy(noise).reshape(anchor.shape)))
                lost.append(before - float(np.mean(after)) if after else None)
                if models == 1:
                    beyond = refused
            forecasts.append(Forecast(rehearsal.rows, epsilon, lost[0], lost[1], beyond))
    verdict, traces = verdict_of(deposit, rehearsed, delta), traces_of(deposit, rows)
    return Outlook(delta, before, tuple(sizes), tuple(forecasts), verdict, traces)


def traces_of(deposit: Deposit, rows: RowSet, seed: int = 2) -> Traces | None:
    """On random rows of the source. By the best test of Gaussian noise one of two rows is told from the other with
    `Phi(r/2)`, where r is how far apart they would have moved the optimum, in deviations of the anchor's noise.

    None where there is no such noise, or no second row.
    """
    deposit = deposit.on(rows.device)
    count, scale, sums = min(LISTED, len(rows)), deposit.numbers.anchor_noise, deposit.sums
    setting = replace(deposit.setting, stiff=1.0)
    norm = norm_of(setting.penalised(setting.stiffened(sums.curvature), deposit.penalty(sums.count)))
    if norm is None or not scale or count < 2:
        return None
    listed = taken(rows, np.random.default_rng(seed).choice(len(rows), count, replace=False))
    each, head = (by_class(taken(listed, [i]), deposit.record) for i in range(count)), replace(deposit.head, l2=0.0)
    moves = torch.stack([norm.solved(head.gradient(deposit.anchor, row)) for row in each])
    white = ((moves - moves.mean(dim=1, keepdim=True)) if setting.shift_free else moves) @ deposit.shape[0]
    apart = torch.cdist(white.flatten(1), white.flatten(1)) / (scale * sums.count)
    told = (torch.special.ndtr(apart / 2.0).sum(dim=1) - 0.5) / (count - 1)
    return Traces(float(told.mean()), float(told.quantile(UNUSUAL)))


def verdict_of(deposit: Deposit, rehearsed: Sequence[Rehearsal], delta: float, epsilon: float = 1.0) -> Verdict:
    """Whom this deposit serves; nobody where no single row was tried."""
    mu = mu_for(epsilon, delta * (1.0 - ARITHMETIC_SHARE))
    trials = next((each.trials for each in rehearsed if each.rows == 1), ())
    scales = [covering(deposit, trial.radius / mu) for trial in trials]
    quiet = deposit.output_spread / deposit.output_noise
    return Verdict(
        epsilon,
        len(trials),
        sum(scale is not None and scale <= quiet for scale in scales),
        sum(scale == deposit.levels[0] for scale in scales),
    )


def warn_if_few(made: Made) -> None:
    """Say at once, while the source is there, that a deposit is of little use; commands say it by themselves."""
    verdict = verdict_of(made.deposit, made.rehearsed, 1.0 / max(2, made.deposit.numbers.n_rows))
    if not verdict.serves:
        warnings.warn(
            f"{verdict.can_leave} of {verdict.people} random people could leave this deposit at epsilon "
            f"{verdict.epsilon:g}. Do not delete the source yet: keep a deposit of a model with a larger l2 (a smaller "
            "C), with a bias that is free, or of a ridge head",
            ServesFew,
            stacklevel=3,
        )


def covering(deposit: Deposit, scale: float) -> float | None:
    """The smallest level that is no less than this, with a little for what drawing it adds."""
    return next((each for each in deposit.levels if each >= scale * (1.0 + 1e-6)), None)


def judge(rows: RowSet) -> Callable[[Tensor], Tensor]:
    """Whether weights put rows that are evenly spread over the set into their classes, each."""
    if isinstance(rows, JacobianRows):
        examples = rows.taken(torch.arange(0, len(rows), -(-len(rows) // MOST_EXAMPLES)))
        return lambda weights: examples.predictions(weights).argmax(dim=1) == examples.labels
    shown = evenly(rows, MOST_ROWS)
    return lambda weights: _right(shown.features.double(), shown.labels, weights.to(shown.device))


def _right(features: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    outputs = features @ weights.T
    return (outputs[:, 0] > 0.0).long() == labels if len(weights) == 1 else outputs.argmax(dim=1) == labels
