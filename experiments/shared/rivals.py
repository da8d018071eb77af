"""Peers on one task: same rows, same n, same (epsilon, delta), each with what suits it best.

Whatever a method may choose (l2, clipping, how many steps have noise) is chosen by the same search: the candidate with
the best mean accuracy on validation rows, which are neither source nor test. A peer has a budget of passes over the
retained rows; with more of them every peer comes nearer to retraining, so tables name them. Expunge on the same task is
in ours.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from experiments.other_methods import (
    CertifiedRemoval,
    DescentToDelete,
    Forgotten,
    GradientClipping,
    Langevin,
    ModelClipping,
)
from experiments.other_methods.certified_removal import rehearsed
from experiments.other_methods.models import Clock
from experiments.shared.certified import Parts
from experiments.shared.mixture import ROUNDING
from expunge.deposit.file import Deposit
from expunge.deposit.make import make_deposit
from expunge.evaluate.case import Case, Splits, make_case
from expunge.evaluate.methods import Method
from expunge.heads import Ridge, Rows
from expunge.model import LinearModel
from expunge.request.promise import Execution
from expunge.runtime.arrays import Array, double, namespace
from expunge.train import minimise, train

RETRAIN, REMOVAL, DESCENT, LANGEVIN, TUNING = (
    *("Retrain", "Certified removal", "Descent-to-delete", "Langevin", "Noisy fine-tuning"),
)
RETRAIN_RIDGE = "Retrain, ridge head"
REHEARSALS = 10
USUAL, CHOSEN = "C = 1", "chosen"  # whose l2: scikit-learn's default, or the best on validation rows


@dataclass(frozen=True)
class Candidate:
    """A method with its choices made, for so many draws; the first of them alone where its time is asked for."""

    l2: float
    choices: Mapping[str, Any]
    make: Callable[[int, bool], Method]


@dataclass(frozen=True)
class Task:
    """Parts of a task, the models trained on its source, one for each l2, and what was kept of it for each."""

    parts: Parts
    models: Mapping[float, LinearModel]
    kept: Mapping[float, Deposit]
    usual: float  # the l2 of C = 1
    device: str = "cpu"

    @property
    def delta(self) -> float:
        return 1.0 / len(self.parts.source[1])

    def cases(self, count: int, seed: int) -> dict[float, Case]:
        """So many random rows of the source leave, for each l2."""
        features, labels = self.parts.source
        order = np.random.default_rng([seed, 1]).permutation(len(labels))
        retain, forget = ((features[part], labels[part]) for part in (order[count:], order[:count]))
        splits = Splits(retain, forget, self.parts.test, self.parts.surrogate)
        return {l2: make_case(splits, trained=model, device=self.device) for l2, model in self.models.items()}


def task_of(parts: Parts, wanted: Mapping[str, Any], device: str = "cpu") -> Task:
    """Train on the source with C = 1 and every l2; a deposit is kept of each."""
    loss = wanted.get("loss", "softmax")
    usual = usual_l2(*parts.source, loss)
    models = {
        l2: train(*parts.source, l2=l2, max_norm=ROUNDING, loss=loss, bias=False, device=device)
        for l2 in (usual, *wanted["l2"])
    }
    execution = Execution(device=device)
    kept = {
        l2: make_deposit(model, parts.source, execution=execution, seed=0).deposit.on(execution.place)
        for l2, model in models.items()
    }
    return Task(parts, models, kept, usual, device)


def usual_l2(features: Any, labels: Any, loss: str = "softmax") -> float:
    """The l2 of scikit-learn's C = 1, and of a ridge head its alpha = 1.

    Softmax has two rows of weights for two classes, which stand for one.

    >>> usual_l2(None, np.array([0, 1] * 500)), usual_l2(None, np.array([0, 1, 2, 2]))
    (0.002, 0.25)
    >>> usual_l2(None, np.array([0, 1] * 500), "ridge")
    0.001
    """
    return (2.0 if len(np.unique(labels)) == 2 and loss != Ridge.about.name else 1.0) / len(labels)


def accuracies(models: Array, rows: Rows) -> float:
    """Mean share of right answers over all models."""
    outputs = (rows.features @ models.reshape(-1, models.shape[2]).T).reshape(len(rows), *models.shape[:2])
    return float(double(namespace(outputs).argmax(outputs, axis=2) == rows.labels[:, None]).mean())


def retrained(task: Task, cases: Mapping[float, Case]) -> list[dict[str, Any]]:
    """Training anew, with the l2 of C = 1 and with the best."""
    best = max(cases, key=lambda one: accuracies(cases[one].retrained[None], cases[one].rows["surrogate"]))
    found = []
    for chosen, l2 in ((USUAL, task.usual), (CHOSEN, best)):
        case = cases[l2]
        clock = Clock(case.weights.device)
        minimise(case.objective, case.rows["retain"])
        cell = {"method": RETRAIN, "budget": None, "chosen": chosen, "epsilon": None, "l2": l2}
        cell |= {"seconds": clock.seconds(), "accuracy": accuracies(case.retrained[None], case.rows["test"])}
        found.append(cell)
    return found


@dataclass(frozen=True)
class Rivals:
    """Every peer on one task with so many removals, at once or in a sequence."""

    cases: Mapping[float, Case]
    delta: float
    wanted: Mapping[str, Any]
    sequence: bool = False
    expected: dict[float, float] = field(default_factory=dict)  # what certified removal rehearsed, by l2
    norms: dict[int, float] = field(default_factory=dict)  # of the retained rows, which no l2 changes
    ends: dict[tuple[float, int], tuple[Array, float]] = field(default_factory=dict)  # of descents, by l2 and steps

    def cells(self, epsilon: float) -> list[dict[str, Any]]:
        """Every peer's best."""
        shared = (epsilon, self.delta)
        removal = [Candidate(l2, {}, lambda n, _, at=l2: self._removal(epsilon, at, n)) for l2 in self.cases]  # type: ignore[misc]
        found = [self._cell(REMOVAL, None, removal)]
        for budget in self.wanted["budgets"]:
            descent = DescentToDelete(*shared, budget, sequence=self.sequence, ends=self.ends)
            langevin = Langevin(*shared, budget, sequence=self.sequence)
            found.append(self._cell(DESCENT, budget, [Candidate(l2, {}, lambda *_: descent) for l2 in self.cases]))  # noqa: B023
            noisy = [Candidate(l2, {}, lambda n, alone: replace(langevin, draws=n, alone=alone)) for l2 in self.cases]  # noqa: B023
            found.append(self._cell(LANGEVIN, budget, noisy))
            found.append(self._cell(TUNING, budget, self._tunings(epsilon, budget)))
        return [{"epsilon": epsilon, "chosen": CHOSEN, **cell} for cell in found]

    def _removal(self, epsilon: float, l2: float, draws: int) -> CertifiedRemoval:
        """What it rehearses does not depend on epsilon."""
        if l2 not in self.expected:
            count = 1 if self.sequence else REHEARSALS
            generator = np.random.default_rng([0, 15])
            self.expected[l2] = rehearsed(self.cases[l2], count, generator, self.sequence)
        expected = self.expected[l2]
        return CertifiedRemoval(
            epsilon, self.delta, draws=draws, sequence=self.sequence, expected=expected, norms=self.norms
        )

    def _tunings(self, epsilon: float, budget: int) -> list[Candidate]:
        """Its noise does not depend on how many left, nor on how often it was asked."""
        made = []
        for l2 in self.cases:
            noisy = max(1, budget // 4)
            for radius in self.wanted["radii"]:
                first = GradientClipping(epsilon, self.delta, budget, noisy, radius, self.wanted["gradient"])
                second = ModelClipping(epsilon, self.delta, budget, noisy, radius)
                for kind, method in (("gradients", first), ("models", second)):
                    choices = {"clipped": kind, "noisy": noisy, "radius": radius}
                    made.append(Candidate(l2, choices, lambda n, alone, one=method: replace(one, draws=n, alone=alone)))  # type: ignore[misc]
        return made

    def _best(self, candidates: Sequence[Candidate]) -> Candidate:
        draws, scored = self.wanted["choosing_draws"], []
        for candidate in candidates:
            case = self.cases[candidate.l2]
            models = candidate.make(draws, False).run(case).ensemble(draws, np.random.default_rng(4))
            scored.append(accuracies(models, case.rows["surrogate"]))
        return candidates[int(np.argmax(scored))]

    def _cell(self, name: str, budget: int | None, candidates: Sequence[Candidate]) -> dict[str, Any]:
        """The best candidate with all its draws."""
        best, draws = self._best(candidates), self.wanted["draws"]
        outcome = best.make(draws, True).run(self.cases[best.l2])
        assert isinstance(outcome, Forgotten)
        models = outcome.ensemble(draws, np.random.default_rng(3))
        return {
            "method": name,
            "budget": budget,
            "accuracy": accuracies(models, self.cases[best.l2].rows["test"]),
            "l2": best.l2,
            "seconds": outcome.seconds,
            **best.choices,
            **({"redrawn": outcome.redrawn} if outcome.redrawn else {}),
        }


def device_name(device: str) -> str:
    """What computes, in words; empty for one core of a processor."""
    return torch.cuda.get_device_name(torch.device(device)) if device.startswith("cuda") else ""
