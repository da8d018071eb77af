"""What forgetting would cost, foreseen on the source."""

from __future__ import annotations

import math

import pytest

from expunge.bounds.calibration import mu_for
from expunge.certificate.claim import ARITHMETIC_SHARE
from expunge.deposit.forecast import (
    DepositVerdict,
    Forecast,
    Rehearsal,
    Size,
    SizeForecast,
    Trial,
    forecast,
    verdict_of,
)
from small_deposit import N_SOURCE, kept

VERDICT = DepositVerdict(1.0, 0, 0, 0)
pytestmark = pytest.mark.usefixtures("one_thread")


def test_more_privacy_and_more_rows_cost_more() -> None:
    made = kept()
    found = forecast(made.deposit, made.rehearsals, made.rows)
    assert found.delta == 1 / N_SOURCE
    assert [size.rows for size in found.sizes] == [1, 4, 10, 100]
    assert 0.7 < found.accuracy < 1.0
    lost = {(each.rows, each.epsilon): each for each in found.forecasts}
    hard, easy = lost[10, 0.1], lost[1, 5.0]
    assert hard.one_at_a_time is not None
    assert easy.at_once is not None
    assert abs(easy.at_once) < 0.01, "noise that is far below the outputs"
    assert hard.one_at_a_time > easy.at_once - 0.005, "noise may help by chance"
    said = {each.epsilon: each for each in found.affordable}
    assert said[5.0].at_once >= said[0.1].at_once
    assert all(each.at_once >= each.one_at_a_time for each in found.affordable)
    assert found.traces is not None
    assert 0.5 < found.traces.ordinary < found.traces.unusual < 1.0
    assert found.to_json()["traces"] == {"ordinary": found.traces.ordinary, "unusual": found.traces.unusual}


def test_groups_without_a_region_are_counted_not_averaged() -> None:
    made = kept()
    trials = (Trial(math.inf, None), Trial(made.deposit.levels[-1] * 100, made.deposit.model.matrix()))
    found = forecast(made.deposit, [Rehearsal(7, trials)], made.rows, epsilons=(1.0,))
    assert found.sizes == (Size(7, 2, 1),)
    assert found.forecasts == (SizeForecast(7, 1.0, None, None, 2),)
    assert found.affordable[0].at_once == 0
    assert found.verdict == DepositVerdict(1.0, 0, 0, 0), "no single row was tried"


def test_the_verdict_by_hand() -> None:
    """Who leaves unnoticed needs no more than the first level, who can leave no more than what outputs are."""
    deposit = kept().deposit
    mu = mu_for(1.0, 1e-3 * (1.0 - ARITHMETIC_SHARE))
    quiet = deposit.output_spread / deposit.output_noise
    needs = [0.0, deposit.levels[0] * 0.99, deposit.levels[1] * 0.99, deposit.levels[-1] * 1.01, math.inf]
    rehearsed = [Rehearsal(1, tuple(Trial(need * mu, None) for need in needs))]
    assert deposit.levels[1] < quiet
    assert verdict_of(deposit, rehearsed, 1e-3) == DepositVerdict(1.0, 5, 3, 2)
    assert DepositVerdict(1.0, 5, 3, 2).serves
    assert DepositVerdict(1.0, 4, 2, 0).serves
    assert not DepositVerdict(1.0, 5, 2, 2).serves


def test_affordable_ends_at_the_first_size_that_is_not() -> None:
    sizes = (Size(1, 4, 0), Size(10, 4, 3), Size(100, 4, 0))
    forecasts = tuple(SizeForecast(size.rows, 1.0, 0.0, 0.002, size.refused) for size in sizes)
    assert Forecast(1e-3, 0.9, sizes, forecasts, VERDICT).affordable[0].at_once == 1
    costly = (SizeForecast(1, 1.0, 0.0, 0.02, 0), *forecasts[1:])
    assert Forecast(1e-3, 0.9, sizes, costly, VERDICT).affordable[0].one_at_a_time == 0
