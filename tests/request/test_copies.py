"""Copies are told from rows that repeat honestly; honest rows are never refused."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from expunge import train, unlearn
from expunge.distance import Distance, parse_distance
from expunge.errors import DataError
from expunge.heads import Rows
from expunge.request.copies import (
    INFLATION,
    LARGEST_STEP,
    Multiplicities,
    _fixed,
    _peak,
    binomial_tail,
    copy_factor,
    row_prints,
    step_share,
)
from expunge.request.sets import survey
from expunge.runtime.arrays import copy, equal

SETTINGS = settings(max_examples=200, derandomize=True, deadline=None)


def multiplicities(rows: np.ndarray) -> Counter[int]:
    """The naive form: a dictionary of whole rows."""
    return Counter(Counter(map(bytes, np.ascontiguousarray(rows))).values())


# The pieces -----------------------------------------------------------------------------------------------------


def poisson(count: int, mean: float) -> float:
    return math.exp(count * math.log(mean) - mean - math.lgamma(count + 1))


def multiple_of(step: int, mean: float) -> float:
    """Pr[a multiple of step | at least 1], term by term."""
    reach = int(mean + 15 * math.sqrt(mean) + 30)
    return math.fsum(poisson(count, mean) for count in range(step, reach, step)) / -math.expm1(-mean)


def test_closed_forms() -> None:
    for mean in (0.01, 0.5, 2.0, 9.0):
        assert multiple_of(2, mean) == pytest.approx(-math.expm1(-mean) / 2, rel=1e-12)
        third = (1 + 2 * math.exp(-1.5 * mean) * math.cos(math.sqrt(0.75) * mean)) / 3 - math.exp(-mean)
        assert multiple_of(3, mean) == pytest.approx(third / -math.expm1(-mean), rel=1e-9)
    assert step_share(2) == pytest.approx(0.5, rel=1e-3)
    assert _fixed(0) == 0.0
    assert _fixed(1) == pytest.approx(1.0)
    assert _fixed(300) == pytest.approx(-math.log(poisson(300, 300.0)))
    assert _fixed(10**6) <= math.log(math.e * 1e3)


@pytest.mark.parametrize("step", [2, 3, 4, 5, 7, 12, 31, 50, 200, LARGEST_STEP])
def test_no_mean_makes_multiples_likelier_than_is_said(step: int) -> None:
    means = [*np.geomspace(1e-3, 8 * step, 300), *np.linspace(0.6 * step, 1.6 * step, 200)]
    most = max(multiple_of(step, float(mean)) for mean in means)
    assert 0.98 * step_share(step) <= most <= step_share(step) * INFLATION


@pytest.mark.parametrize("step", [2, 3, 5, 12, 39, LARGEST_STEP])
def test_beyond_eight_times_the_step_multiples_are_rarer(step: int) -> None:
    """By the Fourier sum over the roots of unity, whose terms fall with the mean."""
    mean = 8.0 * step
    terms = [math.exp(-mean * (1 - math.cos(2 * math.pi * k / step))) for k in range(step)]
    assert math.fsum(terms) / step / -math.expm1(-mean) <= step_share(step) * INFLATION


@SETTINGS
@given(st.integers(1, 60), st.integers(0, 60), st.floats(0.01, 0.99))
def test_the_tail_is_bounded(trials: int, successes: int, share: float) -> None:
    successes = min(successes, trials)
    each = [math.comb(trials, k) * share**k * (1 - share) ** (trials - k) for k in range(successes, trials + 1)]
    log = binomial_tail(trials, successes, share)
    assert math.log(math.fsum(each)) <= log + 1e-9
    assert log <= 0.0


@SETTINGS
@given(st.integers(2, 60), st.floats(0.01, 100.0), st.floats(0.01, 200.0), st.floats(0.0, 1.0))
def test_the_product_over_rows_has_a_mean_of_at_most_one(place: int, mean: float, guess: float, share: float) -> None:
    weight = share / max(place * (place + 1), guess**2)
    told = {place - 1: -(guess**2), place: 2 * guess * place, place + 1: -place * (place + 1)}
    assert all(1 + weight * value >= -1e-12 for value in told.values())
    mean_of = math.fsum(poisson(count, mean) * value for count, value in told.items())
    expected = -poisson(place - 1, mean) * (mean - guess) ** 2
    assert mean_of == pytest.approx(expected, abs=1e-9 * (1 + guess**2 + place**2))


def test_a_peak_is_the_average_over_a_grid_written_out() -> None:
    products = []
    for i in range(-10, 3):
        for share in (0.95, 0.5, 0.25, 0.1, 0.03, 0.01):
            guess = 2 * 2.0**i
            weight = share / max(6.0, guess**2)
            products.append((1 - weight * guess**2) ** 30 * (1 + 4 * weight * guess) ** 40 * (1 - weight * 6) ** 5)
    assert _peak({1: 30, 2: 40, 3: 5, 9: 7}, 2) == pytest.approx(min(0.0, -math.log(np.mean(products))), rel=1e-9)
    assert _peak({1: 30, 2: 1, 3: 5}, 2) == 0.0


# Copies are refused ---------------------------------------------------------------------------------------------


def zipf(rng: np.random.Generator, levels: int, count: int, power: float = 1.0) -> np.ndarray:
    weights = np.arange(1, levels + 1) ** -power
    return rng.choice(levels, count, p=weights / weights.sum())[:, None]


RNG = np.random.default_rng(7)
COPIED: dict[str, tuple[np.ndarray, int]] = {
    "100 rows 50 times": (np.repeat(RNG.normal(size=(100, 3)), 50, axis=0), 50),
    "1,000 rows twice": (np.repeat(RNG.normal(size=(1000, 3)), 2, axis=0), 2),
    "60 Zipf levels three times": (np.repeat(zipf(RNG, 60, 1000), 3, axis=0), 3),
    "half doubled": (np.repeat(RNG.normal(size=(1000, 3)), [1, 2] * 500, axis=0), 2),
    "a tenth doubled": (np.repeat(RNG.normal(size=(10_000, 3)), [2, *[1] * 9] * 1000, axis=0), 2),
    "a rare group 17 times": (np.repeat(RNG.normal(size=(2000, 3)), [17] * 40 + [1] * 1960, axis=0), 17),
    "a level of each, 1,009 times": (np.repeat(np.arange(100)[:, None], 1009, axis=0), 1009),
}


@pytest.mark.parametrize("name", COPIED)
def test_copies_are_seen(name: str) -> None:
    rows, factor = COPIED[name]
    assert copy_factor(multiplicities(rows)) == factor


@pytest.mark.parametrize("classes", [2, 5])
def test_and_where_the_rows_of_each_class_were_counted_out(classes: int) -> None:
    for rows, factor in list(COPIED.values())[:4]:
        assert copy_factor(multiplicities(rows), [len(rows) // classes] * classes) == factor


def test_nothing_is_said_where_there_is_little_to_go_by() -> None:
    assert copy_factor({}) == 0
    assert copy_factor({1: 10_000}) == 0
    assert copy_factor({1: 1000, 2: 3}) == 0
    assert copy_factor({2: 20}) == 0, "twenty even counts happen by chance"
    assert copy_factor({40_000: 1, 40_001: 1, 39_950: 1}) == 0, "three values, as often as each other"


# Honest samples are not -----------------------------------------------------------------------------------------

HONEST: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "uniform levels": lambda rng, count: rng.integers(0, int(rng.integers(1, 1000)), (count, 1)),
    "Zipf levels": lambda rng, count: zipf(rng, int(rng.integers(2, 2000)), count, float(rng.uniform(0.5, 2.5))),
    "columns of few levels": lambda rng, count: rng.integers(0, int(rng.integers(2, 5)), (count, int(rng.integers(1, 12)))),
    "columns of many levels": lambda rng, count: np.hstack([zipf(rng, 40, count), zipf(rng, 300, count), zipf(rng, 3, count)]),
    "continuous": lambda rng, count: rng.normal(size=(count, 2)),
    "half continuous": lambda rng, count: np.where(rng.random((count, 1)) < 0.5, rng.normal(size=(count, 1)), zipf(rng, 50, count)),
    "rounded": lambda rng, count: rng.normal(size=(count, 2)).round(int(rng.integers(0, 3))),
    "heavy-tailed": lambda rng, count: rng.standard_cauchy((count, 1)).round(1),
    "drawn with replacement": lambda rng, count: rng.choice(rng.normal(size=int(rng.integers(50, 5000))), (count, 1)),
}  # fmt: skip


@pytest.mark.parametrize("seeds", [range(100), pytest.param(range(100, 5400), marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", HONEST)
def test_honest_rows_are_never_refused(name: str, seeds: range) -> None:
    for seed in seeds:
        rng = np.random.default_rng(seed)
        rows = HONEST[name](rng, int(rng.choice([100, 300, 1000, 3000, 30_000], p=[0.3, 0.3, 0.25, 0.14, 0.01])))
        assert copy_factor(multiplicities(np.asarray(rows, np.float64))) == 0, seed


def test_the_probability_is_one_that_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a limit of a tenth in place of 1e-9, and nothing charged for a fixed number of rows, few of 2,000 are refused."""
    monkeypatch.setattr("expunge.request.copies.IMPLAUSIBLE", 0.1)
    monkeypatch.setattr("expunge.request.copies.FEWEST", 1)
    refused = 0
    for seed in range(2000):
        rng = np.random.default_rng(seed)
        levels = np.exp(rng.normal(rng.uniform(-2, 3), rng.uniform(0, 1.5), int(rng.integers(2, 300))))
        counts = Counter(rng.poisson(levels).tolist())
        del counts[0]
        monkeypatch.setattr("expunge.request.copies._fixed", lambda number: 0.0)
        refused += copy_factor(counts) > 0
    assert refused <= 200 + 5 * math.sqrt(2000 * 0.1 * 0.9)


# Counting -------------------------------------------------------------------------------------------------------


@SETTINGS
@given(st.integers(0, 10_000), st.integers(1, 60), st.integers(1, 7), st.integers(1, 4))
def test_rows_are_counted_as_a_dictionary_would(seed: int, count: int, block: int, width: int) -> None:
    dtype = torch.float32 if seed % 3 else torch.float64
    features = torch.from_numpy(np.random.default_rng(seed).integers(-2, 3, (count, width)) / 2.0).to(dtype)
    counted = Multiplicities()
    before = copy(features)
    for part in features.split(block):
        counted.add(row_prints(part * (-1.0 if seed % 2 else 1.0)))  # -0 is 0
    assert equal(features, before)
    assert counted.occurring() == Counter(Counter(map(tuple, features.tolist())).values())
    assert counted.halvings == 0


def test_one_hot_rows_and_small_numbers_have_prints_of_their_own() -> None:
    grid = torch.cartesian_prod(*[torch.tensor([0.0, 1.0, 2.0, -1.0])] * 8)
    for rows in (grid, torch.eye(2000, dtype=torch.float64), torch.arange(1 << 16)[:, None] / 256):
        prints = row_prints(rows)
        assert len(np.unique(prints)) == len(rows)
        assert abs((prints & np.uint64(1)).mean() - 0.5) < 5 * 0.5 / math.sqrt(len(rows))


def test_within_a_limit_the_rows_kept_are_counted_in_full() -> None:
    rng = np.random.default_rng(0)
    rows = np.repeat(rng.normal(size=5000), 3)
    rng.shuffle(rows)
    counted = Multiplicities(most=700)
    for part in torch.from_numpy(rows)[:, None].split(100):
        counted.add(row_prints(part))
    occurring = counted.occurring()
    assert set(occurring) == {3}
    assert 300 < occurring[3] <= 700
    assert counted.halvings == 3
    assert copy_factor(occurring, [15_000], 3) == 3
    assert copy_factor(occurring, [1] * 15_000, 3) == 0, "every row was chosen, and nothing left to chance"


# At the door ----------------------------------------------------------------------------------------------------


def example(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    labels = np.arange(count) % 3
    features = 2.0 * np.eye(3, 4)[labels] + 0.3 * np.random.default_rng(seed).normal(size=(count, 4))
    return features / np.linalg.norm(features, axis=1, keepdims=True), labels


def test_a_copied_surrogate_is_refused_between_populations_alone() -> None:
    (X, y), (S, t) = example(300, 1), example(100, 2)
    model = train(X, y, l2=0.1, max_norm=1.0)
    copies = (np.repeat(S, 50, axis=0), np.repeat(t, 50))
    options = {"epsilon": 1.0, "delta": 1e-3, "force": True}
    with pytest.raises(DataError, match=r"copied, 50 times each; independent draws .* Remove the copies"):
        unlearn(model, (X[:2], y[:2]), copies, distance="same", **options)  # type: ignore[arg-type]
    between = Distance("chi2", 0.1, "samples")
    assert unlearn(model, (X[:2], y[:2]), copies, distance=between, **options) is not None  # type: ignore[arg-type]


def test_a_survey_counts_copies_only_where_rows_are_a_sample() -> None:
    S, t = example(200, 2)
    rows = Rows(torch.from_numpy(np.repeat(S, 2, axis=0)), torch.from_numpy(np.repeat(t, 2)))
    forget = Rows(torch.from_numpy(S[:1] / 2), torch.from_numpy(t[:1]))
    honest = Rows(torch.from_numpy(S), torch.from_numpy(t))
    for distance, copied in (("same", 2), ("chi2:0.1", 2), ("source", 0), (Distance("chi2", 0.1, "samples"), 0)):
        asked = distance if isinstance(distance, Distance) else parse_distance(distance)
        assert survey(forget, rows, 3, asked).copied == copied
        assert survey(forget, honest, 3, asked).copied == 0


class OneOfTwo(Rows):
    """The share of a process; another one has found copies among its rows."""

    def largest(self, part: float) -> float:
        return max(part, 7.0)


def test_processes_refuse_together() -> None:
    S, t = example(200, 2)
    forget, mine = (kind(torch.from_numpy(S), torch.from_numpy(t)) for kind in (Rows, OneOfTwo))
    assert survey(forget, mine, 3, Distance("same", 0.0)).copied == 7
