"""Splits of one data set: at random, by class, and into source and surrogate, class shares from a Dirichlet law."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.errors import DataError, OptionError

Index = NDArray[np.int64]


def random_split(n_rows: int, share: float, generator: np.random.Generator) -> tuple[Index, Index]:
    """Row numbers in random order: `floor(share * n_rows)` of them apart, and the rest first.

    >>> rest, apart = random_split(10, 0.3, np.random.default_rng(0))
    >>> len(rest), len(apart), sorted([*rest, *apart]) == list(range(10))
    (7, 3, True)
    """
    if not 0.0 < share < 1.0:
        raise OptionError(f"share {share}", "it must lie strictly between 0 and 1", "The paper uses 0.1.")
    count = int(share * n_rows)
    if not 0 < count < n_rows:
        raise DataError(
            f"a share of {share} of {n_rows} rows is {count}",
            "both parts need a row",
            "Use more rows or another share.",
        )
    order = generator.permutation(n_rows)
    return order[count:], order[:count]


def class_split(labels: NDArray[Any], forgotten: Sequence[Any]) -> tuple[Index, Index]:
    """Row numbers of all other classes, and of the forgotten ones."""
    gone = np.isin(labels, np.asarray(forgotten))
    if not gone.any() or gone.all():
        raise DataError(
            f"{int(gone.sum())} of {len(labels)} rows are of the classes to forget",
            "some must go and some must stay",
            "Check the class names.",
        )
    return np.flatnonzero(~gone), np.flatnonzero(gone)


def dirichlet_split(
    labels: NDArray[Any], concentration: float, generator: np.random.Generator
) -> tuple[Index, Index, NDArray[np.float64]]:
    """Disjoint source and surrogate whose class proportions are two draws of a symmetric Dirichlet law.

    Both get `floor(size * proportion)` rows of each class, with the largest common `size` that the data set's own class
    counts allow; what does not fit is left out. A small concentration makes the two unlike, a large one alike. Returns
    row numbers of both and the 2 x classes proportions.
    """
    if not 0.0 < concentration < np.inf:
        raise OptionError(
            f"concentration {concentration}", "it must be a finite number above 0", "The paper uses 13 to 100."
        )
    classes, codes = np.unique(labels, return_inverse=True)
    counts = np.bincount(codes, minlength=len(classes))
    proportions = generator.dirichlet(np.full(len(classes), concentration), size=2)
    wanted = proportions.sum(axis=0)
    size = float(np.min(counts[wanted > 0] / wanted[wanted > 0]))
    taken = np.floor(size * proportions).astype(np.int64)
    if taken.sum(axis=1).min() == 0:
        raise DataError(
            f"concentration {concentration} left a part of the {len(labels)} rows empty",
            "source and surrogate both need rows",
            "Use more rows or a larger concentration.",
        )
    parts: tuple[list[Index], list[Index]] = ([], [])
    for code in range(len(classes)):
        rows = generator.permutation(np.flatnonzero(codes == code))
        first, second = taken[0, code], taken[1, code]
        parts[0].append(rows[:first])
        parts[1].append(rows[first : first + second])
    return np.concatenate(parts[0]), np.concatenate(parts[1]), proportions
