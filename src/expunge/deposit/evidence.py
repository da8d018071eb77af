"""A deposit as evidence: the retained rows' own gradient and Hessian, so that nothing has to stand in for them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

import numpy as np

from expunge.bounds.calibration import mu_for
from expunge.bounds.deposit import deposit_bound, reach_used
from expunge.bounds.scale import EXACT, LEVELS, POLICY, Scale
from expunge.certificate.claim import EACH, TOGETHER, Fact, deposit_facts, kept_failures, route_failure
from expunge.deposit.asking import DISTANCE
from expunge.deposit.beside import Asked, Begun, begun_beside, found_beside, region_of, require_seen, stated_of
from expunge.deposit.contents import Deposit
from expunge.deposit.leaving import Membership, gone, left
from expunge.deposit.routes import Found, found
from expunge.deposit.solving import Solved
from expunge.distance import Distance
from expunge.errors import BeyondPolicy, VacuousClaim
from expunge.evidence import Retained
from expunge.heads.rows import same_rows
from expunge.request.door import Request
from expunge.request.promise import Promise
from expunge.runtime.progress import Progress, silent
from expunge.solve.outcome import Ending, Step

COVERED = 1.0 + 1e-7  # noise must exceed what is needed by this


@dataclass(frozen=True)
class Taken:
    """What does not depend on the promise: the deposit without the rows, its own step and region, and the step with
    surrogate rows. Requests that it `serves` can share it."""

    request: Request
    retained: Deposit
    alone: Found | None
    begun: Begun | None = None

    def serves(self, request: Request) -> bool:
        """Whether the same rows leave the same deposit there, and the surrogate rows it goes by are the same.

        Surrogate rows that are weighted to match classes depend on the distance.
        """
        own, other = (each.membership.found for each in (self.request, request))
        return (
            self.request.deposit is request.deposit
            and same_rows(self.request.forget, request.forget)
            and all(np.array_equal(getattr(own, name), getattr(other, name)) for name in ("row", "precision"))
            and (request.surrogate is None or self.begun is None or same_rows(self.begun.rows, request.surrogate))
        )


def taken_out(request: Request, progress: Progress = silent) -> Taken:
    """The rows taken out of the deposit, and the step made, with surrogate rows too where there are any."""
    deposit, membership = request.deposit, request.membership
    assert isinstance(deposit, Deposit)
    assert isinstance(membership, Membership)
    progress("Rows leave the deposit", 0, None)
    retained = left(deposit, request.forget, membership, gone(deposit, request.forget, membership))
    progress("The region", 0, None)
    alone = found(retained.setting, retained.sums, retained.penalty(retained.sums.count), retained.shape)
    begun = None if request.surrogate is None else begun_beside(retained, request.surrogate, progress)
    return Taken(request, retained, alone, begun)


@dataclass(frozen=True)
class DepositEvidence:
    """What was kept of the source, and what of it is left when the forget rows go: the third kind of evidence.

    `deposit` is that of what is retained, `result` the step and its region, `solution` how the step was solved where
    surrogate rows have a part in it.
    """

    request: Request
    deposit: Deposit
    result: Found
    solution: Solved | None = None

    @classmethod
    def gather(cls, request: Request, *, progress: Progress = silent, taken: Taken | None = None) -> DepositEvidence:
        """The rows taken out, the step made and its smallest region found, with surrogate rows where there are any."""
        deposit, taken = request.deposit, taken or taken_out(request, progress)
        if not taken.serves(request):
            raise ValueError("what was taken out was taken out for other rows, or beside other surrogate rows")
        assert isinstance(deposit, Deposit)
        result, solution = taken.alone, None
        if request.surrogate is not None and taken.begun is not None:
            result, solution = chosen(request, taken, taken.begun, progress)
        if result is None:
            raise VacuousClaim(
                f"no bound is finite for these {len(request.forget):,} rows"
                + (f" after {deposit.numbers.forgotten:,} before them" if deposit.numbers.forgotten else ""),
                ("a deposit alone" if request.surrogate is None else "a deposit, with this surrogate beside it,")
                + " reaches only so far: somebody very influential, or many, are among them",
                "Forget fewer rows at once, give a surrogate (or a larger one) beside the deposit, or retrain.",
            )
        return cls(request, taken.retained, result, solution)

    def step(self) -> Step:
        """The update of the smallest region, from the anchor as it was given."""
        result, solution = self.result, self.solution
        start = float(self.deposit.sums.gradient.norm())
        # what no retained row has is gone from the new anchor
        update = result.update + (self.deposit.anchor - self.request.weights)
        if solution is None:
            return Step(update, result.residual, start, result.steps, 0, "cholesky", 0.0, Ending.REACHED, 0.0)
        ending = Ending.REACHED if solution.reached else Ending.STALLED
        return Step(update, result.residual, start, solution.steps, solution.inner, "conjugate", 0.0, ending, 0.0)

    def facts(self, step: Step) -> dict[str, Fact]:
        """The numbers of the step's region, of the noise's shape and of what it is held against."""
        numbers, shape = self.deposit.numbers, self.deposit.ellipsoid
        stated = asdict(self.result.facts)
        stated.pop("route")
        stated["l2"] = self.deposit.penalty(self.deposit.sums.count).l2
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
        facts = {name: Fact(value, "measured") for name, value in measured.items()}
        known = "derived" if self.request.head.about.rounding_derived else "declared"
        facts["rounding"] = Fact(measured["rounding"], known)
        return facts | self._beside_facts()

    def failures(self) -> dict[str, float]:
        """What is spent on drawing the noise, and on surrogate rows where they have a part in it."""
        return kept_failures(self.request.promise.delta, self._distance)

    def retained(self) -> Retained:
        """What is left of the deposit, and the surrogate where it has a part in the region."""
        route = self.result.facts.route
        return Retained(self._distance, route=route, scale=self._scale(), deposit=self.deposit)

    @property
    def _distance(self) -> Distance:
        distance = self.request.distance
        assert isinstance(distance, Distance)
        return DISTANCE if self.result.beside is None else distance

    def _beside_facts(self) -> dict[str, Fact]:
        """What surrogate rows add to the facts."""
        beside, surrogate = self.result.beside, self.request.surrogate
        if beside is None:
            return {}
        derived = {"change_supremum", "sampling_failure", EACH, TOGETHER}
        return {
            name: Fact(value, "derived" if name in derived else "measured")
            for name, value in stated_of(beside, surrogate.has_weights).items()
        }

    def _scale(self) -> Scale | None:
        """The one that was set beforehand, or the smallest level that covers the region, at this epsilon and delta."""
        promise = self.request.promise
        if promise.noise.kind == EXACT:
            return None
        return scale_for(self.deposit, self.result, self._distance, promise, self._weights_length)

    @property
    def _weights_length(self) -> float:
        """Of the updated weights, rounded up."""
        return float((self.deposit.anchor + self.result.update).norm()) * (1.0 + 1e-9)


def scale_for(retained: Deposit, result: Found, distance: Distance, promise: Promise, weights: float) -> Scale:
    """Noise that covers the region; refuses where none does. `weights` bounds the length of what it is added to."""
    radius = region_of(result, distance).radius * COVERED
    mu = mu_for(promise.epsilon, promise.delta - spent_of(promise.delta, distance))
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
            "these rows need more noise than any of the levels, the last of which drowns the model's outputs",
            "noise is one of a few sizes, since its size would tell who left",
            "Forget fewer rows at once, give a surrogate (or a larger one) beside the deposit, or retrain.",
        )
    return Scale(LEVELS, scale, len(retained.levels))


def chosen(request: Request, taken: Taken, begun: Begun, progress: Progress) -> tuple[Found | None, Solved | None]:
    """The deposit alone, which assumes nothing, unless surrogate rows let it do with less noise."""
    retained, alone = taken.retained, taken.alone
    both = found_beside(retained, asked_of(request), progress, begun)
    if both is None:
        return alone, None
    if alone is not None and _noise(request, retained, alone) <= _noise(request, retained, both.found):
        return alone, None
    if request.distance.samples_rows and request.distance.sampling == "seen":
        require_seen(retained, both, request.forget)
    return both.found, both.solved


def asked_of(request: Request) -> Asked:
    """The surrogate rows of a request, and what of delta each route may spend on them."""
    distance = request.distance
    assert isinstance(distance, Distance)
    failure = route_failure(request.promise.delta, distance)
    numbers = request.deposit.numbers
    n_forget = numbers.forgotten + len(request.forget)
    return Asked(request.surrogate, distance, numbers.n_rows + numbers.forgotten, n_forget, failure)


def _noise(request: Request, retained: Deposit, result: Found) -> float:
    """The noise's scale: that of the level that covers the region, or the region's own."""
    distance = DISTANCE if result.beside is None else request.distance
    assert isinstance(distance, Distance)
    promise, radius = request.promise, region_of(result, distance).radius
    scale = radius / mu_for(promise.epsilon, promise.delta - spent_of(promise.delta, distance))
    if promise.noise.kind == EXACT:
        return scale
    sizes = retained.levels if promise.noise.kind != POLICY else (promise.noise.value or 0.0,)
    return min((each for each in sizes if each >= scale * COVERED), default=math.inf)


def spent_of(delta: float, distance: Distance) -> float:
    """What is not left for the noise."""
    return math.fsum(kept_failures(delta, distance).values())


def reach_of(facts: Mapping[str, Fact], route: str, last: float) -> float:
    """How much of a deposit's reach is used: of the largest radius its noise hides, or of the way to where no region
    is finite any more, whichever is more."""
    stated = deposit_facts(facts, route)
    return max(deposit_bound(stated).radius / last, reach_used(stated))
