"""Planning: what is foreseen is what then happens."""

from __future__ import annotations

import numpy as np
import pytest

from expunge import unlearn
from expunge.errors import OptionError, UselessModel
from expunge.evaluate.demo import digits
from expunge.evaluate.plan import DRAWS, plan
from expunge.report.figures import frontier
from expunge.train import train

pytestmark = pytest.mark.usefixtures("one_thread")
DELTA = 1e-4


@pytest.fixture(scope="module")
def data() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return digits()


@pytest.fixture(scope="module")
def model(data: dict[str, tuple[np.ndarray, np.ndarray]]):
    return train(*data["source"], l2=0.05, max_norm=1.0)


@pytest.mark.parametrize("step", ["converged", "balanced"])
@pytest.mark.parametrize("distance", ["same", "chi2:0.1", "tv:0.01"])
def test_the_noise_foreseen_is_the_noise_used(distance: str, step: str, model, data) -> None:
    options = {"delta": DELTA, "step": step}
    foreseen = plan(
        model,
        data["forget"],
        data["surrogate"],
        epsilons=(0.5, 3.0),
        distances=(distance,),
        insecure_test_seed=5,
        **options,
    )
    for outlook in foreseen.outlooks:
        used = unlearn(
            model,
            data["forget"],
            data["surrogate"],
            epsilon=outlook.epsilon,
            distance=distance,
            force=True,
            insecure_test_seed=5,
            **options,
        ).certificate
        assert outlook.sigma == used.sigma, "to the last bit"
        assert outlook.total == used.total


def test_without_a_seed_it_agrees_to_twelve_digits(model, data) -> None:
    (outlook,) = plan(
        model, data["forget"], data["surrogate"], delta=DELTA, epsilons=(1.0,), distances=("same",)
    ).outlooks
    used = unlearn(model, data["forget"], data["surrogate"], epsilon=1.0, delta=DELTA, distance="same")
    assert outlook.sigma == used.certificate.sigma, "a power of two"
    assert outlook.total == pytest.approx(used.certificate.total, rel=1e-12)


def test_what_it_calls_refused_is_refused_and_accuracy_is_what_comes(model, data) -> None:
    found = plan(model, data["forget"], data["surrogate"], delta=DELTA, epsilons=(0.05, 2.0), distances=("same",))
    worse, better = found.outlooks
    assert worse.refused
    assert worse.deletions == 0
    assert not better.refused
    assert better.deletions >= 1
    with pytest.raises(UselessModel):
        unlearn(model, data["forget"], data["surrogate"], epsilon=0.05, delta=DELTA, distance="same")
    X, y = data["surrogate"]
    asked = {"epsilon": 2.0, "delta": DELTA, "distance": "same"}
    published = [unlearn(model, data["forget"], data["surrogate"], **asked).model for _ in range(DRAWS)]
    # a draw of noise moves the accuracy by 0.023: of two means of eight, five standard deviations are 0.06
    assert np.mean([each.predict(X) == y for each in published]) == pytest.approx(better.accuracy, abs=0.06)
    assert np.mean(model.predict(X) == y) == pytest.approx(found.accuracy_before, abs=1e-9)


def test_more_deletions_fit_where_it_says_so(model, data) -> None:
    found = plan(model, data["forget"], data["surrogate"], delta=DELTA, distances=("same", "chi2:0.5"))
    same = [outlook for outlook in found.outlooks if outlook.distance == "same"]
    far = [outlook for outlook in found.outlooks if outlook.distance != "same"]
    assert [o.deletions for o in same] == sorted(o.deletions for o in same)
    assert [o.sigma for o in same] == sorted((o.sigma for o in same), reverse=True)
    assert all(a.sigma < b.sigma and a.deletions >= b.deletions for a, b in zip(same, far, strict=True))


def test_advice_is_what_the_formula_says(model, data) -> None:
    found = plan(model, data["forget"], data["surrogate"], delta=DELTA, epsilons=(1.0,), distances=("chi2:0.1",))
    shares = {advice.change: advice.share for advice in found.advice}
    assert list(shares.values()) == sorted(shares.values())
    assert all(0 < share < 1 for share in shares.values())
    half = plan(
        model, data["forget"], data["surrogate"], delta=DELTA, epsilons=(1.0,), distances=("chi2:0.05",)
    ).outlooks[0]
    # the noise needed; what is published is the next power of two
    assert half.total / found.outlooks[0].total == pytest.approx(shares["half the distance"], rel=1e-6)
    assert shares["twice the l2 at the next training (the model itself changes too)"] == pytest.approx(0.5, rel=1e-3)


def test_the_figure_is_a_picture_and_labels_may_be_missing(model, data) -> None:
    found = plan(model, data["forget"], data["surrogate"][0], delta=DELTA, epsilons=(1.0, 2.0), distances=("same",))
    assert found.accuracy_before is None
    assert all(outlook.accuracy is None for outlook in found.outlooks)
    for plain in (found, plan(model, data["forget"], data["surrogate"], delta=DELTA)):
        png = frontier(plain.to_json()["outlooks"], plain.accuracy_before)
        assert png.startswith(b"\x89PNG")
    with pytest.raises(OptionError):
        plan(model, data["forget"], data["surrogate"], delta=DELTA, epsilons=())
