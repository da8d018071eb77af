"""Moments that no data can have: rules on the residual bound's `change_*` and on weights.

c is the mean of the change f over the surrogate, T the trace of its covariance, lambda its largest eigenvalue's bound,
F the mean of ||f - c||^4. Rows count by their weights, whose mean is 1; s rows, p weights.
"""

from __future__ import annotations

from expunge.bounds.deposit_surrogate import together
from expunge.bounds.residual import FEWEST_SAMPLED_ROWS
from expunge.certificate.facts import deposit_facts
from expunge.certificate.reading import number
from expunge.certificate.stated import LOST, Rule, Stated, at_most


def _residual(stated: Stated) -> bool:
    """Also of surrogate rows beside a deposit, where f is how the gradient bends, and lengths are a matrix's."""
    return stated.residual or stated.beside


def _plain(stated: Stated) -> bool:
    return _residual(stated) and not stated.claim.distance.matched


def _weighted(stated: Stated) -> bool:
    return _residual(stated) and stated.claim.distance.matched


def _knows_longest(stated: Stated) -> bool:
    return _residual(stated) and stated.has("change_longest")


def _least_together(stated: Stated) -> float:
    """What self-concordance lets a share of the retained rows bend together, for one output."""
    return together(deposit_facts(stated.claim.facts, stated.claim.convention), 1)


def _lost(stated: Stated) -> float:
    return LOST * stated["change_mean"] ** 2


def _effective(stated: Stated) -> float:
    return number(stated.content["data"]["effective_surrogate_rows"])


CHANGES = (
    Rule(
        "rows that differ from their mean have a variance",
        "change_largest is above 0 although change_trace is 0",
        lambda c: c["change_trace"] > 0.0 or c["change_largest"] ** 2 == 0.0,
        _residual,
    ),
    Rule(
        "no mean square exceeds the largest square",
        "change_trace is above the square of change_largest",
        lambda c: at_most(c["change_trace"], c["change_largest"] ** 2),
        _residual,
    ),
    Rule(
        "the largest square is no more than all squares together",
        "the square of change_largest is above n_surrogate times change_trace",
        lambda c: at_most(c["change_largest"] ** 2, c["n_surrogate"] * c["change_trace"]),
        _plain,
    ),
    Rule(
        "no eigenvalue exceeds the trace",
        "change_eigenvalue is above change_trace",
        lambda c: at_most(c["change_eigenvalue"], c["change_trace"]),
        _residual,
    ),
    Rule(
        "the largest eigenvalue is at least their mean",
        "change_eigenvalue is below change_trace over the number of weights",
        lambda c: at_most(c["change_trace"], c["change_eigenvalue"] * c.claim.n_parameters, _lost(c)),
        _residual,
    ),
    Rule(
        "a mean fourth power is at least the square of the mean square",
        "change_fourth is below the square of change_trace",
        lambda c: at_most(c["change_trace"] ** 2, c["change_fourth"]),
        _residual,
    ),
    Rule(
        "a mean fourth power is at most the largest square times the mean square",
        "change_fourth is above the square of change_largest times change_trace",
        lambda c: at_most(c["change_fourth"], c["change_largest"] ** 2 * c["change_trace"]),
        _residual,
    ),
    Rule(
        "the fourth moment's eigenvalue is at most the largest square times the covariance's",
        "change_fourth_eigenvalue is above the square of change_largest times change_eigenvalue",
        lambda c: at_most(c["change_fourth_eigenvalue"], c["change_largest"] ** 2 * c["change_eigenvalue"]),
        _residual,
    ),
    Rule(
        "the fourth moment's largest eigenvalue is at least their mean",
        "change_fourth_eigenvalue is below change_fourth over the number of weights",
        lambda c: at_most(
            c["change_fourth"],
            c["change_fourth_eigenvalue"] * c.claim.n_parameters,
            2.0 * LOST * (c.longest**2 + c["change_mean"] ** 2) * c["change_trace"],
        ),
        _residual,
    ),
    Rule(
        "the mean is no longer than the longest change",
        "change_mean is above change_longest",
        lambda c: at_most(c["change_mean"], c["change_longest"]),
        _knows_longest,
    ),
    Rule(
        "the mean square about zero is at most the longest change's square",
        "change_trace and the square of change_mean add up to more than the square of change_longest",
        lambda c: at_most(c["change_trace"] + c["change_mean"] ** 2, c["change_longest"] ** 2),
        _knows_longest,
    ),
    Rule(
        "no row is farther from the mean than both are long",
        "change_largest is above change_longest and change_mean together",
        lambda c: at_most(c["change_largest"], c["change_longest"] + c["change_mean"]),
        _knows_longest,
    ),
    Rule(
        "no row is longer than the mean and the way to it",
        "change_longest is above change_largest and change_mean together",
        lambda c: at_most(c["change_longest"], c["change_largest"] + c["change_mean"]),
        _knows_longest,
    ),
    Rule(
        "no row changes more than any row can",
        "change_longest is above change_supremum",
        lambda c: at_most(c["change_longest"], c["change_supremum"], c.row_rounding),
        _knows_longest,
    ),
    Rule(
        "the mean is no longer than any change can be",
        "change_mean is above change_supremum",
        lambda c: at_most(c["change_mean"], c["change_supremum"], c.row_rounding),
        _residual,
    ),
    Rule(
        "no row is farther from the mean than any row can be",
        "change_largest is above change_supremum and change_mean together",
        lambda c: at_most(c["change_largest"], c["change_supremum"] + c["change_mean"], c.row_rounding),
        _residual,
    ),
    Rule(
        "no surrogate row is longer than rows can be",
        "longest_row is above row_bound",
        lambda c: at_most(c["longest_row"], c["row_bound"]),
        _residual,
    ),
    Rule(
        "no retained row bends more than any row can",
        "change_each is above change_supremum",
        lambda c: at_most(c["change_each"], c["change_supremum"]),
        lambda c: c.beside,
    ),
    Rule(
        "rows together bend as far as one output's can",
        "change_together is below what reach and curvature_ratio allow",
        lambda c: at_most(_least_together(c), c["change_together"]),
        lambda c: c.beside,
    ),
)

WEIGHTS = (
    Rule(
        "rows that were not weighted all count (effective_surrogate_rows)",
        "classes were not matched, and another number of rows than n_surrogate is said to count",
        lambda c: at_most(abs(_effective(c) - c["n_surrogate"]), 0.0, 1e-9 * c["n_surrogate"]),
        lambda c: not c.claim.distance.matched and "effective_surrogate_rows" in c.content["data"],
    ),
    Rule(
        "only rows of linear models are weighted",
        "classes are said to be matched for a model that knows no weights of rows",
        lambda c: c.linear,
        lambda c: c.claim.distance.matched,
    ),
    Rule(
        "the largest weight is at least the mean of all",
        "weight_largest is below 1",
        lambda c: at_most(1.0, c["weight_largest"]),
        _weighted,
    ),
    Rule(
        "no row weighs more than all together",
        "weight_largest is above n_surrogate",
        lambda c: at_most(c["weight_largest"], c["n_surrogate"]),
        _weighted,
    ),
    Rule(
        "weights let no more rows count than there are",
        "effective_surrogate_rows is above n_surrogate",
        lambda c: at_most(_effective(c), c["n_surrogate"]),
        _weighted,
    ),
    Rule(
        "weights let no fewer rows count than the largest of them allows",
        "effective_surrogate_rows is below n_surrogate over weight_largest",
        lambda c: at_most(c["n_surrogate"], c["weight_largest"] * _effective(c)),
        _weighted,
    ),
    Rule(
        "enough rows count for their moments to mean something",
        f"fewer than {FEWEST_SAMPLED_ROWS} surrogate rows, or weights that let fewer count",
        lambda c: at_most(
            FEWEST_SAMPLED_ROWS, c["n_surrogate"] / (c["weight_largest"] if c.claim.distance.matched else 1.0)
        ),
        lambda c: _residual(c) and c.claim.distance.samples_rows,
    ),
    Rule(
        "a weighted change is at most the largest weight times the largest change",
        "sampled_largest is above weight_largest times change_largest",
        lambda c: at_most(c["sampled_largest"], c["weight_largest"] * c["change_largest"]),
        _weighted,
    ),
    Rule(
        "a weighted mean square is at most the largest weight times the mean square",
        "sampled_trace is above weight_largest times change_trace",
        lambda c: at_most(c["sampled_trace"], c["weight_largest"] * c["change_trace"]),
        _weighted,
    ),
    Rule(
        "no weighted mean square exceeds the largest weighted square",
        "sampled_trace is above the square of sampled_largest",
        lambda c: at_most(c["sampled_trace"], c["sampled_largest"] ** 2),
        _weighted,
    ),
    Rule(
        "weights cannot hide the variance",
        "sampled_trace is below what the square of change_trace over that of change_largest allows",
        lambda c: at_most(c["change_trace"] ** 2, c["sampled_trace"] * c["change_largest"] ** 2),
        _weighted,
    ),
    Rule(
        "no weighted eigenvalue exceeds its trace",
        "sampled_eigenvalue is above sampled_trace",
        lambda c: at_most(c["sampled_eigenvalue"], c["sampled_trace"]),
        _weighted,
    ),
    Rule(
        "the largest weighted eigenvalue is at least their mean",
        "sampled_eigenvalue is below sampled_trace over the number of weights",
        lambda c: at_most(
            c["sampled_trace"], c["sampled_eigenvalue"] * c.claim.n_parameters, c["weight_largest"] * _lost(c)
        ),
        _weighted,
    ),
)
