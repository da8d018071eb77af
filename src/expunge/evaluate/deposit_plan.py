"""Before you act, with a deposit: what a deletion would need at several epsilons, up to the noise, which is not drawn.

The region does not depend on epsilon; the noise is the smallest level that covers it at the mu of (epsilon, delta).
What that does to outputs follows from the deposit, and accuracy is measured on rows that somebody gives.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from expunge.errors import OptionError, Refused
from expunge.evaluate.case import prepared_rows
from expunge.evaluate.plan import DRAWS, EPSILONS
from expunge.evidence.deposit.asking import ask_deposit, deposit_guarantee
from expunge.evidence.deposit.contents import Deposit
from expunge.evidence.deposit.evidence import reach_of
from expunge.evidence.measured import foresee
from expunge.heads import Rows
from expunge.mechanism import measure
from expunge.model import LinearModel
from expunge.record import Label
from expunge.request.door import HERE, Request
from expunge.request.execution import Execution
from expunge.runtime.progress import Progress, silent


@dataclass(frozen=True)
class Expected:
    """One epsilon: `output_share` is what the noise adds to an output over the outputs' own size.

    `refused` says why `unlearn` would not do it, where it would not; nothing else is known then but the region.
    """

    epsilon: float
    sigma: float | None
    output_share: float | None
    accuracy: float | None
    refused: str | None


@dataclass(frozen=True)
class DepositPlan:
    """`total` is the radius that the rows need, `reach` how much of the deposit's that uses; both None where none is.

    `forgotten` counts the rows that have left the deposit before.
    """

    n_rows: int
    n_forget: int
    forgotten: int
    delta: float
    total: float | None
    reach: float | None
    accuracy_before: float | None
    expected: tuple[Expected, ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def plan_deposit(
    deposit: Deposit,
    forget: tuple[Any, Any],
    *,
    delta: float,
    epsilons: Sequence[float] = EPSILONS,
    model: LinearModel | None = None,
    forget_class: Label | None = None,
    test: tuple[Any, Any] | None = None,
    execution: Execution = HERE,
    progress: Progress = silent,
) -> DepositPlan:
    """What forgetting these rows would cost at each epsilon; they are looked up in the deposit, and stay in it."""
    if not epsilons:
        raise OptionError("no epsilon", "at least one is needed", "Give --epsilon (epsilons=).")
    asked = ask_deposit(
        deposit,
        forget,
        deposit_guarantee(epsilons[0], delta, force=True),
        model=model,
        forget_class=forget_class,
        execution=execution,
    )
    shown = None if test is None else prepared_rows(test, deposit.model, deposit.record, "the test set")
    expected, total, used = [], math.inf, math.inf
    for index, epsilon in enumerate(epsilons):
        progress("Epsilons", index, len(epsilons))
        request = replace(asked, guarantee=replace(asked.guarantee, epsilon=epsilon))
        found, radius, reach = _at(request, shown)
        expected.append(found)
        total, used = min(total, radius), min(used, reach)
    finite = math.isfinite(total)
    return DepositPlan(
        n_rows=deposit.numbers.n_rows,
        n_forget=len(asked.forget),
        forgotten=deposit.numbers.forgotten,
        delta=delta,
        total=total if finite else None,
        reach=used if finite else None,
        accuracy_before=None if shown is None else _accuracy(shown, [deposit.settled]),
        expected=tuple(expected),
        notes=asked.notes,
    )


def _at(request: Request, shown: Rows | None) -> tuple[Expected, float, float]:
    """One epsilon, the radius that the rows need, and how much of the reach."""
    epsilon = request.guarantee.epsilon
    try:
        measured = measure(request)
    except Refused as refusal:
        return Expected(epsilon, None, None, None, refusal.found), math.inf, math.inf
    _, derived = foresee(request, measured)
    retained = measured.kept
    share = derived.sigma * retained.output_noise / max(retained.output_spread, 1e-300)
    loud = "more noise than signal in the outputs" if share > 1.0 else None
    accuracy = None
    if shown is not None:
        updated = (request.weights + measured.step.update).cpu()
        generator = np.random.default_rng(1)  # not the noise that protects: nothing of this is published
        drawn = (retained.ellipsoid.sample(derived.sigma, generator) for _ in range(DRAWS))
        accuracy = _accuracy(shown, [updated + torch.from_numpy(noise).reshape(updated.shape) for noise in drawn])
    reach = reach_of(measured.facts, str(measured.route), retained.levels[-1] * derived.mu)
    return Expected(epsilon, derived.sigma, share, accuracy, loud), derived.region.radius, reach


def _accuracy(shown: Rows, models: Sequence[torch.Tensor]) -> float:
    """Mean share of these rows that are classified as labelled."""
    shares = []
    for weights in models:
        outputs = shown.features.double() @ weights.T
        chosen = (outputs[:, 0] > 0.0).long() if len(weights) == 1 else outputs.argmax(dim=1)
        shares.append(float((chosen == shown.labels).double().mean()))
    return float(np.mean(shares))
