"""Where the retrained weights are when a deposit of the source was kept: plain numbers to a region.

A deposit holds the gradient and the Hessian of the retained rows at the anchor w, so of the gradient at v = w + u
only what is of second order in u is unknown. Softmax and logistic losses are self-concordant: along u a row's Hessian
changes by at most `e^R`, R the largest range of `u x` over the rows. Each route below measures the error `e = w_R - v`
by a matrix M that is at most the Hessian of the retained rows at v, finds a radius in that norm, and turns it into one
in the norm of the shape `M_0` that the noise has, which is made of the retained rows: `||e||_{M_0} <= sqrt(ratio)
||e||_M` with `ratio = lambda_max(M^-1 M_0)`.

    range      M = e^-R H' + reg                         x = -ln(1 - c rho) / c
    long rows  M = (1 - a/2) H' - (r^2/2a) H_2' + reg    x = (1 - sqrt(1 - 2 C rho)) / C, or as for the range
    plain      M = I, for a regulariser that leaves no weight free: x = ||gradient at v|| / l2
    exact      quadratic losses, M = H' + reg: x = rho

Here g', H' and H_2' are the retained rows' mean gradient, Hessian and Hessian with each row weighted by its squared
length in a gauge (deposit/sums.py), reg is the regulariser's matrix, and rho bounds the norm of the gradient at v in
`M^-1`: what the step left, what float64 lost, and the remainder. c is the largest range of `e x` over the rows for an e
of length 1 in M, r the update's length in the gauge, a a number between 0 and 2, any of which will do, and
`C = sqrt(tau^2 omega e^R)`. The radius by c holds for every M that is at most the Hessian at v, so on long rows the
smaller of the two is taken. docs/theory.md, section 18, has the proofs; deposit/region.py finds the numbers.

Where the third derivatives were kept too, only what is of third order in u is unknown, and the first
three routes have a smaller remainder (`THIRD`); everything else of them is the same.

Every number is an upper bound but those called `least`; all of them are rounded up by whoever measures them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

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

    `solver` is the norm of what the step left, `rounding` that of what float64 lost, `shape_ratio` is
    `lambda_max(M^-1 M_0)`. `reach` is R. `update_curved` is `||u||_{H'}`, on long rows `||u||_{H_2'}`, with `gauge` r
    and `kappa`, `curvature_ratio` `lambda_max(M^-1 H')` (plain: `lambda_max(H')`), `spread` tau^2 and `weight_ratio`
    omega. `concordance` is c.
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

    @cached_property
    def size(self) -> float:
        """The radius in the norm of the shape of the noise."""
        return radius_in_route(self) * math.sqrt(self.shape_ratio)


def way_of(route: str) -> str:
    """A route without the order of its remainder.

    >>> way_of("range, third order"), way_of("range")
    ('range', 'range')
    """
    return route.removesuffix(THIRD)


def exp_tail(reach: float, order: int) -> float:
    """`sum_k R^k / (k + order)!`: the exponential without its first terms, over `R^order`; it grows with R.

    >>> exp_tail(0.0, 2), round(exp_tail(1.0, 2), 6)
    (0.5, 0.718282)
    """
    if reach < 1.0:  # the series, each term of which is positive: the difference would cancel
        return math.fsum(reach**power / math.factorial(power + order) for power in range(18))
    if reach > 700.0:
        return math.inf
    return (math.expm1(reach) - sum(reach**power / math.factorial(power) for power in range(1, order))) / reach**order


def bend(reach: float) -> float:
    """`phi(R) = (e^R - 1 - R)/R`: how much of the gradient self-concordance lets a range of R bend.

    >>> bend(0.0), round(bend(1.0), 6)
    (0.0, 0.718282)
    """
    return exp_tail(reach, 2) * reach


def bend_third(reach: float) -> float:
    """`(e^R - 1 - R - R^2/2)/R`: how much a range of R lets the gradient bend beyond its second derivative.

    >>> bend_third(0.0), round(bend_third(1.0), 6)
    (0.0, 0.218282)
    """
    return exp_tail(reach, 3) * reach**2


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
        slope = exp_tail(facts.reach, 3) * facts.gauge if third else exp_tail(facts.reach, 2)
        return slope * facts.gauge * facts.update_curved * math.sqrt(ratio)
    bent = bend_third(facts.reach) if third else bend(facts.reach)
    if way == PLAIN:
        return bent * facts.update_curved * math.sqrt(facts.curvature_ratio)
    return bent * math.exp(facts.reach / 2.0) * facts.update_curved


def radius_in_route(facts: DepositFacts) -> float:
    """x: how far the retrained weights can be in the norm of the route's own matrix."""
    rho = facts.solver + facts.rounding + remainder(facts)
    way = way_of(facts.route)
    if not math.isfinite(rho):
        return math.inf
    if way == EXACT:
        return rho
    if way == PLAIN:
        return rho / facts.l2
    if way == RANGE:
        return concordant_radius(facts.concordance, rho)
    if way == LONG_ROWS:
        by_lengths = weighted_radius(math.sqrt(facts.spread * facts.weight_ratio * math.exp(facts.reach)), rho)
        # a c of 0 was not measured
        return min(by_lengths, concordant_radius(facts.concordance, rho)) if facts.concordance > 0.0 else by_lengths
    raise ValueError(f"route {facts.route!r}")


def reach_used(facts: DepositFacts) -> float:
    """How far on the way to where the route has no radius any more: `c rho`, on long rows that or `2 C rho`, whichever
    is less; none from 1 on.

    0 for the plain and the exact route, which have no such end.

    >>> reach_used(DepositFacts(RANGE, 0.25, 0.0, 1.0, concordance=2.0))
    0.5
    """
    rho, way = facts.solver + facts.rounding + remainder(facts), way_of(facts.route)
    if way == RANGE:
        return facts.concordance * rho
    if way == LONG_ROWS:
        used = 2.0 * math.sqrt(facts.spread * facts.weight_ratio * math.exp(facts.reach)) * rho
        return min(used, facts.concordance * rho) if facts.concordance > 0.0 else used
    return 0.0


def deposit_bound(facts: DepositFacts) -> Region:
    """The region in the norm of the noise's shape; its terms share the radius in the proportion of what entered it."""
    parts = {LEFT.name: facts.solver, REMAINDER.name: remainder(facts), LOST.name: facts.rounding}
    rho = math.fsum(parts.values())
    radius = facts.size
    if not math.isfinite(radius):
        return Region("deposit", {REMAINDER.name: math.inf})
    if rho == 0.0:
        return Region("deposit", dict.fromkeys(parts, 0.0))
    return Region("deposit", {name: radius * (part / rho) for name, part in parts.items()})
