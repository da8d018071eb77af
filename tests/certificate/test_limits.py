"""What issuing allows and spends, held to what it issues."""

import math

import pytest

from expunge.certificate.claim import (
    EIGENVALUE_SHARE,
    EVENTS_SHARE,
    LARGEST_EPSILON,
    SAMPLING_SHARE,
    SMALLEST_DELTA,
    SMALLEST_EPSILON,
    due_failures,
    spread_failures,
)
from expunge.distance import Distance
from expunge.errors import OptionError
from expunge.request.promise import check_budget


@pytest.mark.parametrize(
    ("distance", "averaged", "due"),
    [
        (Distance("same", 0.0), True, {"sampling": EVENTS_SHARE, "eigenvalue": EIGENVALUE_SHARE}),
        (Distance("same", 0.0), False, {"sampling": SAMPLING_SHARE, "eigenvalue": EIGENVALUE_SHARE}),
        (Distance("same", 0.0, sampling="seen"), True, {"sampling": SAMPLING_SHARE, "eigenvalue": EIGENVALUE_SHARE}),
        (Distance("chi2", 0.1, "samples"), True, {"eigenvalue": EIGENVALUE_SHARE}),
        (Distance("tv", 0.1, "samples"), True, {}),
        (Distance("source", 0.0), True, {}),
    ],
)
def test_what_is_due(distance: Distance, averaged: bool, due: dict[str, float]) -> None:
    assert due_failures(0.5, distance, averaged=averaged) == {name: 0.5 * share for name, share in due.items()}


def test_a_series_spends_as_much_as_all_of_its_models() -> None:
    alone = due_failures(1e-3, Distance("same", 0.0), averaged=False)
    spread = due_failures(1e-3, Distance("same", 0.0), averaged=False, planned=10)
    assert spread["sampling"] == alone["sampling"] / 10
    assert math.isclose(math.fsum(spread.values()), math.fsum(alone.values()))
    assert spread_failures({}, 10) == {}


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(SMALLEST_EPSILON / 2, 1e-3), (LARGEST_EPSILON * 2, 1e-3), (1.0, SMALLEST_DELTA / 2), (1.0, 1.0)],
)
def test_issuing_refuses_what_verifying_would(epsilon: float, delta: float) -> None:
    check_budget(SMALLEST_EPSILON, 1e-3)
    check_budget(LARGEST_EPSILON, SMALLEST_DELTA)
    with pytest.raises(OptionError):
        check_budget(epsilon, delta)
