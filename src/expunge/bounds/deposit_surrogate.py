"""A deposit with surrogate rows as well: what they leave of the second order. Plain numbers.

With `psi_u(x) = grad ell(x; w+u) - grad ell(x; w) - h(x; w) u` the gradient of the retained rows at v = w + u is

    [g' + (H' + reg) u + E_S psi_u]  +  (E_R - E_S) psi_u

The first part is measured, and the update is solved for so that next to nothing is left of it; the second is bounded as
the residual bound bounds the same difference of the change of gradient (retained.py), psi in the place of phi, every
length in `M^-1`, M the matrix of the deposit's route. Of the retained rows more is known than of any others: the
deposit's gauges hold them all, and each one's Hessian is a part of H'. So what k of them that are unlike any surrogate
row can add is at most the smallest of

    k/n' each             the largest psi of a row that the gauges hold
    sqrt(k/n') together   phi(R) (R/2) sqrt(outputs) sqrt(lambda_max(M^-1 H')), by self-concordance
    most                  the remainder of the deposit alone

`outputs` is 1, or the number of classes where each has a loss of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from expunge.bounds.deposit import DepositFacts, bend, deposit_bound, remainder
from expunge.bounds.region import Region
from expunge.bounds.retained import (
    RetainedFacts,
    deviation,
    events,
    exchangeable,
    log_share,
    population_moments,
    set_apart,
    strict,
    surrogate_shift,
    unlike_any,
)
from expunge.bounds.sampling import Tail
from expunge.distance import Distance

SOFTMAX_THIRD = math.sqrt(2.0) / (3.0 * math.sqrt(3.0))  # of the softmax's third derivative: its norm at most
SIGMOID_THIRD = 1.0 / (6.0 * math.sqrt(3.0))


@dataclass(frozen=True)
class SurrogateFacts:
    """What surrogate rows say of psi: its moments in `M^-1`, with l2 1 and nothing else in them.

    `each` and `together` are what the module's head says of retained rows.
    """

    moments: RetainedFacts
    each: float
    together: float


def softmax_bend(reach: float, length: float) -> float:
    """Bound on `||p(z+b) - p(z) - C(p) b||` for `range(b) <= reach`, `||b - mean|| <= length`.

    By self-concordance `phi(R) sqrt(q.C q) sqrt(b.C b)` along a unit q, where `b.C b <= R^2/4` and `q.C q <= 1/2`;
    by the third derivative `c_3 ||b||^2 / 2`; and since C(p) lies between 0 and 1/2 wherever p goes, `||b||/2`.

    >>> softmax_bend(0.0, 0.0), softmax_bend(50.0, 2.0e3)
    (0.0, 1000.0)
    """
    concordant = bend(reach) * reach / (2.0 * math.sqrt(2.0))
    return min(concordant, 0.5 * length * min(1.0, SOFTMAX_THIRD * length))


def sigmoid_bend(reach: float, length: float) -> float:
    """Bound on `||s(z+b) - s(z) - s'(z) b||` of sigmoids one by one, for `|b_k| <= reach`, `||b|| <= length`.

    Each is off by at most `b_k^2 / (12 sqrt 3)` and `|b_k| / 4`: below what self-concordance says, `phi(R) |b_k| / 4`.

    >>> sigmoid_bend(0.0, 0.0), sigmoid_bend(100.0, 8.0)
    (0.0, 2.0)
    """
    return length * min(0.25, 0.5 * SIGMOID_THIRD * reach)


def together(facts: DepositFacts, outputs: int) -> float:
    """What a share s of the retained rows, whichever they are, adds in `M^-1` at most, divided by `sqrt(s)`.

    Cauchy-Schwarz over these rows: `|q . mean psi| <= phi(R) sqrt(mean h[q,q]) sqrt(mean h[u,u])`; the first mean is at
    most `||q||_{H'}^2`, the second at most `s R^2/4` for each output.
    """
    return bend(facts.reach) * 0.5 * facts.reach * math.sqrt(outputs * facts.curvature_ratio)


def share_of(surrogate: SurrogateFacts, distance: Distance) -> float:
    """`ln(1/f)` for each of the events that share what is spent on sampling, the deviation itself among them."""
    return log_share(surrogate.moments, distance, more=1) if distance.samples_rows else 0.0


def surrogate_part(surrogate: SurrogateFacts, distance: Distance) -> float:
    """`||E_rho psi - E_nu psi||` from the declared distance."""
    facts = within(surrogate.moments, distance)
    known = population_moments(facts, share_of(surrogate, distance)) if strict(distance) else facts
    return surrogate_shift(known, distance)


def within(facts: RetainedFacts, distance: Distance) -> RetainedFacts:
    """The facts of psi cut off at the longest seen, where it is: that is then its supremum.

    What is cut off is charged apart. Differences from a mean can be twice as long.
    """
    if not strict(distance):
        return facts
    longest = facts.change_longest * (2.0 if distance.law.uses_deviation else 1.0)
    return replace(facts, change_supremum=min(facts.change_supremum, longest))


def sampling_part(surrogate: SurrogateFacts, distance: Distance, most: float) -> float:
    """The deviation of both sample means, at the quantile of its share; `most` is what the deposit alone would charge.

    It is not averaged over the drawing of the sets: the radius is not linear in it.
    """
    if not distance.samples_rows:
        return 0.0
    share = share_of(surrogate, distance)
    return apart(surrogate, distance, share, most) + tail_of(surrogate, distance, share, most).quantile(
        math.exp(-share)
    )


def tail_of(surrogate: SurrogateFacts, distance: Distance, log_failure: float, most: float) -> Tail:
    """The tail of the deviation; with it, where they can be counted there, of retained rows unlike any seen."""
    facts, rows = surrogate.moments, surrogate.moments.n_retain
    tail = deviation(within(facts, distance), distance, log_failure)
    if not exchangeable(facts, distance):
        return tail
    return replace(
        tail,
        charge=surrogate.each / rows,
        together=surrogate.together / math.sqrt(rows),
        most=most,
        counted=facts.change_longest / rows,
    )


def apart(surrogate: SurrogateFacts, distance: Distance, log_failure: float, most: float) -> float:
    """What is charged beforehand: the cut at what was seen, and rows unlike any where the tail does not count them."""
    facts = surrogate.moments
    known = set_apart(replace(facts, change_supremum=0.0), distance, log_failure)
    if exchangeable(facts, distance) or events(facts, distance) == 0:
        return known
    share = unlike_any(facts, distance, log_failure) / facts.n_retain
    return known + min(surrogate.each * share, surrogate.together * math.sqrt(share), most)


def surrogate_terms(facts: DepositFacts, surrogate: SurrogateFacts, distance: Distance) -> dict[str, float]:
    """What stands in the place of the second order, in the norm of the route."""
    return {
        "surrogate": surrogate_part(surrogate, distance),
        "sampling": sampling_part(surrogate, distance, remainder(facts)),
    }


def bound_with_surrogate(facts: DepositFacts, surrogate: SurrogateFacts | None, distance: Distance) -> Region:
    """The region in the norm of the shape of the noise, with surrogate rows or of the deposit alone."""
    return deposit_bound(facts, None if surrogate is None else surrogate_terms(facts, surrogate, distance))
