"""What forgetting will cost, seen while the source is still there.

Random rows are forgotten on trial, up to the noise: groups of several sizes by `forecast`, and single rows when a
deposit is made, most of them to first order. Each group is given the noise that its request would get, the smallest
level that covers it at the mu of (epsilon, delta), and accuracy is measured on the source. `at once` is one model
without all of them; `one at a time` is a model after each, the last of them, all together at the same epsilon:
Gaussians compose by the sum of squares, so k models leave each `mu / sqrt(k)`.
"""

from __future__ import annotations

import math
import secrets
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from expunge.bounds.calibration import LARGEST_SCALE, mu_for
from expunge.bounds.deposit import LONG_ROWS, RANGE, THIRD, DepositFacts
from expunge.certificate.claim import ARITHMETIC_SHARE
from expunge.deposit.file import HARMLESS, Deposit
from expunge.deposit.matrices import top_of
from expunge.deposit.membership import sum_rows
from expunge.deposit.region import LARGEST_REACH, RetainedProblem, Routes, smallest_region
from expunge.deposit.sums import by_class
from expunge.errors import ModelError
from expunge.heads import Rows, RowSet
from expunge.heads.rows import evenly
from expunge.heads.tangent import JacobianRows
from expunge.runtime.arrays import Array, cast, double, namespace, namespace_of, put, to_numpy, zeros
from expunge.runtime.progress import Progress, silent

GROUPS = ((200, 24), (1_000, 8), (2_000, 4), (10**9, 2))  # tried of a size: up to so many weights, so many
FEW_GROUPS = 2  # of a good part of the source, since each takes long
EPSILONS = (0.1, 1.0, 5.0)
POINT = 0.01
MOST_ROWS = 20_000  # of the source, to measure accuracy on
MOST_EXAMPLES = 1_000  # where each has to go through a network
MOST_GROUPS = 8  # of a size, to measure it for
BOUNDED = 2  # single rows, of those tried, whose region is worked out in full: those that a verdict is closest for;
MOST_WEIGHTS = 2_000  # up to so many weights: beyond, a region takes as long as all sums
LISTED = 200  # rows, at most, of the list that somebody is looked for in
UNUSUAL = 0.95  # of them are told less of
NEARLY_ALL = 0.9  # of single rows that must be able to leave at epsilon 1, for a noise of the anchor to be taken, with
QUIET = 0.25  # of the noise that moves outputs by a hundredth: a desk has such noise, for many who leave


# Rows forgotten on trial ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """A group of rows forgotten on trial: the radius it needs, infinite where there is none, and its update."""

    radius: float
    update: Array | None


def sizes_for(count: int) -> tuple[int, ...]:
    """How many rows of a source are forgotten on trial: as requests usually have, and a tenth of it.

    >>> sizes_for(30_000), sizes_for(700), sizes_for(12)
    ((1, 10, 100, 300, 3000), (1, 7, 10, 70, 100), (1,))
    """
    return tuple(sorted(size for size in {1, 10, 100, count // 100, count // 10} if 1 <= 2 * size <= count))


def random_groups(deposit: Deposit, rows: RowSet, size: int, seed: int | None = None) -> list[NDArray[np.int64]]:
    """Groups of so many rows, by number: as many as there is time for, the same in every process."""
    drawn = np.array(float(secrets.randbits(53) if seed is None else seed))
    generator = np.random.default_rng(int(rows.agreed(drawn)))
    weights = math.prod(deposit.anchor.shape)
    count = next(count for limit, count in GROUPS if weights <= limit)
    if deposit.setting.quadratic and weights > GROUPS[0][0]:
        count = 1  # a square leaves nothing to try but rounding
    if size > 1 and len(rows) <= 10 * size:
        count = min(count, FEW_GROUPS)
    return [generator.choice(len(rows), size, replace=False) for _ in range(count)]


def rehearse(
    deposit: Deposit, rows: RowSet, size: int, progress: Progress = silent, seed: int | None = None
) -> tuple[Trial, ...]:
    """What random groups of so many rows need to leave."""
    trials, groups = [], random_groups(deposit, rows, size, seed)
    for done, group in enumerate(groups):
        progress(f"Rehearsals with {size:,} row{'s' * (size > 1)}", done, len(groups))
        trials.append(try_removal(deposit, choose(rows, group)))
    return tuple(trials)


def try_removal(deposit: Deposit, rows: RowSet) -> Trial:
    """What forgetting these rows would need."""
    retained = replace(deposit, sums=deposit.sums.without(sum_rows(deposit, rows)))
    try:
        result = smallest_region(retained.problem)
    except ModelError:  # the noise has no shape
        result = None
    radius = math.inf if result is None else result.facts.size
    if result is None or radius > LARGEST_SCALE:  # no noise is that large
        return Trial(math.inf, None)
    return Trial(radius, put(result.update, deposit.model.weight))


@dataclass(frozen=True)
class Foresight:
    """The radius of any update, to first order and so no bound: every route by one norm, `M = H' + reg`, of which a
    region's own are `e^-R` or `1 - a` at least, and by eigenvalues that were found and not proved.

    `shape` is `lambda_max(M^-1 M_0)`, `least` M's smallest eigenvalue; of each gauge there are tau^2 and omega. A row
    changes the matrices of a source by one n-th: they serve for what is left of it without one, too.
    """

    problem: RetainedProblem
    third: bool
    shape: float
    least: float
    gauges: tuple[tuple[float, float], ...]

    @classmethod
    def by(cls, problem: RetainedProblem, *, third: bool) -> Foresight:
        setting, system = problem.setting, problem.system
        classes = len(setting.anchor)

        def top(product: Callable[[Array], Array]) -> float:
            return top_of(lambda columns: system.half(product(system.other_half(columns))), system.factor)

        def top_by_features(factor: Array) -> float:
            """Of `L L'` for every class, without what is common to all of them where they compete."""

            def product(columns: Array) -> Array:
                each = columns.reshape(classes, -1, columns.shape[-1]) if setting.shift_free else columns
                each = each - each.mean(axis=0) if setting.shift_free else each
                return (factor @ (factor.mT @ each)).reshape(columns.shape)

            return top(product)

        pairs = 2.0 if setting.shift_free else 1.0
        heavy = [top(lambda columns, each=each: each.values @ columns) for each in problem.sums.weighted]  # type: ignore[misc]
        spread = [pairs * top_by_features(gauge.factor) for gauge in setting.gauges]
        least = 1.0 / top(lambda columns: columns)
        return cls(problem, third, top_by_features(problem.shape[0]), least, tuple(zip(spread, heavy, strict=True)))

    def radius(self, update: Array) -> float:
        """About the radius of an update; infinite where no route has one."""
        return min((facts.size for facts in self._facts(update)), default=math.inf)

    def _facts(self, update: Array) -> Iterator[DepositFacts]:
        problem, order = self.problem, THIRD if self.third else ""
        setting, routes = problem.setting, Routes(problem, update, zeros(update), third=self.third)
        if setting.quadratic:
            yield from (each.facts for each in routes.solutions())
            return
        reach = routes.reach
        if reach <= LARGEST_REACH:
            more, curved = math.exp(reach), routes.curved(problem.sums.curvature, 0.0)
            pairs = math.sqrt(2.0) if setting.shift_free else 1.0
            ranges = [gauge.kappa * math.sqrt(tau) for gauge, (tau, _) in zip(setting.gauges, self.gauges, strict=True)]
            range_of_one = min([pairs * setting.row_bound / math.sqrt(self.least), *ranges]) * math.sqrt(more)
            known = {"reach": reach, "update_curved": curved, "concordance": range_of_one, "curvature_ratio": more}
            yield DepositFacts(RANGE + order, 0.0, 0.0, self.shape * more, **known)
        for index, (gauge, (tau, omega)) in enumerate(zip(setting.gauges, self.gauges, strict=True)):
            length = routes.lengths[index]
            left = 1.0 - length * math.sqrt(omega)
            if left > 0.0 and reach <= LARGEST_REACH:
                known = {"reach": reach, "gauge": length, "kappa": gauge.kappa, "curvature_ratio": 1.0 / left}
                known |= {"spread": tau / left, "weight_ratio": omega / left}
                known["update_curved"] = routes.curved(problem.sums.weighted[index], 0.0)
                yield DepositFacts(LONG_ROWS + order, 0.0, 0.0, self.shape / left, **known)


def steps_of(deposit: Deposit, rows: Sequence[RowSet]) -> list[Array]:
    """By how much the optimum moves, to first order, when each of these sets of one row leaves the source."""
    problem, head, left = deposit.problem, replace(deposit.head, l2=0.0), max(1, deposit.numbers.n_rows - 1)
    gradients = (head.gradient(deposit.anchor, by_class(row, deposit.record)) for row in rows)
    return [problem.setting.centred(problem.system.solved(each - deposit.sums.gradient)) / left for each in gradients]


def loudest(deposit: Deposit) -> float:
    """The radius up to which a row leaves, at epsilon 1, with noise that hardly moves outputs."""
    mu = mu_for(1.0, (1.0 - ARITHMETIC_SHARE) / max(2, deposit.numbers.n_rows))
    return QUIET * HARMLESS / deposit.output_noise * mu


def nearly_all_leave(radii: Sequence[float], most: float) -> bool:
    """Whether nearly all of these rows need less than that."""
    return sum(radius < most for radius in radii) > NEARLY_ALL * len(radii)


def try_people(
    deposit: Deposit, rows: RowSet, seed: int | None = None, progress: Progress = silent
) -> tuple[Trial, ...]:
    """What random single rows need to leave: foreseen, and worked out of a few, by which the others are corrected."""
    people = [choose(rows, person) for person in random_groups(deposit, rows, 1, seed)]
    few = math.prod(deposit.anchor.shape) <= MOST_WEIGHTS or deposit.setting.quadratic
    if len(people) <= (BOUNDED if few else 0):  # all are worked out: nothing need be foreseen
        return rehearse(deposit, rows, 1, progress, seed)
    trials = [Trial(math.inf, None)] * len(people)
    if deposit.problem.solvable:
        at_rest = deposit.problem.linear_step
        foresight = Foresight.by(deposit.problem, third=deposit.sums.third is not None)
        updates = [at_rest + step for step in steps_of(deposit, people)]
        trials = [Trial(foresight.radius(each), put(each, deposit.model.weight)) for each in updates]
    most, checked = max(loudest(deposit), 1e-300), dict[int, Trial]()
    order = sorted(range(len(trials)), key=lambda number: abs(math.log(max(trials[number].radius, 1e-300) / most)))
    some = order[: BOUNDED if few else 0]
    for number in some:
        progress("Rehearsals with 1 row", len(checked), len(some))
        checked[number] = try_removal(deposit, people[number])
    off = [
        each.radius / trials[number].radius
        for number, each in checked.items()
        if 0.0 < trials[number].radius < math.inf
    ]
    more = float(np.median(off)) if off else 1.0
    return tuple(checked.get(number, _corrected(trial, more)) for number, trial in enumerate(trials))


def _corrected(trial: Trial, factor: float) -> Trial:
    radius = trial.radius * factor if trial.radius > 0.0 else 0.0
    return Trial(radius, trial.update) if radius <= LARGEST_SCALE else Trial(math.inf, None)


def choose(rows: RowSet, chosen: Any) -> RowSet:
    """Some rows of a set, by number, in every process that has a share of it."""
    wanted = np.sort(to_numpy(chosen))
    if isinstance(rows, JacobianRows):
        return rows.taken(wanted)
    if isinstance(rows, Rows):
        return Rows(double(rows.features[put(wanted, rows.labels)]), rows.labels[put(wanted, rows.labels)])
    xp = namespace_of(rows.dtype)
    features = xp.zeros((len(wanted), rows.n_features), dtype=xp.float64, device=rows.device)
    labels = xp.zeros(len(wanted), dtype=xp.float64, device=rows.device)
    for block in rows.blocks():
        start = rows.n_before + block.start
        found = np.flatnonzero((wanted >= start) & (wanted < start + len(block)))
        inside, places = put(wanted[found] - start, features), put(found, features)
        features[places] = double(block.features[inside])
        labels[places] = double(block.labels[inside])
    return Rows(rows.total(features), cast(rows.total(labels), "int64"))


# Forecast -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AccuracyLoss:
    """Forgetting so many random rows at this epsilon: the accuracy lost, or None where all groups were refused.

    `refused` of the groups need more noise than the last level; or have no finite region, as so many do
    (`without_region`).
    """

    rows: int
    epsilon: float
    groups: int
    without_region: int
    refused: int
    at_once: float | None
    one_at_a_time: float | None


@dataclass(frozen=True)
class PeopleServed:
    """How many of so many random people, tried one by one, can leave at this epsilon with noise that is no larger than
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
class Forecast:
    """What was found, at this delta; `accuracy` is that of the model, on rows of the source.

    `traces` is what the anchor still tells of a row that left: somebody with the deposit of what is left, and a list of
    whole rows, ranks the right one above the first share of the others, and one row in twenty above the second. Half
    is guessing.
    """

    delta: float
    accuracy: float
    losses: tuple[AccuracyLoss, ...]
    verdict: PeopleServed
    traces: tuple[float, float] | None = None

    def affordable(self, epsilon: float, manner: str) -> int:
        """The largest size at which, as at all below it, most groups could be forgotten and lost no more than a
        point; `manner` is `at_once` or `one_at_a_time`."""
        most = 0
        for each in self.losses:
            lost = getattr(each, manner)
            if each.epsilon == epsilon:
                if 2 * each.refused > each.groups or lost is None or lost > POINT:
                    break
                most = each.rows
        return most

    def to_json(self) -> dict[str, Any]:
        manners = ("at_once", "one_at_a_time")
        return asdict(self) | {
            "affordable": [
                {"epsilon": epsilon} | {manner: self.affordable(epsilon, manner) for manner in manners}
                for epsilon in dict.fromkeys(each.epsilon for each in self.losses)
            ],
            "verdict": asdict(self.verdict) | {"serves": self.verdict.serves},
            "traces": None if self.traces is None else dict(zip(("ordinary", "unusual"), self.traces, strict=True)),
        }


class ServesFew(UserWarning):
    """A deposit was made that most people in it could not leave."""


def forecast(
    deposit: Deposit,
    people: tuple[Trial, ...],
    rows: RowSet,
    *,
    epsilons: Sequence[float] = EPSILONS,
    progress: Progress = silent,
    seed: int | None = None,
) -> Forecast:
    """The accuracy that random deletions would leave, at delta = 1/n; `people` are single rows that were tried."""
    deposit = deposit.on(rows.device)
    is_right, delta = _judge(rows), 1.0 / max(2, len(rows))

    def accuracy(weights: Array) -> float:
        right = is_right(weights)
        correct, count = rows.total(np.array([float(right.sum()), float(len(right))]))
        return float(correct / count)

    generator = np.random.default_rng(1)  # not the noise that protects: nothing of this is published
    anchor, before = deposit.anchor, accuracy(deposit.reference_weights)

    def lost(trials: tuple[Trial, ...], mu: float) -> tuple[float | None, int]:
        """The accuracy lost, and how many groups were refused."""
        covered = [(trial.update, smallest_level(deposit, trial.radius / mu)) for trial in trials]
        groups = [(update, scale) for update, scale in covered if update is not None and scale is not None]
        after = []
        for update, scale in groups[:MOST_GROUPS]:
            noise = put(deposit.ellipsoid.sample(scale, generator), anchor).reshape(anchor.shape)
            after.append(accuracy(anchor + put(update, anchor) + noise))
        return before - float(np.mean(after)) if after else None, len(trials) - len(groups)

    losses = []
    for size in sizes_for(len(rows)):
        trials = people if size == 1 else rehearse(deposit, rows, size, progress, seed)
        without_region = sum(math.isinf(trial.radius) for trial in trials)
        for epsilon in epsilons:
            mu = mu_for(epsilon, delta * (1.0 - ARITHMETIC_SHARE))
            at_once, refused = lost(trials, mu)
            one_at_a_time, _ = lost(trials, mu / math.sqrt(size))
            losses.append(AccuracyLoss(size, epsilon, len(trials), without_region, refused, at_once, one_at_a_time))
    return Forecast(delta, before, tuple(losses), count_served(deposit, people), traces_of(deposit, rows))


def traces_of(deposit: Deposit, rows: RowSet, seed: int = 2) -> tuple[float, float] | None:
    """What the anchor tells of random rows of the source (`Forecast`). By the best test of Gaussian noise one of two
    rows is told from the other with `Phi(r/2)`, where r is how far apart they would have moved the optimum, in
    deviations of the anchor's noise.

    None where there is no such noise, or no second row.
    """
    from scipy.spatial.distance import cdist  # here: whoever only unlearns need not wait for it

    deposit = deposit.on(rows.device)
    count, scale = min(LISTED, len(rows)), deposit.numbers.anchor_noise
    problem = replace(deposit.problem, setting=replace(deposit.setting, stiff=1.0))
    if not problem.solvable or not scale or count < 2:
        return None
    listed = choose(rows, np.random.default_rng(seed).choice(len(rows), count, replace=False))
    each, head = (by_class(choose(listed, [i]), deposit.record) for i in range(count)), replace(deposit.head, l2=0.0)
    moves = [problem.setting.centred(problem.system.solved(head.gradient(deposit.anchor, row))) for row in each]
    white = to_numpy(namespace(deposit.anchor).stack([move @ deposit.shape[0] for move in moves])).reshape(count, -1)
    apart = cdist(white, white) / (scale * deposit.sums.count)
    told = (ndtr(apart / 2.0).sum(axis=1) - 0.5) / (count - 1)
    return float(told.mean()), float(np.quantile(told, UNUSUAL))


def count_served(deposit: Deposit, people: tuple[Trial, ...], epsilon: float = 1.0) -> PeopleServed:
    """Whom this deposit serves, at delta = 1/n."""
    mu = mu_for(epsilon, (1.0 - ARITHMETIC_SHARE) / max(2, deposit.sums.count))
    scales = [smallest_level(deposit, trial.radius / mu) for trial in people]
    quiet = deposit.output_spread / deposit.output_noise
    can_leave = sum(scale is not None and scale <= quiet for scale in scales)
    return PeopleServed(epsilon, len(people), can_leave, sum(scale == deposit.levels[0] for scale in scales))


def warn_if_few(deposit: Deposit, people: tuple[Trial, ...]) -> None:
    """Say at once, while the source is there, that a deposit is of little use; commands say it by themselves."""
    verdict = count_served(deposit, people)
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


def _judge(rows: RowSet) -> Callable[[Array], Array]:
    """Whether weights put rows that are evenly spread over the set into their classes, each."""
    if isinstance(rows, JacobianRows):
        examples = rows.taken(np.arange(0, len(rows), -(-len(rows) // MOST_EXAMPLES)))
        return lambda weights: examples.predictions(weights).argmax(dim=1) == examples.labels
    shown = evenly(rows, MOST_ROWS)
    features = double(shown.features)

    def is_right(weights: Array) -> Array:
        outputs = features @ put(weights, features).T
        predicted = cast(outputs[:, 0] > 0.0, "int64") if len(weights) == 1 else outputs.argmax(axis=1)
        return predicted == shown.labels

    return is_right
