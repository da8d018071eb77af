"""Slow, literal forms of the metrics, written from their definitions."""

from __future__ import annotations

import itertools
import math

import numpy as np

DELTA = 1e-5


def confidence(weights: np.ndarray, row: np.ndarray, label: int) -> float:
    """ln p - ln(1 - p) of the row's own class, from the softmax itself."""
    outputs = [math.fsum(w * x for w, x in zip(line, row, strict=True)) for line in weights]
    chances = [math.exp(z - max(outputs)) for z in outputs]
    own = chances[label] / math.fsum(chances)
    rest = math.fsum(chance for index, chance in enumerate(chances) if index != label) / math.fsum(chances)
    return math.log(own) - math.log(rest)


def epsilon_of(false_positive: float, false_negative: float) -> float | None:
    """The epsilon an attack shows; None where one rate alone is 0."""
    if false_positive == 0 and false_negative == 0:
        return math.inf
    if false_positive == 0 or false_negative == 0:
        return None
    found = 0.0
    if 1 - DELTA - false_positive > 0:
        found = max(found, float(np.log(1 - DELTA - false_positive) - np.log(false_negative)))
    if 1 - DELTA - false_negative > 0:
        found = max(found, float(np.log(1 - DELTA - false_negative) - np.log(false_positive)))
    return found


def row_epsilon(unlearned: np.ndarray, retrained: np.ndarray) -> float:
    """The largest epsilon over all pairs of thresholds, either kind of model inside."""
    values = sorted({*unlearned.tolist(), *retrained.tolist()})
    cuts = [-math.inf, *((a + b) / 2 for a, b in itertools.pairwise(values)), math.inf]
    count = len(unlearned)
    best = 0.0
    for first, left in enumerate(cuts):
        for right in cuts[first + 1 :]:
            for inside, outside in ((unlearned, retrained), (retrained, unlearned)):
                hits = sum(left < value < right for value in inside)
                alarms = sum(left < value < right for value in outside)
                found = epsilon_of(alarms / count, (count - hits) / count)
                if found is not None:
                    best = max(best, found)
    return best


def forget_score(unlearned: np.ndarray, retrained: np.ndarray) -> float:
    """Buckets of 0.5, halved points from one to the next."""
    count = len(unlearned)
    last = math.ceil(math.log(count - 1))
    total = 0.0
    for row in range(unlearned.shape[1]):
        epsilon = row_epsilon(unlearned[:, row], retrained[:, row])
        start, points = 0.0, 1.0
        while start + 0.5 <= last:
            if epsilon < start + 0.5:
                total += points
                break
            start, points = start + 0.5, points / 2
    return total / unlearned.shape[1]


def binomial_tail(count: int, total: int, chance: float) -> float:
    """P(at most `count` of `total`)."""
    return math.fsum(math.comb(total, k) * chance**k * (1 - chance) ** (total - k) for k in range(count + 1))
