"""A desk whose private state is a deposit: what is checked when it is opened and asked, and what all models cost.

The deposit is the desk's state (`state.py`): a run stages the one of what is retained with the model it publishes, and
both get their names together (`recover.py`). No surrogate is kept, no bound is carried, and noise is one of the
deposit's radii.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from expunge.bounds.calibration import mu_for
from expunge.bounds.deposit import deposit_bound
from expunge.bounds.ellipsoid import drawing_delta
from expunge.certificate.compose import Composition, closed_form, compose
from expunge.certificate.facts import deposit_facts
from expunge.certificate.limits import ARITHMETIC_SHARE
from expunge.desk.policy import KEPT, Policy
from expunge.errors import BeyondPolicy, DataError, RetrainNow, UselessModel, VacuousClaim
from expunge.evidence.deposit.asking import ask_deposit, require_its_model, require_linear
from expunge.evidence.deposit.contents import Deposit
from expunge.evidence.deposit.leaving import look_up, require_members
from expunge.evidence.measured import Measured
from expunge.model import LinearModel
from expunge.request.door import Request
from expunge.request.guarantee import Guarantee, budget_notes

Rows = tuple[Any, Any]
OF_THESE_ROWS = (BeyondPolicy, VacuousClaim)  # refusals that say nothing of other rows


def opened_for(deposit: Deposit, model: LinearModel | None, policy: Policy) -> tuple[Policy, tuple[str, ...]]:
    """The policy of a desk with this deposit, and what every certificate will note; refuses what could not be used."""
    require_linear(deposit)
    if model is not None:
        require_its_model(model, deposit)
    policy = replace(policy, distance=KEPT, step="newton", radii=deposit.numbers.radii)
    numbers, mu = deposit.numbers, mu_for(policy.epsilon, policy.delta * (1.0 - ARITHMETIC_SHARE))
    loud = numbers.radii[0] / mu * numbers.output_noise
    if loud > numbers.output_spread and not policy.force:
        raise UselessModel(
            f"the least noise would move a typical output by {loud:.3g}, and the outputs themselves are about "
            f"{numbers.output_spread:.3g}",
            "every run of this desk would be refused",
            "Raise epsilon, or insist with --force.",
        )
    notes = budget_notes(policy.delta, deposit.record.n_source)
    if numbers.generation:
        notes += (
            f"{numbers.forgotten:,} rows had left the deposit before; what was published of that is not counted in "
            "what all models of this desk say together",
        )
    return policy, notes


def require_available(deposit: Deposit, pending: Sequence[Rows], asked: Rows) -> None:
    """Refuse rows that are not in what is left of the source, or not as often as pending requests and this one ask."""
    require_members(look_up(deposit, *asked))
    if not pending:
        return
    features = np.concatenate([np.asarray(rows[0]) for rows in (*pending, asked)])
    labels = np.concatenate([np.asarray(rows[1]) for rows in (*pending, asked)])
    short = len(look_up(deposit, features, labels).missing)
    if short:
        raise DataError(
            f"{short} of {len(asked[0])} rows are in pending requests already, as often as they are in the source",
            "each row leaves once",
            "Ask for the others alone.",
        )


def asked_of(
    deposit: Deposit, rows: Any, guarantee: Guarantee, store: str, published_sha256: str, device: str
) -> Request:
    """The request of a run; weights are published in the type of the first model."""
    from expunge.request.execution import Execution

    return ask_deposit(
        deposit,
        rows,
        guarantee,
        execution=Execution(device=device),
        store=getattr(torch, store),
        model_sha256=published_sha256,
    )


def within_reach(count: int, measured: Callable[[Sequence[int]], Measured]) -> list[int]:
    """Which of so many requests can be served together where all of them cannot: those with the smallest regions.

    `measured` is told numbers of requests, and refuses what is beyond the deposit's reach.
    """
    alone = {number: _radius(measured, [number]) for number in range(count)}
    order = sorted((number for number in alone if math.isfinite(alone[number])), key=alone.__getitem__)
    fits, most = 0, min(len(order), count - 1)
    while fits < most:
        tried = (fits + most + 1) // 2
        if math.isfinite(_radius(measured, order[:tried])):
            fits = tried
        else:
            most = tried - 1
    return sorted(order[:fits])


def _radius(measured: Callable[[Sequence[int]], Measured], numbers: Sequence[int]) -> float:
    try:
        found = measured(numbers)
    except OF_THESE_ROWS:
        return math.inf
    return deposit_bound(deposit_facts(found.facts, str(found.route))).radius


def output_share(request: Request, sigma: float) -> float:
    """The noise's deviation on a typical output over the outputs' own size."""
    numbers = request.deposit.numbers
    return sigma * float(numbers.output_noise) / max(float(numbers.output_spread), 1e-300)


def composed(n_parameters: int, delta: float, mus: Sequence[float]) -> Composition:
    """All models together. Draws that are worse than counted are charged to delta, `1 + e^epsilon` times."""
    spent = ARITHMETIC_SHARE * delta
    lost = drawing_delta(n_parameters, closed_form(mus, delta - spent), len(mus))
    if lost <= spent:
        return compose(mus, delta, spent)
    raise RetrainNow(
        f"retrain now: with {len(mus)} models float64 may make {lost:.3g} of delta {delta:g}",
        f"at most {spent:.3g} is set aside for what is lost when noise with a shape is drawn",
        "Retrain without the rows of all requests, and open a new desk with a larger delta or a smaller epsilon.",
    )
