"""The hard families: each a seeded generator of problems. Retained rows are independent draws of the declared law, given the
forgotten ones, unless the family says otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import reference
from experiments.shared.closed_forms import discrete_chi_square, discrete_kl, discrete_tv
from expunge.distance import Distance
from soundness.problems import Array, Problem, exact

Rng = np.random.Generator


def labelled(rng: Rng, X: Array, classes: int, strength: float = 4.0) -> Array:
    """Labels by a noisy linear rule; they do not enter the change of gradient."""
    return (strength * X @ rng.normal(size=(X.shape[1], classes)) + rng.gumbel(size=(len(X), classes))).argmax(axis=1)


def ones_of(levels: Array, width: int) -> Array:
    """One-hot rows."""
    rows = np.zeros((len(levels), width))
    rows[np.arange(len(levels)), levels] = 1.0
    return rows


def unit(X: Array) -> Array:
    """Rows of length 1, never more."""
    return X / (np.linalg.norm(X, axis=1, keepdims=True) * (1 + 1e-15))


def within(X: Array) -> Array:
    """Rows cut back to length 1."""
    return X / np.maximum(1.0, np.linalg.norm(X, axis=1, keepdims=True) * (1 + 1e-15))


def zipf(levels: int, power: float = 1.0) -> Array:
    weights = 1.0 / np.arange(1, levels + 1) ** power
    return weights / weights.sum()


def loss_of(seed: int) -> dict[str, Any]:
    """Two in three are least squares, whose retraining is fast."""
    return {"loss": "softmax" if seed % 3 == 0 else "ridge", "l2": [0.1, 0.01, 0.003][seed // 3 % 3]}


def sampled(seed: int, draw: Callable[[Rng, int], Array], n: int, s: int, m: int = 1, **fixed: Any) -> Problem:
    """Source and surrogate from one law, `m` random rows forgotten."""
    rng = np.random.default_rng([14, seed])
    X, S = draw(rng, n), draw(rng, s)
    classes = fixed.pop("classes", 2)
    return Problem(seed, X, labelled(rng, X, classes), np.arange(m), S, classes=classes, **(loss_of(seed) | fixed))


# Categorical rows -----------------------------------------------------------------------------------------------------


def one_hot(seed: int, *, levels: int, n: int, s: int, law: Array | None = None, **fixed: Any) -> Problem:
    return sampled(seed, lambda rng, k: ones_of(rng.choice(levels, size=k, p=law), levels), n, s, **fixed)


def several_columns(seed: int) -> Problem:
    widths = (3, 5, 8, 24)

    def draw(rng: Rng, k: int) -> Array:
        return unit(np.hstack([ones_of(rng.choice(w, size=k, p=zipf(w)), w) for w in widths]))

    return sampled(seed, draw, 200, 150)


def with_rare_groups(rng: Rng, k: int, share: float = 0.01) -> Array:
    """Most rows about one direction, a few of each of five rare groups about directions of their own."""
    group = np.where(rng.random(k) < share * 5, rng.integers(1, 6, k), 0)
    X = 0.1 * rng.normal(size=(k, 12))
    X[np.arange(k), group] += 1.0
    return unit(X)


def rare_groups(seed: int) -> Problem:
    return sampled(seed, with_rare_groups, 200, 150)


def rare_person(seed: int) -> Problem:
    """The row that leaves is of a rare group; the others are drawn as always."""
    problem = sampled(seed, with_rare_groups, 200, 150)
    X = problem.X.copy()
    X[0] = 0.0
    X[0, 1 + seed % 5] = 1.0
    return Problem(**{**vars(problem), "X": X})


def text(seed: int) -> Problem:
    """Counts of words from a Zipf law, six words a row on average, length 1."""
    words = 120

    def draw(rng: Rng, k: int) -> Array:
        lengths = 1 + rng.poisson(5, size=k)
        return unit(np.stack([np.bincount(rng.choice(words, size=c, p=zipf(words)), minlength=words) for c in lengths]))

    return sampled(seed, draw, 200, 150)


# Many directions, heavy tails -----------------------------------------------------------------------------------------


def tangent(seed: int, *, width: int, n: int = 100, s: int = 100) -> Problem:
    """The tangent model of a zero-initialised linear layer with two outputs, unit rows: Jacobians of length sqrt 2."""
    fixed = {"loss": "tangent", "l2": 0.01, "max_norm": 1.4143}
    return sampled(seed, lambda rng, k: unit(rng.normal(size=(k, width))), n, s, **fixed)


def heavy_tails(seed: int) -> Problem:
    """Student t with 1.5 degrees of freedom, or lognormal, in units in which few rows reach the largest norm."""

    def draw(rng: Rng, k: int) -> Array:
        if seed % 2:
            return within(0.05 * rng.standard_t(1.5, size=(k, 1)) * unit(rng.normal(size=(k, 10))))
        return within(0.01 * np.exp(1.5 * rng.normal(size=(k, 1))) * unit(rng.normal(size=(k, 10))))

    return sampled(seed, draw, 200, 150)


# Forget sets that are not one random row ------------------------------------------------------------------------------


def dense(rng: Rng, k: int, width: int = 10) -> Array:
    return within(0.4 * rng.standard_t(4.0, size=(k, width)))


def many_rows(seed: int) -> Problem:
    """Three rows in ten leave."""
    return sampled(seed, dense, 200, 150, m=60)


def chosen(seed: int, choose: Callable[[Problem, Array], Array], m: int = 10) -> Problem:
    problem = sampled(seed, dense, 200, 150)
    trained = exact(problem, slice(None)).weights
    return Problem(**{**vars(problem), "forgotten": choose(problem, trained)[:m]})


def largest_gradients(seed: int) -> Problem:
    """The rows that the model fits worst."""

    def choose(problem: Problem, trained: Array) -> Array:
        targets = np.stack([reference.one_hot(k, problem.classes, problem.loss) for k in range(problem.classes)])
        left = reference.predictions(trained, problem.X, problem.loss) - targets[problem.y]
        return np.argsort(-np.linalg.norm(left, axis=1) * np.linalg.norm(problem.X, axis=1))

    return chosen(seed, choose)


def nearest_rows(seed: int) -> Problem:
    """A row and those most like it."""
    return chosen(seed, lambda problem, _: np.argsort(np.linalg.norm(problem.X - problem.X[0], axis=1)))


def aligned(seed: int, *, n: int, width: int) -> Problem:
    """The tenth of the rows that is longest along the top eigenvector of Cov_D - Cov_S, chosen by one who saw both."""
    rng = np.random.default_rng([15, seed])
    X, S = unit(rng.normal(size=(n, width))), unit(rng.normal(size=(n, width)))
    top = np.linalg.eigh(X.T @ X - S.T @ S)[1][:, -1]
    order = np.argsort(-np.abs(X @ top))
    y = (X @ top > 0).astype(int)
    return Problem(seed, X, y, order[: n // 10], S, l2=0.01, loss="ridge")


# Other laws for the surrogate -----------------------------------------------------------------------------------------


def the_source(seed: int) -> Problem:
    """The rows given are the source: nothing is sampled, and the bound never fails."""
    problem = sampled(seed, dense, 150, 1, m=1 + seed % 20)
    changed = {"S": problem.X, "S_labels": problem.y, "distance": Distance("source", 0.0)}
    return Problem(**{**vars(problem), **changed})


def matched(seed: int) -> Problem:
    """Each class has its own law, the same in both sets; the classes' shares differ, and counts of the source are known."""
    rng = np.random.default_rng([16, seed])
    centres = unit(rng.normal(size=(3, 8)))

    def draw(labels: Array) -> Array:
        return within(0.6 * centres[labels] + 0.15 * rng.standard_t(3.0, size=(len(labels), 8)))

    y = rng.choice(3, size=240, p=[0.6, 0.3, 0.1])
    labels = rng.choice(3, size=300, p=[0.3, 0.4, 0.3])
    distance = Distance("same", 0.0, sampling="strict", matched=True)
    fixed = {"classes": 3, "distance": distance, **loss_of(seed)}
    return Problem(seed, draw(y), y, np.arange(1 + 11 * (seed % 2)), draw(labels), labels, **fixed)


def discrete(seed: int, kind: str) -> Problem:
    """Both sets from known laws on forty points, so that the distance between the populations is exact."""
    rng = np.random.default_rng([17, seed])
    points = within(0.6 * rng.normal(size=(40, 6)))
    nu = rng.dirichlet(np.ones(40))
    rho = nu * rng.uniform(0.6, 1.4, size=40)
    rho = rho / rho.sum()
    if kind == "tv":  # a part of the source is on points that the surrogate never has
        nu = np.concatenate([nu[:38] / nu[:38].sum(), [0.0, 0.0]])
    value = {"chi2": discrete_chi_square, "kl": discrete_kl, "tv": discrete_tv}[kind](rho, nu)
    X, S = points[rng.choice(40, size=200, p=rho)], points[rng.choice(40, size=150, p=nu)]
    fixed = {"distance": Distance(kind, value, sampling="strict"), **loss_of(seed)}
    return Problem(seed, X, labelled(rng, X, 2), np.arange(1 + 9 * (seed % 2)), S, **fixed)


@dataclass(frozen=True)
class Family:
    """A generator, the number of problems drawn from it, in all and in the `quick` part of the tests.

    `named` says that certificates name what is violated here.
    """

    name: str
    make: Callable[[int], Problem]
    problems: int
    quick: int = 8
    named: bool = False


FAMILIES = (
    Family(
        "one-hot, 300 levels, n = 1,000, s = 300",
        lambda i: one_hot(i, levels=300, n=1000, s=300, loss="softmax"),
        200,
        2,
    ),
    Family(
        "one-hot, 300 levels, n = s = 1,000", lambda i: one_hot(i, levels=300, n=1000, s=1000, loss="softmax"), 200, 2
    ),
    Family(
        "one-hot, 60 Zipf levels, n = 1,000, s = 300",
        lambda i: one_hot(i, levels=60, law=zipf(60), n=1000, s=300, loss="softmax"),
        200,
        4,
    ),
    Family("one-hot, 100 levels, n = 150, s = 100", lambda i: one_hot(i, levels=100, n=150, s=100, loss="ridge"), 700),
    Family(
        "one-hot, 40 Zipf levels, n = 150, s = 100", lambda i: one_hot(i, levels=40, law=zipf(40), n=150, s=100), 700
    ),
    Family(
        "one-hot, 40 levels, balanced step",
        lambda i: one_hot(i, levels=40, n=150, s=100, loss="ridge", step="balanced"),
        200,
    ),
    Family("four categorical columns", several_columns, 600),
    Family("rare groups, a random row", rare_groups, 600),
    Family("rare groups, a row of one", rare_person, 600),
    Family("text-like counts", text, 500),
    Family("tangent, n = s = 100, d = 10,000", lambda i: tangent(i, width=10_000), 30, 0),
    Family("tangent, n = s = 100, d = 500", lambda i: tangent(i, width=500), 100, 2),
    Family("heavy tails", heavy_tails, 800),
    Family("three rows in ten", many_rows, 500),
    Family("matched classes", matched, 500),
    Family("the source itself", the_source, 300),
    Family("known chi-square", lambda i: discrete(i, "chi2"), 500),
    Family("known total variation", lambda i: discrete(i, "tv"), 300),
    Family("known KL", lambda i: discrete(i, "kl"), 300),
    Family("chosen: largest gradients", largest_gradients, 400),
    Family("chosen: nearest rows", nearest_rows, 400),
    Family("aligned, n = 1,000, d = 60", lambda i: aligned(i, n=1000, width=60), 40, 2, named=True),
    Family("aligned, n = 20,000, d = 200", lambda i: aligned(i, n=20_000, width=200), 20, 0, named=True),
)
