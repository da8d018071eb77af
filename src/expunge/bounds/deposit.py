"""Where the retrained weights are when a deposit of the source was kept: plain numbers to a region.

A deposit holds the gradient and the Hessian of the retained rows at the anchor w, so of the gradient at v = w + u
only what is of second order in u is unknown. Softmax and logistic losses are self-concordant: along u a row's Hessian
changes by at most `e^R`, R the largest range of `u x` over the rows. Each route below measures the error `e = w_R - v`
by a matrix M that is at most the Hessian of the retained rows at v, finds a radius in that norm, and turns it into one
in the norm of the shape `M_0` that the noise has, which is made of the retained rows: `||e||_{M_0} <= sqrt(ratio)
||e||_M` with `ratio = lambda_max(M^-1 M_0)`.

    range      M = e^-R H' + reg                         x = -ln(1 - c rho) / c
    long rows  M = (1 - a/2) H' - (r^2/2a) H_2' + reg    x = (1 - sqrt(1 - 2 C rho)) / C
    plain      M = I, for a regulariser that leaves no weight free: x = ||gradient at v|| / l2
    exact      quadratic losses, M = H' + reg: x = rho

Where the third derivatives were kept too, only what is of third order in u is unknown, and the first
three routes have a smaller remainder (`THIRD`); everything else of them is the same.

Every number is an upper bound but those called `least`; all of them are rounded up by whoever measures them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from expunge.bounds.region import Region, Term

RANGE, LONG_ROWS, PLAIN, EXACT = "range", "long rows", "plain", "exact"
THIRD = ", third order"  # after the name of a route: its remainder is of third order
BENDING = (RANGE, LONG_ROWS, PLAIN)
ROUTES = (*BENDING, EXACT, *(route + THIRD for route in BENDING))
LEFT = Term("step", "Step", "what the step left of the retained rows' linearised gradient")
REMAINDER = Term("remainder", "Higher order", "how far the retained rows' gradient can bend along the update")
LOST = Term("arithmetic", "Arithmetic", "what float64 and copies of rows may have changed")
TERMS = (LEFT, REMAINDER, LOST)


@dataclass(frozen=True)
class DepositFacts:
    """What a route follows from. Norms of gradients are in `M^-1`, for the plain route in plain length.

    `reach` is R. `update_curved` is `||u||_{H'}`, on long rows `||u||_{H_2'}`, with `gauge` r and `kappa`,
    `curvature_ratio` `lambda_max(M^-1 H')` (plain: `lambda_max(H')`), `spread` tau^2 and `weight_ratio` omega.
    `concordance` is c.
    """

    route: str
    solver: float
    rounding: float
    shape_ratio: float
    reach: float = 0.0
    update_curved: float = 0.0
    concordance: float = 0.0
    gauge: float = 0.0
    kappa: float = 0.0
    curvature_ratio: float = 0.0
    spread: float = 0.0
    weight_ratio: float = 0.0
    l2: float = 0.0


def way_of(route: str) -> str:
    """A route without the order of its remainder.

    >>> way_of("range, third order"), way_of("range")
    ('range', 'range')
    """
    return route.removesuffix(THIRD)


def bend(reach: float) -> float:
    """`phi(R) = (e^R - 1 - R)/R`: how much of the gradient self-concordance lets a range of R bend.

    >>> bend(0.0), round(bend(1.0), 6)
    (0.0, 0.718282)
    """
    if reach < 1e-3:  # the series, each term of which is positive: what is left out is below reach^5
        return reach * (0.5 + reach * (1 / 6 + reach * (1 / 24 + reach * (1 / 120 + reach / 120))))
    if reach > 700.0:
        return math.inf
    return (math.expm1(reach) - reach) / reach


def bend_slope(reach: float) -> float:
    """`phi(R)/R`, which grows with R; 1/2 at 0."""
    if reach < 1e-3:
        return 0.5 + reach * (1 / 6 + reach * (1 / 24 + reach * (1 / 120 + reach / 120)))
    return bend(reach) / reach


def bend_third(reach: float) -> float:
    """`(e^R - 1 - R - R^2/2)/R`: how much a range of R lets the gradient bend beyond its second derivative.

    >>> bend_third(0.0), round(bend_third(1.0), 6)
    (0.0, 0.218282)
    """
    return bend_third_slope(reach) * reach**2


def bend_third_slope(reach: float) -> float:
    """That over `R^2`, which grows with R; 1/6 at 0."""
    if reach < 1.0:  # the series `sum R^k/(k + 3)!`, each term of which is positive
        return math.fsum(reach**power / math.factorial(power + 3) for power in range(18))
    if reach > 700.0:
        return math.inf
    return (math.expm1(reach) - reach - reach**2 / 2.0) / reach**3


def concordant_radius(concordance: float, rho: float) -> float:
    """`-ln(1 - c rho)/c`, infinite from `c rho = 1` on; rho where c is 0.

    >>> concordant_radius(0.0, 0.25), round(concordant_radius(1.0, 0.5), 6), concordant_radius(2.0, 0.5)
    (0.25, 0.693147, inf)
    """
    product = concordance * rho
    if not product < 1.0:
        return math.inf
    if product < 1e-8:
        return rho * (1.0 + product)
    return -math.log1p(-product) / concordance


def weighted_radius(weighted: float, rho: float) -> float:
    """`(1 - sqrt(1 - 2 C rho))/C`, infinite from `2 C rho = 1` on.

    >>> weighted_radius(0.0, 0.25), weighted_radius(1.0, 0.375)
    (0.25, 0.5)
    """
    product = 2.0 * weighted * rho
    if not product < 1.0:
        return math.inf
    return 2.0 * rho / (1.0 + math.sqrt(1.0 - product))


def remainder(facts: DepositFacts) -> float:
    """What the gradient at v can have beyond what is known of it, in the norm of the route."""
    way, third = way_of(facts.route), facts.route.endswith(THIRD)
    if way == EXACT:
        return 0.0
    if way == LONG_ROWS:
        ratio = facts.weight_ratio if third else facts.curvature_ratio
        slope = bend_third_slope(facts.reach) * facts.gauge if third else bend_slope(facts.reach)
        return slope * facts.gauge * facts.update_curved * math.sqrt(ratio)
    bent = bend_third(facts.reach) if third else bend(facts.reach)
    if way == PLAIN:
        return bent * facts.update_curved * math.sqrt(facts.curvature_ratio)
    return bent * math.exp(facts.reach / 2.0) * facts.update_curved


def radius_in_route(facts: DepositFacts, instead: float | None = None) -> float:
    """x: how far the retrained weights can be in the norm of the route's own matrix.

    `instead` is what surrogate rows leave of the second order, where there are such (deposit_surrogate.py).
    """
    rho = facts.solver + facts.rounding + (remainder(facts) if instead is None else instead)
    way = way_of(facts.route)
    if not math.isfinite(rho):
        return math.inf
    if way == EXACT:
        return rho
    if way == PLAIN:
        return rho / facts.l2
    if way == LONG_ROWS:
        return weighted_radius(math.sqrt(facts.spread * facts.weight_ratio * math.exp(facts.reach)), rho)
    if way == RANGE:
        return concordant_radius(facts.concordance, rho)
    raise ValueError(f"route {facts.route!r}")


def reach_used(facts: DepositFacts) -> float:
    """How far on the way to where the route has no radius any more: `c rho` or `2 C rho`, none from 1 on.

    0 for the plain and the exact route, which have no such end.

    >>> reach_used(DepositFacts(RANGE, 0.25, 0.0, 1.0, concordance=2.0))
    0.5
    """
    rho, way = facts.solver + facts.rounding + remainder(facts), way_of(facts.route)
    if way == RANGE:
        return facts.concordance * rho
    if way == LONG_ROWS:
        return 2.0 * math.sqrt(facts.spread * facts.weight_ratio * math.exp(facts.reach)) * rho
    return 0.0


def deposit_bound(facts: DepositFacts, instead: Mapping[str, float] | None = None) -> Region:
    """The region in the norm of the noise's shape; its terms share the radius in the proportion of what entered it.

    `instead` are the terms, in the norm of the route, that surrogate rows put in the place of the second order.
    """
    second = {REMAINDER.name: remainder(facts)} if instead is None else dict(instead)
    parts = {LEFT.name: facts.solver, **second, LOST.name: facts.rounding}
    rho = math.fsum(parts.values())
    radius = radius_in_route(facts, math.fsum(second.values())) * math.sqrt(facts.shape_ratio)
    if not math.isfinite(radius):
        return Region("deposit", dict.fromkeys(second, math.inf))
    if rho == 0.0:
        return Region("deposit", dict.fromkeys(parts, 0.0))
    return Region("deposit", {name: radius * (part / rho) for name, part in parts.items()})
