"""What the door would have refused of surrogate rows is refused to whoever went past it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import beside_problems
from expunge.certificate.rules import Check
from expunge.deposit.evidence import Removal
from expunge.deposit.verify import surrogate_checks, verify_deposits
from expunge.distance import parse_distance
from expunge.door import ask
from expunge.errors import ExpungeError, UselessModel, VerificationFailed
from expunge.mechanism import Unlearned
from expunge.request.promise import Promise
from expunge.request.sets import FORCED
from expunge.train import train
from expunge.unlearn import deposit, unlearn

SAME = parse_distance("same")
FORGET = beside_problems.first(beside_problems.MANY)


def made_with(surrogate: Any, **options: Any) -> Unlearned:
    model, before = beside_problems.kept()
    given: dict[str, Any] = {"distance": "same", "force": True, "noise": "exact"} | options
    return unlearn(model, FORGET, surrogate, epsilon=1.0, delta=1e-3, deposit=before, **given)


def verified(made: Unlearned, surrogate: Any) -> None:
    assert "change_mean" in made.certificate.content["bound"]["inputs"]  # surrogate rows had a part in it
    verify_deposits(made.certificate, made.deposit, beside_problems.kept()[1], FORGET, None, surrogate)


def test_copied_rows_are_seen() -> None:
    features, labels = beside_problems.SURROGATE
    copied = np.tile(features, (6, 1)), np.tile(labels, 6)
    with pytest.raises(ExpungeError, match="as if they had been copied"):
        made_with(copied)
    with patch("expunge.door.Multiplicities.of", lambda _: None):
        forged = made_with(copied)
    assert (
        forged.certificate.content["bound"]["total"]
        < made_with((features, labels)).certificate.content["bound"]["total"]
    )
    with pytest.raises(VerificationFailed, match="surrogate: its rows were not copied"):
        verified(forged, copied)


def test_rows_that_forget_rows_refute_are_seen() -> None:
    """With sampling `seen`, where the surrogate is to show the largest there is."""
    features, labels = beside_problems.SURROGATE
    short = features * 0.3, labels
    seen = replace(SAME, sampling="seen")
    with pytest.raises(ExpungeError, match="the surrogate must show the largest there is"):
        made_with(short, distance=seen)
    with patch("expunge.deposit.with_surrogate.SurrogateRegion.require_seen"):
        forged = made_with(short, distance=seen)
    with pytest.raises(VerificationFailed, match="surrogate: no forget row is unlike what is seen"):
        verified(forged, short)


def asked(surrogate: Any, force: bool = True) -> Any:
    model, before = beside_problems.kept()
    return ask(model, FORGET, surrogate, Promise(1.0, 1e-3, "same", force=force), deposit=before)


@pytest.mark.parametrize("odd", ["a class lacks", "rows are squashed"])
def test_what_somebody_insisted_on_has_to_be_noted(odd: str) -> None:
    features, labels = beside_problems.SURROGATE
    surrogate = (features[labels > 0], labels[labels > 0]) if odd == "a class lacks" else (features * 1e3, labels)
    with pytest.raises(UselessModel):
        asked(surrogate, force=False)
    request = asked(surrogate)
    after, notes = Removal.of(replace(request, surrogate=None)).deposit, [str(note) for note in request.notes]
    content = {"notes": notes, "public_notes": notes}
    assert passing(surrogate_checks(content, SAME, after, surrogate)[1])
    silent = [note for note in notes if not note.startswith(FORCED)]
    assert len(silent) < len(notes)
    for name in ("public_notes",) if odd == "rows are squashed" else content:  # what is public is a note elsewhere
        (failed,) = [
            check for check in surrogate_checks(content | {name: silent}, SAME, after, surrogate)[1] if not check.passed
        ]
        assert failed.name == "surrogate: what somebody had to insist on is noted"


def passing(compared: list[Check]) -> bool:
    return all(check.passed for check in compared)


def test_of_routes_that_tie_it_is_the_one_that_was_found() -> None:
    """With one feature all gauges are one ellipsoid, and the order of the surrogate's rows decides between them."""
    rng = np.random.default_rng(16)
    truth = rng.normal(size=(1, 3))

    def rows(count: int) -> tuple[Any, Any]:
        X = rng.normal(size=(count, 1))
        y = np.argmax(X @ truth + rng.gumbel(size=(count, 3)), axis=1)
        y[:3] = range(3)
        return X, y

    source, surrogate = rows(1_000), rows(1_500)
    model = train(*source, l2=1e-3, max_norm=7.0, loss="softmax", bias=False)
    with patch("expunge.deposit.make.has_third", lambda _: False):
        before = deposit(model, *source, seed=0)
    forget = source[0][100:200], source[1][100:200]
    asked: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-3, "force": True, "distance": "same", "noise": "exact"}
    made = unlearn(model, forget, surrogate, deposit=before, **asked)
    assert "change_mean" in made.certificate.content["bound"]["inputs"]
    for _ in range(4):
        order = rng.permutation(1_500)
        verify_deposits(
            made.certificate, made.deposit, before, forget, None, (surrogate[0][order], surrogate[1][order])
        )
