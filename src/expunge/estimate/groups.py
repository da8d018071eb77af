"""How far the parts of one set of rows are from one another: chi-square as cross-fitted classifiers see it.

With r the ratio of a part's density to another's (a classifier's odds, divided by the ratio of sizes),

    chi2(P || Q) = 2 E_P[r] - E_Q[r^2] - 1.

The rows are cut in three. A classifier is fitted on each third; a row is judged by the two that never saw it, a and b:

    E_P[r_a + r_b] - E_Q[r_a r_b] - 1  =  chi2 - E_Q[(r_a - r) (r_b - r)].

The errors of two classifiers fitted on different rows are independent, so that what few rows make them err by cancels
in the mean; what both miss, since no classifier of this kind sees it, lowers the value. The standard error is that of
the two means.

The classifier is linear in the features and, where there is room, in their squares. Of what it does not see this says
nothing: a margin is due on top.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from expunge.errors import DataError
from expunge.runtime.progress import Progress, silent

FOLDS = 3
FEWEST = 100  # rows of a part
CONFIDENCE, NORMAL = 0.95, 1.96  # of an interval, and the standard errors on either side
STRENGTH = 1.0  # of the classifiers: scikit-learn's C
ITERATIONS = 300
FARTHEST = 10.0  # standard deviations: columns with values beyond are scaled down, so that no cell outweighs all
RARE = 2.0  # the same for columns of two values: a value that few rows have must show itself in many before it counts
BENT = 4.0  # standard deviations beyond which a square grows no more
MOST_COLUMNS = 300  # with squares
MOST_CELLS = 100_000_000  # rows x columns x parts: more take more than a minute
MOST_PAIRED = 6  # parts that are compared two by two
LEAST_EFFECTIVE = 100.0  # rows that the others must count as when weighted like the part
LEAST_SHARE = 0.05  # of them
MOST_CAPPED = 0.05  # of a part's rows that may lie where the others have next to none
OFF = 0.7  # logarithm of the mean ratio among the others, which is 0 where they cover the part
WIDEST = 0.5  # standard error; one that is larger, and larger than the value, leaves nothing to be said
CLEAR = 4.0  # standard errors from which on a feature is said to differ

Array = NDArray[Any]
TELLS_NOTHING = "this tells nothing"
REST = "the rest"


@dataclass(frozen=True)
class GroupDistance:
    """Chi-square of `part` relative to `other`, with its interval; all three None where the rows cannot tell.

    `most` is the feature whose mean differs most, as seen in the other's standard deviations.
    """

    part: str
    other: str
    rows: int
    other_rows: int
    chi2: float | None
    lower: float | None
    upper: float | None
    most: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class GroupDistances:
    """Each part against all others together, and parts two by two where there are few."""

    against_rest: tuple[GroupDistance, ...]
    pairs: tuple[GroupDistance, ...]
    notes: tuple[str, ...]

    @property
    def tells(self) -> bool:
        """Whether every part could be told of."""
        return all(line.chi2 is not None for line in self.against_rest)

    @property
    def plausible(self) -> tuple[float, float] | None:
        """From where on a declaration is plausible: the largest upper value of a part against the rest, then of a pair.

        Less would say that the source is nearer to the surrogate than parts of the surrogate are to each other.
        """
        if not self.tells:
            return None
        least = max(line.upper or 0.0 for line in self.against_rest)
        return least, max([least, *(line.upper for line in self.pairs if line.upper is not None)])

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        range_ = self.plausible
        return {
            "parts": [asdict(line) for line in self.against_rest],
            "pairs": [asdict(line) for line in self.pairs],
            "confidence": CONFIDENCE,
            "tells": self.tells,
            "plausible_chi2": None if range_ is None else {"from": range_[0], "to": range_[1]},
            "notes": list(self.notes),
        }


def compare_groups(
    features: Array,
    codes: NDArray[np.int64],
    groups: Sequence[str],
    names: Sequence[str],
    *,
    seed: int = 0,
    progress: Progress = silent,
) -> GroupDistances:
    """Compare the groups of a set: row i belongs to `groups[codes[i]]`; `names` are what the features are called.

    Groups of fewer than 100 rows are left out. The seed cuts the rows in three, and draws some of very many.
    """
    generator, notes = np.random.default_rng(seed), []
    counts = np.bincount(codes, minlength=len(groups))
    large = np.flatnonzero(counts >= FEWEST)
    if len(large) < 2:
        sizes = ", ".join(f"{groups[each]} ({counts[each]:,} rows)" for each in np.argsort(-counts)[:8])
        raise DataError(
            f"{len(large)} part{'s' if len(large) != 1 else ''} with {FEWEST} rows or more: {sizes}",
            f"at least two parts of {FEWEST} rows are needed to be told apart",
            "Give a column that groups the rows more coarsely, or more rows.",
        )
    if small := [f"{group} ({count:,})" for group, count in zip(groups, counts, strict=True) if 0 < count < FEWEST]:
        more = f" and {len(small) - 8} more" if len(small) > 8 else ""
        notes.append(f"left out, with fewer than {FEWEST} rows: {', '.join(small[:8])}{more}")
    place = np.full(len(groups), -1, dtype=np.int64)
    place[large] = np.arange(len(large))
    chosen = place[codes] >= 0
    groups, codes = [groups[int(each)] for each in large], place[codes[chosen]]
    features = np.asarray(features, dtype=np.float64)[chosen]
    seen, squared = _seen(features)
    most = max(FEWEST * len(groups), MOST_CELLS // (seen.shape[1] * len(groups)))
    if len(seen) > most:
        share, drawn = most / len(seen), []
        for group in range(len(groups)):
            mine = np.flatnonzero(codes == group)
            drawn.append(generator.permutation(mine)[: max(FEWEST, int(share * len(mine)))])
        chosen = np.sort(np.concatenate(drawn))
        notes.append(
            f"{len(chosen):,} of {len(seen):,} rows were drawn at random, so that it takes no more than a minute"
        )
        features, seen, codes = features[chosen], seen[chosen], codes[chosen]
    if not squared:
        notes.append("so many features: the classifier sees their means and not their spreads")
    fit = _Fit(features, codes, groups, names, *_classify(seen, codes, len(groups), generator, progress))
    against = tuple(fit.distance(each, None) for each in range(len(groups)))
    pairs: tuple[GroupDistance, ...] = ()
    if 2 < len(groups) <= MOST_PAIRED:
        pairs = tuple(fit.distance(a, b) for a in range(len(groups)) for b in range(len(groups)) if a != b)
    return GroupDistances(against, pairs, tuple(notes))


def _seen(features: Array) -> tuple[Array, bool]:
    """What a classifier sees: features standardised, and squares of those that have more than two values."""
    if features.ndim != 2 or not np.isfinite(features).all():
        raise DataError("features that are not finite numbers", "every cell must be one", "Fill or remove those rows.")
    centred = features - features.mean(axis=0)
    largest = np.abs(centred).max(axis=0)
    varies = largest > 1e-12 * np.maximum(np.abs(features).max(axis=0), 1e-300)
    if not varies.any():
        raise DataError("every feature is the same in all rows", "something must vary", "Use other columns.")
    centred, largest = centred[:, varies], largest[varies]
    two = np.array([((column == column.min()) | (column == column.max())).all() for column in centred.T])
    scaled = centred / np.maximum(centred.std(axis=0), largest / np.where(two, RARE, FARTHEST))
    many = np.flatnonzero(~two)
    if scaled.shape[1] + len(many) > MOST_COLUMNS:
        return scaled, False
    squares = np.clip(scaled[:, many], -BENT, BENT) ** 2 - 1.0
    return np.concatenate([scaled, squares], axis=1), True


def _classify(
    seen: Array, codes: NDArray[np.int64], n_groups: int, generator: np.random.Generator, progress: Progress
) -> tuple[tuple[Array, Array], Array]:
    """Logarithms of each group's probability for each row, by the two classifiers that never saw it; groups' shares."""
    from sklearn.linear_model import LogisticRegression

    third = np.empty(len(codes), dtype=np.int64)
    for group in range(n_groups):
        mine = np.flatnonzero(codes == group)
        third[generator.permutation(mine)] = np.arange(len(mine)) % FOLDS
    logs = np.empty((len(codes), n_groups)), np.empty((len(codes), n_groups))
    for fold in range(FOLDS):
        progress("classifiers", fold, FOLDS)
        mine = third == fold
        fitted = LogisticRegression(C=STRENGTH, max_iter=ITERATIONS).fit(seen[mine], codes[mine])
        for place in range(2):
            others = third == (fold + 1 + place) % FOLDS
            logs[place][others] = fitted.predict_log_proba(seen[others])
    progress("classifiers", FOLDS, FOLDS)
    return logs, np.bincount(codes, minlength=n_groups) / len(codes)


@dataclass(frozen=True)
class _Fit:
    """The rows, and what the same three classifiers say of them: every comparison follows from it."""

    features: Array
    codes: NDArray[np.int64]
    groups: Sequence[str]
    names: Sequence[str]
    logs: tuple[Array, Array]
    shares: Array

    def distance(self, group: int, other: int | None) -> GroupDistance:
        """A group from another, or from all others together."""
        inside = self.codes == group
        outside = ~inside if other is None else self.codes == other
        n, m = int(inside.sum()), int(outside.sum())
        top = 0.5 * math.log(m)  # a ratio that high would show itself in too few of m rows to be believed
        on_group, on_other = (
            [np.clip(self._log_ratio(logs[rows], group, other), -700.0, top) for logs in self.logs]
            for rows in (inside, outside)
        )
        named, rows = (self.groups[group], REST if other is None else self.groups[other]), (n, m)
        most, reason = self._most(inside, outside), self._no_overlap(named, rows, on_group, on_other)
        above, below = np.exp(on_group[0]) + np.exp(on_group[1]), np.exp(on_other[0] + on_other[1])
        value = float(above.mean() - below.mean()) - 1.0
        error = math.sqrt(float(above.var()) / n + float(below.var()) / m)
        if reason is None and error > max(WIDEST, value):
            reason = f"{min(rows):,} rows are too few for {self.features.shape[1]:,} features: the error is {error:.2g}"
        if reason is not None:
            return GroupDistance(*named, *rows, None, None, None, most, reason)
        least, width = max(0.0, value), NORMAL * error
        return GroupDistance(*named, *rows, least, max(0.0, value - width), least + width, most)

    def _no_overlap(
        self, named: tuple[str, str], rows: tuple[int, int], on_group: list[Array], on_other: list[Array]
    ) -> str | None:
        """What is wrong where a group lies where the other has next to no rows."""
        capped = max(float((logs >= 0.5 * math.log(rows[1])).mean()) for logs in on_group)
        means = [float(np.exp(logs).mean()) for logs in on_other]
        squares = [max(float(np.exp(2.0 * logs).mean()), 1e-300) for logs in on_other]
        effective = min(rows[1] * mean**2 / square for mean, square in zip(means, squares, strict=True))
        off = max(abs(math.log(max(mean, 1e-300))) for mean in means)
        if capped <= MOST_CAPPED and off <= OFF and effective >= max(LEAST_EFFECTIVE, LEAST_SHARE * rows[1]):
            return None
        return (
            f"weighted to look like {named[0]}, the {rows[1]:,} rows of {named[1]} count as {effective:,.0f}: the two "
            f"hardly overlap, or {min(rows):,} rows are too few for {self.features.shape[1]:,} features"
        )

    def _log_ratio(self, logs: Array, group: int, other: int | None) -> Array:
        """Logarithm of the ratio of densities, from probabilities that know how large the groups are."""
        share = self.shares[group]
        if other is not None:
            return np.asarray(logs[:, group] - logs[:, other] - math.log(share / self.shares[other]))
        rest = logsumexp(np.delete(logs, group, axis=1), axis=1)
        return np.asarray(logs[:, group] - rest - math.log(share / (1.0 - share)))

    def _most(self, inside: Array, outside: Array) -> str | None:
        """The feature whose mean differs most, where one clearly does."""
        here, there = self.features[inside], self.features[outside]
        gap, spread = np.abs(here.mean(axis=0) - there.mean(axis=0)), there.std(axis=0)
        error = np.sqrt(here.var(axis=0) / len(here) + there.var(axis=0) / len(there))
        scores = np.where(gap > CLEAR * error, gap / np.maximum(spread, 1e-12 + 0.01 * here.std(axis=0)), 0.0)
        place = int(np.argmax(scores))
        return str(self.names[place]) if scores[place] > 0.0 else None
