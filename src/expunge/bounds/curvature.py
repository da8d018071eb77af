"""A surrogate's own curvature in the place of l2: where the retrained weights can be, as plain numbers.

The residual bound divides by l2, the least that any rows can curve the loss. Let h_i be a row's Hessian at the updated
weights v, M a matrix of weights by weights, and c_i the largest range of `e x_i` for an e of length 1 in M. If in every
direction the retained rows R curve the loss at least kappa times as much as the surrogate rows S, far out too,

    E_R[e^(-c_i x) h_i] + l2 I  >=  kappa (E_S[e^(-c_i x) h_i] + l2 I)  >=  M,

then self-concordance makes M at most the Hessian of the retained objective wherever `||e||_M <= x`, and

    ||g_R(v)||_{M^-1} <= rho <= x    implies    ||w_R - v||_M <= rho.

The first inequality is declared, kappa with it; the second is checked row by row. rho has the terms of the residual
bound (retained.py), with every length in `M^-1` and 1 in the place of l2; `reach` is x. The region is then measured by
the shape of the noise, M_0. docs/theory.md, section 19; curvature.py measures the numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from expunge.bounds.region import Region
from expunge.bounds.retained import RetainedFacts, retained_bound
from expunge.distance import Distance

EVIDENCE_SHARE = 0.5  # of the smallest ratio that halves of the surrogate show: what may be declared at most
STEP = 0.01  # what is declared by `auto` is a multiple of it: it is handed out, and the ratio knows who left
MOST_TRIES = 8  # of M: which is taken hangs on what the rows said, so each has its own share of the failures
DISPLACED = 2.0**-40  # of the weights' length: what float64 makes of w + u, and of classes that sum to zero


@dataclass(frozen=True)
class CurvatureFacts:
    """`rows` are the residual bound's numbers, `change_*` of them in `M^-1`, all else plain.

    `least` is a lower bound on M's eigenvalues over what gradients of rows span, `reach` is x, `shape_ratio` an upper
    bound on `lambda_max(M^-1 M_0)`, `shape_largest` on `lambda_max(M_0)`, `weights` on the length of v.
    """

    rows: RetainedFacts
    least: float
    reach: float
    shape_ratio: float
    shape_largest: float
    weights: float

    @property
    def whitened(self) -> RetainedFacts:
        """The residual bound's numbers where lengths are those in M: there the loss curves by 1 at least."""
        plain = 1.0 / math.sqrt(self.least)
        return replace(
            self.rows,
            l2=1.0,
            training_residual=self.rows.training_residual * plain,
            solver_residual=self.rows.solver_residual * plain,
            rounding=self.rows.rounding * plain,
        )


def gradient_bound(facts: CurvatureFacts, distance: Distance, *, averaged: bool) -> Region:
    """rho, term by term and with its tail: what bounds the retained gradient at v in `M^-1`."""
    return retained_bound(facts.whitened, distance, averaged=averaged)


def curvature_bound(facts: CurvatureFacts, distance: Distance, *, averaged: bool) -> Region:
    """The region in the norm of the noise's shape; infinite where rho is beyond the reach.

    A deviation that takes rho beyond the reach is a failure: the tail ends there.
    """
    region, scale = gradient_bound(facts, distance, averaged=averaged), math.sqrt(facts.shape_ratio)
    room = facts.reach - region.radius
    if not room >= 0.0:
        return Region("curvature", dict.fromkeys(region.terms, math.inf))
    terms = {name: value * scale for name, value in region.terms.items()}
    terms["rounding"] += math.sqrt(facts.shape_largest) * DISPLACED * facts.weights
    tail = None if region.tail is None else replace(region.tail, limit=room).scaled(scale)
    return Region("curvature", terms, tail=tail)


def ratio_of_halves(spread: float) -> float:
    """The smaller of both ratios of two halves' curvatures `H (1 +- E)`, from the largest eigenvalue of E in size.

    >>> ratio_of_halves(0.0), ratio_of_halves(0.25), ratio_of_halves(1.5)
    (1.0, 0.6, 0.0)
    """
    return max(0.0, 1.0 - spread) / (1.0 + spread)


def declared_by(ratio: float) -> float:
    """What `auto` declares where halves showed this ratio: half of it, rounded down to a hundredth.

    >>> declared_by(0.77), declared_by(0.019), declared_by(1.0)
    (0.38, 0.0, 0.5)
    """
    return math.floor(EVIDENCE_SHARE * ratio / STEP) / round(1.0 / STEP)
