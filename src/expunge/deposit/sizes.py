"""How large a route's region is, and which of several that are as small is the one that somebody else found."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

from expunge.bounds.deposit import DepositFacts, radius_in_route

TIE = 1e-6  # relative: regions that are as small as each other


def unlike(one: DepositFacts, other: DepositFacts) -> tuple[bool, float, float]:
    """Whether it is another route, how far its gauge is another, and the sum of relative differences of its numbers.

    What a step left is rounding. Where the update is so too its lengths can be anything, but are those of all routes by
    the same gauge.
    """
    left_out = ("route", "kappa", "solver", "l2")  # of l2 routes say nothing, or the same
    pairs = [(value, asdict(other)[name]) for name, value in asdict(one).items() if name not in left_out]
    apart = math.fsum(abs(a - b) / max(abs(a), abs(b), 1e-300) for a, b in pairs)
    return one.route != other.route, abs(one.kappa - other.kappa), apart


def size_of(facts: DepositFacts) -> float:
    """The radius in the norm of the shape of the noise."""
    return radius_in_route(facts) * math.sqrt(facts.shape_ratio)


def settled(facts: DepositFacts) -> float:
    """The same with nothing left by the step, which is rounding: another machine's can be anything that rounding is."""
    return size_of(replace(facts, solver=0.0))


def tied(facts: DepositFacts) -> float:
    """A region whose `settled` size is no more than this may be the smaller one on another machine."""
    return (1.0 + TIE) * size_of(replace(facts, solver=facts.solver + facts.rounding))
