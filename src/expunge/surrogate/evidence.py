"""Rows that resemble the source, and a distance that says how much: the evidence the paper works with.

It answers what every kind of evidence does: the equation `a(u) = 0` and its Jacobian (`equation`), the facts of the
region for a step (`facts`), what probability is spent on them (`failures`), and what is assumed (the distance's own
sentences).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from expunge.certificate.claim import Fact, Json, due_failures
from expunge.distance import Distance
from expunge.errors import VacuousClaim
from expunge.estimate.source import SourceEstimate, estimate_source, require_converged
from expunge.heads.rows import in_memory
from expunge.request.door import Request
from expunge.runtime.progress import Progress, silent
from expunge.solve.equation import RetainedEquation, SurrogateEquation
from expunge.solve.lanczos import EIGENVALUE_SLACK, SAMPLING_SLACK
from expunge.solve.newton import Equation
from expunge.solve.outcome import Step
from expunge.surrogate.moments import Moments, change_moments

CHARGED = (
    1e-7  # of ||a'(0)||: what is charged for a step that left less, so that the charge does not vary with the sample
)
QUICK_FAILURE = 0.5  # of Lanczos, where it only ranks candidates
WEIGHTED = ("sampled_trace", "sampled_eigenvalue", "sampled_largest")
ESTIMATE = "an estimated distance"


@dataclass(frozen=True)
class SurrogateEvidence:
    """The surrogate of a request. `estimate` is there where the distance is not declared."""

    request: Request
    estimate: SourceEstimate | None = None
    seed: int | None = None
    progress: Progress = silent

    @staticmethod
    def is_given(request: Request) -> bool:
        """Whether the request comes with evidence of this kind."""
        return not request.distance.is_source and request.deposit is None

    @classmethod
    def gathered(cls, request: Request, *, seed: int | None, progress: Progress) -> SurrogateEvidence:
        """With the estimate made, where there is to be one."""
        if isinstance(request.distance, Distance):
            return cls(request, None, seed, progress)
        rows, wanted, made = in_memory(request.surrogate, ESTIMATE), request.distance, request.promise.estimate
        if made is None:
            made = estimate_source(request.head, request.weights, request.record, rows, wanted, progress=progress)
        else:
            made = made.belonging_to(request.weights, request.record, rows, wanted)
        require_converged(made.sampled)
        return cls(request, made, seed, progress)

    @property
    def equation(self) -> Equation:
        """What the update must satisfy: the paper's equation where the paper's step is wanted, else the retained
        rows'.
        """
        request = self.request
        if not self.paper_step:
            return self.retained
        # the paper's appendix weights the surrogate's Hessian by its own size; everything else by the source's
        appendix = request.promise.paper and request.promise.sizes == "surrogate"
        n = request.n_surrogate if appendix else request.n_source
        return SurrogateEquation(request.head, request.weights, request.forget, request.surrogate, n)

    def own_step(self) -> Step | None:
        """The update, where the evidence itself gives it; else the equation is to be solved."""
        return None

    def kept(self) -> tuple[Any, ...]:
        """Route, scale and what is left of a deposit, where there is one."""
        return ()

    @property
    def paper_step(self) -> bool:
        """Whether the update is the paper's; rows forgotten before are no longer there to take its Hessian of."""
        promise = self.request.promise
        return promise.paper or (promise.step == "newton" and self.request.past is None)

    @property
    def retained(self) -> Equation:
        """The equation whose residual the bound charges, whatever the update was made by."""
        request = self.request
        n_retain = request.n_source - request.n_forget
        return RetainedEquation(request.head, request.weights, request.forgotten, request.surrogate, n_retain)

    def left_of(self, step: Step) -> float:
        """`||a'(u)||` of the update handed over."""
        return float(self.retained.residual(step.update).norm()) if self.paper_step else step.residual

    def distance_at(self, update: Tensor) -> Distance:
        """How far the surrogate is from the source, for an update: the same for all where it was declared."""
        request = self.request
        if isinstance(request.distance, Distance):
            return request.distance
        assert self.estimate is not None
        rows = in_memory(request.surrogate, ESTIMATE)
        return self.estimate.distance(request.head, request.weights, update, rows)

    def described(self) -> Json | None:
        """For the certificate: how an estimate came about."""
        return None if self.estimate is None else self.estimate.evidence()

    @property
    def averaged(self) -> bool:
        """Whether noise may be calibrated to the average over the drawing of the sets: for one published model
        alone.
        """
        return self.request.promise.averaged

    def failures(self, distance: Distance) -> dict[str, float]:
        """Probabilities spent out of delta, by what they are spent on."""
        promise = self.request.promise
        if promise.paper:
            return {}
        planned = 1 if promise.series is None else promise.series.planned
        return due_failures(promise.delta, distance, averaged=self.averaged, planned=planned)

    def facts(self, step: Step, distance: Distance, *, quick: bool = False) -> dict[str, Fact]:
        """Every number the region needs, each with where it comes from; `quick` ones only rank candidates."""
        if self.request.promise.paper:
            return self._paper_facts(step, distance)
        failures = self.failures(distance)
        moments = self._moments(step, distance, failures.get("eigenvalue"), quick)
        if not quick and distance.samples_rows and distance.sampling == "seen":
            self._require_seen(step, moments)
        return self._residual_facts(step, moments, failures.get("sampling", 0.0))

    def training_residual(self) -> Fact:
        """How far training stopped from the optimum, as recorded."""
        record = self.request.record
        assert record.residual is not None
        return Fact(record.residual, record.provenance)

    def _moments(self, step: Step, distance: Distance, failure: float | None, quick: bool) -> Moments:
        request = self.request
        heavy = distance.samples_rows and distance.law.moves_moments
        return change_moments(
            request.head,
            request.weights,
            step.update,
            request.surrogate,
            failure=QUICK_FAILURE if quick and failure is not None else failure,
            heavy=heavy and not quick,
            slack=EIGENVALUE_SLACK if distance.law.uses_deviation else SAMPLING_SLACK,
            seed=self.seed,
            advance=silent if quick else self.progress,
        )

    def _require_seen(self, step: Step, moments: Moments) -> None:
        """Refuse to take what was seen for all there is where the forget rows themselves show that it is not."""
        request = self.request
        largest = request.head.spread(request.weights, step.update, request.forget).sums().longest
        if largest > moments.change_longest * (1.0 + 1e-9):
            raise VacuousClaim(
                f"a forget row changes by {largest:.3g}, and no surrogate row by more than "
                f"{moments.change_longest:.3g}",
                "with sampling seen the surrogate must show the largest change there is",
                "Use --sampling strict (sampling='strict'), which counts rows unlike any seen, or a larger surrogate.",
            )

    def _residual_facts(self, step: Step, moments: Moments, sampling: float) -> dict[str, Fact]:
        request, record = self.request, self.request.record
        known = record.provenance
        measured = asdict(moments)
        facts = {
            "n_source": Fact(request.n_source, known),
            "n_forget": Fact(request.n_forget, "measured"),
            "n_surrogate": Fact(request.n_surrogate, "measured"),
            "l2": Fact(record.l2, known),
            "training_residual": self.training_residual(),
            "solver_residual": Fact(max(self.left_of(step), CHARGED * float(request.forgotten.norm())), "measured"),
            "rounding": self._rounding(step),
            **{name: Fact(value, "measured") for name, value in measured.items() if name not in WEIGHTED},
            "row_bound": Fact(record.row_bound, known),
            "directions": Fact(request.head.n_directions, "measured"),
            "sampling_failure": Fact(sampling, "derived"),
        }
        facts["change_supremum"] = Fact(moments.change_supremum, "derived")
        if request.surrogate.has_weights:
            # weights follow from the source's class counts, and are known no better than those
            facts["weight_largest"] = Fact(request.surrogate.largest_weight, known)
            facts |= {name: Fact(measured[name], known) for name in WEIGHTED}
        return facts

    def _rounding(self, step: Step) -> Fact:
        """The surrogate's change is evaluated at the weights before and after, the forget rows' gradient before."""
        request = self.request
        return self._lost(step, request.n_source - request.n_forget, request.weights)

    def _lost(self, step: Step, n_rows: int, forget_at: Tensor) -> Fact:
        """What float64 may hide of `n_rows` times the surrogate's change, and of the forget rows' gradient."""
        request, head = self.request, self.request.head
        lost = n_rows * head.rounding(request.weights, request.surrogate)
        lost += n_rows * head.rounding(request.weights + step.update, request.surrogate)
        gone = request.forget if request.past is None else range(request.n_forget)
        lost += request.n_forget * head.rounding(forget_at, gone)
        return Fact(lost, "derived" if head.about.rounding_derived else "declared")

    def _paper_facts(self, step: Step, distance: Distance) -> dict[str, Fact]:
        request, constants = self.request, self.request.constants
        assert constants is not None
        if request.head.about.convex and not step.positive_definite:
            raise VacuousClaim(
                "n H_S - m H_U is not positive definite",
                "the paper's bound is for the undamped Newton step",
                "Use --bound residual (bound='residual'), which covers any update.",
            )
        gradient = float(request.head.gradient(request.weights, request.forget).norm())
        return {
            "n_source": Fact(request.n_source, request.record.provenance),
            "n_forget": Fact(request.n_forget, "measured"),
            "n_surrogate": Fact(request.n_surrogate, "measured"),
            "alpha": Fact(constants.strong_convexity, "declared"),
            "beta": Fact(constants.smoothness, "declared"),
            "lipschitz": Fact(constants.lipschitz, "declared"),
            "gamma": Fact(constants.hessian_lipschitz, "declared"),
            "lipschitz_power": Fact(constants.lipschitz_power, "declared"),
            "gradient_norm": Fact(gradient, "measured"),
            "tv_upper": Fact(distance.tv_upper, "derived"),
        }
