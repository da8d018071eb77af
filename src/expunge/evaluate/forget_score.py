"""FS, the forget score: how well unlearned models can be told from retrained ones, forgotten row by forgotten row.

For each row, N unlearned and N retrained models give N confidences each. An attack guesses by an interval of
confidences, open or closed at its ends, so that it has one threshold or two; which of the two kinds lies inside is the
attack's choice. With false positive and false negative rates its epsilon is

    max( ln((1 - delta - FPR) / FNR), ln((1 - delta - FNR) / FPR) ),        delta = 1e-5.

A rate of 0 is a sign of too few models, so such attacks are left out, unless both are 0: then epsilon is infinite. The
row's epsilon is the largest over ALL intervals, and the row scores 2^-k if that lies in [k/2, (k+1)/2), up to the
largest epsilon that N models can show, ceil(ln(N - 1)), and 0 from there on. The forget score is the mean over rows.

The largest of many noisy rates is above 0 even for two sets of models of one distribution: the score of `Retrain`
against itself is the ceiling to compare with, and about it is the best that any method can reach.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from expunge.evaluate.score import Score

DELTA = 1e-5
BUCKET = 0.5
FEWEST_MODELS = 20

Confidences = NDArray[np.float64]


@dataclass(frozen=True)
class ForgetScore:
    """The score, and each row's epsilon."""

    score: Score
    epsilons: NDArray[np.float64]


def forget_score(unlearned: Confidences, retrained: Confidences) -> ForgetScore:
    """The score from two arrays of confidences, N models x rows."""
    count = len(unlearned)
    if retrained.shape != unlearned.shape:
        raise ValueError(f"{unlearned.shape} and {retrained.shape}: as many models and rows are needed on both sides")
    epsilons = row_epsilons(unlearned, retrained)
    if count < FEWEST_MODELS:
        return ForgetScore(Score.meaningless(f"{count} models a side: at least {FEWEST_MODELS} are needed"), epsilons)
    points = row_points(epsilons, count)
    error = float(points.std() / math.sqrt(len(points)))
    return ForgetScore(Score(float(points.mean()), error), epsilons)


def row_points(epsilons: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """2^-k for an epsilon in [k/2, (k+1)/2), 0 from ceil(ln(N-1)) on.

    >>> row_points(np.array([0.0, 0.49, 0.5, 1.2, 6.9, 7.0, math.inf]), 512).tolist()
    [1.0, 1.0, 0.5, 0.25, 0.0001220703125, 0.0, 0.0]
    """
    last = math.ceil(math.log(count - 1))
    capped = np.minimum(epsilons, last)
    return np.where(epsilons < last, np.exp2(-np.floor(capped / BUCKET)), 0.0)


def row_epsilons(unlearned: Confidences, retrained: Confidences) -> NDArray[np.float64]:
    """The largest epsilon of any interval, for each row (column)."""
    return np.maximum(_epsilons_inside(unlearned.T, retrained.T), _epsilons_inside(retrained.T, unlearned.T))


def attack_epsilon(hits: int, false_alarms: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """Epsilon of attacks with `hits` of N on one side and `false_alarms` of N on the other, neither N nor 0."""
    positive, negative = false_alarms / count, (count - hits) / count
    with np.errstate(divide="ignore", invalid="ignore"):
        first = np.log(1.0 - DELTA - positive) - np.log(negative)
        second = np.log(1.0 - DELTA - negative) - np.log(positive)
    epsilon: NDArray[np.float64] = np.fmax(np.fmax(first, second), 0.0)
    return epsilon


def _epsilons_inside(inside: Confidences, outside: Confidences) -> NDArray[np.float64]:
    """Attacks that guess `inside` within an interval; rows x N.

    For a given number of hits the fewest false alarms are best, and the shortest interval has the fewest: from one
    value of `inside` to another. Where that has none, the nearest of `outside` is let in, since a rate of 0 does not
    count. So only N (N + 1) / 2 intervals need a look, not all pairs of thresholds; equal values stay together.
    """
    rows, count = inside.shape
    kind = np.int16 if 4 * count < 2**15 else np.int64
    far = kind(count + 1)  # more false alarms than there are: an interval that cuts through equal values
    low, high, before, after = (np.empty((count, rows), dtype=kind) for _ in range(4))
    for row in range(rows):
        own, other = np.sort(inside[row]), np.sort(outside[row])
        below, upto = np.searchsorted(other, own, "left"), np.searchsorted(other, own, "right")
        starts = np.append(True, own[1:] > own[:-1])
        ends = np.append(own[1:] > own[:-1], True)
        previous, following = np.append(-np.inf, own[:-1]), np.append(own[1:], np.inf)
        low[:, row] = np.where(starts, below, -far)
        high[:, row] = np.where(ends, upto, 2 * far)
        nearest = other[np.maximum(below - 1, 0)]
        size = below - np.searchsorted(other, nearest, "left")
        before[:, row] = np.where((below > 0) & (nearest > previous), size, far)
        nearest = other[np.minimum(upto, count - 1)]
        size = np.searchsorted(other, nearest, "right") - upto
        after[:, row] = np.where((upto < count) & (nearest < following), size, far)
    best = np.zeros(rows)
    for hits in range(1, count):
        alarms = high[hits - 1 :] - low[: count - hits + 1]
        extended = np.minimum(before[: count - hits + 1], after[hits - 1 :])
        fewest = np.where(alarms == 0, extended, alarms).min(axis=0)
        usable = fewest < count
        epsilons = attack_epsilon(hits, np.where(usable, fewest, 1), count)
        best = np.where(usable, np.fmax(best, epsilons), best)
    apart = high[count - 1] - low[0] == 0
    return np.where(apart, math.inf, best)
