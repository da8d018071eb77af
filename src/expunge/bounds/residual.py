"""The residual bound of certificates of schemas 1 and 2, which `verify` still recomputes; retained.py superseded it.

None is issued with it any more, and it is no public name: where the surrogate misses rows that the source has, it is
too small (docs/theory.md, section 3).

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
from dataclasses import dataclass, replace

from expunge.bounds.region import Region
from expunge.distance import Distance

REVISION = 2
ALMOST = 1.0 - 1e-6  # a row this close to the bound counts as one that reaches it


@dataclass(frozen=True)
class ResidualFacts:
    """Every number that enters the residual bound.

    `change_*` describe f = phi_u on the surrogate, c its mean: `mean` is ||c||; `eigenvalue` bounds the largest
    eigenvalue of the covariance and `trace` is its trace; `fourth` is the mean of ||f - c||^4 and `fourth_eigenvalue`
    bounds the largest eigenvalue of the mean of ||f - c||^2 (f - c)(f - c)^T; `largest` is the largest ||f - c|| seen,
    `supremum` a bound on ||f|| over every admissible row. `rounding` bounds the float64 error of (n-m) g_R(v).
    `longest_row` is the longest surrogate row, `row_bound` the longest a row can be.

    Surrogate rows may be weighted by class; the `change_*` are then weighted, `weight_largest` is the largest weight
    (their mean is 1), and `sampled_*` are trace, eigenvalue and largest norm of the weight times f - c, which is what
    the weighted mean varies by. None, without weights: they are then those of f - c itself.
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
    longest_row: float
    row_bound: float
    sampling_failure: float
    weight_largest: float = 1.0
    sampled_trace: float | None = None
    sampled_eigenvalue: float | None = None
    sampled_largest: float | None = None

    def weighted(self) -> tuple[float, float, float]:
        """Trace, eigenvalue and largest norm of the weight times f - c."""
        trace, eigenvalue, largest = self.sampled_trace, self.sampled_eigenvalue, self.sampled_largest
        if trace is None or eigenvalue is None or largest is None:
            return self.change_trace, self.change_eigenvalue, self.change_largest
        return trace, eigenvalue, largest


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
    """Bound on `||E_rho phi_u - E_nu phi_u||` from the distance.

    Between samples, a finite KL puts the source on the surrogate's own rows, so the largest deviation seen is the
    supremum.
    """
    between_samples = distance.between == "samples"
    deviation = facts.change_largest if between_samples else facts.change_supremum + facts.change_mean
    return distance.mean_shift(math.sqrt(facts.change_eigenvalue), facts.change_supremum, deviation)


def surrogate_term(facts: ResidualFacts, distance: Distance) -> float:
    """`n/(n-m) ||E_rho phi_u - E_nu phi_u|| / l2`."""
    if distance.sampling == "strict" and distance.samples_rows:
        facts = strict_moments(facts, -math.log(facts.sampling_failure / 5.0))
    return amplification(facts) * surrogate_shift(facts, distance)


def sampling_term(facts: ResidualFacts, distance: Distance, revision: int = REVISION) -> float:
    """`n/(n-m)` times a bound on `||(E_D - E_rho) f - (E_S - E_nu) f||`, divided by l2; 0 where nothing was sampled.

    Both sample means in one sum of independent centred vectors: its expected norm is at most the root of its total
    variance, and the excess follows Klein and Rio's (2005) form of Talagrand's inequality (`klein_rio_excess`). Source
    rows longer than any that was seen are charged the supremum each (`unseen_rows`).

    With matched classes both sets are samples class by class: a row's vector is centred at its own class's mean, which
    has no larger second moments than f - c, and lies no farther from c than the class's rows do.
    """
    if not distance.samples_rows:
        return 0.0
    n, s = facts.n_source, facts.n_surrogate
    unseen = unseen_rows(facts, distance)
    events = (1 if unseen == 0.0 else 3) + (2 if distance.sampling == "strict" else 0)
    log_failure = -math.log(facts.sampling_failure / events)
    known = strict_moments(facts, log_failure) if distance.sampling == "strict" else facts
    if revision == 1:
        known = replace(known, change_largest=facts.change_largest)
    trace, eigenvalue = source_moments(known, distance)
    sampled_trace, sampled_eigenvalue, sampled_largest = known.weighted()
    expected = math.sqrt(trace / n + sampled_trace / s)
    variance = eigenvalue / n + sampled_eigenvalue / s
    reach = source_reach(facts, distance)
    if distance.matched:
        step = 2.0 * max(reach / n, sampled_largest / s)
    else:
        step = max((reach + surrogate_shift(known, distance)) / n, facts.change_largest / s)
    excess = klein_rio_excess(expected, variance, step, math.exp(-log_failure))
    return amplification(facts) * (expected + excess + (facts.change_supremum + facts.change_mean) * unseen / n)


def strict_moments(facts: ResidualFacts, log_failure: float) -> ResidualFacts:
    """The facts with moments, now about 0, raised to bound the population's, among rows like those seen.

    That is, among rows that change no more than those.

    A mean L of s independent values in [0, r^2] falls below its expectation E so far only with probability at most
    exp(-s (E - L)^2 / (2 E r^2)), whence sqrt E <= sqrt(L + c^2) + c with c = r sqrt(ln(1/f) / (2 s)). For the largest
    eigenvalue take the population's own eigenvector, which is fixed: one such mean, no factor for the dimension.
    Weights of at most q act like s/q rows, and multiply second moments by q at most.
    """
    reach = facts.change_largest + facts.change_mean
    slack = reach * math.sqrt(log_failure * facts.weight_largest / (2.0 * facts.n_surrogate))

    def raised(value: float) -> float:
        return (math.sqrt(value + facts.change_mean**2 + slack**2) + slack) ** 2

    trace, eigenvalue = raised(facts.change_trace), raised(facts.change_eigenvalue)
    return replace(
        facts,
        change_trace=trace,
        change_eigenvalue=min(trace, eigenvalue),
        change_fourth=reach**2 * trace + trace**2,
        change_fourth_eigenvalue=reach**2 * min(trace, eigenvalue),
        sampled_trace=facts.weight_largest * trace,
        sampled_eigenvalue=facts.weight_largest * min(trace, eigenvalue),
        sampled_largest=facts.weight_largest * facts.change_largest,
        change_largest=reach,
    )


def source_reach(facts: ResidualFacts, distance: Distance) -> float:
    """Bound on `||f - c||` over the source's rows: total variation lets them be unlike any surrogate row."""
    return facts.change_supremum + facts.change_mean if distance.law.rows_unlike_any else facts.change_largest


def unseen_rows(facts: ResidualFacts, distance: Distance) -> float:
    """Bound on how many source rows may change like no row that was seen.

    In `strict` sampling these are the rows with a larger `||f - c||` than every surrogate row. Otherwise only those
    longer than every surrogate row are counted; none can be if a surrogate row is as long as a row may be (`ALMOST`),
    as with features of unit norm. The surrogate's population has mass at most q = ln(1/f)/s beyond its sample's maximum
    (times the largest weight, where rows are weighted), the source's at most that plus its shift, and a sample of n
    holds at most n q + sqrt(2 n q ln(1/f)) + ln(1/f)/3 of them (Bernstein); f is the share of the failure probability
    that each of these steps gets.
    """
    strict = distance.sampling == "strict"
    if not strict and facts.longest_row >= ALMOST * facts.row_bound:
        return 0.0
    log_failure = -math.log(facts.sampling_failure / (5.0 if strict else 3.0))
    mass = min(1.0, log_failure * facts.weight_largest / facts.n_surrogate)
    mass = min(1.0, mass + distance.moment_shift(math.sqrt(mass), 0.5, 1.0))
    expected = facts.n_source * mass
    return min(float(facts.n_source), expected + math.sqrt(2.0 * expected * log_failure) + log_failure / 3.0)


def source_moments(facts: ResidualFacts, distance: Distance) -> tuple[float, float]:
    """Upper values for trace and largest eigenvalue of f's covariance under the SOURCE, from the surrogate's.

    Both are at most means under rho of a non-negative function, g = ||f - c||^2 or (v.(f - c))^2 for the worst unit v,
    so the inequalities that shift the mean of f shift them too. Under nu the first has variance `fourth - trace^2`, the
    second at most `fourth_eigenvalue`, since (v.(f - c))^4 <= ||f - c||^2 (v.(f - c))^2. Both lie between 0 and
    reach^2.
    """
    square = source_reach(facts, distance) ** 2
    spread = math.sqrt(max(0.0, facts.change_fourth - facts.change_trace**2))
    trace = facts.change_trace + distance.moment_shift(spread, 0.5 * square, square)
    eigenvalue = facts.change_eigenvalue + distance.moment_shift(
        math.sqrt(facts.change_fourth_eigenvalue), 0.5 * square, square
    )
    return trace, min(trace, eigenvalue)


def klein_rio_excess(expected: float, variance: float, step: float, failure: float) -> float:
    """What the norm of a sum of independent centred vectors exceeds its mean by, with probability at most `failure`.

    Klein and Rio 2005, Theorem 1.1: `P(Z >= E Z + x) <= exp(-x^2 / (2 v + 3 b x))`, `v = variance + 2 b E Z`, where
    each vector is at most b = `step` long and `variance` bounds the sum's variance along any direction; solved for x.

    >>> klein_rio_excess(0.0, 0.5, 0.0, math.exp(-4.0))
    2.0
    """
    log_failure = -math.log(failure)
    proxy = variance + 2.0 * step * expected
    linear = 3.0 * step * log_failure
    return 0.5 * (linear + math.sqrt(linear**2 + 8.0 * proxy * log_failure))


def residual_bound(facts: ResidualFacts, distance: Distance, revision: int = REVISION) -> Region:
    """All terms but the grid's, which needs a sigma first.

    `revision` 1 is how certificates of schema 1 were computed: with a KL and strict sampling it took the reach about
    the mean for second moments about 0, which is a trifle too small.
    """
    return Region(
        "residual",
        {
            "training": training_term(facts),
            "solver": solver_term(facts),
            "surrogate": surrogate_term(facts, distance),
            "sampling": sampling_term(facts, distance, revision),
            "rounding": rounding_term(facts),
        },
    )
