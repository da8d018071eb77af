"""Expunge on one task beside its peers: with a surrogate, with a deposit; every region against the truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from experiments.other_methods.models import Clock
from experiments.shared.checks import check
from experiments.shared.rivals import CHOSEN, USUAL, Rivals, Task, accuracies, device_name, retrained
from expunge.certificate.derive import held_region
from expunge.deposit.evidence import DepositEvidence
from expunge.deposit.file import Deposit
from expunge.deposit.membership import Membership, remove_rows
from expunge.door import ask
from expunge.errors import ExpungeError
from expunge.evaluate.case import Case, Labelled
from expunge.evidence import Measurement, build_claim, foresee
from expunge.mechanism import measure, weigh
from expunge.request.promise import Execution, Promise, Series
from expunge.request.request import Request
from expunge.runtime.arrays import Array, norm, put, size
from expunge.runtime.progress import Progress, silent
from expunge.train import minimise

OURS = SURROGATE, DEPOSIT = "Expunge, surrogate", "Expunge, deposit"
RIDGE = "Expunge, ridge head"  # with a deposit: ridge_heads.py
SET_NOISE = 1e-5  # for ridge heads, before anybody asks: there is nothing but rounding to hide
BASE = 1.0  # the epsilon that is asked with; what is measured does not depend on it
TRAINED = 1e-9  # a hundred times the gradient that training leaves: over l2, how far from the optimum it may end


def compared(
    task: Task, wanted: Mapping[str, Any], count: int, seed: int, sequence: bool = False, progress: Progress = silent
) -> dict[str, Any]:
    """A cell for every method, budget and epsilon with so many removals, and a check for every region of Expunge's."""
    cases, epsilons = task.cases(count, seed), wanted["epsilons"]
    rivals = Rivals(cases, task.delta, wanted, sequence)
    progress("Expunge", 0, None)
    own, checks = expunged(task, cases, wanted, sequence)
    cells = retrained(task, cases) + own
    for number, epsilon in enumerate(epsilons):
        progress("Epsilons", number, len(epsilons))
        cells += rivals.cells(epsilon)
    sizes = {
        "n_source": len(task.parts.source[1]),
        "n_forget": count,
        "weights": size(task.models[task.usual].matrix()),
    }
    return {**sizes, "device": device_name(task.device), "cells": cells, "checks": checks}


def expunged(
    task: Task, cases: Mapping[float, Case], wanted: Mapping[str, Any], sequence: bool
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Expunge with each kind of evidence, with the l2 of C = 1 and with the best on validation rows."""
    cells: list[dict[str, Any]] = []
    checks: list[dict[str, Any]] = []
    for name in OURS:
        found = {}
        for l2 in task.models:
            found[l2] = Asked(name, task, l2, cases[l2], sequence).cells(wanted, checks)
        cells += best_of(found, task, wanted)
    return cells, checks


def best_of(
    found: Mapping[float, Sequence[tuple[float, dict[str, Any]]]], task: Task, wanted: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """For every epsilon the cell with the l2 of C = 1, and that with the best accuracy on validation rows."""
    cells = []
    for place in range(len(wanted["epsilons"])):
        best = max(found, key=lambda l2: found[l2][place][0])
        cells += [{**found[l2][place][1], "chosen": one} for one, l2 in ((USUAL, task.usual), (CHOSEN, best))]
    return cells


@dataclass(frozen=True)
class Asked:
    """A deletion with one kind of evidence and one l2, for every epsilon."""

    name: str
    task: Task
    l2: float
    case: Case
    sequence: bool

    def cells(self, wanted: Mapping[str, Any], checks: list[dict[str, Any]]) -> list[tuple[float, dict[str, Any]]]:
        """Accuracy on validation rows and the cell, for every epsilon; what is refused has none."""
        bare = {"method": self.name, "budget": None, "l2": self.l2}
        clock = Clock(self.case.weights.device)
        try:
            kept, last = self._before()
            clock = Clock(self.case.weights.device)
            request, evidence = self._gathered(kept, last)
            first = self._measured(request, evidence, BASE)
            seconds = clock.seconds()
        except ExpungeError as error:
            none = {**bare, "accuracy": None, "seconds": clock.seconds(), "refused": type(error).__name__}
            return [(-1.0, {**none, "epsilon": epsilon}) for epsilon in wanted["epsilons"]]
        checks.append(self._check(request, first))
        unit = self._unit_noise(request, first, wanted["draws"])
        updated = request.weights + first.step.update
        made = []
        for epsilon in wanted["epsilons"]:
            asked = replace(request, promise=replace(request.promise, epsilon=epsilon))
            cell: dict[str, Any] = {**bare, "epsilon": epsilon, "seconds": seconds}
            try:
                measured = first if evidence is None else self._measured(asked, evidence, epsilon)
                _, derived = foresee(asked, measured)
                assert derived.noise is not None  # the region of a declared distance is finite
            except ExpungeError as error:
                made.append((-1.0, {**cell, "accuracy": None, "refused": type(error).__name__}))
                continue
            models = updated + derived.noise.scale * unit
            scored = accuracies(models[: wanted["choosing_draws"]], self.case.rows["surrogate"])
            cell |= {"accuracy": accuracies(models, self.case.rows["test"]), "sigma": derived.noise.scale}
            cell |= {"noise": derived.noise.length / norm(updated), "terms": dict(derived.region.terms)}
            made.append((scored, cell))
        return made

    def _before(self) -> tuple[Deposit | None, Labelled]:
        """The deposit as the last request finds it, where one is used, and the rows of that request.

        In a sequence those before it, in the order of the peers, have left one by one; their regions are not looked at.
        """
        forget = self.case.splits.forget
        if self.name == SURROGATE:
            return None, forget
        kept = self.task.kept[self.l2]
        if not self.sequence:
            return kept, forget
        for row in range(len(forget[1]) - 1, 0, -1):
            request = self._with_deposit(kept, (forget[0][row : row + 1], forget[1][row : row + 1]))
            assert isinstance(request.membership, Membership)  # of every request to a deposit
            kept = remove_rows(kept, request.forget, request.membership)
        return kept, (forget[0][:1], forget[1][:1])

    def _gathered(self, kept: Deposit | None, forget: Labelled) -> tuple[Request, DepositEvidence | None]:
        """The request and what it goes by."""
        if kept is None:
            return self._with_surrogate_alone(forget), None
        request = self._with_deposit(kept, forget)
        return request, DepositEvidence.gather(request)

    def _measured(self, request: Request, evidence: DepositEvidence | None, epsilon: float) -> Measurement:
        """As `measure` has it; a deposit is looked at once for all epsilons."""
        if evidence is None:
            return measure(request, seed=0)
        asked = replace(request, promise=replace(request.promise, epsilon=epsilon))
        return weigh(replace(evidence, request=asked))

    def _with_surrogate_alone(self, forget: Labelled) -> Request:
        """Forced: what would be refused is shown. In a sequence every request counts from the trained weights."""
        execution = Execution(device=self.task.device)
        promise = Promise(BASE, self.task.delta, "same", force=True)
        if not self.sequence:
            return ask(self.case.trained, forget, self.case.surrogate, promise, execution=execution)
        count = len(forget[1])
        before, last = ((forget[0][part], forget[1][part]) for part in (slice(1, None), slice(1)))
        past = ask(self.case.trained, before, self.case.surrogate, promise, execution=execution).next_past()
        promise = replace(promise, series=Series(count, count, past))
        return ask(self.case.trained, last, self.case.surrogate, promise, execution=execution)

    def _with_deposit(self, kept: Deposit, forget: Labelled) -> Request:
        noise = SET_NOISE if self.name == RIDGE else None
        promise = Promise(BASE, self.task.delta, force=True, noise=noise)
        return ask(None, forget, None, promise, deposit=kept, execution=Execution(device=self.task.device))

    def _check(self, request: Request, measured: Measurement) -> dict[str, Any]:
        """The region beside the truth, lengths as the region has them.

        A region may be smaller than what training leaves; the weights it is held against then go on to float64's end.
        """
        radius, truth = held_region(build_claim(request, measured)).radius, self.case.retrained
        if radius < TRAINED / self.l2:
            truth = minimise(self.case.objective, self.case.rows["retain"], start=truth, tolerance=0.0)
        away = request.weights + measured.step.update - truth
        return checked(
            self,
            request,
            measured,
            norm(away) if self.name == SURROGATE else deposit_of(measured).length(away),
        )

    def _unit_noise(self, request: Request, measured: Measurement, draws: int) -> Array:
        """Draws of noise of scale 1; all others are multiples of them."""
        _, derived = foresee(request, measured)
        assert derived.noise is not None  # the region of a declared distance is finite
        shape, generator = measured.shaped(derived.noise).shape, np.random.default_rng(3)
        drawn = np.stack([shape.sample(1.0, generator) for _ in range(draws)])
        return put(drawn.reshape(draws, *request.weights.shape), request.weights)


def deposit_of(measured: Measurement) -> Deposit:
    """What is left of the deposit."""
    assert measured.retained.deposit is not None
    return measured.retained.deposit


def checked(asked: Asked, request: Request, measured: Measurement, true: float) -> dict[str, Any]:
    """A region beside the true distance."""
    radius = held_region(build_claim(request, measured)).radius
    return check(f"{len(asked.case.rows['forget'])} forgotten, {asked.name}, l2 {asked.l2:.3g}", true, radius, None)
