"""A deposit as evidence: the retained rows' own gradient and Hessian, so that nothing has to stand in for them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from expunge.bounds.calibration import EXACT, LEVELS, POLICY, Scale, mu_for
from expunge.bounds.deposit import deposit_bound, reach_used
from expunge.bounds.retained import WEIGHT_FACTS
from expunge.certificate.claim import BESIDE_FACTS, EACH, TOGETHER, Fact, deposit_facts, kept_failures
from expunge.deposit.file import Deposit
from expunge.deposit.membership import Membership, remove_rows
from expunge.deposit.region import Solution, smallest_region
from expunge.deposit.with_surrogate import SurrogateTerms, smallest_with_surrogate, step_with_surrogate
from expunge.distance import Distance
from expunge.errors import BeyondPolicy, VacuousClaim
from expunge.evidence import Retained
from expunge.request.promise import NO_SURROGATE
from expunge.request.request import Request
from expunge.runtime.arrays import norm
from expunge.runtime.progress import Progress, silent
from expunge.solve.linear import Ending, Step

COVERED = 1.0 + 1e-7  # noise must exceed what is needed by this


@dataclass(frozen=True)
class DepositEvidence:
    """What was kept of the source, and what of it is left when the forget rows go: the third kind of evidence.

    `deposit` is that of what is retained, `solution` the step and its region, `solved` how the step was solved where
    surrogate rows have a part in it.
    """

    request: Request
    deposit: Deposit
    solution: Solution
    solved: Step | None = None

    @classmethod
    def gather(cls, request: Request, *, progress: Progress = silent) -> DepositEvidence:
        """The rows removed, the step made and its smallest region found: of the deposit alone, which assumes nothing,
        unless surrogate rows let it do with less noise."""
        deposit, membership, distance = request.deposit, request.membership, request.distance
        assert isinstance(deposit, Deposit)
        assert isinstance(membership, Membership)
        progress("Rows leave the deposit", 0, None)
        left = remove_rows(deposit, request.forget, membership)
        progress("The region", 0, None)
        solution = smallest_region(left.problem)
        alone = None if solution is None else cls(request, left, solution)
        if request.surrogate is not None:
            assert isinstance(distance, Distance)
            step = step_with_surrogate(left, request.surrogate, progress)
            found = smallest_with_surrogate(step, SurrogateTerms.of(left, distance, request.promise.delta))
            both = None if found is None else cls(request, left, found.solution, found.step.solved)
            if found is not None and both is not None and (alone is None or both._noise < alone._noise):
                if distance.samples_rows and distance.sampling == "seen":
                    found.require_seen(left, request.forget)
                return both
        if alone is None:
            raise VacuousClaim(
                f"no bound is finite for these {len(request.forget):,} rows"
                + (f" after {deposit.numbers.forgotten:,} before them" if deposit.numbers.forgotten else ""),
                ("a deposit alone" if request.surrogate is None else "a deposit with this surrogate")
                + " reaches only so far: somebody very influential, or many, are among them",
                "Forget fewer rows at once, give a surrogate (or a larger one) with the deposit, or retrain.",
            )
        return alone

    def step(self) -> Step:
        """The update of the smallest region, from the anchor as it was given."""
        solution, solved = self.solution, self.solved
        start = norm(self.deposit.sums.gradient)
        # what no retained row has is gone from the new anchor
        update = solution.update + (self.deposit.anchor - self.request.weights)
        if solved is None:
            return Step(update, solution.residual, start, solution.steps, 0, "cholesky", 0.0, Ending.REACHED, 0.0)
        return replace(solved, update=update, residual=solution.residual, residual_at_start=start)

    def facts(self, step: Step) -> dict[str, Fact]:
        """The numbers of the step's region, of the noise's shape, of what it is held against, and of surrogate rows."""
        surrogate = self.request.surrogate
        measured = measured_facts(self.deposit, self.solution, surrogate is not None and surrogate.has_weights)
        derived = {"change_supremum", "sampling_failure", EACH, TOGETHER}
        facts = {name: Fact(value, "derived" if name in derived else "measured") for name, value in measured.items()}
        known = "derived" if self.request.head.about.rounding_derived else "declared"
        return facts | {"rounding": Fact(measured["rounding"], known)}

    def failures(self) -> dict[str, float]:
        """What is spent on drawing the noise, and on surrogate rows where they have a part in it."""
        return kept_failures(self.request.promise.delta, self._distance)

    def retained(self) -> Retained:
        """What is left of the deposit, and the surrogate where it has a part in the region."""
        route = self.solution.facts.route
        return Retained(self._distance, route=route, scale=self._scale(), deposit=self.deposit)

    @property
    def _distance(self) -> Distance:
        """The surrogate's, where it has a part in the region; else none stands in for the source."""
        distance = self.request.distance
        assert isinstance(distance, Distance)
        return NO_SURROGATE if self.solution.surrogate is None else distance

    @property
    def _radius(self) -> float:
        return self.solution.region(self._distance).radius * COVERED

    @property
    def _mu(self) -> float:
        """The largest mu that epsilon allows, with what of delta is left for the noise."""
        promise = self.request.promise
        return mu_for(promise.epsilon, promise.delta - math.fsum(self.failures().values()))

    @property
    def _noise(self) -> float:
        """The scale of noise that covers the region: of what was set or the levels, or the region's own."""
        noise, needed = self.request.promise.noise, self._radius / self._mu
        if noise.kind == EXACT:
            return needed
        sizes = self.deposit.levels if noise.kind != POLICY else (noise.value or 0.0,)
        return min((each for each in sizes if each >= needed), default=math.inf)

    def _scale(self) -> Scale | None:
        """The one that was set beforehand, or the smallest level that covers the region, at this epsilon and delta;
        refuses where none does."""
        noise, radius, mu = self.request.promise.noise, self._radius, self._mu
        if noise.kind == EXACT:
            return None
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
                "Forget fewer rows at once, give a surrogate (or a larger one) with the deposit, or retrain.",
            )
        return Scale(LEVELS, scale, len(levels))


def weights_length(deposit: Deposit, solution: Solution) -> float:
    """The length of the updated weights, rounded up."""
    return norm(deposit.anchor + solution.update) * (1.0 + 1e-9)


def measured_facts(deposit: Deposit, solution: Solution, weighted: bool) -> dict[str, float]:
    """The numbers of a step's region around the deposit of what is retained, by name; `weighted` where surrogate rows
    that have a part in it are weighted by class."""
    numbers, shape, surrogate = deposit.numbers, deposit.ellipsoid, solution.surrogate
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
    if surrogate is not None:
        moments = asdict(surrogate.moments)
        names = [name for name in BESIDE_FACTS if name in moments] + list(WEIGHT_FACTS if weighted else ())
        measured |= {name: moments[name] for name in names} | {EACH: surrogate.each, TOGETHER: surrogate.together}
    return measured


def reach_of(facts: Mapping[str, Fact], route: str, last: float) -> float:
    """How much of a deposit's reach is used: of the largest radius its noise hides, or of the way to where no region
    is finite any more, whichever is more."""
    stated = deposit_facts(facts, route)
    return max(deposit_bound(stated).radius / last, reach_used(stated))
