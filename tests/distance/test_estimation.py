"""How an estimate is to be made, as it is written and as it is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from expunge import Distance
from expunge.distance import Estimation, parse_distance, parse_route
from expunge.errors import OptionError

pytestmark = pytest.mark.usefixtures("one_thread")


def test_routes() -> None:
    assert parse_route("estimate") == parse_route("estimate:means") == "means"
    assert parse_route("estimate:kl") == "kl"
    assert parse_route("chi2:0.1") is None
    with pytest.raises(OptionError, match="route 'tv'"):
        Estimation(parse_route("estimate:tv") or "")
    with pytest.raises(OptionError, match="or estimate"):
        parse_distance("means:0.1")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"support": "cube"}, "support 'cube'"),
        ({"chains": 99}, "99 chains"),
        ({"box": 1.0}, "box 1.0"),
        ({"support": "box", "box": -1.0}, "box -1.0"),
        ({"mean": np.zeros(2)}, "one of mean and covariance"),
        ({"mean": np.zeros(2), "covariance": np.eye(2)}, "moments with support ball"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], match: str) -> None:
    with pytest.raises(OptionError, match=match):
        Estimation(**options)


def test_only_an_estimate_is_of_the_kind_means() -> None:
    assert Distance("means", 0.1).provenance == "estimated"
    with pytest.raises(OptionError, match="'means' estimated"):
        Distance("means", 0.1, provenance="declared")
