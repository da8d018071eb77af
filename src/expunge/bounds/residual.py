"""The residual bound (docs/theory.md, section 3): the default, and the one that holds as stated.

For ANY update u, with v = w + u, strong convexity of the retained objective gives

    ||w_R - v|| <= (1/l2) [ n/(n-m) ||g_D(w)||                       training
                          + ||a(u)|| / (n-m)                         solver
                          + n/(n-m) ||E_rho phi_u - E_nu phi_u||     surrogate
                          + n/(n-m) (deviation of both sample means) sampling
                          + float64 error of the above ]             rounding

Each term is one function of plain numbers, so that a certificate can be recomputed from its file alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from expunge.bounds.error_bound import ErrorBound
from expunge.distance import Distance


@dataclass(frozen=True)
class ResidualFacts:
    """Every number that enters the residual bound.

    `change_*` describe f = phi_u on the surrogate, c its mean: `mean` is ||c||; `eigenvalue` bounds the largest eigenvalue
    of the covariance and `trace` is its trace; `fourth` is the mean of ||f - c||^4 and `fourth_eigenvalue` bounds the
    largest eigenvalue of the mean of ||f - c||^2 (f - c)(f - c)^T; `largest` is the largest ||f - c|| seen, `supremum` a
    bound on ||f|| over every admissible row. `rounding` bounds the float64 error of (n-m) g_R(v).
    """

    n_source: int
    n_forget: int
    n_surrogate: int
    l2: float
    training_residual: float
    solver_residual: float
    rounding: float
    change_mean: float
    change_eigenvalue: float
    change_trace: float
    change_fourth: float
    change_fourth_eigenvalue: float
    change_largest: float
    change_supremum: float
    sampling_failure: float


def amplification(facts: ResidualFacts) -> float:
    """`n / ((n-m) l2)`: what a mean over the source's rows is multiplied by."""
    return facts.n_source / (facts.n_source - facts.n_forget) / facts.l2


def training_term(facts: ResidualFacts) -> float:
    """`n/(n-m) ||g_D(w)|| / l2`: how far training stopped from the optimum."""
    return amplification(facts) * facts.training_residual


def solver_term(facts: ResidualFacts) -> float:
    """`||a(u)|| / ((n-m) l2)`: measured, so that any approximate update is covered."""
    return facts.solver_residual / (facts.n_source - facts.n_forget) / facts.l2


def rounding_term(facts: ResidualFacts) -> float:
    """Float64 error of the measured residuals, divided by `(n-m) l2`."""
    return facts.rounding / (facts.n_source - facts.n_forget) / facts.l2


def surrogate_shift(facts: ResidualFacts, distance: Distance) -> float:
    """Bound on `||E_rho phi_u - E_nu phi_u||` from the declared distance.

    Between samples, a finite KL puts the source on the surrogate's own rows, so the largest deviation seen is the supremum.
    """
    between_samples = distance.between == "samples"
    deviation = facts.change_largest if between_samples else facts.change_supremum + facts.change_mean
    return distance.shift(math.sqrt(facts.change_eigenvalue), facts.change_supremum, deviation)


def surrogate_term(facts: ResidualFacts, distance: Distance) -> float:
    """`n/(n-m) ||E_rho phi_u - E_nu phi_u|| / l2`."""
    return amplification(facts) * surrogate_shift(facts, distance)


def sampling_term(facts: ResidualFacts, distance: Distance) -> float:
    """`n/(n-m)` times a bound on `||(E_D - E_rho) f - (E_S - E_nu) f||`, divided by l2; 0 where nothing was sampled.

    Both sample means in one sum of independent centred vectors: its expected norm is at most the root of its total
    variance, and the excess follows Klein and Rio's (2005) form of Talagrand's inequality (`klein_rio_excess`).
    """
    if not distance.samples_rows:
        return 0.0
    trace, eigenvalue = source_moments(facts, distance)
    n, s = facts.n_source, facts.n_surrogate
    expected = math.sqrt(trace / n + facts.change_trace / s)
    variance = eigenvalue / n + facts.change_eigenvalue / s
    step = max((facts.change_largest + surrogate_shift(facts, distance)) / n, facts.change_largest / s)
    return amplification(facts) * (expected + klein_rio_excess(expected, variance, step, facts.sampling_failure))


def source_moments(facts: ResidualFacts, distance: Distance) -> tuple[float, float]:
    """Upper values for trace and largest eigenvalue of f's covariance under the SOURCE, from the surrogate's.

    Both are at most means under rho of a non-negative function, g = ||f - c||^2 or (v.(f - c))^2 for the worst unit v, so
    the inequalities that shift the mean of f shift them too. Under nu the first has variance `fourth - trace^2`, the
    second at most `fourth_eigenvalue`, since (v.(f - c))^4 <= ||f - c||^2 (v.(f - c))^2. Both lie between 0 and largest^2.
    """
    square = facts.change_largest**2
    spread = math.sqrt(max(0.0, facts.change_fourth - facts.change_trace**2))
    trace = facts.change_trace + distance.shift(spread, 0.5 * square, square)
    eigenvalue = facts.change_eigenvalue + distance.shift(
        math.sqrt(facts.change_fourth_eigenvalue), 0.5 * square, square
    )
    return trace, min(trace, eigenvalue)


def klein_rio_excess(expected: float, variance: float, step: float, failure: float) -> float:
    """What the norm of a sum of independent centred vectors exceeds its mean by, with probability at most `failure`.

    Klein and Rio 2005, Theorem 1.1: `P(Z >= E Z + x) <= exp(-x^2 / (2 v + 3 b x))`, `v = variance + 2 b E Z`, where each
    vector is at most b = `step` long and `variance` bounds the sum's variance along any direction; solved for x.

    >>> klein_rio_excess(0.0, 0.5, 0.0, math.exp(-4.0))
    2.0
    """
    log_failure = -math.log(failure)
    proxy = variance + 2.0 * step * expected
    linear = 3.0 * step * log_failure
    return 0.5 * (linear + math.sqrt(linear**2 + 8.0 * proxy * log_failure))


def grid_term(grid: float, n_parameters: int) -> float:
    """`sqrt(p) grid`: rounding both models to the grid moves them apart by at most this.

    >>> grid_term(0.5, 16)
    2.0
    """
    return math.sqrt(n_parameters) * grid


def residual_bound(facts: ResidualFacts, distance: Distance) -> ErrorBound:
    """All terms but the grid's, which needs a sigma first."""
    return ErrorBound(
        "residual",
        {
            "training": training_term(facts),
            "solver": solver_term(facts),
            "surrogate": surrogate_term(facts, distance),
            "sampling": sampling_term(facts, distance),
            "rounding": rounding_term(facts),
        },
    )
