"""What is known of a source that is gone, from rows that resemble it, or from the source itself."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from expunge.bounds.calibration import EXACTLY, LARGEST_SCALE, POLICY, REHEARSAL, Scale, level_above
from expunge.certificate.claim import Fact, due_failures
from expunge.certificate.derive import rank_of
from expunge.distance import Distance
from expunge.errors import DataError, OptionError, VacuousClaim
from expunge.evidence import Measurement, Retained, build_claim, foresee
from expunge.heads import Rows
from expunge.heads.rows import evenly, in_memory
from expunge.request.request import Request
from expunge.runtime.arrays import Array, double, load_torch, norm, put
from expunge.runtime.progress import Progress, silent
from expunge.solve.linear import EIGENVALUE_SLACK, SAMPLING_SLACK, Step, largest_eigenvalue_upper
from expunge.solve.newton import (
    Equation,
    RetainedEquation,
    SurrogateEquation,
    balanced_step,
    iterated_step,
    newton_step,
)

# Moments of the change of gradient `f = phi_u` over the surrogate rows; its covariance is never formed --------------


@dataclass(frozen=True)
class Moments:
    """What the residual bound needs to know of `f = phi_u` on the surrogate.

    Under the names it has there (`RetainedFacts`).

    c is f's mean; rows count by their weights. The eigenvalues are bounds from above. `sampled_*` are what a weighted
    mean varies by: of the weight times `f - c`. Without weights they equal those of `f - c`.
    """

    change_mean: float
    change_eigenvalue: float
    change_trace: float
    change_fourth: float
    change_fourth_eigenvalue: float
    change_largest: float
    change_longest: float
    change_supremum: float
    longest_row: float
    sampled_trace: float
    sampled_eigenvalue: float
    sampled_largest: float


def change_moments(
    head: Any,
    weights: Array,
    update: Array,
    surrogate: Any,
    *,
    failure: float | None,
    heavy: bool,
    slack: float = EIGENVALUE_SLACK,
    seed: int | None = None,
    advance: Progress = silent,
) -> Moments:
    """Moments of `phi_update` over the surrogate. `seed` fixes Lanczos' start; else it is drawn afresh.

    The bounds on eigenvalues fail with probability at most `failure` together. With `failure` None they are not needed,
    and without `heavy` the fourth one is not: larger values that follow from the others stand in for them. They are at
    most 1/(1 - `slack`) too large.
    """
    n_rows = len(surrogate)
    advance("Moments (rows)", 0, 2 * n_rows)
    spread = head.spread(weights, update, surrogate)
    advance("Moments (rows)", n_rows, 2 * n_rows)
    mean, sums = spread.mean, spread.sums()
    advance("Moments (rows)", 2 * n_rows, 2 * n_rows)
    trace, largest = sums.trace, sums.largest
    eigenvalue, fourth_eigenvalue, sampled_eigenvalue = trace, largest**2 * trace, sums.sampled_trace
    heavy = heavy and spread.knows_fourth
    if failure is not None and trace > 0:
        generator = np.random.default_rng(secrets.randbits(63) if seed is None else seed)
        runs = 1 + int(heavy) + int(surrogate.has_weights)

        def bounded(stage: str, power: int, fourth: bool = False) -> float:
            drawn = put(generator.standard_normal(weights.shape), weights)
            return largest_eigenvalue_upper(
                partial(spread.covariance_product, power=power, fourth=fourth),
                surrogate.agreed(drawn),
                failure / runs,
                lambda done, total: advance(f"{stage} (rows)", done * n_rows, total * n_rows),
                slack,
            )

        hidden = spread.cancellation * (trace + norm(mean) ** 2)
        eigenvalue = min(trace, hidden + bounded("Lanczos, covariance", 1))
        fourth_eigenvalue = largest**2 * eigenvalue
        sampled_eigenvalue = min(sums.sampled_trace, surrogate.largest_weight * eigenvalue)
        if surrogate.has_weights:
            weighted = surrogate.largest_weight * hidden + bounded("Lanczos, weighted rows", 2)
            sampled_eigenvalue = min(sampled_eigenvalue, weighted)
        if heavy:
            fourth_eigenvalue = min(fourth_eigenvalue, bounded("Lanczos, fourth moment", 1, fourth=True))
    return Moments(
        change_mean=norm(mean),
        change_eigenvalue=eigenvalue,
        change_trace=trace,
        change_fourth=sums.fourth,
        change_fourth_eigenvalue=fourth_eigenvalue,
        change_largest=largest,
        change_longest=sums.longest,
        change_supremum=head.change_sup(update),
        longest_row=sums.longest_row,
        sampled_trace=sums.sampled_trace,
        sampled_eigenvalue=sampled_eigenvalue,
        sampled_largest=sums.sampled_largest,
    )


# Rows as evidence: that resemble the source, with a distance that says how much, or that are the source itself ------
# Both kinds answer the four questions of `evidence.py`. They differ in the equation whose residual the bound charges
# (`solve/newton.py`), in what float64 may hide of it, and in what is known of training: of the source itself the
# gradient is measured, not believed.

CHARGED = 1e-7  # of ||a'(0)||: charged for a step that left less, so that the charge does not vary with the sample
QUICK_FAILURE = 0.5  # of Lanczos, where it only ranks candidates
if TYPE_CHECKING:
    from expunge.estimate.source import SourceEstimate

WEIGHTED = ("sampled_trace", "sampled_eigenvalue", "sampled_largest")
ESTIMATE = "an estimated distance"
ONE_HALF = 6  # of the largest changes of surrogate rows: what a half without the first five shows


def require_seen(distance: Distance, gone: float, seen: Sequence[float]) -> None:
    """Refuse to take what was seen, or a few times as much, for the largest change there is, where rows at hand show
    that it is not: the forget row that changes most, or one half of the surrogate beside the other.

    `seen` are the largest changes of surrogate rows, the largest first. The first `ONE_HALF - 1` are all in one half in
    one of 16 splits at random, and the last of them is then the most that the other half shows.
    """
    factor, strict = (
        distance.within or 1.0,
        "Use --sampling strict (sampling='strict'), which counts rows unlike any seen",
    )
    if gone > factor * seen[0] * (1.0 + 1e-9):
        shown = "the largest change there is" if factor == 1.0 else f"1/{factor:g} of the largest change there is"
        raise VacuousClaim(
            f"a forget row changes by {gone:.3g}, and no surrogate row by more than {seen[0]:.3g}",
            f"with sampling {distance.sampling} the surrogate must show {shown}",
            f"{strict}, or a larger surrogate.",
        )
    if distance.within and seen[0] > factor * seen[-1] * (1.0 + 1e-9):
        raise VacuousClaim(
            f"a surrogate row changes by {seen[0]:.3g}, and but for a few none by more than {seen[-1]:.3g}",
            f"with sampling {distance.sampling} half of the surrogate must show 1/{factor:g} of what the other does",
            f"{strict}, or a larger factor if that is true.",
        )


@dataclass(frozen=True)
class RowsEvidence(ABC):
    """What both kinds have in common. `estimate` is there where the distance is not declared; `seed` fixes Lanczos'
    start."""

    request: Request
    estimate: SourceEstimate | None = None
    seed: int | None = None
    progress: Progress = silent

    @classmethod
    def gather(cls, request: Request, *, seed: int | None = None, progress: Progress = silent) -> Self:
        """With the estimate made, where there is to be one."""
        if isinstance(request.distance, Distance):
            return cls(request, None, seed, progress)
        load_torch(ESTIMATE)  # it trains a critic
        from expunge.estimate.source import estimate_source, require_mixed

        rows, wanted, made = in_memory(request.surrogate, ESTIMATE), request.distance, request.promise.estimate
        if made is None:
            made = estimate_source(request.head, request.weights, request.record, rows, wanted, progress=progress)
        else:
            made = made.belonging_to(request.weights, request.record, rows, wanted)
        require_mixed(made.sampled)
        return cls(request, made, seed, progress)

    def step(self) -> Step:
        """u: the paper's is one Newton step on `a(u) = 0`; `converged` goes on, `balanced` seeks the smallest bound."""
        return self._step

    def facts(self, step: Step, *, quick: bool = False) -> dict[str, Fact]:
        """Every number the region needs; `quick` ones only rank candidates."""
        distance, request = self.distance_at(step.update), self.request
        if request.promise.paper:
            return self._paper_facts(step, distance)
        failures = self._failures(distance)
        moments = self._moments(step, distance, failures.get("eigenvalue"), quick)
        if not quick and distance.samples_rows and (distance.within or not distance.counts_unlike):
            spread = partial(request.head.spread, request.weights, step.update)
            seen = spread(request.surrogate).longest(ONE_HALF) if distance.within else [moments.change_longest]
            require_seen(distance, spread(request.forget).longest(1)[0], seen)
        return self._residual_facts(step, moments, failures.get("sampling", 0.0))

    def failures(self) -> dict[str, float]:
        """Probabilities spent out of delta, by what they are spent on."""
        return self._failures(self._distance)

    def retained(self) -> Retained:
        """The rows given stand for the retained ones, at this distance."""
        return Retained(self._distance, None if self.estimate is None else self.estimate.evidence())

    @cached_property
    def _step(self) -> Step:
        request, promise = self.request, self.request.promise
        if not request.head.about.convex:
            if request.head.damping is None:
                return iterated_step(self.retained_equation, progress=self.progress)
            return newton_step(self.equation, single=True, pull=request.head.damping, safeguarded=False)
        if promise.step == "balanced":
            return balanced_step(self.equation, self._rank, request.record.l2, self.progress)
        return newton_step(self.equation, single=promise.step == "newton", progress=self.progress)

    def _rank(self, step: Step) -> float:
        """How large the bound of this step is, roughly."""
        distance = self.distance_at(step.update)
        measured = Measurement(step, self.facts(step, quick=True), self._failures(distance), Retained(distance))
        return rank_of(build_claim(self.request, measured))

    @property
    def paper_step(self) -> bool:
        """Whether the update is the paper's; rows forgotten before are no longer there to take its Hessian of."""
        promise = self.request.promise
        return promise.paper or (promise.step == "newton" and self.request.past is None)

    @property
    def equation(self) -> Equation:
        """What the update must satisfy: the paper's equation for the paper's step, else the retained rows'."""
        request = self.request
        if not self.paper_step:
            return self.retained_equation
        # the paper's appendix weights the surrogate's Hessian by its own size; everything else by the source's
        appendix = request.promise.paper and request.promise.sizes == "surrogate"
        n = request.n_surrogate if appendix else request.n_source
        return SurrogateEquation(request.head, request.weights, request.forget, request.surrogate, n)

    @property
    @abstractmethod
    def retained_equation(self) -> Equation:
        """The equation whose residual the bound charges, whatever the update was made by."""

    def distance_at(self, update: Array) -> Distance:
        """How far the surrogate is from the source, for an update: the same for all where it was declared."""
        request = self.request
        if isinstance(request.distance, Distance):
            return request.distance
        assert self.estimate is not None
        rows = in_memory(request.surrogate, ESTIMATE)
        return self.estimate.distance(request.head, request.weights, update, rows)

    @cached_property
    def _distance(self) -> Distance:
        return self.distance_at(self._step.update)

    def _failures(self, distance: Distance) -> dict[str, float]:
        promise = self.request.promise
        if promise.paper:
            return {}
        planned = 1 if promise.series is None else promise.series.planned
        return due_failures(promise.delta, distance, averaged=promise.averaged, planned=planned)

    def _moments(self, step: Step, distance: Distance, failure: float | None, quick: bool) -> Moments:
        request = self.request
        return change_moments(
            request.head,
            request.weights,
            step.update,
            request.surrogate,
            failure=QUICK_FAILURE if quick and failure is not None else failure,
            heavy=distance.samples_rows and distance.law.moves_moments and not quick,
            slack=EIGENVALUE_SLACK if distance.law.uses_deviation else SAMPLING_SLACK,
            seed=self.seed,
            advance=silent if quick else self.progress,
        )

    def _residual_facts(self, step: Step, moments: Moments, sampling: float) -> dict[str, Fact]:
        request, record, weighted = self.request, self.request.record, self.request.surrogate.has_weights
        known, measured = record.provenance, asdict(moments)
        left = norm(self.retained_equation.residual(step.update)) if self.paper_step else step.residual
        facts = {
            "n_source": Fact(request.n_source, known),
            "n_forget": Fact(request.n_forget, "measured"),
            "n_surrogate": Fact(request.n_surrogate, "measured"),
            "l2": Fact(record.l2, known),
            "training_residual": self.training_residual(),
            "solver_residual": Fact(max(left, CHARGED * norm(request.forgotten)), "measured"),
            "rounding": self.rounding(step),
            **{name: Fact(value, "measured") for name, value in measured.items() if name not in WEIGHTED},
            "row_bound": Fact(record.row_bound, known),
            "directions": Fact(request.head.n_directions, "measured"),
            "sampling_failure": Fact(sampling, "derived"),
            "change_supremum": Fact(moments.change_supremum, "derived"),
        }
        if weighted:  # weights follow from the source's class counts, and are known no better than those
            facts["weight_largest"] = Fact(request.surrogate.largest_weight, known)
            facts |= {name: Fact(measured[name], known) for name in WEIGHTED}
        return facts

    @abstractmethod
    def training_residual(self) -> Fact:
        """How far training stopped from the optimum."""

    @abstractmethod
    def rounding(self, step: Step) -> Fact:
        """What float64 may hide of the equation's residual."""

    def _lost(self, step: Step, n_rows: int, forget_at: Array) -> Fact:
        """What float64 may hide of `n_rows` times the rows' change, and of the forget rows' gradient."""
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
        gradient = norm(request.head.gradient(request.weights, request.forget))
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


class SurrogateEvidence(RowsEvidence):
    """Rows that resemble the source, which is gone: the evidence the paper works with."""

    @property
    def retained_equation(self) -> Equation:
        request = self.request
        n_retain = request.n_source - request.n_forget
        return RetainedEquation(request.head, request.weights, request.forgotten, request.surrogate, n_retain)

    def training_residual(self) -> Fact:
        """Upper bound on the gradient's norm at training, as the model's record says it."""
        record = self.request.record
        assert record.residual is not None
        return Fact(record.residual, record.provenance)

    def rounding(self, step: Step) -> Fact:
        """The surrogate's change is evaluated at the weights before and after, the forget rows' gradient before."""
        request = self.request
        return self._lost(step, request.n_source - request.n_forget, request.weights)


class SourceEvidence(RowsEvidence):
    """The source itself, for those who still have it: nothing stands in for anything, as in the paper's Unlearn (+).

    The forget rows are among the rows given and are taken out: the sums over what is left are those over all, less
    theirs. So `a'(u)` with the retained rows themselves in the surrogate's place is `n (g_D(v) - g_D(w)) - m g_U(v)`,
    the paper's `a(u)`.
    """

    @property
    def retained_equation(self) -> Equation:
        request = self.request
        return SurrogateEquation(request.head, request.weights, request.forget, request.surrogate, request.n_source)

    def training_residual(self) -> Fact:
        """Upper bound on the gradient's norm on the rows given; refuses rows on which it was another at training."""
        request, record = self.request, self.request.record
        lost = request.head.rounding(request.weights, request.surrogate)
        measured = norm(request.head.gradient(request.weights, request.surrogate)) + lost
        known = record.provenance == "measured" and record.residual is not None
        if known and measured > (record.residual or 0.0) * (1 + 1e-6) + 2 * lost:
            raise DataError(
                f"on the rows given as the source the gradient has norm {measured:.3g}",
                f"at training it was {record.residual:.3g}",
                "These are not the rows the model was trained on; declare another distance.",
            )
        return Fact(measured, "measured")

    def rounding(self, step: Step) -> Fact:
        """The whole source's change is evaluated at the weights before and after, the forget rows' gradient after."""
        return self._lost(step, self.request.n_source, self.request.weights + step.update)


# Noise as for so many rows: rehearsed on surrogate rows, before anybody asks and whoever asks -----------------------
# Groups of that many surrogate rows are drawn at random; the one whose gradients together are longest is forgotten on
# trial, up to the noise, which is not drawn. The scale that it needs, with a margin and rounded up
# to a power of two, is the policy. Rows that ask to leave play no part in it, so the noise says nothing of them.

GROUPS = 64  # drawn, of which the one with the longest gradient is rehearsed
MARGIN = 1.5  # rows that ask may need more than those rehearsed with; rounding up adds to it
MOST_ROWS = 65_536  # of the surrogate, to draw from

Measure = Callable[..., Measurement]  # `mechanism.measure`


def set_noise(request: Request, measure: Measure, *, progress: Progress = silent, seed: int | None = None) -> Request:
    """The request with its noise a number, where it was to be as for so many rows; `measure` is the mechanism's."""
    asked = request.promise.noise
    if asked.kind != REHEARSAL:
        return request
    if request.distance.matched:
        raise OptionError(
            f"noise as for {asked.rows} rows, with matched classes",
            "the weights of surrogate rows follow from who leaves, so a rehearsal now would too",
            "Set the noise as a number before anybody asks: expunge plan recommends one, a desk rehearses when opened.",
        )
    scale = Scale(POLICY, rehearsed_scale(request, asked.rows, measure, progress=progress, seed=seed), asked.rows)
    return replace(request, promise=replace(request.promise, noise=scale))


def rehearsed_scale(
    request: Request, n_rows: int, measure: Measure, *, progress: Progress = silent, seed: int | None = None
) -> float:
    """The scale for forgetting that many rows from this model, whoever they are; `seed` fixes the draw for tests."""
    scale = scale_of(*rehearse(request, n_rows, measure, progress=progress, seed=seed))
    if scale is None:
        raise VacuousClaim(
            f"the bound for {n_rows:,} surrogate rows is infinite, or their noise is",
            "noise as for so many rows needs a finite one",
            "Rehearse with fewer rows, or use a larger surrogate.",
        )
    return scale


def rehearse(
    request: Request, n_rows: int, measure: Measure, *, progress: Progress = silent, seed: int | None = None
) -> tuple[Request, Measurement]:
    """A request to forget that many surrogate rows, measured as if it had been asked."""
    if 2 * n_rows > min(request.n_surrogate, request.n_source):
        raise DataError(
            f"noise as for {n_rows:,} rows, with {request.n_surrogate:,} surrogate rows and a source of "
            f"{request.n_source:,}",
            "a rehearsal forgets at most half of either",
            "Rehearse with fewer rows, or set the noise as a number.",
        )
    series = request.promise.series
    afresh = None if series is None else replace(series, past=None)
    promise = replace(request.promise, noise=EXACTLY, force=True, series=afresh)
    trial = replace(request, promise=promise, forget=_longest_group(request, n_rows, seed))
    return trial, measure(trial, progress=progress, seed=seed)


def scale_of(trial: Request, measured: Measurement) -> float | None:
    """The scale that a rehearsal recommends, at the request's epsilon and delta; None where there is none."""
    _, derived = foresee(trial, measured)
    scale = level_above(MARGIN * derived.required)
    return scale if scale <= LARGEST_SCALE else None


def _longest_group(request: Request, n_rows: int, seed: int | None) -> Rows:
    """The group of surrogate rows, out of `GROUPS` drawn, with the longest gradient: what is hardest to hide."""
    generator = np.random.default_rng(secrets.randbits(63) if seed is None else seed)
    if request.surrogate.n_mine != len(request.surrogate):
        raise DataError(
            f"noise as for {n_rows:,} rows, with a surrogate shared out among processes",
            "a rehearsal needs all its rows in one",
            "Rehearse in one process (expunge plan), then set the noise as the number it recommends.",
        )
    rows = evenly(request.surrogate, max(MOST_ROWS, n_rows))
    groups = []
    for _ in range(GROUPS):
        chosen = put(generator.permutation(len(rows))[:n_rows], rows.features)
        groups.append(Rows(double(rows.features[chosen]), rows.labels[chosen]))
    return max(groups, key=lambda group: norm(request.head.gradient(request.weights, group)))
