"""A deposit as evidence: the retained rows' own gradient and Hessian, so that nothing has to stand in for them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

import numpy as np

from expunge.bounds.calibration import EXACT, LEVELS, POLICY, Scale, mu_for
from expunge.bounds.deposit import deposit_bound, reach_used
from expunge.certificate.claim import EACH, TOGETHER, Fact, deposit_facts, kept_failures, route_failure
from expunge.deposit.file import Deposit
from expunge.deposit.membership import Membership, remove_rows
from expunge.deposit.region import Solution, smallest_region
from expunge.deposit.with_surrogate import (
    SurrogateStep,
    SurrogateTerms,
    facts_of,
    region_of,
    smallest_with_surrogate,
    step_with_surrogate,
)
from expunge.distance import Distance
from expunge.errors import BeyondPolicy, VacuousClaim
from expunge.evidence import Retained
from expunge.heads.rows import same_rows
from expunge.request.promise import NO_SURROGATE, Promise
from expunge.request.request import Request
from expunge.runtime.progress import Progress, silent
from expunge.solve.linear import Ending, Step

COVERED = 1.0 + 1e-7  # noise must exceed what is needed by this


def _members(request: Request) -> Membership:
    assert request.membership is not None
    return request.membership


@dataclass(frozen=True)
class Removal:
    """What does not depend on the promise: the deposit without the rows, its own step and region, and the step with
    surrogate rows. Requests that it `serves` can share it."""

    request: Request
    deposit: Deposit
    alone: Solution | None
    with_surrogate: SurrogateStep | None = None

    @classmethod
    def of(cls, request: Request, progress: Progress = silent) -> Removal:
        deposit, membership = request.deposit, request.membership
        assert isinstance(deposit, Deposit)
        assert isinstance(membership, Membership)
        progress("Rows leave the deposit", 0, None)
        left = remove_rows(deposit, request.forget, membership)
        progress("The region", 0, None)
        alone = smallest_region(left.problem)
        step = None if request.surrogate is None else step_with_surrogate(left, request.surrogate, progress)
        return cls(request, left, alone, step)

    def serves(self, request: Request) -> bool:
        """Whether the same rows leave the same deposit there, and the surrogate rows it goes by are the same.

        Surrogate rows that are weighted to match classes depend on the distance.
        """
        own, other = (_members(each).matches for each in (self.request, request))
        step = self.with_surrogate
        return (
            self.request.deposit is request.deposit
            and same_rows(self.request.forget, request.forget)
            and all(np.array_equal(getattr(own, name), getattr(other, name)) for name in ("row", "precision"))
            and (request.surrogate is None or step is None or same_rows(step.rows, request.surrogate))
        )


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
    def gather(
        cls, request: Request, *, progress: Progress = silent, removal: Removal | None = None
    ) -> DepositEvidence:
        """The rows removed, the step made and its smallest region found: of the deposit alone, which assumes nothing,
        unless surrogate rows let it do with less noise."""
        deposit, removal = request.deposit, removal or Removal.of(request, progress)
        if not removal.serves(request):
            raise ValueError("other rows were removed, or other surrogate rows were used")
        assert isinstance(deposit, Deposit)
        left, solution = removal.deposit, removal.alone
        if request.surrogate is not None:
            both = smallest_with_surrogate(removal.with_surrogate, surrogate_terms(request))
            if both is not None and (
                solution is None or _noise(request, left, both.solution) < _noise(request, left, solution)
            ):
                if request.distance.samples_rows and request.distance.sampling == "seen":
                    both.require_seen(left, request.forget)
                return cls(request, left, both.solution, both.step.solved)
        if solution is None:
            raise VacuousClaim(
                f"no bound is finite for these {len(request.forget):,} rows"
                + (f" after {deposit.numbers.forgotten:,} before them" if deposit.numbers.forgotten else ""),
                ("a deposit alone" if request.surrogate is None else "a deposit with this surrogate")
                + " reaches only so far: somebody very influential, or many, are among them",
                "Forget fewer rows at once, give a surrogate (or a larger one) with the deposit, or retrain.",
            )
        return cls(request, left, solution)

    def step(self) -> Step:
        """The update of the smallest region, from the anchor as it was given."""
        solution, solved = self.solution, self.solved
        start = float(self.deposit.sums.gradient.norm())
        # what no retained row has is gone from the new anchor
        update = solution.update + (self.deposit.anchor - self.request.weights)
        if solved is None:
            return Step(update, solution.residual, start, solution.steps, 0, "cholesky", 0.0, Ending.REACHED, 0.0)
        return replace(solved, update=update, residual=solution.residual, residual_at_start=start)

    def facts(self, step: Step) -> dict[str, Fact]:
        """The numbers of the step's region, of the noise's shape, of what it is held against, and of surrogate rows."""
        numbers, shape, surrogate = self.deposit.numbers, self.deposit.ellipsoid, self.solution.surrogate
        stated = asdict(self.solution.facts)
        stated.pop("route")
        stated["l2"] = self.deposit.problem.penalty.l2
        measured = {
            "n_source": numbers.n_rows + numbers.forgotten,
            "n_forget": numbers.forgotten,
            "row_bound": numbers.row_bound,
            **stated,
            "shape_largest": shape.largest,
            "shape_least": shape.least,
            "shape_inverse_trace": shape.inverse_trace,
            "weights_length": self._weights_length,
            "output_noise": self.deposit.output_noise,
            "output_spread": self.deposit.output_spread,
        }
        if surrogate is not None:
            measured |= facts_of(surrogate, self.request.surrogate.has_weights)
        derived = {"change_supremum", "sampling_failure", EACH, TOGETHER}
        facts = {name: Fact(value, "derived" if name in derived else "measured") for name, value in measured.items()}
        known = "derived" if self.request.head.about.rounding_derived else "declared"
        return facts | {"rounding": Fact(stated["rounding"], known)}

    def failures(self) -> dict[str, float]:
        """What is spent on drawing the noise, and on surrogate rows where they have a part in it."""
        return kept_failures(self.request.promise.delta, self._distance)

    def retained(self) -> Retained:
        """What is left of the deposit, and the surrogate where it has a part in the region."""
        route = self.solution.facts.route
        return Retained(self._distance, route=route, scale=self._scale(), deposit=self.deposit)

    @property
    def _distance(self) -> Distance:
        return _distance_of(self.request, self.solution)

    @property
    def _weights_length(self) -> float:
        """Of the updated weights, rounded up."""
        return float((self.deposit.anchor + self.solution.update).norm()) * (1.0 + 1e-9)

    def _scale(self) -> Scale | None:
        """The one that was set beforehand, or the smallest level that covers the region, at this epsilon and delta."""
        promise = self.request.promise
        if promise.noise.kind == EXACT:
            return None
        return scale_for(self.deposit, self.solution, self._distance, promise, self._weights_length)


def scale_for(retained: Deposit, solution: Solution, distance: Distance, promise: Promise, weights: float) -> Scale:
    """Noise that covers the region; refuses where none does. `weights` bounds the length of what it is added to."""
    radius = region_of(solution, distance).radius * COVERED
    mu = _mu(promise, distance)
    shape = replace(retained.ellipsoid, weights=weights)

    def covers(scale: float) -> bool:
        return scale * mu >= radius + COVERED * shape.drawing(scale)

    if promise.noise.kind == POLICY:
        assert promise.noise.value is not None
        if covers(promise.noise.value):
            return Scale(POLICY, promise.noise.value)
        raise BeyondPolicy(
            "these rows need more noise than was set",
            "it was set before anybody asked, since its size would tell who left",
            "Forget fewer rows at once, or retrain without them; what needs more noise cannot be hidden by this.",
        )
    scale = next((each for each in retained.levels if covers(each)), None)
    if scale is None:
        raise BeyondPolicy(
            "these rows need more noise than any of the levels; with the last of them the noise is already larger than "
            "the model's outputs",
            "noise is one of a few sizes, since its size would tell who left",
            "Forget fewer rows at once, give a surrogate (or a larger one) with the deposit, or retrain.",
        )
    return Scale(LEVELS, scale, len(retained.levels))


def surrogate_terms(request: Request) -> SurrogateTerms:
    """How far the surrogate rows of a request are declared to be, and what of delta each route may spend on them."""
    assert request.deposit is not None
    distance, numbers = request.distance, request.deposit.numbers
    assert isinstance(distance, Distance)
    n_forget = numbers.forgotten + len(request.forget)
    failure = route_failure(request.promise.delta, distance)
    return SurrogateTerms(distance, numbers.n_rows + numbers.forgotten, n_forget, failure)


def _distance_of(request: Request, solution: Solution) -> Distance:
    """The surrogate's, where it has a part in the region; else none stands in for the source."""
    distance = request.distance
    assert isinstance(distance, Distance)
    return NO_SURROGATE if solution.surrogate is None else distance


def _mu(promise: Promise, distance: Distance) -> float:
    """Of what of delta is left for the noise."""
    return mu_for(promise.epsilon, promise.delta - math.fsum(kept_failures(promise.delta, distance).values()))


def _noise(request: Request, retained: Deposit, solution: Solution) -> float:
    """The noise's scale: that of the level that covers the region, or the region's own."""
    distance, promise = _distance_of(request, solution), request.promise
    scale = region_of(solution, distance).radius / _mu(promise, distance)
    if promise.noise.kind == EXACT:
        return scale
    sizes = retained.levels if promise.noise.kind != POLICY else (promise.noise.value or 0.0,)
    return min((each for each in sizes if each >= scale * COVERED), default=math.inf)


def reach_of(facts: Mapping[str, Fact], route: str, last: float) -> float:
    """How much of a deposit's reach is used: of the largest radius its noise hides, or of the way to where no region
    is finite any more, whichever is more."""
    stated = deposit_facts(facts, route)
    return max(deposit_bound(stated).radius / last, reach_used(stated))
