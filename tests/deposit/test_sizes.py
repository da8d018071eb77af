"""How large a region is, and which of several that tie is meant, by hand."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

from expunge.bounds.deposit import LONG_ROWS, PLAIN, RANGE, DepositFacts, radius_in_route
from expunge.deposit.sizes import TIE, settled, size_of, tied, unlike

FACTS = DepositFacts(
    RANGE, 1e-3, 1e-6, 4.0, reach=0.1, update_curved=0.02, concordance=2.0, curvature_ratio=1.5
)  # fmt: skip


def test_a_size_is_the_radius_in_the_frozen_shape() -> None:
    """Which the largest ratio of the two shapes says, squared."""
    assert size_of(FACTS) == pytest.approx(2.0 * radius_in_route(FACTS), rel=1e-15)
    assert size_of(replace(FACTS, shape_ratio=9.0)) == pytest.approx(3.0 * radius_in_route(FACTS), rel=1e-15)


def test_what_a_step_left_is_not_settled() -> None:
    assert settled(FACTS) == settled(replace(FACTS, solver=0.5)) == size_of(replace(FACTS, solver=0.0)) < size_of(FACTS)
    assert tied(FACTS) == pytest.approx((1 + TIE) * size_of(replace(FACTS, solver=1e-3 + 1e-6)), rel=1e-15)
    assert settled(FACTS) < tied(FACTS)


def test_the_route_comes_first_then_the_gauge_then_all_other_numbers() -> None:
    assert unlike(FACTS, FACTS) == (False, 0.0, 0.0)
    assert unlike(FACTS, replace(FACTS, solver=7.0, l2=3.0)) == (False, 0.0, 0.0)
    near, far = replace(FACTS, reach=0.11), replace(FACTS, reach=0.2)
    assert unlike(near, FACTS)[2] == pytest.approx(0.01 / 0.11)
    gauged, other = replace(FACTS, kappa=0.5), replace(FACTS, route=PLAIN)
    ordered = [unlike(each, FACTS) for each in (FACTS, near, far, gauged, replace(gauged, route=LONG_ROWS))]
    assert all(one < other for one, other in itertools.pairwise(ordered))
    assert unlike(other, FACTS)[0] is True
    assert math.isfinite(unlike(replace(FACTS, reach=0.0), replace(FACTS, reach=0.0))[2])
