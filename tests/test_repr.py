"""No repr, which notebooks store and logs keep, shows a key, a nonce, a hash, a sum or a row."""

from __future__ import annotations

from collections.abc import Callable
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


def unlearned(forgotten: Any) -> Held:
    return forgotten[1], dossier_alone(forgotten[1]) | deposit(forgotten)[1]


def certificate(forgotten: Any) -> Held:
    return forgotten[1].certificate, dossier_alone(forgotten[1])


def deposit(forgotten: Any) -> Held:
    kept = forgotten[1].deposit
    sums = texts_of(kept.sums.gradient.numpy(), kept.sums.curvature.values.numpy(), kept.shape.numpy())
    return kept, {kept.numbers.key, *kept.hashes.hex(0)[:20]} | sums


def numbers(forgotten: Any) -> Held:
    kept = forgotten[1].deposit.numbers
    return kept, {kept.key, str(kept.class_counts)} | texts_of(kept.kappas, kept.gradient_error)


def sums(forgotten: Any) -> Held:
    return forgotten[1].deposit.sums, deposit(forgotten)[1]


def gauge(forgotten: Any) -> Held:
    found = forgotten[1].deposit.gauges[0]
    return found, texts_of(found.factor.numpy(), found.kappa)


def hashes(forgotten: Any) -> Held:
    found = forgotten[1].deposit.hashes
    return found, {str(value)[1:20] for value in found.digests[0][:3]}


def past(forgotten: Any) -> Held:
    gradients = forgotten[1].deposit.sums.gradient
    return Past(gradients, (3, 17)), {"17", *texts_of(gradients.numpy())}


def key_pair(forgotten: Any) -> Held:
    keys = generate_keys()
    return keys, {keys.private.decode().splitlines()[1]}


def secret(forgotten: Any) -> Held:
    key = bytes(range(40, 72))
    return Secret(key), of_key(key)


def audit(forgotten: Any) -> Held:
    lower = LowerBounds(0.1, 0.2, "s", 0.3, True, 0.4, 0.5, 10, 0.95)
    return Audit(1.0, 1e-5, 0.5, 0.25, 0.123456789, 0.0987654321, lower), {"0.1234", "0.0987"}


def check(forgotten: Any) -> Held:
    return Check("sigma", 0.123456789, 0.0987654321), {"0.1234", "0.0987"}


def request(forgotten: Any) -> Held:

    case = forgotten[0]
    asked = door.ask(None, (case.X[:1], case.y[:1]), None, Promise(1.0, 1e-5, force=True), deposit=case.deposit)
    return asked, texts_of(case.X[:1])


HOLDERS = [
    *(unlearned, certificate, deposit, numbers, sums, gauge, hashes, past),
    *(key_pair, secret, audit, check, request),
]


def require_silent(held: Any, secrets: set[str]) -> None:
    assert secrets
    for one in (held, [held], {"a": held}, (held, held)):
        for said in (repr(one), str(one), f"{one}", f"{one!r}"):
            found = [text for text in secrets if text in said]
            by_chance = len(found) == 1 and len(found[0]) < 8  # a number of four digits meets another one now and then
            assert not found or (by_chance and len(secrets) > 1), type(held).__name__


@pytest.mark.parametrize("holder", HOLDERS, ids=lambda holder: holder.__name__)
def test_what_is_private_is_not_said(holder: Callable[[Any], Held], forgotten: Any) -> None:
    require_silent(*holder(forgotten))


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
    assert state.past is not None
    require_silent(state, of_key(desk.key) | texts_of(state.past.gradients.numpy(), state.model.weight.numpy()))
