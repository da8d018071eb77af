"""In every run: the true distance to retraining beside the residual Delta and the paper's own.

The true distance is `||w_R - v||`, v being the weights after the step and before noise. The residual Delta is for the
same step, with a declared distance, at delta = 1/n: it may fail with that probability. Beside it the same bound with
`||E_R phi_u - E_S phi_u||` itself, which only somebody with the retained rows can know (`known`): nothing is declared
or sampled there, and it must never fail. The paper's Delta comes from its theorem with the constants of its
experiments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from experiments.protocol.experiment import Record
from expunge.bounds import PaperConstants, paper_bound
from expunge.certificate.derive import held_region
from expunge.distance import Distance
from expunge.door import ask
from expunge.evaluate.case import Case
from expunge.evidence import build_claim
from expunge.heads import Rows
from expunge.heads.rows import in_memory
from expunge.mechanism import measure
from expunge.request.promise import Promise
from expunge.runtime.arrays import Array, norm


def check(what: str, true: float, residual: float | None, paper: float | None, **more: Any) -> dict[str, Any]:
    """One entry of a result's `checks`; None where there is no such Delta."""
    return {"what": what, "true": true, "residual": residual, "paper": paper, **more}


def checked(
    what: str,
    case: Case,
    *,
    distance: Distance | str,
    kl: float | None = None,
    step: str = "newton",
    match_classes: bool = False,
    with_source: bool = False,
) -> dict[str, Any]:
    """The step on this case, and both Deltas for it.

    `distance` is what the residual bound is told (an exact one where it can be computed); `kl` of the surrogate
    relative to the source goes into the paper's bound (0 with the source, None: no such Delta).
    """
    n_source = len(case.rows["train"])
    wanted, matched = ("source", False) if with_source else (distance, match_classes)
    options: dict[str, Any] = {"step": step, "match_classes": matched, "force": True, "noise": "exact"}
    request = ask(
        case.trained,
        case.splits.forget,
        case.splits.source if with_source else case.surrogate,
        Promise(epsilon=1.0, delta=1.0 / n_source, distance=wanted, **options),
    )
    measured = measure(request, seed=0)
    claim = build_claim(request, measured)
    region = held_region(claim)
    updated = case.weights + measured.step.update
    stand_in = in_memory(request.surrogate, "this comparison")
    # the source's own rows are there without the forget rows, which is no difference at all
    shift = 0.0 if with_source else mean_difference(case, measured.step.update, stand_in)
    means = Distance("means", shift, between="samples", provenance="estimated")
    known = held_region(replace(claim, distance=means))
    divergence = 0.0 if with_source else kl
    return check(
        what,
        norm(updated - case.retrained),
        region.radius,
        None if divergence is None else paper_delta(case, divergence, len(request.surrogate)),
        known=known.radius,
        shift=shift,
        terms=dict(region.terms),
        distance=str(measured.retained.distance),
        step=step,
    )


def paper_delta(case: Case, kl: float, n_surrogate: int) -> float:
    """Delta of the paper's corollary with its experiments' constants, lambda being l2/2 as its loss is written."""
    return paper_bound(
        PaperConstants.of_the_experiments(case.objective.l2 / 2.0),
        n_source=len(case.rows["train"]),
        n_forget=len(case.rows["forget"]),
        n_surrogate=n_surrogate,
        gradient_norm=norm(case.objective.gradient(case.weights, case.rows["forget"])),
        kl=kl,
    ).radius


def mean_difference(case: Case, update: Array, surrogate: Rows) -> float:
    """`||E_R phi_u - E_S phi_u||`, which only somebody with the retained rows can know."""
    means = [case.objective.change_mean(case.weights, update, rows) for rows in (case.rows["retain"], surrogate)]
    return norm(means[0] - means[1])


@dataclass(frozen=True)
class Tally:
    """Runs with a residual Delta and how many had a true distance above it; the same of the paper's Delta."""

    runs: int
    violations: int
    paper_runs: int
    paper_exceeded: int
    smallest_ratio: float | None

    def __add__(self, other: Tally) -> Tally:
        ratios = [ratio for ratio in (self.smallest_ratio, other.smallest_ratio) if ratio is not None]
        return Tally(
            self.runs + other.runs,
            self.violations + other.violations,
            self.paper_runs + other.paper_runs,
            self.paper_exceeded + other.paper_exceeded,
            min(ratios, default=None),
        )


def tally(records: Sequence[Record]) -> Tally:
    """Counts over all `checks`; a violation is a true distance above either residual Delta, told or `known`."""
    entries: list[Mapping[str, Any]] = [one for record in records for one in record["result"].get("checks", ())]
    ours = [one for one in entries if one["residual"] is not None]
    theirs = [one for one in entries if one["paper"] is not None]
    return Tally(
        len(ours),
        sum(one["true"] > min(one["residual"], one.get("known", one["residual"])) for one in ours),
        len(theirs),
        sum(one["true"] > one["paper"] for one in theirs),
        min((one["residual"] / one["true"] for one in ours if one["true"] > 0), default=None),
    )
