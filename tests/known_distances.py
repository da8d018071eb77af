"""Random problems in which everything is known: both feature distributions as counts, and so every distance between them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

import reference
from asking import asked
from expunge.distance import Distance
from expunge.request.request import Request
from expunge.rows import bound_rows
from expunge.runtime.arrays import to_numpy

Array = Any
SURROGATES = ("equal", "retained", "reweighted", "shifted", "tiny")


@dataclass(frozen=True)
class Problem:
    """Source, forget set (rows of the source) and surrogate as prepared rows.

    `rho`, `rho_retained` and `nu` are the shares of the points that source, retained rows and surrogate lie on.
    """

    seed: int
    loss: str
    classes: int
    l2: float
    max_norm: float
    bias: bool
    surrogate_kind: str
    X: Array
    y: Array
    forgotten: Array
    S: Array
    S_labels: Array
    rho: Array
    rho_retained: Array
    nu: Array
    trained: Array
    training_residual: float
    raw: dict[str, Array]

    @property
    def n(self) -> int:
        return len(self.X)

    @property
    def m(self) -> int:
        return len(self.forgotten)

    @property
    def kept(self) -> Array:
        """Which rows stay."""
        return without(self.n, self.forgotten)

    @property
    def distances(self) -> list[Distance]:
        """Of the retained rows from the surrogate."""
        return finite_distances(self.rho_retained, self.nu)


def without(n: int, forgotten: Array) -> Array:
    kept = np.ones(n, dtype=bool)
    kept[forgotten] = False
    return kept


def finite_distances(rho: Array, nu: Array) -> list[Distance]:
    """Each finite distance between two empirical feature distributions, exactly."""
    found = [Distance("tv", min(1.0, reference.total_variation(rho, nu)), "samples")]
    chi2, kl = reference.chi_square(rho, nu), reference.kullback_leibler(rho, nu)
    if math.isfinite(chi2):
        found += [Distance("chi2", chi2, "samples"), Distance("kl", kl, "samples")]
    return found


def prepared(raw: Array, max_norm: float, bias: bool) -> Array:
    """Features as the library prepares them: cut back to the largest norm, constant feature appended."""
    made = bound_rows(
        raw,
        np.zeros(len(raw), dtype=np.int64),
        max_norm=max_norm,
        bias=bias,
        dtype=np.dtype("float64"),
        device="cpu",
        name="rows",
    )
    return to_numpy(made.features)


def heavy_tailed(rng: np.random.Generator, rows: int, width: int, max_norm: float) -> Array:
    freedom, spread = rng.choice([1.0, 2.0, 3.0, 10.0]), np.exp(rng.uniform(-1.5, 1.0))
    return rng.standard_t(freedom, size=(rows, width)) * spread * max_norm / np.sqrt(width)


def make_problem(seed: int) -> Problem:
    """Softmax or ridge, two to ten classes, 40 to 2,000 rows, any share of them forgotten up to a half."""
    rng = np.random.default_rng([2026, seed])
    loss = "ridge" if rng.random() < 0.3 else "softmax"
    classes, width = int(rng.integers(2, 11)), int(np.exp(rng.uniform(np.log(2), np.log(31))))
    n = int(np.exp(rng.uniform(np.log(40), np.log(2000))))
    m = n // 2 if rng.random() < 0.1 else min(n // 2, int(np.exp(rng.uniform(0, np.log(n // 2 + 1)))))
    bias, max_norm, l2 = bool(rng.random() < 0.5), float(np.exp(rng.uniform(-1, 1))), float(10 ** rng.uniform(-4, 0.5))
    raw = heavy_tailed(rng, n, width, max_norm)
    X = prepared(raw, max_norm, bias)
    rule = rng.normal(size=(X.shape[1], classes)) * rng.choice([0.0, 1.0, 5.0])
    y = (X @ rule + rng.gumbel(size=(n, classes))).argmax(axis=1)
    order = {
        "random": rng.permutation(n),
        "longest": np.argsort(-np.linalg.norm(X, axis=1)),
        "class": np.argsort(y, kind="stable"),
    }
    forgotten = order[rng.choice(list(order))][:m]
    kept, kind = without(n, forgotten), SURROGATES[seed % len(SURROGATES)]
    counts, raw_extra = surrogate_counts(rng, kind, kept, width, max_norm)
    raw_S = np.vstack([np.repeat(raw, counts, axis=0), raw_extra])
    S, size, nowhere = prepared(raw_S, max_norm, bias), int(counts.sum()) + len(raw_extra), np.zeros(len(raw_extra))
    trained = reference.retrain(X, y, classes, l2, loss).weights
    if rng.random() < 0.3:
        trained = trained + stopped_early(rng, trained)
    return Problem(
        seed=seed,
        loss=loss,
        classes=classes,
        l2=l2,
        max_norm=max_norm,
        bias=bias,
        surrogate_kind=kind,
        X=X,
        y=y,
        forgotten=forgotten,
        S=S,
        S_labels=np.concatenate([np.repeat(y, counts), rng.integers(0, classes, len(raw_extra))]),
        rho=np.concatenate([np.full(n, 1 / n), nowhere]),
        rho_retained=np.concatenate([kept / kept.sum(), nowhere]),
        nu=np.concatenate([counts / size, np.full(len(raw_extra), 1 / size)]),
        trained=trained,
        training_residual=reference.exact_gradient_norm(trained, X, y, l2, loss),
        raw={"source": raw, "surrogate": raw_S},
    )


def stopped_early(rng: np.random.Generator, trained: Array) -> Array:
    """How far from its optimum a training may have stopped."""
    length = 10 ** rng.uniform(-6, -0.5) * np.linalg.norm(trained) / np.sqrt(trained.size)
    return rng.normal(size=trained.shape) * length


def surrogate_counts(
    rng: np.random.Generator, kind: str, kept: Array, width: int, max_norm: float
) -> tuple[Array, Array]:
    """How often each source row occurs in the surrogate, and the surrogate's rows from elsewhere."""
    n, nothing = len(kept), np.zeros((0, width))
    if kind in ("equal", "retained"):
        return (np.ones(n, dtype=int) if kind == "equal" else kept.astype(int)), nothing
    if kind == "reweighted":
        counts = 1 + rng.poisson(rng.gamma(0.5, size=n) * rng.choice([0.2, 1.0, 4.0]))
        return counts, heavy_tailed(
            rng, int(rng.integers(0, n // 4)), width, max_norm
        ) if rng.random() < 0.3 else nothing
    if kind == "tiny":
        counts = np.bincount(rng.integers(0, n, rng.integers(0, 6)), minlength=n)
        return counts, heavy_tailed(rng, int(rng.integers(1, 4)), width, max_norm)
    there = rng.random(n) < rng.choice([0.0, 0.5, 0.9])
    other = heavy_tailed(rng, int(rng.integers(5, n)), width, max_norm) + rng.normal(
        size=width
    ) * max_norm * rng.choice([0.1, 1.0]) / np.sqrt(width)
    return there.astype(int), other


def two_values(heavy: int, values: tuple[float, float], l2: float) -> Problem:
    """Ridge on one feature with two values, 100 source rows of which `heavy` have the first; every other is forgotten, 40.

    Of the surrogate's rows a fifth have the first. Every function of two points is affine in phi, so chi-square is exact;
    with a large l2, so is strong convexity.
    """
    n, m = 100, 40
    X = np.where(np.arange(n) < heavy, *values)[:, None]
    y = (np.arange(n) % 3 == 0).astype(int)
    S = np.repeat(np.array(values)[:, None], [20, 80], axis=0)
    forgotten = np.arange(0, n, 2)[:m]
    first = without(n, forgotten)[:heavy].sum()
    trained = reference.retrain(X, y, 2, l2, "ridge").weights
    return Problem(
        seed=0,
        loss="ridge",
        classes=2,
        l2=l2,
        max_norm=1.0,
        bias=False,
        surrogate_kind="reweighted",
        X=X,
        y=y,
        forgotten=forgotten,
        S=S,
        S_labels=np.zeros(len(S), dtype=int),
        rho=np.array([heavy, n - heavy]) / n,
        rho_retained=np.array([first, n - m - first]) / (n - m),
        nu=np.array([0.2, 0.8]),
        trained=trained,
        training_residual=reference.exact_gradient_norm(trained, X, y, l2, "ridge"),
        raw={"source": X, "surrogate": S},
    )


def request_of(problem: Problem, distance: Distance, step: str = "converged") -> Request:
    """The problem as a user would put it: raw rows, weights, and the facts of training."""
    weight, bias = (problem.trained[:, :-1], problem.trained[:, -1]) if problem.bias else (problem.trained, None)
    return asked(
        weight,
        (problem.raw["source"][problem.forgotten], problem.y[problem.forgotten]),
        (problem.raw["surrogate"], problem.S_labels),
        epsilon=1.0,
        delta=1e-5,
        distance=distance,
        bias=bias,
        step=step,
        n_source=problem.n,
        l2=problem.l2,
        loss=problem.loss,
        max_norm=problem.max_norm,
        training_residual=problem.training_residual,
        force=True,
    )


def retrained(problem: Problem) -> reference.Retrained:
    """The retraining that the bound speaks of, exactly."""
    return reference.retrain(
        problem.X[problem.kept],
        problem.y[problem.kept],
        problem.classes,
        problem.l2,
        problem.loss,
        start=problem.trained,
    )


def change_mean(problem: Problem, update: Array, X: Array) -> Array:
    """The mean of phi_u over some rows."""
    change = reference.predictions(problem.trained + update, X, problem.loss) - reference.predictions(
        problem.trained, X, problem.loss
    )
    return change.T @ X / len(X)
