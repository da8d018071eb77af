"""A deposit as evidence: the retained rows' own gradient and Hessian, so that nothing has to stand in for them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from expunge.bounds.calibration import EXACT, LEVELS, POLICY, Scale, mu_for
from expunge.bounds.deposit import deposit_bound, reach_used
from expunge.certificate.claim import Fact, deposit_facts, kept_failures
from expunge.deposit.file import Deposit
from expunge.deposit.membership import Membership, remove_rows
from expunge.deposit.region import Solution, smallest_region
from expunge.errors import BeyondPolicy, VacuousClaim
from expunge.evidence import Retained
from expunge.request.promise import NO_SURROGATE, WITHOUT_THE_DEPOSIT
from expunge.request.request import Request
from expunge.runtime.arrays import norm
from expunge.runtime.progress import Progress, silent
from expunge.solve.linear import Ending, Step

COVERED = 1.0 + 1e-7  # noise must exceed what is needed by this


@dataclass(frozen=True)
class DepositEvidence:
    """What was kept of the source, and what of it is left when the forget rows go: the third kind of evidence.

    `deposit` is that of what is retained, `solution` the step and its region.
    """

    request: Request
    deposit: Deposit
    solution: Solution

    @classmethod
    def gather(cls, request: Request, *, progress: Progress = silent) -> DepositEvidence:
        """The rows removed, the step made and its smallest region found."""
        deposit, membership = request.deposit, request.membership
        assert isinstance(deposit, Deposit)
        assert isinstance(membership, Membership)
        progress("Rows leave the deposit", 0, None)
        left = remove_rows(deposit, request.forget, membership)
        progress("The region", 0, None)
        solution = smallest_region(left.problem)
        if solution is None:
            raise VacuousClaim(
                f"no bound is finite for these {len(request.forget):,} rows"
                + (f" after {deposit.numbers.forgotten:,} before them" if deposit.numbers.forgotten else ""),
                "a deposit reaches only so far: somebody very influential, or many, are among them",
                f"Forget fewer rows at once, {WITHOUT_THE_DEPOSIT}, or retrain.",
            )
        return cls(request, left, solution)

    def step(self) -> Step:
        """The update of the smallest region, from the anchor as it was given."""
        solution, start = self.solution, norm(self.deposit.sums.gradient)
        # what no retained row has is gone from the new anchor
        update = solution.update + (self.deposit.anchor - self.request.weights)
        return Step(update, solution.residual, start, solution.steps, 0, "cholesky", 0.0, Ending.REACHED, 0.0)

    def facts(self, step: Step) -> dict[str, Fact]:
        """The numbers of the step's region, of the noise's shape, and of what it is held against."""
        measured = measured_facts(self.deposit, self.solution)
        known = "derived" if self.request.head.about.rounding_derived else "declared"
        facts = {name: Fact(value, "measured") for name, value in measured.items()}
        return facts | {"rounding": Fact(measured["rounding"], known)}

    def failures(self) -> dict[str, float]:
        """What is spent on drawing the noise."""
        return kept_failures(self.request.promise.delta)

    def retained(self) -> Retained:
        """What is left of the deposit."""
        route = self.solution.facts.route
        return Retained(
            NO_SURROGATE, shape=self.deposit.ellipsoid, route=route, scale=self._scale(), deposit=self.deposit
        )

    def _scale(self) -> Scale | None:
        """The one that was set beforehand, or the smallest level that covers the region, at this epsilon and delta;
        refuses where none does."""
        promise, noise = self.request.promise, self.request.promise.noise
        if noise.kind == EXACT:
            return None
        mu = mu_for(promise.epsilon, promise.delta - math.fsum(self.failures().values()))
        radius = self.solution.region.radius * COVERED
        shape = replace(self.deposit.ellipsoid, weights=weights_length(self.deposit, self.solution))

        def covers(scale: float) -> bool:
            return scale * mu >= radius + COVERED * shape.drawing(scale)

        if noise.kind == POLICY:
            assert noise.value is not None
            if covers(noise.value):
                return Scale(POLICY, noise.value)
            raise BeyondPolicy(
                "these rows need more noise than was set",
                "it was set before anybody asked, since its size would tell who left",
                "Forget fewer rows at once, or retrain without them; what needs more noise cannot be hidden by this.",
            )
        levels = self.deposit.levels
        scale = next((each for each in levels if covers(each)), None)
        if scale is None:
            raise BeyondPolicy(
                "these rows need more noise than any of the levels; with the last of them the noise is already larger "
                "than the model's outputs",
                "noise is one of a few sizes, since its size would tell who left",
                f"Forget fewer rows at once, {WITHOUT_THE_DEPOSIT}, or retrain.",
            )
        return Scale(LEVELS, scale, len(levels))


def weights_length(deposit: Deposit, solution: Solution) -> float:
    """The length of the updated weights, rounded up."""
    return norm(deposit.anchor + solution.update) * (1.0 + 1e-9)


def measured_facts(deposit: Deposit, solution: Solution) -> dict[str, float]:
    """The numbers of a step's region around the deposit of what is retained, by name."""
    numbers, shape = deposit.numbers, deposit.ellipsoid
    measured = asdict(solution.facts) | {
        "l2": deposit.problem.penalty.l2,
        "n_source": numbers.n_rows + numbers.forgotten,
        "n_forget": numbers.forgotten,
        "row_bound": numbers.row_bound,
        "shape_largest": shape.largest,
        "shape_least": shape.least,
        "shape_inverse_trace": shape.inverse_trace,
        "weights_length": weights_length(deposit, solution),
        "output_noise": deposit.output_noise,
        "output_spread": deposit.output_spread,
    }
    measured.pop("route")
    return measured


def reach_of(facts: Mapping[str, Fact], route: str, last: float) -> float:
    """How much of a deposit's reach is used: of the largest radius its noise hides, or of the way to where no region
    is finite any more, whichever is more."""
    stated = deposit_facts(facts, route)
    return max(deposit_bound(stated).radius / last, reach_used(stated))
