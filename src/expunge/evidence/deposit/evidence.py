"""A deposit as evidence: the retained rows' own gradient and Hessian, so that nothing has to stand in for them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from expunge.bounds.calibration import mu_for
from expunge.bounds.deposit import deposit_bound
from expunge.bounds.ellipsoid import arithmetic_delta
from expunge.bounds.scale import EXACT, RADII, Scale
from expunge.certificate.facts import Fact, Json
from expunge.certificate.limits import ARITHMETIC_SHARE
from expunge.distance import Distance
from expunge.errors import BeyondPolicy, VacuousClaim
from expunge.evidence.deposit.contents import Deposit
from expunge.evidence.deposit.leaving import Membership, gone, left
from expunge.evidence.deposit.routes import Found, found
from expunge.evidence.surrogate import SurrogateEvidence
from expunge.request.door import Request
from expunge.runtime.progress import Progress
from expunge.solve.outcome import Ending, Step

COVERED = 1.0 + 1e-7  # a radius of the list must exceed what is needed by this


@dataclass(frozen=True)
class DepositEvidence(SurrogateEvidence):
    """What was kept of the source, and what of it is left when the forget rows go."""

    retained_deposit: Deposit | None = None
    result: Found | None = None

    @staticmethod
    def is_given(request: Request) -> bool:
        return request.deposit is not None

    @classmethod
    def gathered(cls, request: Request, *, seed: int | None, progress: Progress) -> DepositEvidence:
        """The rows taken out, the step made and its smallest region found."""
        deposit, membership = request.deposit, request.membership
        assert isinstance(deposit, Deposit)
        assert isinstance(membership, Membership)
        progress("Rows leave the deposit", 0, None)
        retained = left(deposit, request.forget, membership, gone(deposit, request.forget, membership))
        progress("The region", 0, None)
        result = found(retained.setting, retained.sums, retained.penalty(retained.sums.count), retained.shape)
        if result is None:
            raise VacuousClaim(
                f"no bound is finite for these {len(request.forget):,} rows"
                + (f" after {deposit.numbers.forgotten:,} before them" if deposit.numbers.forgotten else ""),
                "a deposit alone reaches only so far: somebody very influential, or many, are among them",
                "Forget fewer rows at once, give a surrogate beside the deposit, or retrain.",
            )
        return cls(request, None, seed, progress, retained, result)

    def own_step(self) -> Step:
        result = self._result
        start = float(self._retained.sums.gradient.norm())
        return Step(result.update, result.residual, start, 1, 0, "cholesky", 0.0, Ending.REACHED, 0.0)

    @property
    def _result(self) -> Found:
        assert self.result is not None
        return self.result

    @property
    def _retained(self) -> Deposit:
        assert self.retained_deposit is not None
        return self.retained_deposit

    def kept(self) -> tuple[Any, ...]:
        return self._result.facts.route, self._scale(), self._retained

    def distance_at(self, update: Tensor) -> Distance:
        distance = self.request.distance
        assert isinstance(distance, Distance)
        return distance

    def described(self) -> Json | None:
        return None

    def failures(self, distance: Distance) -> dict[str, float]:
        return {"arithmetic": ARITHMETIC_SHARE * self.request.guarantee.delta}

    def facts(self, step: Step, distance: Distance, *, quick: bool = False) -> dict[str, Fact]:
        request, numbers = self.request, self._retained.numbers
        stated = asdict(self._result.facts)
        stated.pop("route")
        stated["l2"] = self._retained.penalty(self._retained.sums.count).l2
        measured = {
            "n_source": request.n_source,
            "n_forget": request.n_forget,
            "row_bound": numbers.row_bound,
            **stated,
            "shape_largest": numbers.shape_largest,
            "shape_least": numbers.shape_least,
            "shape_inverse_trace": numbers.shape_inverse_trace,
            "weights_length": float((request.weights + step.update).norm()) * (1.0 + 1e-9),
            "output_noise": numbers.output_noise,
            "output_spread": numbers.output_spread,
        }
        facts = {name: Fact(value, "measured") for name, value in measured.items()}
        facts["rounding"] = Fact(measured["rounding"], "derived")
        return facts

    def _scale(self) -> Scale | None:
        """The smallest radius of the public list that covers the region, at this epsilon and delta."""
        guarantee, numbers = self.request.guarantee, self._retained.numbers
        if guarantee.noise.kind == EXACT:
            return None
        radius = deposit_bound(self._result.facts).radius * COVERED
        covering = [each for each in numbers.radii if each >= radius]
        if not covering:
            raise BeyondPolicy(
                "these rows are beyond the last of the deposit's radii",
                "noise is one of a few sizes set when the deposit was made, since its size would tell who left",
                "Forget fewer rows at once, give a surrogate beside the deposit, or retrain.",
            )
        mu = mu_for(guarantee.epsilon, guarantee.delta * (1.0 - ARITHMETIC_SHARE))
        weights = float((self.request.weights + self._result.update).norm()) * (1.0 + 1e-9)
        for chosen in covering:
            lost = arithmetic_delta(self._retained.ellipsoid, guarantee.epsilon, chosen / mu, weights)
            if lost <= ARITHMETIC_SHARE * guarantee.delta:
                return Scale(RADII, chosen / mu, len(numbers.radii))
        raise VacuousClaim(
            f"float64 would make {lost:.3g} of delta {guarantee.delta:g} when the noise is drawn",
            f"at most {ARITHMETIC_SHARE:g} of it may go there",
            "Raise delta, lower epsilon, or train with a larger l2: the noise's matrix is ill-conditioned.",
        )
