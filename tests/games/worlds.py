"""Sources that differ in who was in them, for the games: the same retained rows, with this person, another, or nobody."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import beta

from expunge.deposit.file import Deposit
from expunge.door import ask
from expunge.evidence import Measurement, foresee
from expunge.mechanism import Unlearned, hand_over, judge, measure
from expunge.model import LinearModel
from expunge.noise import Noise
from expunge.request.promise import Promise, Series
from expunge.request.request import Request
from expunge.runtime.arrays import to_numpy
from expunge.train import train
from expunge.unlearn import deposit

Rows = tuple[np.ndarray, np.ndarray]
EPSILON, DELTA = 0.1, 1e-3
FALSE_ALARM = 1e-4  # of a game that is fair, for each of them
THIS, OTHER = 0, 1
ROWS, WIDTH = 1500, 6
RARE = WIDTH - 1  # the column that no retained row has anything in


@dataclass(frozen=True)
class World:
    """Retained rows, and who may have been there beside them: each a forget set."""

    loss: str
    retained: Rows
    people: tuple[Rows, ...]

    def source(self, who: int | None) -> Rows:
        """The retained rows, with somebody or alone."""
        return self.retained if who is None else joined(self.retained, self.people[who])


def joined(*parts: Rows) -> Rows:
    features, labels = zip(*parts, strict=True)
    return np.concatenate(features), np.concatenate(labels)


def rows_of(generator: np.random.Generator, count: int, *, rare: float = 0.0) -> Rows:
    """Standard normal features, and one that is the same number for all of them."""
    features = generator.normal(size=(count, WIDTH))
    features[:, RARE] = rare
    signal = features @ np.array([1.0, -1.0, 0.5, 0.0, 0.3, 0.02])
    return features, (signal + generator.logistic(size=count) > 0.0).astype(np.int64)


@functools.cache
def world(name: str) -> World:
    """By the words of `NAMES`; the other one is as anybody."""
    loss, who = name.split(", ")
    generator = np.random.default_rng(sorted(NAMES).index(name))
    retained = rows_of(generator, ROWS)
    if who == "standardised":
        features = rows_of(generator, ROWS)[0]
        features[:, RARE] = generator.exponential(size=ROWS)
        features = (features - features.mean(axis=0)) / features.std(axis=0)
        retained = features, retained[1]
        this = rows_of(generator, 1, rare=60.0)
    else:
        this = rows_of(generator, *{"23": (1,), "5": (1,), "60 people": (60,)}[who], rare=RARITY[who])
    return World(loss, retained, (this, rows_of(generator, len(this[0]))))


RARITY = {"23": 23.0, "5": 5.0, "60 people": 1.0}
NAMES = (
    "ridge, 23",
    "ridge, 60 people",
    "logistic, 23",
    "logistic, 60 people",
    "logistic, 5",
    "ridge, standardised",
    "logistic, standardised",
)


def trained(rows: Rows, loss: str, n_rows: int = ROWS) -> LinearModel:
    """At C = 1 of so many rows."""
    return train(*rows, l2=1.0 / n_rows, max_norm="largest", loss=loss)


def kept_of(rows: Rows, loss: str, seed: int | None = None, n_rows: int = ROWS) -> Deposit:
    return deposit(trained(rows, loss, n_rows), *rows, seed=seed)


@dataclass(frozen=True)
class Leaving:
    """A request, measured once, from which as many models can be published as a game needs."""

    request: Request
    measured: Measurement

    @property
    def updated(self) -> np.ndarray:
        """The weights before noise."""
        weights: np.ndarray = to_numpy(self.request.weights + self.measured.step.update)
        return weights

    @property
    def after(self) -> Deposit:
        return self.measured.retained.deposit

    @property
    def noise(self) -> Noise:
        derived = foresee(self.request, self.measured)[1]
        assert derived.noise is not None
        return self.measured.shaped(derived.noise)

    def publish(self, seed: int | None = None) -> Unlearned:
        judged = judge(self.request, self.measured, insecure=seed is not None)
        return hand_over(self.request, self.measured, *judged, insecure_test_seed=seed)


def leave(before: Deposit, rows: Rows, noise: Any = None, series: Series | None = None) -> Leaving:
    """These rows leave, with noise set beforehand or chosen by the request."""
    promise = Promise(EPSILON, DELTA, noise=noise, series=series)
    request = ask(None, rows, None, promise, deposit=before)
    return Leaving(request, measure(request))


@functools.cache
def before(name: str, who: int | None) -> Deposit:
    return kept_of(world(name).source(who), world(name).loss, seed=10 + (-1 if who is None else who))


@functools.cache
def own_choice(name: str, who: int) -> Leaving:
    return leave(before(name, who), world(name).people[who])


@functools.cache
def by_policy(name: str, who: int) -> Leaving:
    """With the noise a policy would set: a level that covers either of them."""
    level = max(own_choice(name, each).noise.scale for each in (THIS, OTHER))
    return leave(before(name, who), world(name).people[who], noise=level)


def at_least(won: int, games: int, failure: float = FALSE_ALARM) -> float:
    """Exact lower confidence bound on the probability to win (Clopper and Pearson)."""
    return float(beta.ppf(failure, won, games - won + 1)) if won else 0.0
