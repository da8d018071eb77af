"""What a deletion from a deposit would need, foreseen."""

from __future__ import annotations

import pytest

from expunge.bounds.calibration import mu_for
from expunge.errors import DataError, OptionError
from expunge.evaluate.plan import plan_deposit
from expunge.unlearn import unlearn
from small_deposit import N_SOURCE, kept, rows, source, trained

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_noise_foreseen_is_the_noise_used() -> None:
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
    loud = plan_deposit(kept().deposit, rows(1), delta=1e-9, epsilons=(1e-4, 1e-5))
    assert loud.outlooks[0].refused == "more noise than signal in the outputs"
    assert str(loud.outlooks[1].refused).startswith("these rows need more noise than any of the levels")


def test_rows_are_looked_up_and_an_epsilon_is_needed() -> None:
    features, labels = rows(1)
    with pytest.raises(DataError, match="not in what is left"):
        plan_deposit(kept().deposit, (features + 1.0, labels), delta=1e-3)
    with pytest.raises(OptionError, match="no epsilon"):
        plan_deposit(kept().deposit, rows(1), delta=1e-3, epsilons=())
