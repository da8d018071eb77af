"""Plans: the noise foreseen is the noise used, with a surrogate and with a deposit."""

from __future__ import annotations

import numpy as np
import pytest

from expunge import unlearn
from expunge.bounds.calibration import mu_for
from expunge.errors import DataError, OptionError, UselessModel
from expunge.evaluate.demo import digits
from expunge.evaluate.plan import DRAWS, plan, plan_deposit
from expunge.train import train
from small_deposit import N_SOURCE, kept, rows, source, trained

pytestmark = pytest.mark.usefixtures("one_thread")


DELTA = 1e-4


@pytest.fixture(scope="module")
def data() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return digits()


@pytest.fixture(scope="module")
def model(data: dict[str, tuple[np.ndarray, np.ndarray]]):
    return train(*data["source"], l2=0.05, max_norm=1.0)


@pytest.mark.parametrize(
    ("distance", "step", "curvature"),
    [
        ("same", "converged", None),
        ("chi2:0.1", "converged", None),
        ("tv:0.01", "balanced", None),
        ("same", "converged", "auto"),
    ],
)
def test_the_noise_foreseen_is_the_noise_used(distance: str, step: str, curvature, model, data) -> None:
    options = {"delta": DELTA, "step": step, "curvature": curvature}
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


def test_the_noise_foreseen_is_the_noise_used_deposit_plan() -> None:
    planned = plan_deposit(kept().deposit, rows(1, 2), delta=1e-3, epsilons=(0.5, 2.0), test=source())
    assert (planned.n_rows, planned.n_forget, planned.forgotten) == (N_SOURCE, 2, 0)
    for each in planned.outlooks:
        made = unlearn(trained(), rows(1, 2), epsilon=each.epsilon, delta=1e-3, deposit=kept().deposit)
        assert made.statement.sigma == each.sigma
        assert planned.total is not None
        # what drawing adds goes with epsilon, and a plan tells the least
        assert made.certificate.total == pytest.approx(planned.total, rel=1e-6, abs=0.0)
        share = made.statement.sigma * made.deposit.output_noise / made.deposit.output_spread
        assert each.output_share == pytest.approx(share, rel=1e-9)
        assert each.accuracy is not None
        assert each.accuracy > 0.7
        assert each.refused is None
    assert planned.accuracy_before is not None
    assert planned.total is not None
    assert planned.reach is not None
    largest = kept().deposit.levels[-1] * mu_for(2.0, 1e-3)
    assert planned.total / largest <= planned.reach * 1.01 < 1.0
    more = plan_deposit(kept().deposit, rows(1, 2, 3, 4), delta=1e-3, epsilons=(0.5,))
    assert more.reach is not None
    assert planned.reach < more.reach < 1.0


def test_it_says_what_would_be_refused() -> None:
    much = plan_deposit(kept().deposit, rows(*range(1, N_SOURCE - 5)), delta=1e-3, epsilons=(1.0,))
    assert much.total is None
    assert much.reach is None
    assert much.outlooks[0].refused
    assert much.outlooks[0].accuracy is None
    loud = plan_deposit(kept().deposit, rows(1), delta=1e-9, epsilons=(5e-4, 1e-4))
    assert loud.outlooks[0].refused == "more noise than signal in the outputs"
    assert str(loud.outlooks[1].refused).startswith("these rows need more noise than any of the levels")


def test_rows_are_looked_up_and_an_epsilon_is_needed() -> None:
    features, labels = rows(1)
    with pytest.raises(DataError, match="not in what is left"):
        plan_deposit(kept().deposit, (features + 1.0, labels), delta=1e-3)
    with pytest.raises(OptionError, match="no epsilon"):
        plan_deposit(kept().deposit, rows(1), delta=1e-3, epsilons=())
