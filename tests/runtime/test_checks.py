"""Options that must be numbers, or one of a few words."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge.errors import OptionError
from expunge.runtime.checks import LARGEST, SMALLEST, choice, positive


@given(st.floats(SMALLEST, LARGEST))
def test_a_number_above_zero_comes_back_as_it_went(value: float) -> None:
    assert positive(value, "l2", "") == value
    assert type(positive(np.float64(value), "l2", "")) is float


@pytest.mark.parametrize("value", [0, -1.0, math.inf, math.nan, True, "1", None, 1j, [1.0], 10**400])
def test_what_is_no_number_above_zero_is_refused_with_the_remedy(value: object) -> None:
    with pytest.raises(OptionError, match=r"l2.*Give lambda") as refused:
        positive(value, "l2", "Give lambda.")  # type: ignore[arg-type]
    assert refused.value.remedy == "Give lambda."


@pytest.mark.parametrize("value", [SMALLEST / 2, 2 * LARGEST, 5e-324, 1e308])
def test_what_would_leave_float64_by_its_powers_is_refused(value: float) -> None:
    with pytest.raises(OptionError, match=r"between 1e-30 and 1e\+30"):
        positive(value, "max_norm", "")
    assert positive(SMALLEST, "", "") ** 10 > 0
    assert math.isfinite(positive(LARGEST, "", "") ** 10)


def test_a_word_is_one_of_those_there_are() -> None:
    assert choice("b", ("a", "b"), "step") == "b"
    with pytest.raises(OptionError, match="step 'c'; it must be one of a, b"):
        choice("c", ("a", "b"), "step")
