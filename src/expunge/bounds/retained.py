"""The residual bound with the surrogate in the place of the RETAINED rows: the default.

For ANY update u, with v = w + u and phi_u the change of one row's gradient, strong convexity of the retained
objective gives

    ||w_R - v|| <= (1/l2) [ n/(n-m) ||g_D(w)||                  training
                          + ||a'(u)|| / (n-m)                   solver,  a'(u) = (n-m) (g_S(v) - g_S(w)) - m g_U(w)
                          + ||E_rho phi_u - E_nu phi_u||        surrogate
                          + deviation of both sample means      sampling
                          + float64 error of the above ]        rounding

rho is the population of the retained rows R, nu that of the surrogate S. The forget rows, which u was made from, are
charged exactly and not as part of a sample. What is declared is declared of the retained rows.

Here are the formulas alone. Their numbers (`RetainedFacts`) are measured by `RowsEvidence` in surrogate.py, what
follows from a distance is in distance.py, the tails of deviations are in sampling.py; the noise's grid adds its own
term later, in noise.py. docs/theory.md, sections 3, 5 and 8.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from expunge.bounds.region import Region, Term
from expunge.bounds.sampling import Tail, raised_moment, unlike_rows
from expunge.distance import Distance

ALMOST = 1.0 - 1e-6  # a row this close to the bound counts as one that reaches it
FEWEST_SAMPLED_ROWS = 100  # below this, a sample's moments say too little about its population
FAR_BELOW = 20  # surrogate rows for each direction before its own rows can pass for new ones
WEIGHT_FACTS = ("weight_largest", "sampled_trace", "sampled_eigenvalue", "sampled_largest")
TERMS = (
    Term(
        "training",
        "Training and earlier deletions",
        "how far the starting model may have been from its own optimum",
    ),
    Term("solver", "Unsolved remainder", "what the computation of the update left over; measured"),
    Term("surrogate", "Surrogate differs", "the stand-in data is not distributed like the source"),
    Term("sampling", "Finite samples", "source and stand-in are samples, and samples deviate"),
    Term("rounding", "Arithmetic", "computers round; this is the most it can have done"),
)


@dataclass(frozen=True)
class RetainedFacts:
    """Every number that enters the bound.

    `change_*` describe f = phi_u on the surrogate, c its mean: `mean` is ||c||; `eigenvalue` bounds the largest
    eigenvalue of the covariance and `trace` is its trace; `fourth` is the mean of ||f - c||^4 and `fourth_eigenvalue`
    bounds the largest eigenvalue of the mean of ||f - c||^2 (f - c)(f - c)^T; `largest` is the largest ||f - c|| seen,
    `longest` the largest ||f||, `supremum` a bound on ||f|| over every admissible row. `rounding` bounds the float64
    error of (n-m) g_R(v). `longest_row` is the longest surrogate row, `row_bound` the longest a row can be.
    `directions` is how many directions a row has: its features, or the weights of a network that was linearised.

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
    change_longest: float
    change_supremum: float
    longest_row: float
    row_bound: float
    directions: int
    sampling_failure: float
    weight_largest: float = 1.0
    sampled_trace: float | None = None
    sampled_eigenvalue: float | None = None
    sampled_largest: float | None = None

    @property
    def n_retain(self) -> int:
        return self.n_source - self.n_forget

    def weighted(self) -> tuple[float, float, float]:
        """Trace, eigenvalue and largest norm of the weight times f - c."""
        trace, eigenvalue, largest = self.sampled_trace, self.sampled_eigenvalue, self.sampled_largest
        if trace is None or eigenvalue is None or largest is None:
            return self.change_trace, self.change_eigenvalue, self.change_largest
        return trace, eigenvalue, largest


def training_term(facts: RetainedFacts) -> float:
    """`n/(n-m) ||g_D(w)|| / l2`: how far training stopped from the optimum."""
    return facts.n_source / facts.n_retain * facts.training_residual / facts.l2


def solver_term(facts: RetainedFacts) -> float:
    """`||a'(u)|| / ((n-m) l2)`: measured, so that any approximate update is covered."""
    return facts.solver_residual / facts.n_retain / facts.l2


def rounding_term(facts: RetainedFacts) -> float:
    """Float64 error of the measured residuals, divided by `(n-m) l2`."""
    return facts.rounding / facts.n_retain / facts.l2


def surrogate_shift(facts: RetainedFacts, distance: Distance) -> float:
    """Bound on `||E_rho phi_u - E_nu phi_u||` from the distance.

    Between samples, a finite KL puts the retained rows on the surrogate's own, so the largest deviation seen is the
    supremum.
    """
    between_samples = distance.between == "samples"
    farthest = facts.change_largest if between_samples else facts.change_supremum + facts.change_mean
    return distance.mean_shift(math.sqrt(facts.change_eigenvalue), facts.change_supremum, farthest)


def surrogate_term(facts: RetainedFacts, distance: Distance, log_failure: float) -> float:
    """`||E_rho phi_u - E_nu phi_u|| / l2`; `log_failure` is each event's share where moments are raised."""
    known = population_moments(facts, log_failure) if strict(distance) else facts
    return surrogate_shift(known, distance) / facts.l2


def strict(distance: Distance) -> bool:
    """Whether rows unlike any that was seen are counted, and moments raised to their populations'."""
    return distance.samples_rows and distance.counts_unlike


def exchangeable(facts: RetainedFacts, distance: Distance) -> bool:
    """Whether retained and surrogate rows can be counted against one another as draws of one population.

    They are under `same`; but the update was solved with the surrogate's own rows, which gives them a leverage of about
    directions/rows. Where that is not small, and with rows weighted by class, the count of `unlike_rows` is used.
    """
    enough = facts.n_surrogate >= FAR_BELOW * facts.directions
    return strict(distance) and distance.law.one_population and enough and not distance.matched


def events(facts: RetainedFacts, distance: Distance) -> int:
    """Events that share the probability `sampling_failure`, the deviation itself apart.

    strict: trace, eigenvalue and centre of the population, and for rows unlike any seen their mass and their number,
    unless they are exchangeable. seen: mass and number of rows longer than any seen, where there can be such.
    """
    if strict(distance):
        return 3 if exchangeable(facts, distance) else 5
    return 0 if facts.longest_row >= ALMOST * facts.row_bound else 2


def log_share(facts: RetainedFacts, distance: Distance, more: int = 0) -> float:
    """`ln(1/f)` for each of the events, and `more` beside them."""
    return -math.log(facts.sampling_failure / (events(facts, distance) + more))


def population_moments(facts: RetainedFacts, log_failure: float) -> RetainedFacts:
    """The facts with moments, now about 0, raised to bound the population's among rows that change no more than those.

    For the largest eigenvalue take the population's own eigenvector, which is fixed: one mean, no factor for the
    dimension. Weights of at most q act like s/q rows, and multiply second moments by q at most.
    """
    longest, rows, square = facts.change_longest, facts.n_surrogate / facts.weight_largest, facts.change_mean**2
    trace = raised_moment(facts.change_trace + square, longest, rows, log_failure)
    eigenvalue = min(trace, raised_moment(facts.change_eigenvalue + square, longest, rows, log_failure))
    return replace(
        facts,
        change_trace=trace,
        change_eigenvalue=eigenvalue,
        change_fourth=longest**2 * trace + trace**2,
        change_fourth_eigenvalue=longest**2 * eigenvalue,
        sampled_trace=facts.weight_largest * trace,
        sampled_eigenvalue=facts.weight_largest * eigenvalue,
        sampled_largest=facts.weight_largest * facts.change_largest,
    )


def retained_moments(facts: RetainedFacts, distance: Distance, longest: float) -> tuple[float, float]:
    """Upper values for trace and largest eigenvalue of f's covariance under the RETAINED rows' law.

    Both are at most means under rho of a non-negative function, g = ||f - c||^2 or (v.(f - c))^2 for the worst unit
    v, so the inequalities that shift the mean of f shift them too. Under nu the first has variance `fourth - trace^2`,
    the second at most `fourth_eigenvalue`, since (v.(f - c))^4 <= ||f - c||^2 (v.(f - c))^2. Both lie between 0 and
    longest^2.
    """
    square = longest**2
    spread = math.sqrt(max(0.0, facts.change_fourth - facts.change_trace**2))
    trace = facts.change_trace + distance.moment_shift(spread, 0.5 * square, square)
    eigenvalue = facts.change_eigenvalue + distance.moment_shift(
        math.sqrt(facts.change_fourth_eigenvalue), 0.5 * square, square
    )
    return trace, min(trace, eigenvalue)


def unlike_any(facts: RetainedFacts, distance: Distance, log_failure: float) -> float:
    """Bound on how many retained rows may change like no row that was seen, where they are not exchangeable.

    The surrogate's population has mass at most q = ln(1/f)/s beyond its sample's maximum (times the largest weight,
    where rows are weighted), the retained rows' at most that plus its shift.
    """
    mass = min(1.0, log_failure * facts.weight_largest / facts.n_surrogate)
    mass = min(1.0, mass + distance.moment_shift(math.sqrt(mass), 0.5, 1.0))
    return unlike_rows(facts.n_retain, mass, log_failure)


def deviation(facts: RetainedFacts, distance: Distance, log_failure: float) -> Tail:
    """The tail of `||(E_R - E_rho) f - (E_S - E_nu) f||`, not divided by l2; `set_apart` is charged beside it."""
    return _strict_tail(facts, distance, log_failure) if strict(distance) else _seen_tail(facts, distance)


def _strict_tail(facts: RetainedFacts, distance: Distance, log_failure: float) -> Tail:
    """f is cut off where it exceeds what was seen; the rows beyond are charged the supremum each."""
    known = population_moments(facts, log_failure)
    trace, eigenvalue = retained_moments(known, distance, facts.change_longest)
    sampled_trace, sampled_eigenvalue, sampled_largest = known.weighted()
    n, s = facts.n_retain, facts.n_surrogate
    # how far the surrogate's mean may be from its population's: vectors are centred at the latter
    alone = Tail(
        math.sqrt(sampled_trace / s), sampled_eigenvalue / s, 2.0 * facts.weight_largest * facts.change_longest / s
    )
    off = alone.quantile(math.exp(-log_failure))
    centre = facts.change_mean + off + surrogate_shift(known, distance)
    if distance.matched:
        step = 2.0 * max((facts.change_longest + centre) / n, (sampled_largest + off) / s)
    else:
        step = max((facts.change_longest + centre) / n, (facts.change_largest + off) / s)
    tail = Tail(math.sqrt(trace / n + sampled_trace / s), eigenvalue / n + sampled_eigenvalue / s, step)
    if exchangeable(facts, distance):
        return replace(tail, charge=beyond(facts, distance) / n, n_new=n, n_seen=counted_rows(facts))
    return tail


def counted_rows(facts: RetainedFacts) -> int:
    """How many surrogate rows the count of exchangeable ones takes them for: fewer than there are.

    The update was solved with them, which makes their own changes a little smaller than those of new rows: with 20 rows
    to a direction as if there were half as many, with 100 a sixth less.
    """
    return int(facts.n_surrogate / (1.0 + FAR_BELOW * facts.directions / facts.n_surrogate))


def beyond(facts: RetainedFacts, distance: Distance) -> float:
    """What a row unlike any seen is charged: the supremum, or what it is stated to be within, and what it had been
    counted as among those seen."""
    if not strict(distance):
        return facts.change_supremum + facts.change_mean
    most = math.inf if distance.within is None else distance.within * facts.change_longest
    return min(facts.change_supremum, most) + facts.change_longest


def _seen_tail(facts: RetainedFacts, distance: Distance) -> Tail:
    """Moments and the largest change seen stand for the population's."""
    longest = facts.change_largest
    if distance.law.rows_unlike_any:
        longest = facts.change_supremum + facts.change_mean
    trace, eigenvalue = retained_moments(facts, distance, longest)
    sampled_trace, sampled_eigenvalue, sampled_largest = facts.weighted()
    n, s = facts.n_retain, facts.n_surrogate
    if distance.matched:
        step = 2.0 * max(longest / n, sampled_largest / s)
    else:
        step = max((longest + surrogate_shift(facts, distance)) / n, facts.change_largest / s)
    return Tail(math.sqrt(trace / n + sampled_trace / s), eigenvalue / n + sampled_eigenvalue / s, step)


def set_apart(facts: RetainedFacts, distance: Distance, log_failure: float) -> float:
    """What is charged beforehand: the cut at what was seen, and rows unlike any where the tail does not count them."""
    # what was seen is cut off at the surrogate's own largest: given that, one of its rows is known, the rest drawn
    # below
    cut = 2.0 * facts.weight_largest * facts.change_longest / facts.n_surrogate if strict(distance) else 0.0
    if exchangeable(facts, distance) or events(facts, distance) == 0:
        return cut
    return cut + beyond(facts, distance) * unlike_any(facts, distance, log_failure) / facts.n_retain


def retained_bound(facts: RetainedFacts, distance: Distance, *, averaged: bool) -> Region:
    """All terms but the grid's, which needs the noise first.

    `averaged`: the tail of the sampling term goes with the region, for noise that is calibrated to its average over the
    drawing of the sets; `sampling` then holds only what is charged beforehand. Otherwise the deviation enters at the
    quantile that its share of `sampling_failure` gives.
    """
    integrated = averaged and strict(distance)
    share = log_share(facts, distance, more=0 if integrated else 1) if distance.samples_rows else 0.0
    terms = {
        "training": training_term(facts),
        "solver": solver_term(facts),
        "surrogate": surrogate_term(facts, distance, share),
        "sampling": 0.0,
        "rounding": rounding_term(facts),
    }
    if not distance.samples_rows:
        return Region("residual", terms)
    apart, tail = set_apart(facts, distance, share), deviation(facts, distance, share)
    if integrated and not tail.nothing:
        return Region("residual", terms | {"sampling": apart / facts.l2}, tail=tail.scaled(1.0 / facts.l2))
    return Region("residual", terms | {"sampling": (apart + tail.quantile(math.exp(-share))) / facts.l2})
