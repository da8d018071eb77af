"""Random problems with a deposit and surrogate rows beside it, and the truth about them; and one that is asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

from deposit_problems import noised_gauges
from expunge.deposit.make import optimum
from expunge.deposit.matrices import Blocks, gram_of, shape_of
from expunge.deposit.region import Penalty, RetainedProblem, Setting
from expunge.deposit.sums import is_joint, sums_of
from expunge.deposit.with_surrogate import SurrogateTerms
from expunge.distance import Distance
from expunge.heads import LinearHead, Rows, head_for
from expunge.train import train
from expunge.unlearn import deposit

LOSSES = ("softmax", "logistic", "one-vs-rest")
FAMILIES = ("gaussian", "heavy", "one-hot", "mixed", "chi-square", "total variation", "kl", "samples")
ATOMS = 60


@dataclass(frozen=True)
class Problem:
    """`retained` has what is asked of a deposit; `kept` are the rows that are retained, as the truth knows them."""

    retained: Any
    head: LinearHead
    penalty: Penalty
    forget: Rows
    kept: Rows
    surrogate: Rows
    asked: SurrogateTerms

    @property
    def setting(self) -> Setting:
        setting: Setting = self.retained.problem.setting
        return setting

    def off(self, update: np.ndarray) -> float:
        """How far the retrained weights are from the updated ones, in the norm of the noise's shape."""
        updated = self.setting.anchor + update
        retrained = optimum(self.head, self.kept, replace(self.setting, anchor=updated), self.penalty)
        shape = Blocks(self.retained.problem.shape @ self.retained.problem.shape.mT, joint=False)
        return math.sqrt(max(0.0, shape.form(self.setting.centred(retrained - updated))))


def assembled(
    head: LinearHead,
    rows: Rows,
    n_forget: int,
    surrogate: Rows,
    distance: Distance,
    *,
    penalty: Penalty,
    after: Penalty | None = None,
    failure: float = 0.2,
) -> Problem | None:
    """The first rows are forgotten; None where the noise has no shape."""
    softmax = is_joint(head)
    setting = Setting(
        np.zeros((head.n_classes, head.n_features), dtype=np.float64), head.row_bound, (), False, softmax, 1.0
    )
    anchor = optimum(head, rows, setting, penalty)
    gauges = noised_gauges(rows)
    sums = sums_of(head, anchor, rows, gauges)
    stiff = float(sums.curvature.values.diagonal(axis1=-2, axis2=-1).mean())
    setting = replace(setting, anchor=anchor, gauges=gauges, stiff=stiff)
    forget = Rows(rows.features[:n_forget], rows.labels[:n_forget])
    kept = Rows(rows.features[n_forget:], rows.labels[n_forget:])
    left, penalty = sums.without(sums_of(head, anchor, forget, gauges)), after or penalty
    shape = shape_of(head, gram_of(kept), penalty.diagonal(anchor)[0])
    if shape is None:
        return None
    retained = SimpleNamespace(problem=RetainedProblem(setting, left, penalty, shape), anchor=anchor, head=head)
    terms = SurrogateTerms(distance, len(rows), n_forget, failure)
    return Problem(retained, head, penalty, forget, kept, surrogate, terms)


def random_problem(family: str, seed: int, *, failure: float = 0.2) -> Problem | None:
    """Rows of a family, the surrogate's of the same law or, from `chi-square` on, of one at a known distance.

    None where the Hessian is not positive definite, or no finite distance can be declared.
    """
    rng = np.random.default_rng([seed, FAMILIES.index(family)])
    loss, n, s = str(rng.choice(LOSSES)), int(rng.integers(150, 1200)), int(rng.integers(100, 1500))
    classes = 2 if loss == "logistic" else int(rng.integers(2, 4))
    n_forget = max(1, int(n * rng.choice([0.002, 0.01, 0.05, 0.2])))
    X, S, distance = drawn(family, rng, n, s, n_forget)
    if distance is None:
        return None
    scale = 10 ** rng.uniform(-0.5, 0.5)
    y = np.argmax(
        X @ rng.normal(size=(X.shape[1], classes)) * rng.choice([0.3, 1, 3]) + rng.gumbel(size=(n, classes)), 1
    )
    X, S = np.c_[X * scale, np.ones(n)], np.c_[S * scale, np.ones(s)]
    bound = float(np.linalg.norm(np.r_[X, S], axis=1).max()) * (1 + 1e-12) * rng.choice([1.0, 1.5])
    head = head_for(
        loss, l2=0.0, n_classes=1 if loss == "logistic" else classes, n_features=X.shape[1], row_bound=bound
    )
    l2, free = float(rng.choice([1 / n, 1e-2, 1e-3])), bool(rng.random() < 0.4)
    after = Penalty(l2 * n / (n - n_forget), free) if rng.random() < 0.3 else None
    rows, surrogate = Rows(X, y), Rows(S, np.zeros(s, dtype=np.int64))
    return assembled(head, rows, n_forget, surrogate, distance, penalty=Penalty(l2, free), after=after, failure=failure)


def drawn(family: str, rng: np.random.Generator, n: int, s: int, n_forget: int) -> tuple[Any, Any, Distance | None]:
    """Rows of the source and of the surrogate, and how far what they are drawn from is from one another.

    For `samples` it is the retained rows themselves, of which the first are not, from the surrogate's.
    """
    width, same = int(rng.integers(1, 6)), Distance("same", 0.0)
    if family in FAMILIES[4:]:
        atoms, own = rng.standard_t(4, size=(ATOMS, width)), rng.dirichlet(np.full(ATOMS, 2.0))
        source = own * np.exp(rng.normal(size=ATOMS) * rng.choice([0.2, 0.7]))
        source /= source.sum()
        rows, others = rng.choice(ATOMS, n, p=source), rng.choice(ATOMS, s, p=own)
        if family == "samples":
            counts = (np.bincount(each, minlength=ATOMS) / len(each) for each in (rows[n_forget:], others))
            away = known_distance("chi-square", *counts, between="samples")
        else:
            away = known_distance(family, source, own)
        return atoms[rows], atoms[others], away
    if family == "gaussian":
        return rng.normal(size=(n, width)), rng.normal(size=(s, width)), same
    if family == "heavy":
        return rng.standard_t(2, size=(n, width)), rng.standard_t(2, size=(s, width)), same
    levels = int(rng.choice([5, 30, 100]))
    rare = 1.0 / np.arange(1, levels + 1) ** rng.choice([0.0, 1.0])
    X, S = (np.eye(levels)[rng.choice(levels, size, p=rare / rare.sum())] for size in (n, s))
    if family == "mixed":
        X, S = np.c_[X, rng.standard_t(3, size=(n, 2))], np.c_[S, rng.standard_t(3, size=(s, 2))]
    return X, S, same


def known_distance(family: str, source: Any, own: Any, between: str = "populations") -> Distance | None:
    """Of one law relative to another, both on the same atoms; None where it is not finite."""
    seen = source > 0.0
    if (own[seen] == 0.0).any() and family != "total variation":
        return None
    if family == "total variation":
        return Distance("tv", min(1.0, 0.5 * float(np.abs(source - own).sum()) * (1 + 1e-9)), between)
    ratios = source[seen] / own[seen]
    if family == "kl":
        return Distance("kl", float((source[seen] * np.log(ratios)).sum()) * (1 + 1e-9), between)
    return Distance("chi2", float((source[seen] * ratios).sum() - 1.0) * (1 + 1e-9), between)


# One problem, from the door on --------------------------------------------------------------------------------------

N, WIDTH = 4000, 6
MANY = 650  # so many rows need a level of noise less with the surrogate beside the deposit


def tame(n: int, seed: int) -> tuple[Any, Any]:
    """Gaussian rows of three classes."""
    truth, rng = np.random.default_rng(0).normal(size=(WIDTH, 3)), np.random.default_rng(seed)
    X = rng.normal(size=(n, WIDTH))
    return X, np.argmax(X @ truth + rng.gumbel(size=(n, 3)), axis=1)


SOURCE, SURROGATE = tame(N, 1), tame(N, 2)


@cache
def kept(loss: str = "softmax") -> tuple[Any, Any]:
    """The model trained on the source, and its deposit, without third derivatives: with them no surrogate is needed."""
    model = train(*SOURCE, l2=1e-3, max_norm=6.0, loss=loss, bias=True)
    with patch("expunge.deposit.make.has_third", lambda head: False):
        return model, deposit(model, *SOURCE, seed=1)


def first(count: int) -> tuple[Any, Any]:
    """So many rows of the source."""
    return SOURCE[0][:count], SOURCE[1][:count]
