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
        ({"chains": 99}, "chains 99"),
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


def test_what_is_done_where_nothing_is_said_is_what_the_paper_does() -> None:
    usual = Estimation()
    assert (usual.route, usual.support, usual.sampling) == ("means", "ball", "strict")
    assert (usual.chains, usual.steps, usual.epochs, usual.seed) == (1000, 4000, 500, 0)
    assert usual.step_size is usual.box is usual.mean is usual.covariance is None
    assert (usual.metropolis, usual.matched) == (False, False)
    assert (usual.is_source, usual.samples_rows, str(usual)) == (False, True, "estimate:means")


@pytest.mark.parametrize(
    ("name", "lowest", "highest", "below", "beyond"),
    [
        ("chains", 100, 10_000_000, 99, 10_000_001),
        ("steps", 8, 10_000_000, 7, 10_000_001),
        ("epochs", 1, 10**12, 0, None),
        ("seed", 0, 2**62 - 1, -1, 2**62),
        ("step_size", 1e-30, 1e30, np.nextafter(1e-30, 0.0), np.nextafter(1e30, np.inf)),
        ("box", 1e-30, 1e30, np.nextafter(1e-30, 0.0), np.nextafter(1e30, np.inf)),
    ],
)
def test_options_at_their_limits_and_just_beyond(
    name: str, lowest: float, highest: float, below: float, beyond: float | None
) -> None:
    support = "box" if name == "box" else "ball"
    for value in (lowest, highest):
        assert getattr(Estimation(support=support, **{name: value}), name) == value
    for value in (below, beyond):
        if value is not None:
            with pytest.raises(OptionError, match=name.replace("_", " ")):
                Estimation(support=support, **{name: value})


def test_moments_go_with_a_gaussian_reference_and_a_box_with_a_box() -> None:
    given = Estimation(support="gaussian", mean=np.zeros(2), covariance=np.eye(2))
    assert given.mean is not None
    for wrong in ({"covariance": np.eye(2)}, {"support": "gaussian", "mean": np.zeros(2)}):
        with pytest.raises(OptionError, match="one of mean and covariance"):
            Estimation(**wrong)
    with pytest.raises(OptionError, match="sampling 'loose'"):
        Estimation(sampling="loose")
