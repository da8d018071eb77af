"""Parts of a set: chi-square against closed forms, intervals that cover it, and no number where rows cannot tell."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from experiments.shared.closed_forms import discrete_chi_square, gaussian_chi_square
from expunge.errors import DataError
from expunge.estimate.groups import FEWEST, MOST_PAIRED, REST, GroupDistances, compare_groups

pytestmark = pytest.mark.usefixtures("one_thread")


def found(sets: dict[str, Any], seed: int = 0) -> GroupDistances:
    features, codes = (
        np.concatenate(list(sets.values())),
        np.repeat(np.arange(len(sets)), [len(s) for s in sets.values()]),
    )
    return compare_groups(features, codes, list(sets), [f"x{place}" for place in range(features.shape[1])], seed=seed)


def shifted(rng: np.random.Generator, rows: int, width: int, shift: float, scale: float = 1.0) -> Any:
    drawn = rng.normal(size=(rows, width))
    drawn[:, 0] = shift + scale * drawn[:, 0]
    return drawn


@pytest.mark.parametrize(("shift", "scale"), [(0.3, 1.0), (0.7, 1.0), (0.0, 0.8), (0.2, 1.15)])
def test_gaussians_have_their_closed_form(shift: float, scale: float) -> None:
    """Means and spreads: a classifier that sees squares sees both."""
    rng = np.random.default_rng(7)
    parts = found({"a": shifted(rng, 8000, 3, shift, scale), "b": shifted(rng, 12000, 3, 0.0)})
    true = gaussian_chi_square([shift], [[scale**2]], [0.0], [[1.0]])
    line = parts.against_rest[0]
    assert line.chi2 is not None
    assert line.lower is not None
    assert line.upper is not None
    assert line.lower <= true <= line.upper
    assert abs(line.chi2 - true) < 0.25 * true + 0.01
    assert line.upper - line.lower < 0.35 * true + 0.05, "an interval that says something"
    assert parts.pairs == (), "of two parts the rest is the other"


def test_discrete_populations_have_theirs_in_every_pair() -> None:
    shares = {"2016": [0.5, 0.3, 0.2], "2017": [0.4, 0.35, 0.25], "2018": [0.3, 0.3, 0.4]}
    rng = np.random.default_rng(2)
    sets = {name: np.eye(3)[rng.choice(3, size=9000, p=p)] for name, p in shares.items()}
    parts = found(sets)
    assert len(parts.pairs) == 6
    for line in parts.pairs:
        true = discrete_chi_square(shares[line.part], shares[line.other])
        assert line.lower is not None
        assert line.upper is not None
        assert line.lower <= true <= line.upper
    for line in parts.against_rest:
        rest = np.mean([p for name, p in shares.items() if name != line.part], axis=0)
        assert line.other == REST
        assert line.chi2 == pytest.approx(discrete_chi_square(shares[line.part], rest), abs=0.02)
    far = max(parts.pairs, key=lambda line: line.chi2 or 0.0)
    assert {far.part, far.other} == {"2016", "2018"}
    assert parts.against_rest[2].most == "x2"
    assert parts.plausible is not None
    assert parts.plausible[0] == max(line.upper or 0.0 for line in parts.against_rest)
    assert parts.plausible[1] == far.upper


@pytest.mark.parametrize(("rows", "width", "shift"), [(400, 4, 0.0), (400, 4, 0.3), (1500, 15, 0.4)])
def test_intervals_cover_the_truth_as_often_as_they_say(rows: int, width: int, shift: float) -> None:
    """40 draws: of 95 % intervals, 33 or fewer would cover once in a thousand such tests."""
    true, covered, values = math.exp(shift**2) - 1.0, 0, []
    for seed in range(40):
        rng = np.random.default_rng([seed, rows])
        line = found(
            {"a": shifted(rng, rows, width, shift), "b": shifted(rng, 2 * rows, width, 0.0)}, seed
        ).against_rest[0]
        assert line.lower is not None
        assert line.upper is not None
        assert line.chi2 is not None
        covered += line.lower <= true <= line.upper
        values.append(line.chi2)
    assert covered >= 34
    assert abs(float(np.mean(values)) - true) < 0.03


def test_equal_parts_are_about_0_and_differ_in_nothing() -> None:
    rng = np.random.default_rng(3)
    parts = found({name: rng.normal(size=(3000, 5)) for name in "abcd"})
    assert all(line.chi2 is not None and line.chi2 < 0.01 for line in parts.against_rest)
    assert all(line.lower == 0.0 for line in parts.against_rest)
    assert [line.most for line in parts.against_rest] == [None] * 4


def test_the_seed_decides_and_nothing_else() -> None:
    rng = np.random.default_rng(5)
    sets = {"a": shifted(rng, 500, 3, 0.4), "b": shifted(rng, 500, 3, 0.0)}
    assert found(sets, 1) == found(sets, 1)
    assert found(sets, 1) != found(sets, 2)


@pytest.mark.parametrize("case", ["apart", "few"])
def test_where_rows_cannot_tell_there_is_no_number(case: str) -> None:
    rng = np.random.default_rng(2)
    if case == "apart":
        sets = {"a": shifted(rng, 400, 2, 12.0), "b": shifted(rng, 400, 2, 0.0)}
    else:
        sets = {"a": 3 * rng.normal(size=(120, 90)), "b": rng.normal(size=(120, 90))}
    parts = found(sets)
    line = parts.against_rest[0]
    assert (line.chi2, line.lower, line.upper) == (None, None, None)
    assert "count as" in (line.reason or "")
    assert not parts.tells
    assert parts.plausible is None
    assert parts.to_dict()["plausible_chi2"] is None


def test_small_parts_are_left_out_by_name() -> None:
    rng = np.random.default_rng(4)
    parts = found(
        {"a": rng.normal(size=(200, 2)), "tiny": rng.normal(size=(FEWEST - 1, 2)), "b": rng.normal(size=(200, 2))}
    )
    assert [line.part for line in parts.against_rest] == ["a", "b"]
    assert "tiny (99)" in parts.notes[0]
    with pytest.raises(DataError, match="1 part with 100 rows or more: a"):
        found({"a": rng.normal(size=(200, 2)), "tiny": rng.normal(size=(50, 2))})


def test_many_parts_are_not_compared_two_by_two() -> None:
    rng = np.random.default_rng(6)
    parts = found({str(name): rng.normal(size=(FEWEST, 1)) for name in range(MOST_PAIRED + 1)})
    assert len(parts.against_rest) == MOST_PAIRED + 1
    assert parts.pairs == ()


def test_more_rows_than_a_minute_takes_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("expunge.estimate.groups.MOST_CELLS", 4 * 2 * 900)  # two columns and their squares, two parts
    rng = np.random.default_rng(8)
    parts = found({"a": shifted(rng, 2000, 2, 0.5), "b": shifted(rng, 1000, 2, 0.0)})
    assert [line.rows for line in parts.against_rest] == [600, 300]
    assert "900 of 3,000 rows" in parts.notes[0]


def test_columns_that_do_not_vary_or_are_not_finite() -> None:
    rng = np.random.default_rng(9)
    with_still = found(
        {"a": np.c_[shifted(rng, 300, 1, 0.0), np.ones(300)], "b": np.c_[shifted(rng, 300, 1, 0.0), np.ones(300)]}
    )
    assert with_still.tells
    for value, match in ((1.0, "same in all rows"), (np.nan, "not finite")):
        with pytest.raises(DataError, match=match):
            found({"a": np.full((200, 1), value), "b": np.full((200, 1), value)})


def test_wide_rows_are_seen_by_their_means_alone() -> None:
    rng = np.random.default_rng(10)
    parts = found({"a": rng.normal(size=(900, 160)), "b": rng.normal(size=(900, 160))})
    assert any("means and not their spreads" in note for note in parts.notes)
