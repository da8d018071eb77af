"""Numbers that were stored: the same rows and options still give them, by whatever path. A change of a bound stores new ones.

Where sums are added up as on the machine that stored them every case gave the same bits, and 1e-12 is asked of every
float. Elsewhere what is left of a residual is rounding, conjugate gradients may stop one product sooner, and an
estimate's chains part slowly: there, the looser limits hold.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from reference_cases import CASES, STORE, as_when_stored, found, stored


@dataclass(frozen=True)
class Limits:
    """How far a float may be from the stored one."""

    relative: float
    absolute: float
    exact: bool

    def near(self, got: float, wanted: float) -> bool:
        return math.isclose(got, wanted, rel_tol=self.relative, abs_tol=self.absolute)

    def alike(self, got: str, wanted: str) -> bool:
        masked = (text if self.exact else re.sub(r"\d[\d.e+-]*", "0", text) for text in (got, wanted))
        return next(masked) == next(masked)


HERE = Limits(1e-12, 0.0, exact=True)
ELSEWHERE = Limits(1e-5, 1e-8, exact=False)


def differences(got: Any, wanted: Any, limits: Limits, path: str = "") -> Iterator[str]:
    """Every place where two results differ, so that a failure shows all of them."""
    if isinstance(wanted, dict) and isinstance(got, dict):
        if list(got) != list(wanted):
            yield f"{path}: has {list(got)}, was {list(wanted)}"
        counted = set() if limits.exact else {"iterations", "inner_iterations"}
        for key in (key for key in wanted if key in got and key not in counted):
            # a share of 1 that is left of it: rounding of what it is a share of shows in it
            share = replace(limits, absolute=max(limits.absolute, 1e-12)) if key == "relative_residual" else limits
            yield from differences(got[key], wanted[key], share, f"{path}/{key}")
    elif isinstance(wanted, list) and isinstance(got, list):
        if len(got) != len(wanted):
            yield f"{path}: {len(got)} long, was {len(wanted)}"
        for index, (one, other) in enumerate(zip(got, wanted, strict=False)):
            yield from differences(one, other, limits, f"{path}/{index}")
    elif not same(got, wanted, limits):
        yield f"{path}: {got!r}, was {wanted!r}"


def same(got: Any, wanted: Any, limits: Limits) -> bool:
    """Floats and words within the limits; counts, truths and nothing exactly, and of the same type."""
    if type(got) is not type(wanted):
        return False
    if isinstance(wanted, float):
        return limits.near(got, wanted)
    return limits.alike(got, wanted) if isinstance(wanted, str) else bool(got == wanted)


def test_every_case_is_stored() -> None:
    assert sorted(path.stem for path in STORE.glob("*.json")) == sorted(CASES)


@pytest.mark.parametrize("name", CASES)
def test_nothing_changed(name: str) -> None:
    limits = HERE if as_when_stored() else ELSEWHERE
    assert not list(differences(found(name), stored(name), limits))
