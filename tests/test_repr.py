"""No repr, which notebooks store and logs keep, shows a key, a nonce, a hash, a sum or a row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import expunge
from deposit_problems import made as made_deposit
from desk_use import ask, opened
from expunge import door
from expunge.certificate.rules import Check
from expunge.certificate.sign import generate_keys
from expunge.desk import run
from expunge.desk.state import Secret, load_state
from expunge.evaluate.audit import Audit, LowerBounds
from expunge.request.promise import Promise
from expunge.request.request import Past
from expunge.runtime.arrays import to_numpy
from private_values import private_values

pytestmark = pytest.mark.usefixtures("one_thread")

Held = tuple[Any, set[str]]  # an object, and the texts that may not be in what is said of it


def texts_of(*numbers: Any) -> set[str]:
    """Numbers as Python, numpy and torch write them."""
    flat = [float(value) for value in np.concatenate([np.asarray(part, dtype=float).ravel() for part in numbers])]
    return {
        text for value in flat for text in (repr(value), f"{value:.4f}", f"{value:.4e}") if len(text.strip("-0.")) > 3
    }


def dossier_alone(made: Any) -> set[str]:
    """Numbers and digests that only the dossier has."""
    found = private_values(made.certificate.content, made.statement.content)
    return {text for text in found if any(map(str.isdigit, text)) and text != made.certificate.content["schema"]}


def of_key(key: bytes) -> set[str]:
    return {key.hex(), repr(key)[2:20], key.decode("latin-1")[:16]}


@pytest.fixture(scope="module")
def forgotten() -> Any:
    case = made_deposit("softmax", l2=0.05)
    made = expunge.unlearn(
        case.model, (case.X[:1], case.y[:1]), epsilon=1.0, delta=1e-5, deposit=case.deposit, force=True
    )
    return case, made


def sums_of(deposit: Any) -> set[str]:
    """The sums of a deposit, its key and hashes."""
    sums = texts_of(to_numpy(deposit.sums.gradient), to_numpy(deposit.sums.curvature.values), to_numpy(deposit.shape))
    return {deposit.numbers.key, *deposit.hashes.hex(0)[:20]} | sums


@pytest.fixture(scope="module")
def holders(forgotten: Any) -> list[Held]:
    """What somebody may print, and what may not be in it."""
    case, made = forgotten
    deposit = made.deposit
    numbers, gauge, gradient = deposit.numbers, deposit.gauges[0], deposit.sums.gradient
    keys, key = generate_keys(), bytes(range(40, 72))
    lower = LowerBounds(0.1, 0.2, "s", 0.3, True, 0.4, 0.5, 10, 0.95)
    asked = door.ask(None, (case.X[:1], case.y[:1]), None, Promise(1.0, 1e-5, force=True), deposit=case.deposit)
    return [
        (made, dossier_alone(made) | sums_of(deposit)),
        (made.certificate, dossier_alone(made)),
        (deposit, sums_of(deposit)),
        (deposit.sums, sums_of(deposit)),
        (numbers, {numbers.key, str(numbers.class_counts)} | texts_of(numbers.kappas)),
        (gauge, texts_of(to_numpy(gauge.factor), gauge.kappa)),
        (deposit.hashes, {str(value)[1:20] for value in deposit.hashes.digests[0][:3]}),
        (Past(gradient, (3, 17)), {"17", *texts_of(to_numpy(gradient))}),
        (keys, {keys.private.decode().splitlines()[1]}),
        (Secret(key), of_key(key)),
        (Audit(1.0, 1e-5, 0.5, 0.25, 0.123456789, 0.0987654321, lower), {"0.1234", "0.0987"}),
        (Check("sigma", 0.123456789, 0.0987654321), {"0.1234", "0.0987"}),
        (asked, texts_of(case.X[:1])),
    ]


def require_silent(held: Any, secrets: set[str]) -> None:
    assert secrets
    for one in (held, [held], {"a": held}, (held, held)):
        for said in (repr(one), str(one), f"{one}", f"{one!r}"):
            found = [text for text in secrets if text in said]
            by_chance = len(found) == 1 and len(found[0]) < 8  # a number of four digits meets another one now and then
            assert not found or (by_chance and len(secrets) > 1), type(held).__name__


def test_what_is_private_is_not_said(holders: list[Held]) -> None:
    for held, secrets in holders:
        require_silent(held, secrets)


def test_nor_at_a_desk(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    source, surrogate = ((rng.normal(size=(200, 3)), rng.integers(0, 2, 200)) for _ in range(2))
    desk = opened(source, surrogate, expunge.train(*source, l2=0.1, max_norm=5.0), tmp_path)
    ask(desk, source, 0, 1)
    outcome = run(desk)
    (published,) = outcome.published
    hidden = {text for text in dossier_alone(published) if text not in repr(published.composition)}  # on public pages
    for held in (desk, outcome, published, published.certificate):
        require_silent(held, of_key(desk.key) | hidden)
    with desk.reading() as ledger:
        state = load_state(desk, ledger)
    require_silent(state, of_key(desk.key) | texts_of(to_numpy(state.past.gradients), to_numpy(state.model.weight)))
