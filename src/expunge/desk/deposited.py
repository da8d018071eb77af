"""A desk whose private state is a deposit: what is checked when it is opened and asked, and what all models cost.

The deposit is the desk's state (`state.py`): a run stages the one of what is retained with the model it publishes, and
both get their names together (`recover.py`). No surrogate is kept, no bound is carried, and every model's noise is the
one that was set when the desk was opened.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from expunge.bounds.ellipsoid import drawing_delta
from expunge.bounds.scale import LOWEST_RUNG
from expunge.certificate.compose import Composition, Mus, closed_form, compose
from expunge.certificate.limits import ARITHMETIC_SHARE
from expunge.data.row_hashes import occurring, row_hashes
from expunge.desk.policy import KEPT, Policy
from expunge.errors import RetrainNow, UselessModel
from expunge.evidence.deposit.asking import ask_deposit, require_its_model, require_linear
from expunge.evidence.deposit.contents import HARMLESS, Deposit
from expunge.evidence.deposit.leaving import look_up
from expunge.evidence.deposit.shape import share_of
from expunge.model import LinearModel
from expunge.request.door import Request
from expunge.request.guarantee import Guarantee, budget_notes

Rows = tuple[Any, Any]


def default_noise(deposit: Deposit) -> float:
    """Noise that moves a typical output by at most a hundredth, from public numbers alone: it is in every statement.

    With `M_0 = c tau (G/tau)^t + reg` noise of scale 1 moves a typical output by the root of
    `tr(M_0^-1 G) <= sum_i (lambda_i/tau)^(1-t) / c <= d/c`, whatever the rows are (`tau` is the mean eigenvalue of
    their second moments G, and a power below 1 is concave). So `0.01 sqrt(c/d)` needs the loss, the number of classes
    and the number of features, and nobody's row. The deposit's own first level, made of all rows of the source, would
    tell whether somebody was there who has a column to themselves.
    """
    features = deposit.anchor.shape[1]
    return max(HARMLESS * math.sqrt(share_of(deposit.head) / features), 2.0**LOWEST_RUNG)


def opened_for(deposit: Deposit, model: LinearModel | None, policy: Policy) -> tuple[Policy, tuple[str, ...]]:
    """The policy of a desk with this deposit, and what every certificate will note; refuses what could not be used."""
    require_linear(deposit)
    if model is not None:
        require_its_model(model, deposit)
    noise = default_noise(deposit) if policy.noise is None else policy.noise
    policy = replace(policy, distance=KEPT, step="newton", noise=noise)
    numbers, loud = deposit.numbers, noise * deposit.output_noise
    if loud > deposit.output_spread and not policy.force:
        raise UselessModel(
            f"the noise would move a typical output by {loud:.3g}, and the outputs themselves are about "
            f"{deposit.output_spread:.3g}",
            "every run of this desk would be refused",
            "Set less noise (--noise), or insist with --force (force=True).",
        )
    notes = budget_notes(policy.delta, deposit.record.n_source)
    if numbers.generation:
        notes += (
            f"{numbers.forgotten:,} rows had left the deposit before; what was published of that is not counted in "
            "what all models of this desk say together",
        )
    return policy, notes


def missing_rows(deposit: Deposit, pending: Sequence[Rows], asked: Rows) -> list[int]:
    """Rows, pending ones first, that are not left in the source, or not as often as they are asked for."""
    features = np.concatenate([np.asarray(rows[0]) for rows in (*pending, asked)])
    labels = np.concatenate([np.asarray(rows[1]) for rows in (*pending, asked)])
    return look_up(deposit, features, labels).missing


def absent_rows(deposit: Deposit, rows: Rows) -> list[int]:
    """Rows of which what is left of the source has none, however often it is asked for them; looked up at once."""
    found = occurring(row_hashes(deposit.key, *rows), deposit.hashes)
    return [int(row) for row in np.flatnonzero(~found)]


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


def output_share(request: Request, sigma: float) -> float:
    """The noise's deviation on a typical output over the outputs' own size."""
    deposit = request.deposit
    return sigma * float(deposit.output_noise) / max(float(deposit.output_spread), 1e-300)


def composed(n_parameters: int, delta: float, mus: Mus) -> Composition:
    """All models together. Draws that are worse than counted are charged to delta, `1 + e^epsilon` times."""
    spent, models = ARITHMETIC_SHARE * delta, Counter(mus).total()
    lost = drawing_delta(n_parameters, closed_form(mus, delta - spent), models)
    if lost <= spent:
        return compose(mus, delta, spent)
    raise RetrainNow(
        f"retrain now: with {models} models float64 may make {lost:.3g} of delta {delta:g}",
        f"at most {spent:.3g} is set aside for what is lost when noise with a shape is drawn",
        "Retrain without the rows of all requests, and open a new desk with a larger delta or a smaller epsilon.",
    )
