"""Who left a desk with a deposit? The game of test_membership_game.py: an observer knows every row, the anchor, even the
shape and the size of the noise, but not which of two rows left first; ten models are published.

Noise that a deposit needs is small, of second order in the update, so models retrained without the one row or the other
can be told apart through it: that is no part of the promise. What is promised is told by two games. In the one the
observer is to tell what a desk publishes from truly retrained weights with the same noise. In the other two rows are so
alike that retraining itself hardly tells which of them left. All files but the weights are the same whoever left, where
the noise was set beforehand; where the request chooses, the level is one of few, and the statement says of how many.
"""

from __future__ import annotations

import functools
import json
import math
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from scipy.stats import norm

from expunge.bounds.calibration import compose, is_power_of_four, mu_for
from expunge.bounds.deposit import deposit_bound
from expunge.certificate.claim import ARITHMETIC_SHARE, deposit_facts
from expunge.deposit.file import Deposit
from expunge.desk import Policy, accept, create_desk, run, verify_desk
from expunge.desk.desk import Desk
from expunge.door import ask
from expunge.errors import RetrainNow
from expunge.evidence import Measurement, foresee
from expunge.mechanism import Unlearned, certify, measure
from expunge.model import LinearModel, read_model
from expunge.noise import Noise
from expunge.record import one_digit
from expunge.request.promise import Promise, Series
from expunge.request.request import Request
from expunge.rows.hashes import hash_rows
from expunge.runtime.arrays import to_numpy
from expunge.train import train
from expunge.unlearn import deposit
from published_files import at_least, digests_of, published, require_same_but_weights, shown, two_desks

pytestmark = pytest.mark.usefixtures("one_thread")
EPSILON, DELTA, MODELS = 0.3, 1e-3, 10
GAMES, WHOLE_GAMES = 400, 10  # with weights alone; with everything that is published
ROWS, L2 = 1500, 0.02
OUTLIER, NOBODY, TWIN, OTHER = range(4)
POLICY = Policy(epsilon=EPSILON, delta=DELTA, distance="deposit", planned=MODELS)
Rows = tuple[np.ndarray, np.ndarray]


@functools.cache
def world() -> tuple[Rows, LinearModel, Deposit]:
    """The source, its model and its deposit. The first rows: an outlier, nearly nothing, and two that are much alike."""
    generator = np.random.default_rng(7)
    labels = np.arange(ROWS) % 3
    features = np.eye(3, 4)[labels] + 0.5 * generator.normal(size=(ROWS, 4))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    features[OUTLIER], labels[OUTLIER] = -np.eye(3, 4)[2], 2
    features[NOBODY], labels[NOBODY] = 1e-3 * np.eye(3, 4)[0], 0
    features[OTHER], labels[OTHER] = 0.97 * features[TWIN], labels[TWIN]
    model = train(features, labels, l2=L2, max_norm=1.0)
    least = patch("expunge.deposit.forecast.QUIET", 0.0)  # with more in the anchor all need the same
    with patch("expunge.deposit.make.has_third", lambda head: False), least:  # noise that hides more than it must
        return (features, labels), model, deposit(model, features, labels, seed=1)


def leaving(candidate: int, number: int) -> Rows:
    """The rows of a request: the candidate first, then nine that nobody wonders about."""
    (features, labels), index = world()[0], candidate if number == 0 else number + OTHER
    return features[index : index + 1], labels[index : index + 1]


@functools.cache
def enough() -> float:
    """Noise that covers whoever leaves, as one set with a wide margin would."""
    needed = max(step.radius for who in (OUTLIER, NOBODY) for step in steps_of(who))
    return 2.0 * needed / mu_for(EPSILON, DELTA * (1.0 - ARITHMETIC_SHARE))


@dataclass(frozen=True)
class Step:
    """One of ten requests, measured; `updated` are the weights before noise, which the observer can compute too."""

    request: Request
    measured: Measurement

    @property
    def updated(self) -> np.ndarray:
        return to_numpy(self.request.weights + self.measured.step.update)

    @property
    def radius(self) -> float:
        return deposit_bound(deposit_facts(self.measured.facts, str(self.measured.retained.route))).radius

    @property
    def noise(self) -> Noise:
        derived = foresee(self.request, self.measured)[1]
        assert derived.noise is not None
        return self.measured.shaped(derived.noise)

    @property
    def shape(self) -> np.ndarray:
        """The factor of the noise's shape, of the rows that are retained then."""
        return to_numpy(self.measured.retained.deposit.shape[0])

    def publish(self) -> Unlearned:
        return certify(self.request, self.measured)


@functools.cache
def steps_of(candidate: int, covered: bool = False) -> tuple[Step, ...]:
    """What a desk computes for its ten requests."""
    steps, kept, noise = [], world()[2], enough() if covered else None
    for number in range(MODELS):
        series = Series(MODELS, number + 1, head={"size": 1, "hash": "0" * 64})
        request = ask(
            None, leaving(candidate, number), None, Promise(EPSILON, DELTA, series=series, noise=noise), deposit=kept
        )
        steps.append(Step(request, measure(request)))
        kept = steps[-1].measured.retained.deposit
    return tuple(steps)


@pytest.fixture(scope="module")
def desks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Desk, Desk]:
    """Two desks that differ in nothing but who left first: copies of one that was just opened."""
    folder = tmp_path_factory.mktemp("game") / "desk"
    opened = create_desk(folder, None, None, POLICY, deposit=world()[2], noise=enough())
    return two_desks(opened, leaving, (OUTLIER, NOBODY), MODELS, tmp_path_factory)


# What is not weights ------------------------------------------------------------------------------------------------


def test_all_files_but_weights_and_keyed_digests_are_the_same_whoever_left(desks: tuple[Desk, Desk]) -> None:
    first, second = (published(desk) for desk in desks)
    require_same_but_weights(first, second, MODELS)
    records = [read_model(path)[0].record for path in first + second if path.suffix == ".safetensors"]
    facts = [record.facts() | {"weights_sha256": ""} for record in records if record is not None]
    assert len(facts) == 2 * MODELS
    assert all(each == facts[0] for each in facts)
    assert facts[0]["n_source"] == one_digit(ROWS - MODELS)
    for desk in desks:
        assert verify_desk(desk).models == MODELS


def test_nothing_of_the_deposit_is_published(desks: tuple[Desk, Desk]) -> None:
    """Neither its key, its hashes and digests, nor a number of its matrices to more than a few digits."""
    _, trained, kept = world()
    secret = [kept.key, kept.key.hex().encode(), desks[0].key]
    secret += [digest.tobytes() for digest in hash_rows(kept.key, *leaving(OUTLIER, 0)).digests]
    shape = kept.ellipsoid
    exact = (shape.least, shape.inverse_trace, kept.output_noise, kept.output_spread, *kept.numbers.kappas)
    secret += [repr(float(number)).encode() for number in (*exact, *kept.sums.gradient.reshape(-1))]
    private = {trained.sha256(), trained.weights_sha256(), kept.model.sha256(), kept.model.weights_sha256()}
    for path in published(desks[0]):
        content = path.read_bytes()
        assert not [part for part in secret if part in content], path
        if path.suffix == ".json":
            assert not private & digests_of(json.loads(content))
    smallest = json.loads((desks[0].layout.published_model(1) / "statement.json").read_text())["noise"]["smallest"]
    assert is_power_of_four(enough() ** 2 / 64.0 / smallest**2), "of a power of four"


def test_the_same_game_on_the_dossiers_is_won_every_time(desks: tuple[Desk, Desk]) -> None:
    expected = [shown(steps_of(who, covered=True)[0].publish().certificate.content) for who in (OUTLIER, NOBODY)]
    telling = {name for name in expected[0] if expected[0][name] != expected[1].get(name)}
    assert ".bound.total" in telling
    assert ".bound.inputs.reach.value" in telling
    for candidate, desk in enumerate(desks):
        seen = json.loads(desk.layout.dossier_of(1).read_text())["bound"]["total"]
        assert int(np.argmin([abs(math.log(seen / each[".bound.total"])) for each in expected])) == candidate


# The weights ----------------------------------------------------------------------------------------------------------


@functools.cache
def retrained(candidate: int) -> tuple[np.ndarray, ...]:
    """Truly retrained weights after each of ten deletions."""
    (features, labels), made = world()[0], []
    for number in range(MODELS):
        kept = np.delete(np.arange(ROWS), [candidate, *(index + OTHER for index in range(1, number + 1))])
        made.append(to_numpy(train(features[kept], labels[kept], l2=L2, max_norm=1.0).matrix()))
    return tuple(made)


def lengths(differences: list[np.ndarray], who: int) -> np.ndarray:
    """In the norm of the noise's shape, at each step of those where this one left first."""
    pairs = zip(differences, steps_of(who), strict=True)
    return np.array([float(np.linalg.norm(each @ step.shape)) for each, step in pairs])


def guess(models: list[np.ndarray], one: list[np.ndarray], other: list[np.ndarray], who: int) -> int:
    """The likelihood ratio test between two series of weights before noise: nothing tells more of Gaussian noise."""
    score = 0.0
    for seen, first, second, step in zip(models, one, other, steps_of(who), strict=True):
        middle, apart = (seen - (first + second) / 2.0) @ step.shape, (second - first) @ step.shape
        score += float((middle * apart).sum())
    return int(score > 0.0)


def allowed(apart: np.ndarray) -> float:
    """The most often that ten models may be told apart whose means are so many times sigma apart."""
    return float(norm.cdf(math.sqrt(float(np.sum(apart**2))) / 2.0))


def target() -> float:
    return steps_of(TWIN)[0].publish().statement.mu


def means(candidate: int) -> list[np.ndarray]:
    return [step.updated for step in steps_of(candidate)]


def played(series: list[list[np.ndarray]], noises: list[Noise], who: int, games: int = GAMES) -> int:
    won = 0
    for game in range(games):
        truth = game % 2
        seen = [noise.added_to(values) for noise, values in zip(noises, series[truth], strict=True)]
        won += guess(seen, *series, who) == truth
    return won


def test_a_desk_is_not_told_from_retraining() -> None:
    """Ten models of a desk, or ten retrained ones with the same noise: the promise itself."""
    series, noises = [means(OUTLIER), list(retrained(OUTLIER))], [step.noise for step in steps_of(OUTLIER)]
    sigmas = np.array([noise.scale for noise in noises])
    away = lengths([one - other for one, other in zip(*series, strict=True)], OUTLIER)
    assert np.all(away <= [step.radius for step in steps_of(OUTLIER)])
    assert np.all(away <= target() * sigmas)
    bound = at_least(played(series, noises, OUTLIER), GAMES)
    assert bound <= allowed(np.full(MODELS, target()))
    epsilon = compose([target()] * MODELS, DELTA, 0.0).epsilon
    assert bound <= (math.exp(epsilon) + DELTA) / (1.0 + math.exp(epsilon))
    assert allowed(away / sigmas) > 0.5


def test_two_rows_that_are_alike_are_told_apart_no_more_than_allowed() -> None:
    """What truly retrained models tell of which twin left, and mu more on either side."""
    sigmas = [{step.noise.scale for step in steps_of(who)} for who in (TWIN, OTHER)]
    assert sigmas[0] == sigmas[1]
    noises = [step.noise for step in steps_of(TWIN)]
    retrained_apart = lengths([one - other for one, other in zip(retrained(TWIN), retrained(OTHER), strict=True)], TWIN)
    most = allowed(retrained_apart / [noise.scale for noise in noises] + 2.0 * target())
    assert 0.6 < most < 0.95, "so that the count below can fail"
    won = played([means(TWIN), means(OTHER)], noises, TWIN)
    print(f"won {won} of {GAMES}, at least {at_least(won, GAMES):.3f}, {most:.3f} allowed")
    assert at_least(won, GAMES) <= most


def test_with_too_little_noise_the_observer_wins_both() -> None:
    quiet = [replace(step.noise, scale=step.noise.scale / 1000.0) for step in steps_of(TWIN)]
    assert played([means(TWIN), means(OTHER)], quiet, TWIN, 20) == 20
    quiet = [replace(step.noise, scale=step.noise.scale / 1000.0) for step in steps_of(OUTLIER)]
    assert played([means(OUTLIER), list(retrained(OUTLIER))], quiet, OUTLIER, 20) == 20


def test_statements_and_models_of_many_desks_tell_no_more() -> None:
    won, statements = 0, []
    series = [means(TWIN), means(OTHER)]
    for _ in range(WHOLE_GAMES):
        candidate = secrets.randbelow(2)
        results = [step.publish() for step in steps_of((TWIN, OTHER)[candidate])]
        statements.append([shown(result.statement.content) for result in results])
        won += guess([to_numpy(result.model.matrix()) for result in results], *series, TWIN) == candidate
    assert all(each == statements[0] for each in statements), "a field of a statement tells who left"
    retrained_apart = lengths([one - other for one, other in zip(retrained(TWIN), retrained(OTHER), strict=True)], TWIN)
    assert at_least(won, WHOLE_GAMES) <= allowed(retrained_apart / steps_of(TWIN)[0].noise.scale + 2.0 * target())


# Levels and refusals ----------------------------------------------------------------------------------------------------


def test_the_level_tells_no_more_than_which_of_few() -> None:
    """Forty candidates: as many kinds of statements as there are levels, at most, and each says how many there are."""
    kept, seen = world()[2], set()
    (features, labels), levels = world()[0], world()[2].levels
    for index in range(40):
        row = features[index : index + 1], labels[index : index + 1]
        request = ask(None, row, None, Promise(EPSILON, DELTA), deposit=kept)
        statement = certify(request, measure(request)).statement
        assert statement.content["noise"]["rungs"] == len(levels)
        seen.add(json.dumps(shown(statement.content), sort_keys=True))
    assert 1 <= len(seen) <= len(levels) <= 8


def test_a_refusal_is_one_bit(tmp_path: Path) -> None:
    """With noise between what the two need, only one is refused; that is seen, and nothing else is."""
    needs = [steps_of(who)[0].radius for who in (OUTLIER, NOBODY)]
    assert needs[0] > 2.0 * needs[1]
    between = math.sqrt(needs[0] * needs[1]) / mu_for(EPSILON, DELTA)
    kept = world()[2]
    said: list[Any] = []
    for candidate, name in ((OUTLIER, "outlier"), (NOBODY, "nobody")):
        desk = create_desk(tmp_path / name, None, None, POLICY, deposit=kept, noise=between)
        accept(desk, *leaving(candidate, 0), "case")
        outcome = run(desk)
        said.append(None if outcome.refused is None else str(outcome.refused))
        assert isinstance(outcome.refused, RetrainNow) == (candidate == OUTLIER)
        assert len(published(desk)) == (0 if candidate == OUTLIER else 3)
    assert said[1] is None
    assert not any(character.isdigit() for character in said[0]), "a number would say by how much"
