"""What forgetting will cost, seen while the source is still there.

Groups of random rows are forgotten on trial when a deposit is made: `rehearse` finds the radius each needs. Then
`forecast` gives each group the noise that its request would get, the smallest level that covers it at the mu of
(epsilon, delta), and measures accuracy on the source. `at once` is one model without all of them; `one at a time` is a
model after each, the last of them, all together at the same epsilon: Gaussians compose by the sum of squares, so k
models leave each `mu / sqrt(k)`.
"""

from __future__ import annotations

import math
import secrets
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from expunge.bounds.calibration import LARGEST_SCALE, mu_for
from expunge.bounds.deposit import deposit_bound
from expunge.certificate.claim import ARITHMETIC_SHARE
from expunge.deposit.file import Deposit
from expunge.deposit.membership import sum_rows
from expunge.deposit.region import smallest_region
from expunge.deposit.sums import by_class
from expunge.errors import ModelError
from expunge.heads import Rows, RowSet
from expunge.heads.rows import evenly
from expunge.heads.tangent import JacobianRows
from expunge.runtime.progress import Progress, silent

GROUPS = ((200, 24), (1_000, 8), (2_000, 4), (10**9, 2))  # rehearsed of a size: up to so many weights, so many
FEW_GROUPS = 2  # of a good part of the source, since each takes long: the list goes on to ten times what they need
SIZES = (1, 10, 100)  # rows that are rehearsed with, and one in a hundred of the source, and one in ten
EPSILONS = (0.1, 1.0, 5.0)
POINT = 0.01
MOST_ROWS = 20_000  # of the source, to measure accuracy on
MOST_EXAMPLES = 1_000  # where each has to go through a network
MOST_GROUPS = 8  # of a size, to measure it for
LISTED = 200  # rows, at most, of the list that somebody is looked for in
UNUSUAL = 0.95  # of them are told less of


# Rehearsal ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """One group of rows forgotten on trial: the radius it needs, infinite where there is none, and its update."""

    radius: float
    update: Tensor | None


@dataclass(frozen=True)
class Rehearsal:
    """What random groups of so many rows of the source would need, each of them tried."""

    rows: int
    trials: tuple[Trial, ...]

    @property
    def finite(self) -> list[float]:
        """The radii of the groups that have one, from the smallest."""
        return sorted(each.radius for each in self.trials if math.isfinite(each.radius))

    @property
    def none(self) -> int:
        """How many groups had no finite region."""
        return len(self.trials) - len(self.finite)

    @property
    def radius(self) -> float:
        """The largest that is finite; infinite where none is."""
        return max(self.finite, default=math.inf)


def sizes_for(count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How many rows of a source are rehearsed with: as requests usually have, and as large ones have, if that is more.

    >>> sizes_for(30_000), sizes_for(700)
    (((1, 10, 100, 300), (3000,)), ((1, 7, 10, 100), ()))
    """
    ordinary = tuple(sorted({*SIZES, count // 100} - {0}))
    return ordinary, (count // 10,) if count // 10 > ordinary[-1] else ()


def rehearse(
    deposit: Deposit,
    rows: RowSet,
    *,
    people: tuple[Trial, ...] | None = None,
    progress: Progress = silent,
    seed: int | None = None,
) -> tuple[Rehearsal, ...]:
    """Forget random groups of each size on trial, up to the noise; `people` are single rows that were tried already."""
    ordinary, large = sizes_for(len(rows))
    return (
        *rehearse_sizes(deposit, rows, ordinary, people=people, progress=progress, seed=seed),
        *rehearse_sizes(deposit, rows, large, FEW_GROUPS, progress=progress, seed=seed),
    )


def rehearse_sizes(
    deposit: Deposit,
    rows: RowSet,
    sizes: tuple[int, ...],
    most: int = 10**9,
    *,
    people: tuple[Trial, ...] | None = None,
    progress: Progress = silent,
    seed: int | None = None,
) -> tuple[Rehearsal, ...]:
    """Of these sizes, so many groups at most, and not more than half of the rows."""
    rehearsals = []
    for groups in random_groups(deposit, rows, sizes, most, seed=seed):
        size = len(groups[0])
        trials = list(people or ()) if size == 1 else []
        for done in range(len(trials), len(groups)):
            progress(f"Rehearsals with {size:,} rows", done, len(groups))
            trials.append(try_removal(deposit, choose(rows, groups[done])))
        rehearsals.append(Rehearsal(size, tuple(trials)))
    return tuple(rehearsals)


def random_groups(
    deposit: Deposit, rows: RowSet, sizes: tuple[int, ...], most: int = 10**9, *, seed: int | None = None
) -> Iterator[list[NDArray[np.int64]]]:
    """Groups of rows by number: so many of each size as there is time for, the same in every process."""
    drawn = torch.tensor(secrets.randbits(53) if seed is None else seed, dtype=torch.float64)
    generator = np.random.default_rng(int(rows.agreed(drawn)))
    weights = deposit.model.matrix().numel()
    count = min(most, next(count for limit, count in GROUPS if weights <= limit))
    if deposit.setting.quadratic and weights > GROUPS[0][0]:
        count = 1  # a square leaves nothing to rehearse but rounding
    for size in sizes:
        if 2 * size <= len(rows):
            yield [generator.choice(len(rows), size, replace=False) for _ in range(count)]


def try_removal(deposit: Deposit, rows: RowSet) -> Trial:
    """What forgetting these rows would need."""
    retained = replace(deposit, sums=deposit.sums.without(sum_rows(deposit, rows)))
    try:
        result = smallest_region(retained.problem)
    except ModelError:  # the noise has no shape
        result = None
    radius = math.inf if result is None else deposit_bound(result.facts).radius
    if result is None or radius > LARGEST_SCALE:  # no noise is that large
        return Trial(math.inf, None)
    return Trial(radius, result.update.cpu())


def choose(rows: RowSet, chosen: Any) -> RowSet:
    """Some rows of a set, by number, in every process that has a share of it."""
    wanted = torch.as_tensor(np.sort(np.asarray(chosen)))
    if isinstance(rows, JacobianRows):
        return rows.taken(wanted)
    features = torch.zeros((len(wanted), rows.n_features), dtype=torch.float64, device=rows.device)
    labels = torch.zeros(len(wanted), dtype=torch.float64, device=rows.device)
    for block in rows.blocks():
        start = rows.n_before + block.start
        places = torch.nonzero((wanted >= start) & (wanted < start + len(block))).reshape(-1)
        inside, places = (wanted[places] - start).to(rows.device), places.to(rows.device)
        features[places] = block.features[inside].double()
        labels[places] = block.labels[inside].double()
    return Rows(rows.total(features), rows.total(labels).long())


# Forecast -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SizeForecast:
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
class DepositVerdict:
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
class Forecast:
    """What was found, at this delta; `accuracy` is that of the model, on rows of the source."""

    delta: float
    accuracy: float
    sizes: tuple[Size, ...]
    forecasts: tuple[SizeForecast, ...]
    verdict: DepositVerdict
    traces: Traces | None = None

    @property
    def affordable(self) -> tuple[Affordable, ...]:
        epsilons = dict.fromkeys(each.epsilon for each in self.forecasts)
        return tuple(Affordable(e, self._most(e, "at_once"), self._most(e, "one_at_a_time")) for e in epsilons)

    def _most(self, epsilon: float, manner: str) -> int:
        most = 0
        for size in self.sizes:
            (known,) = [f for f in self.forecasts if (f.rows, f.epsilon) == (size.rows, epsilon)]
            lost = getattr(known, manner)
            if 2 * known.refused > size.groups or lost is None or lost > POINT:
                break
            most = size.rows
        return most

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {
            "affordable": [asdict(each) for each in self.affordable],
            "verdict": asdict(self.verdict) | {"serves": self.verdict.serves},
        }


def forecast(
    deposit: Deposit,
    rehearsals: Sequence[Rehearsal],
    rows: RowSet,
    *,
    epsilons: Sequence[float] = EPSILONS,
    progress: Progress = silent,
) -> Forecast:
    """The accuracy that rehearsed deletions would leave, at delta = 1/n."""
    is_right, delta = _judge(rows), 1.0 / max(2, len(rows))

    def accuracy(weights: Tensor) -> float:
        right = is_right(weights)
        correct, count = rows.total(torch.tensor([float(right.sum()), float(len(right))], dtype=torch.float64))
        return float(correct / count)

    generator = np.random.default_rng(1)  # not the noise that protects: nothing of this is published
    anchor = deposit.model.matrix()
    before, sizes, forecasts = accuracy(deposit.reference_weights.cpu()), [], []

    def lost(rehearsal: Rehearsal, mu: float) -> tuple[float | None, int]:
        """The accuracy lost, and how many groups were refused."""
        covered = [(trial, smallest_level(deposit, trial.radius / mu)) for trial in rehearsal.trials]
        groups = [(trial.update, scale) for trial, scale in covered if trial.update is not None and scale is not None]
        after = []
        for update, scale in groups[:MOST_GROUPS]:
            noise = torch.from_numpy(deposit.ellipsoid.sample(scale, generator)).reshape(anchor.shape)
            after.append(accuracy(anchor + update + noise))
        return before - float(np.mean(after)) if after else None, len(covered) - len(groups)

    for index, rehearsal in enumerate(rehearsals):
        progress("Accuracy after rehearsed deletions", index, len(rehearsals))
        sizes.append(Size(rehearsal.rows, len(rehearsal.trials), rehearsal.none))
        for epsilon in epsilons:
            mu = mu_for(epsilon, delta * (1.0 - ARITHMETIC_SHARE))
            at_once, refused = lost(rehearsal, mu)
            one_at_a_time, _ = lost(rehearsal, mu / math.sqrt(rehearsal.rows))
            forecasts.append(SizeForecast(rehearsal.rows, epsilon, at_once, one_at_a_time, refused))
    verdict, traces = verdict_of(deposit, rehearsals, delta), traces_of(deposit, rows)
    return Forecast(delta, before, tuple(sizes), tuple(forecasts), verdict, traces)


def traces_of(deposit: Deposit, rows: RowSet, seed: int = 2) -> Traces | None:
    """On random rows of the source. By the best test of Gaussian noise one of two rows is told from the other with
    `Phi(r/2)`, where r is how far apart they would have moved the optimum, in deviations of the anchor's noise.

    None where there is no such noise, or no second row.
    """
    deposit = deposit.on(rows.device)
    count, scale = min(LISTED, len(rows)), deposit.numbers.anchor_noise
    problem = replace(deposit.problem, setting=replace(deposit.setting, stiff=1.0))
    if not problem.solvable or not scale or count < 2:
        return None
    listed = choose(rows, np.random.default_rng(seed).choice(len(rows), count, replace=False))
    each, head = (by_class(choose(listed, [i]), deposit.record) for i in range(count)), replace(deposit.head, l2=0.0)
    moves = torch.stack([problem.system.solved(head.gradient(deposit.anchor, row)) for row in each])
    white = ((moves - moves.mean(dim=1, keepdim=True)) if problem.setting.shift_free else moves) @ deposit.shape[0]
    apart = torch.cdist(white.flatten(1), white.flatten(1)) / (scale * deposit.sums.count)
    told = (torch.special.ndtr(apart / 2.0).sum(dim=1) - 0.5) / (count - 1)
    return Traces(float(told.mean()), float(told.quantile(UNUSUAL)))


def verdict_of(deposit: Deposit, rehearsals: Sequence[Rehearsal], delta: float, epsilon: float = 1.0) -> DepositVerdict:
    """Whom this deposit serves; nobody where no single row was tried."""
    mu = mu_for(epsilon, delta * (1.0 - ARITHMETIC_SHARE))
    trials = next((each.trials for each in rehearsals if each.rows == 1), ())
    scales = [smallest_level(deposit, trial.radius / mu) for trial in trials]
    quiet = deposit.output_spread / deposit.output_noise
    can_leave = sum(scale is not None and scale <= quiet for scale in scales)
    return DepositVerdict(epsilon, len(trials), can_leave, sum(scale == deposit.levels[0] for scale in scales))


def warn_if_few(deposit: Deposit, rehearsals: Sequence[Rehearsal]) -> None:
    """Say at once, while the source is there, that a deposit is of little use; commands say it by themselves."""
    verdict = verdict_of(deposit, rehearsals, 1.0 / max(2, deposit.numbers.n_rows))
    if not verdict.serves:
        warnings.warn(
            f"{verdict.can_leave} of {verdict.people} random people could leave this deposit at epsilon "
            f"{verdict.epsilon:g}. Do not delete the source yet: keep a deposit of a model with a larger l2 (a smaller "
            "C), with a bias that is free, or of a ridge head",
            ServesFew,
            stacklevel=3,
        )


def smallest_level(deposit: Deposit, scale: float) -> float | None:
    """The smallest level that is no less than this, with a little for what drawing it adds."""
    return next((each for each in deposit.levels if each >= scale * (1.0 + 1e-6)), None)


def _judge(rows: RowSet) -> Callable[[Tensor], Tensor]:
    """Whether weights put rows that are evenly spread over the set into their classes, each."""
    if isinstance(rows, JacobianRows):
        examples = rows.taken(torch.arange(0, len(rows), -(-len(rows) // MOST_EXAMPLES)))
        return lambda weights: examples.predictions(weights).argmax(dim=1) == examples.labels
    shown = evenly(rows, MOST_ROWS)
    features = shown.features.double()

    def is_right(weights: Tensor) -> Tensor:
        outputs = features @ weights.to(shown.device).T
        predicted = (outputs[:, 0] > 0.0).long() if len(weights) == 1 else outputs.argmax(dim=1)
        return predicted == shown.labels

    return is_right
