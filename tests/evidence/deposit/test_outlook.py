"""What forgetting would cost, foreseen on the source."""

from __future__ import annotations

import math

import pytest

from expunge.evidence.deposit.making import Rehearsal, Trial
from expunge.evidence.deposit.outlook import Forecast, Outlook, Size, covering, outlook
from small_deposit import N_SOURCE, kept

pytestmark = pytest.mark.usefixtures("one_thread")


def test_more_privacy_and_more_rows_cost_more() -> None:
    made = kept()
    found = outlook(made.deposit, made.rehearsed, made.rows)
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


def test_the_noise_is_the_smallest_radius_that_covers() -> None:
    deposit = kept().deposit
    radii = deposit.numbers.radii
    assert covering(deposit, radii[1]) == radii[1]
    assert covering(deposit, radii[0] * 1.001) == radii[1]
    assert covering(deposit, math.inf) is None


def test_groups_without_a_region_are_counted_not_averaged() -> None:
    made = kept()
    trials = (Trial(math.inf, None), Trial(made.deposit.numbers.radii[-1] * 2, made.deposit.model.matrix()))
    found = outlook(made.deposit, [Rehearsal(7, trials)], made.rows, epsilons=(1.0,))
    assert found.sizes == (Size(7, 2, 2),)
    assert found.forecasts == (Forecast(7, 1.0, None, None),)
    assert found.affordable[0].at_once == 0


def test_affordable_ends_at_the_first_size_that_is_not() -> None:
    sizes = (Size(1, 4, 0), Size(10, 4, 3), Size(100, 4, 0))
    forecasts = tuple(Forecast(size.rows, 1.0, 0.0, 0.002) for size in sizes)
    assert Outlook(1e-3, 0.9, sizes, forecasts).affordable[0].at_once == 1
    costly = (Forecast(1, 1.0, 0.0, 0.02), *forecasts[1:])
    assert Outlook(1e-3, 0.9, sizes, costly).affordable[0].one_at_a_time == 0
