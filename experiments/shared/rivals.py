"""Peers and Expunge on one task: same rows, same n, same (epsilon, delta), each with what suits it best.

Whatever a method may choose (l2, clipping, how many steps have noise) is chosen by the same search: the candidate with
the best mean accuracy on validation rows, which are neither source nor test. A peer has a budget of passes over the
retained rows; with more of them every peer comes nearer to retraining, so tables name them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from experiments.shared.certified import Parts
from experiments.shared.checks import check
from experiments.shared.mixture import ROUNDING
from expunge.certificate.derive import held_region
from expunge.evaluate.case import Case, Splits, make_case
from expunge.evaluate.methods import Method, Outcome
from expunge.evaluate.peers import (
    CertifiedRemoval,
    DescentToDelete,
    Forgotten,
    GradientClipping,
    Langevin,
    ModelClipping,
)
from expunge.evidence.deposit.adding import with_surrogate
from expunge.evidence.deposit.asking import ask_deposit, deposit_guarantee
from expunge.evidence.deposit.contents import Deposit
from expunge.evidence.deposit.keeping import keep
from expunge.evidence.measured import claim_of, foresee
from expunge.heads import Rows
from expunge.mechanism import measure
from expunge.model import LinearModel
from expunge.request.door import Request, ask
from expunge.request.guarantee import Guarantee, wanted_distance
from expunge.runtime.progress import Progress, silent
from expunge.train import minimise, train

RETRAIN, REMOVAL, DESCENT, LANGEVIN, TUNING = (
    *("Retrain", "Certified removal", "Descent-to-delete", "Langevin", "Noisy fine-tuning"),
)
SURROGATE, DEPOSIT, BOTH = "Expunge, surrogate", "Expunge, deposit", "Expunge, both"
NEEDS = {
    **dict.fromkeys((RETRAIN, REMOVAL, DESCENT, LANGEVIN, TUNING), "retained rows"),
    SURROGATE: "surrogate",
    DEPOSIT: "deposit",
    BOTH: "deposit, surrogate",
}


@dataclass(frozen=True)
class Candidate:
    """A method with its choices made, for so many draws."""

    l2: float
    choices: Mapping[str, Any]
    make: Callable[[int], Method]


@dataclass(frozen=True)
class Task:
    """Parts of a task, the models trained on its source, one for each l2, and what was kept of it for each."""

    parts: Parts
    models: Mapping[float, LinearModel]
    kept: Mapping[float, Deposit]
    own: tuple[float, ...]  # those that Retrain and Expunge may have

    @property
    def delta(self) -> float:
        return 1.0 / len(self.parts.source[1])

    def cases(self, count: int, seed: int) -> dict[float, Case]:
        """So many random rows of the source leave, for each l2."""
        features, labels = self.parts.source
        order = np.random.default_rng([seed, 1]).permutation(len(labels))
        retain, forget = ((features[part], labels[part]) for part in (order[count:], order[:count]))
        splits = Splits(retain, forget, self.parts.test, self.parts.surrogate)
        return {l2: make_case(splits, trained=model) for l2, model in self.models.items()}


def task_of(parts: Parts, wanted: Mapping[str, Any]) -> Task:
    """Train on the source with every l2; a deposit is kept for those of `deposits`, and for scikit-learn's."""
    fixed = sklearn_l2(wanted, len(parts.source[1]))
    models = {l2: train(*parts.source, l2=l2, max_norm=ROUNDING) for l2 in (*fixed, *wanted["l2"])}
    kept = {l2: keep(models[l2], parts.source, seed=0).deposit for l2 in (*fixed, *wanted["deposits"])}
    return Task(parts, models, kept, fixed or tuple(models))


def sklearn_l2(wanted: Mapping[str, Any], n_source: int) -> tuple[float, ...]:
    """The l2 of LogisticRegression's C for two classes, where a task names one: two rows of weights stand for one.

    >>> sklearn_l2({"inverse_l2": 1.0}, 1000), sklearn_l2({}, 1000)
    ((0.002,), ())
    """
    return (2.0 / (wanted["inverse_l2"] * n_source),) if "inverse_l2" in wanted else ()


def accuracies(models: Tensor, rows: Rows) -> float:
    """Mean share of right answers over all models."""
    outputs = (rows.features @ models.flatten(0, 1).T).reshape(len(rows), *models.shape[:2])
    return float((outputs.argmax(dim=2) == rows.labels[:, None]).double().mean())


def compared(
    task: Task, wanted: Mapping[str, Any], count: int, seed: int, progress: Progress = silent
) -> dict[str, Any]:
    """A cell for every method, budget and epsilon with so many removals, and a check for every region of Expunge's."""
    checks: list[dict[str, Any]] = []
    cases = task.cases(count, seed)
    cells = [_retrained({l2: cases[l2] for l2 in task.own})]
    for number, epsilon in enumerate(wanted["epsilons"]):
        progress("Epsilons", number, len(wanted["epsilons"]))
        found = _peers(cases, task.delta, epsilon, wanted) + _expunge(task, cases, epsilon, wanted, checks)
        cells += [{"epsilon": epsilon, **cell} for cell in found]
    return {"n_source": len(task.parts.source[1]), "cells": cells, "checks": checks}


def _retrained(cases: Mapping[float, Case]) -> dict[str, Any]:
    l2 = max(cases, key=lambda one: accuracies(cases[one].retrained[None], cases[one].rows["surrogate"]))
    case = cases[l2]
    began = time.process_time()
    minimise(case.objective, case.rows["retain"])
    seconds = time.process_time() - began
    scored = accuracies(case.retrained[None], case.rows["test"])
    return {"method": RETRAIN, "budget": None, "epsilon": None, "accuracy": scored, "l2": l2, "seconds": seconds}


def _peers(
    cases: Mapping[float, Case], delta: float, epsilon: float, wanted: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Every peer's best."""
    removal = [Candidate(l2, {}, lambda n: CertifiedRemoval(epsilon, delta, draws=n)) for l2 in cases]
    found = [_cell(REMOVAL, None, removal, cases, wanted)]
    for budget in wanted["budgets"]:
        descent = [Candidate(l2, {}, lambda _, b=budget: DescentToDelete(epsilon, delta, b)) for l2 in cases]  # type: ignore[misc]
        langevin = [Candidate(l2, {}, lambda n, b=budget: Langevin(epsilon, delta, b, draws=n)) for l2 in cases]  # type: ignore[misc]
        found.append(_cell(DESCENT, budget, descent, cases, wanted))
        found.append(_cell(LANGEVIN, budget, langevin, cases, wanted))
        found.append(_cell(TUNING, budget, _tunings(cases, delta, epsilon, budget, wanted), cases, wanted))
    return found


def _tunings(
    cases: Mapping[float, Case], delta: float, epsilon: float, budget: int, wanted: Mapping[str, Any]
) -> list[Candidate]:
    made = []
    for l2 in cases:
        noisy = max(1, budget // 4)
        for radius in wanted["radii"]:
            first = GradientClipping(epsilon, delta, budget, noisy, radius, wanted["gradient"])
            second = ModelClipping(epsilon, delta, budget, noisy, radius)
            for kind, method in (("gradients", first), ("models", second)):
                choices = {"clipped": kind, "noisy": noisy, "radius": radius}
                made.append(Candidate(l2, choices, lambda n, one=method: replace(one, draws=n)))  # type: ignore[misc]
    return made


def _best(cases: Mapping[float, Case], candidates: Sequence[Candidate], wanted: Mapping[str, Any]) -> Candidate:
    draws, scored = wanted["choosing_draws"], []
    for candidate in candidates:
        case = cases[candidate.l2]
        models = candidate.make(draws).run(case).ensemble(draws, np.random.default_rng(4))
        scored.append(accuracies(models, case.rows["surrogate"]))
    return candidates[int(np.argmax(scored))]


def _cell(
    name: str,
    budget: int | None,
    candidates: Sequence[Candidate],
    cases: Mapping[float, Case],
    wanted: Mapping[str, Any],
) -> dict[str, Any]:
    """The best candidate with all its draws."""
    best = _best(cases, candidates, wanted)
    outcome = best.make(wanted["draws"]).run(cases[best.l2])
    assert isinstance(outcome, Forgotten)
    scored = accuracies(outcome.ensemble(wanted["draws"], np.random.default_rng(3)), cases[best.l2].rows["test"])
    return {
        "method": name,
        "budget": budget,
        "accuracy": scored,
        "l2": best.l2,
        "seconds": outcome.seconds,
        **best.choices,
        **({"redrawn": outcome.redrawn} if outcome.redrawn else {}),
    }


def _expunge(
    task: Task,
    cases: Mapping[float, Case],
    epsilon: float,
    wanted: Mapping[str, Any],
    checks: list[dict[str, Any]],
) -> list[dict[str, Any]]:
    """Expunge with each kind of evidence, l2 chosen as the peers' is; every region is checked against the truth."""
    found = []
    for name in (SURROGATE, DEPOSIT, BOTH):
        best: tuple[float, dict[str, Any]] | None = None
        for l2 in task.own if name == SURROGATE else task.kept:
            case = cases[l2]
            began = time.process_time()
            request = _request(name, task, l2, case, epsilon)
            measured = measure(request, seed=0)
            _, derived = foresee(request, measured)
            seconds = time.process_time() - began
            updated = request.weights + measured.step.update
            bound = held_region(claim_of(request, measured)).radius
            label = f"{len(case.rows['forget'])} forgotten, {name}, l2 {l2:g}, epsilon {epsilon:g}"
            checks.append(check(label, float((updated - case.retrained).norm()), bound, None))
            assert derived.noise is not None  # the region of a declared distance is finite
            outcome = Outcome(updated, request.shaped(derived.noise) if name != SURROGATE else derived.noise)
            models = outcome.ensemble(wanted["draws"], np.random.default_rng(3))
            scored = accuracies(models[: wanted["choosing_draws"]], case.rows["surrogate"])
            cell = {"method": name, "budget": None, "accuracy": accuracies(models, case.rows["test"])}
            cell |= {"l2": l2, "seconds": seconds, "sigma": outcome.sigma}
            best = (scored, cell) if best is None or scored > best[0] else best
        assert best is not None
        found.append(best[1])
    return found


def _request(name: str, task: Task, l2: float, case: Case, epsilon: float) -> Request:
    """Forced: what would be refused is shown."""
    if name == SURROGATE:
        distance = wanted_distance("same", False)[0]
        guarantee = Guarantee(epsilon, task.delta, distance, force=True)
        return ask(case.trained, case.splits.forget, case.surrogate, guarantee)
    guarantee = deposit_guarantee(epsilon, task.delta, force=True)
    request = ask_deposit(task.kept[l2], case.splits.forget, guarantee)
    if name == DEPOSIT:
        return request
    return with_surrogate(request, case.splits.forget, case.surrogate, "same")
