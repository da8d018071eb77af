"""What forgetting would cost, foreseen on the source: rows that leave on trial, and what noise for them does."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from deposit_problems import made, prepared, problem_of
from expunge.bounds.calibration import LARGEST_SCALE, mu_for
from expunge.bounds.deposit import deposit_bound
from expunge.certificate.claim import ARITHMETIC_SHARE
from expunge.deposit import forecast as module
from expunge.deposit.forecast import (
    AccuracyLoss,
    Forecast,
    PeopleServed,
    Trial,
    choose,
    count_served,
    forecast,
    loudest,
    rehearse,
    try_people,
    try_removal,
)
from expunge.deposit.region import RetainedProblem, smallest_region
from expunge.deposit.sums import sums_of
from expunge.errors import BeyondPolicy, VacuousClaim
from expunge.heads import Rows
from expunge.unlearn import unlearn
from small_deposit import N_SOURCE, kept

pytestmark = pytest.mark.usefixtures("one_thread")


def test_more_privacy_and_more_rows_cost_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GROUPS", ((10**9, 4),))
    made = kept()
    found = forecast(made.deposit, made.people, made.rows, seed=0)
    assert found.delta == 1 / N_SOURCE
    assert [each.rows for each in found.losses if each.epsilon == 1.0] == [1, 4, 10, 40, 100]
    assert 0.7 < found.accuracy < 1.0
    lost = {(each.rows, each.epsilon): each for each in found.losses}
    hard, easy = lost[10, 0.1], lost[1, 5.0]
    assert hard.one_at_a_time is not None
    assert easy.at_once is not None
    assert abs(easy.at_once) < 0.01, "noise that is far below the outputs"
    assert hard.one_at_a_time > easy.at_once - 0.005, "noise may help by chance"
    said = found.to_json()["affordable"]
    assert [each["epsilon"] for each in said] == [0.1, 1.0, 5.0]
    assert said[2]["at_once"] >= said[0]["at_once"]
    assert all(each["at_once"] >= each["one_at_a_time"] for each in said)
    assert found.traces is not None
    assert 0.5 < found.traces[0] < found.traces[1] < 1.0
    assert found.to_json()["traces"] == {"ordinary": found.traces[0], "unusual": found.traces[1]}


def test_groups_without_a_region_are_counted_not_averaged(monkeypatch: pytest.MonkeyPatch) -> None:
    made = kept()
    trials = (Trial(math.inf, None), Trial(made.deposit.levels[-1] * 100, made.deposit.model.matrix()))
    monkeypatch.setattr(module, "sizes_for", lambda count: (1,))
    found = forecast(made.deposit, trials, made.rows, epsilons=(1.0,))
    assert found.losses == (AccuracyLoss(1, 1.0, 2, 1, 2, None, None),)
    assert found.affordable(1.0, "at_once") == 0
    assert found.verdict == PeopleServed(1.0, 2, 0, 0)
    assert not found.verdict.serves


def test_the_verdict_by_hand() -> None:
    """Who leaves unnoticed needs no more than the first level, who can leave no more than what outputs are."""
    deposit = kept().deposit
    mu = mu_for(1.0, (1.0 - ARITHMETIC_SHARE) / N_SOURCE)
    quiet = deposit.output_spread / deposit.output_noise
    needs = [0.0, deposit.levels[0] * 0.99, deposit.levels[1] * 0.99, deposit.levels[-1] * 1.01, math.inf]
    assert deposit.levels[1] < quiet
    assert count_served(deposit, tuple(Trial(need * mu, None) for need in needs)) == PeopleServed(1.0, 5, 3, 2)
    assert PeopleServed(1.0, 5, 3, 2).serves
    assert PeopleServed(1.0, 4, 2, 0).serves
    assert not PeopleServed(1.0, 5, 2, 2).serves


def test_affordable_ends_at_the_first_size_that_is_not() -> None:
    losses = tuple(
        AccuracyLoss(rows, 1.0, 4, refused, refused, 0.0, 0.002) for rows, refused in ((1, 0), (10, 3), (100, 0))
    )
    found = Forecast(1e-3, 0.9, losses, PeopleServed(1.0, 0, 0, 0))
    assert found.affordable(1.0, "at_once") == 1
    costly = replace(found, losses=(AccuracyLoss(1, 1.0, 4, 0, 0, 0.0, 0.02), *losses[1:]))
    assert costly.affordable(1.0, "one_at_a_time") == 0


# Rows forgotten on trial ----------------------------------------------------------------------------------------------


def test_a_trial_is_what_forgetting_these_rows_would_need() -> None:
    case = made("softmax")
    problem = problem_of(case)
    rows = Rows(problem.X[:3], case.y[:3])
    gone = sums_of(problem.head, case.deposit.anchor, rows, case.deposit.gauges, third=True)
    sums = case.deposit.sums.without(gone)
    setting = replace(case.deposit.setting, stiff=float(sums.curvature.diagonal.mean()))
    shape = problem.shape_of(np.arange(3, 120))
    result = smallest_region(RetainedProblem(setting, sums, case.deposit.penalty(117), shape))
    assert result is not None
    expected = deposit_bound(result.facts).radius
    assert try_removal(case.deposit, rows).radius == pytest.approx(expected, rel=1e-6, abs=0.0)
    logistic = made("logistic", l2=1e-9, free=True)
    all_but_one = Rows(prepared(logistic)[1:], logistic.y[1:])
    assert try_removal(logistic.deposit, all_but_one).radius == math.inf


def test_rehearsals_are_of_random_groups() -> None:
    """As many as there is time for; of a good part of the source few."""
    case = made("ridge", n=60)
    rows = Rows(prepared(case), case.y)
    count, rng = module.GROUPS[0][1], np.random.default_rng(3)
    expected = [try_removal(case.deposit, choose(rows, rng.choice(60, 1, replace=False))).radius for _ in range(count)]
    told: list[tuple[str, int, int | None]] = []
    trials = rehearse(case.deposit, rows, 1, lambda *seen: told.append(seen), seed=3)
    assert [each.radius for each in trials] == expected
    assert len(told) == count
    assert len(rehearse(case.deposit, rows, 6, seed=3)) == module.FEW_GROUPS


@pytest.mark.parametrize("loss", ["softmax", "logistic", "one-vs-rest", "ridge"])
def test_single_rows_are_foreseen_and_the_closest_to_a_verdict_worked_out(
    loss: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a fifth of what trying them gives, and the ones that count to the last digit."""
    case = made(loss, n=400)
    rows = Rows(prepared(case), case.y)
    true = [each.radius for each in rehearse(case.deposit, rows, 1, seed=3)]
    found = [each.radius for each in try_people(case.deposit, rows, seed=3)]
    assert found == pytest.approx(true, rel=0.2)
    most = loudest(case.deposit)
    closest = sorted(range(len(true)), key=lambda number: abs(math.log(true[number] / most)))
    assert found[closest[0]] == true[closest[0]]
    assert sum(one == other for one, other in zip(found, true, strict=True)) <= max(module.BOUNDED, len(true) // 4)
    monkeypatch.setattr(module, "try_removal", lambda deposit, rows: Trial(math.inf, None))
    assert all(each == Trial(math.inf, None) for each in try_people(case.deposit, rows, seed=3))


def test_rows_are_taken_by_number_across_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("expunge.heads.rows.BLOCK_BYTES", 16 * 8 * 3)
    rows = Rows(np.arange(150.0, dtype=np.float32).reshape(50, 3), np.arange(50))
    assert len(rows.blocks()) == 2
    some = choose(rows, [40, 3, 17])
    assert some.labels.tolist() == [3, 17, 40]
    assert some.features.tolist() == rows.features[[3, 17, 40]].tolist()
    assert some.features.dtype == np.float64


def test_a_region_beyond_all_noise_is_none() -> None:
    """Noise has a largest scale."""
    case = made("softmax", n=20, classes=4, l2=1e-6, seed=2)
    rows = Rows(prepared(case), case.y)
    radii = [each.radius for size in (1, 10) for each in rehearse(case.deposit, rows, size, seed=0)]
    assert math.inf in radii
    assert max((radius for radius in radii if radius < math.inf), default=0.0) <= LARGEST_SCALE
    with pytest.raises((BeyondPolicy, VacuousClaim)):
        unlearn(case.model, (case.X[:1], case.y[:1]), epsilon=0.1, delta=1e-5, deposit=case.deposit, force=True)
