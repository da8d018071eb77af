"""Rules on what is promised and on what is spent of delta: as issuing allows it, and as it spends."""

from __future__ import annotations

import math
from collections.abc import Mapping

from expunge.bounds.ellipsoid import drawing_delta
from expunge.certificate.facts import OLD_SCHEMAS
from expunge.certificate.limits import (
    EIGENVALUE_SHARE,
    LARGEST_EPSILON,
    MOST_ROUTES,
    SAMPLING_SHARE,
    SMALLEST_DELTA,
    SMALLEST_EPSILON,
    due_failures,
    kept_failures,
)
from expunge.certificate.stated import Rule, Stated
from expunge.runtime.checks import SMALLEST

EARLY_SHARES = (0.2, 1e-3)  # of delta, for sampling and eigenvalue: what the first certificates of schema 1 spent


def _due(stated: Stated) -> bool:
    """Whether the failures are those that issuing spends, of this schema."""
    claim = stated.claim
    if stated.kept:
        return _alike(claim.failures, kept_failures(claim.delta, claim.distance))
    if claim.bound != "residual":
        return not claim.failures
    possible_shares = [(SAMPLING_SHARE, EIGENVALUE_SHARE)]
    if claim.schema == OLD_SCHEMAS[0]:
        possible_shares.append(EARLY_SHARES)
    averaged = claim.averaged and not stated.old
    return any(
        _alike(
            claim.failures,
            due_failures(claim.delta, claim.distance, averaged=averaged, planned=stated.planned, shares=shares),
        )
        for shares in possible_shares
    )


def _alike(given: Mapping[str, float], due: Mapping[str, float]) -> bool:
    return given.keys() == due.keys() and all(math.isclose(given[k], due[k], rel_tol=1e-9) for k in due)


def _sampling_spent(stated: Stated) -> bool:
    """The term was computed with what is spent on it; without a sample nothing is. Beside a deposit routes share it."""
    spent = stated.claim.failures.get("sampling", 0.0)
    return (spent / MOST_ROUTES if stated.beside else spent) == stated["sampling_failure"]


BUDGET = (
    Rule(
        "epsilon is one that can be asked for",
        f"Expunge issues certificates for epsilon from {SMALLEST_EPSILON:g} to {LARGEST_EPSILON:g}",
        lambda c: (SMALLEST if c.old else SMALLEST_EPSILON) <= c.claim.epsilon <= LARGEST_EPSILON,
    ),
    Rule(
        "delta is one that can be asked for",
        f"Expunge issues certificates for delta from {SMALLEST_DELTA:g} to below 1",
        lambda c: SMALLEST_DELTA <= c.claim.delta < 1.0,
    ),
    Rule(
        "no failure probability is negative",
        "one that is would make up for what the others spend",
        lambda c: all(value >= 0.0 for value in c.claim.failures.values()),
    ),
    Rule(
        "failures have the names of what is spent",
        "probability is spent on sampling, eigenvalue, sequence and arithmetic only",
        lambda c: set(c.claim.failures) <= {"sampling", "eigenvalue", "sequence", "arithmetic"},
    ),
    Rule(
        "less is spent than there is",
        "the failure probabilities leave nothing of delta",
        lambda c: math.fsum(c.claim.failures.values()) < c.claim.delta,
    ),
    Rule("failures are the shares that issuing spends", "other shares of delta are spent than Expunge spends", _due),
    Rule(
        "the sampling term was computed with what is spent on it",
        "sampling_failure is not the failure probability stated for sampling",
        _sampling_spent,
        lambda c: c.residual or c.beside,
    ),
    Rule(
        "only a single published model of a converged step is averaged",
        "delta is an average for one model alone whose step leaves nothing that varies with the surrogate, and for "
        "such a one it is",
        lambda c: c.claim.averaged == (c.planned == 1 and c.content["step"]["kind"] == "converged" and not c.kept),
        lambda c: not c.old,
    ),
    Rule(
        "float64 makes less of the noise than is spent on it",
        "epsilon is too large for this delta: more may be lost when noise is drawn than is set aside",
        lambda c: drawing_delta(c.claim.n_parameters, c.claim.epsilon) <= c.claim.failures["arithmetic"],
        lambda c: c.kept,
    ),
)
