"""Who left? An observer knows every row, the trained weights, the surrogate and the policy, but not which of two rows
left first; ten models are published. Whatever is published may help no more than the guarantee allows.

The observer's best attacks: every field of every statement is computed anew for either row and compared; so are sizes of
files, digests and refusals; and the published weights are put to the likelihood ratio test between the two updates,
which is the most powerful there is. The same comparison of the dossiers wins every time, so the attack can win.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from expunge.bounds import Ball
from expunge.bounds.calibration import compose, mu_for
from expunge.desk import Policy, accept, create_desk, run, verify_desk
from expunge.desk.desk import Desk
from expunge.door import ask
from expunge.errors import RetrainNow
from expunge.evidence import Measurement, foresee
from expunge.mechanism import Unlearned, certify, measure
from expunge.model import LinearModel, read_model
from expunge.noise import Noise, grid_exponent
from expunge.record import one_digit
from expunge.request.promise import Series
from expunge.request.request import Request, nothing_forgotten
from expunge.runtime import arrays as engine
from expunge.surrogate import rehearsed_scale
from expunge.train import train
from published_files import at_least, digests_of, published, require_same_but_weights, shown, two_desks

EPSILON, DELTA, MODELS = 0.3, 1e-3, 10
GAMES, WHOLE_GAMES = 2000, 50  # with weights alone; with everything that is published
ROWS = 4000  # of the source, and as many of the surrogate
Rows = tuple[np.ndarray, np.ndarray]


@functools.cache
def world() -> tuple[Rows, Rows, LinearModel]:
    """Source, surrogate and trained model; the first two source rows are the candidates: an outlier and nearly nothing."""
    generator = np.random.default_rng(7)
    labels = np.arange(2 * ROWS) % 3
    features = np.eye(3, 4)[labels] + 0.5 * generator.normal(size=(2 * ROWS, 4))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    features[0], labels[0] = -np.eye(3, 4)[2], 2
    features[1], labels[1] = 1e-3 * np.eye(3, 4)[0], 0
    source, surrogate = (features[:ROWS], labels[:ROWS]), (features[ROWS:], labels[ROWS:])
    return source, surrogate, train(*source, l2=0.05, max_norm=1.0)


def leaving(candidate: int, number: int) -> Rows:
    """The rows of a request: the candidate first, then nine that nobody wonders about."""
    (features, labels), index = world()[0], candidate if number == 0 else number + 1
    return features[index : index + 1], labels[index : index + 1]


def policy(**changes: Any) -> Policy:
    return Policy(
        **({"epsilon": EPSILON, "delta": DELTA, "distance": "same", "planned": MODELS, "force": True} | changes)
    )


@pytest.fixture(scope="module")
def desks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Desk, Desk]:
    """Two desks that differ in nothing but who left first: copies of one that was just opened."""
    _, surrogate, model = world()
    opened = create_desk(tmp_path_factory.mktemp("game") / "desk", model, surrogate, policy())
    return two_desks(opened, leaving, (0, 1), MODELS, tmp_path_factory)


# What is not weights --------------------------------------------------------------------------------------------------


def test_all_files_but_weights_and_keyed_digests_are_the_same_whoever_left(desks: tuple[Desk, Desk]) -> None:
    files = [published(desk) for desk in desks]
    require_same_but_weights(*files, MODELS)
    records = [read_model(path)[0].record for path in files[0] + files[1] if path.suffix == ".safetensors"]
    facts = [record.facts() | {"weights_sha256": ""} for record in records if record is not None]
    assert all(each == facts[0] for each in facts)
    assert len(facts) == 2 * MODELS
    assert facts[0]["class_counts"] is None
    assert facts[0]["n_source"] == one_digit(ROWS - MODELS)
    for desk in desks:
        assert verify_desk(desk).models == MODELS


def test_no_digest_can_be_computed_anew(desks: tuple[Desk, Desk]) -> None:
    """Neither of the private weights, which training gives to whoever knows the rows, nor of a dossier."""
    (_, _, trained), desk = world(), desks[0]
    private = json.loads(desk.layout.dossier_of(1).read_text())
    statement = json.loads((desk.layout.published_model(1) / "statement.json").read_text())
    without_nonce = {name: value for name, value in private.items() if name not in ("digest", "nonce")}
    guesses = {trained.sha256(), trained.weights_sha256(), hashlib.sha256(trained.to_bytes()).hexdigest()}
    for left_out in (without_nonce, {**without_nonce, "nonce": ""}, {**without_nonce, "nonce": "0" * 64}):
        text = json.dumps(left_out, sort_keys=True, separators=(",", ":"))
        guesses.add(hashlib.sha256(text.encode()).hexdigest())
    assert not guesses & digests_of(statement)
    assert guesses & digests_of(private), "the dossier has the bare digest, so this can fail"


# The dossier wins -----------------------------------------------------------------------------------------------------


def test_the_same_game_on_the_dossiers_is_won_every_time(desks: tuple[Desk, Desk]) -> None:
    expected = [shown(requests_of(candidate)[0].dossier) for candidate in (0, 1)]
    telling = {name for name in expected[0] if expected[0][name] != expected[1].get(name)}
    assert ".bound.inputs.change_mean.value" in telling
    assert ".bound.total" in telling
    for candidate, desk in enumerate(desks):
        seen = json.loads(desk.layout.dossier_of(1).read_text())["bound"]["inputs"]["change_mean"]["value"]
        distances = [abs(seen - each[".bound.inputs.change_mean.value"]) for each in expected]
        assert int(np.argmin(distances)) == candidate


# The weights ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """One of ten requests, measured; `updated` are the weights before noise, which the observer can compute too."""

    request: Request
    measured: Measurement
    updated: np.ndarray

    def publish(self) -> Unlearned:
        return certify(self.request, self.measured)

    @property
    def dossier(self) -> dict[str, Any]:
        return self.publish().certificate.content


@functools.cache
def requests_of(candidate: int) -> tuple[Step, ...]:
    """What a desk computes for its ten requests."""
    _, surrogate, model = world()
    promise = policy(noise=game_noise())
    steps, past = [], nothing_forgotten(model)
    for number in range(MODELS):
        series = Series(MODELS, number + 1, past, head={"size": 1, "hash": "0" * 64})
        request = ask(model, leaving(candidate, number), surrogate, promise.promise(series))
        measured = measure(request, seed=0)
        past = request.next_past()
        steps.append(Step(request, measured, engine.to_numpy(request.weights + measured.step.update)))
    return tuple(steps)


@functools.cache
def game_noise() -> float:
    """What a desk sets when it is opened."""
    _, surrogate, model = world()
    promise = policy().promise(Series(MODELS))
    request = ask(model, (surrogate[0][:1], surrogate[1][:1]), surrogate, promise)
    return rehearsed_scale(request, MODELS, measure, seed=0)


def guess(models: list[np.ndarray]) -> int:
    """The likelihood ratio test between both series of updates: nothing tells more of Gaussian noise."""
    score = 0.0
    for seen, one, other in zip(models, requests_of(0), requests_of(1), strict=True):
        score += float(np.sum((seen - (one.updated + other.updated) / 2.0) * (other.updated - one.updated)))
    return int(score > 0.0)


@functools.cache
def retrained_apart() -> float:
    """How far apart truly retrained models are, without the one row or the other: the first or the last of ten."""
    features, labels = world()[0]
    distances = []
    for others in ([], list(range(2, MODELS + 1))):
        kept = [np.delete(np.arange(len(labels)), [candidate, *others]) for candidate in (0, 1)]
        weights = [train(features[rows], labels[rows], l2=0.05, max_norm=1.0).matrix() for rows in kept]
        distances.append(float(engine.norm(weights[0] - weights[1])))
    return max(distances)


def target() -> float:
    """The mu that (epsilon, delta) of one model allows."""
    statement = requests_of(0)[0].publish().statement
    assert statement.mu == mu_for(EPSILON, statement.content["noise"]["delta_for_noise"])
    return statement.mu


def allowed(sigma: float) -> float:
    """The most often that ten models may be told apart: what truly retrained ones tell, and mu more on either side."""
    return float(norm.cdf(math.sqrt(MODELS) * (retrained_apart() / sigma + 2.0 * target()) / 2.0))


def test_statements_and_models_of_many_desks_tell_no_more_than_the_guarantee_allows() -> None:
    won, statements = 0, []
    for _ in range(WHOLE_GAMES):
        candidate = secrets.randbelow(2)
        results = [step.publish() for step in requests_of(candidate)]
        statements.append([shown(result.statement.content) for result in results])
        won += guess([engine.to_numpy(result.model.matrix()) for result in results]) == candidate
    assert all(each == statements[0] for each in statements), "a field of a statement tells who left"
    bound = at_least(won, WHOLE_GAMES)
    assert bound <= allowed(game_noise())
    # this noise is large enough for (epsilon, delta) between the two rows themselves, retraining or not
    epsilon = composed_epsilon(target())
    assert bound <= (math.exp(epsilon) + DELTA) / (1.0 + math.exp(epsilon))
    assert bound <= float(norm.cdf(math.sqrt(MODELS) * target() / 2.0))


def test_no_policy_lets_the_weights_tell_more_than_the_guarantee_allows() -> None:
    """The least noise that serves either row, and what a desk rehearses; the noise is drawn as it always is."""
    needs = [foresee(step.request, step.measured)[1].required for who in (0, 1) for step in requests_of(who)]
    for sigma in (max(needs), game_noise()):
        noise = Noise(sigma, grid_exponent(sigma), Ball(requests_of(0)[0].updated.size))
        won = 0
        for game in range(GAMES):
            candidate = game % 2
            won += guess([noise.added_to(step.updated) for step in requests_of(candidate)]) == candidate
        print(
            f"sigma {sigma:.3g}: won {won} of {GAMES}, at least {at_least(won, GAMES):.3f}, {allowed(sigma):.3f} allowed"
        )
        assert at_least(won, GAMES) <= allowed(sigma)


def composed_epsilon(mu: float) -> float:
    return compose([mu] * MODELS, DELTA, 0.41 * DELTA).epsilon


def test_with_too_little_noise_the_observer_wins() -> None:
    """So that the count above can fail: a thousandth of the noise is due to no policy of ours."""
    sigma, won = game_noise() / 1000.0, 0
    generator = np.random.default_rng(3)
    for game in range(20):
        series = requests_of(game % 2)
        seen = [step.updated + sigma * generator.normal(size=step.updated.shape) for step in series]
        won += guess(seen) == game % 2
    assert won == 20


# Refusals -------------------------------------------------------------------------------------------------------------


def test_a_refusal_is_one_bit(tmp_path: Path) -> None:
    """With noise between what the two need, only one is refused; that is seen, and nothing else is."""
    _, surrogate, model = world()
    needs = [foresee(step.request, step.measured)[1].required for step in (requests_of(0)[0], requests_of(1)[0])]
    assert needs[0] > 2.0 * needs[1]
    between = math.sqrt(needs[0] * needs[1])
    said = []
    for candidate in (0, 1):
        desk = create_desk(tmp_path / str(candidate), model, surrogate, policy(), noise=between)
        accept(desk, *leaving(candidate, 0), "case")
        outcome = run(desk)
        said.append(None if outcome.refused is None else str(outcome.refused))
        assert isinstance(outcome.refused, RetrainNow) == (candidate == 0)
        assert len(published(desk)) == (0 if candidate == 0 else 3)
        assert replace(desk.policy, noise=None) == policy()
    assert said[1] is None
    assert said[0] is not None
    assert not any(character.isdigit() for character in said[0]), "a number would say by how much"
