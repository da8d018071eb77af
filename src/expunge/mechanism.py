"""Unlearning without the source: the paper's Algorithm 1, with a bound that holds. Read this file first.

    request -> measure -> step -> bound -> noise -> model and certificate

Each stage is a frozen value built only from earlier ones, and none has a field for the source.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from expunge.bounds import residual_bound
from expunge.bounds.error_bound import ROUND_UP
from expunge.certificate.content import Certificate, build
from expunge.certificate.derive import Derived, beyond_closed_form, derive
from expunge.certificate.facts import Claim, Fact, Json, residual_facts
from expunge.data.streams import Stream
from expunge.distance import Distance
from expunge.errors import DataError, ExpungeError, ModelError, VacuousClaim
from expunge.estimate.source import SourceEstimate, estimate_source, require_converged
from expunge.evidence.moments import Moments, change_moments
from expunge.heads.rows import in_memory
from expunge.issuing import (
    described_sizes,
    described_step,
    facts_of_step,
    failures_for,
    generator_named,
    issued_with,
    record_after,
    refuse_unsound,
    with_noise,
)
from expunge.model import LinearModel, from_matrix
from expunge.request.door import Request, make_request
from expunge.request.series import spread_failures
from expunge.runtime.group import ALONE, Group
from expunge.runtime.progress import Progress, silent
from expunge.solve.equation import SurrogateEquation
from expunge.solve.lanczos import EIGENVALUE_SLACK, SAMPLING_SLACK
from expunge.solve.newton import newton_step
from expunge.solve.outcome import Step
from expunge.train import residual_upper

QUICK_FAILURE = 0.5  # of Lanczos, where it only ranks candidates
MAX_PULLS = 16
ESTIMATE = "an estimated distance"
NO_UPDATE = "no update was made: with this surrogate every update had a larger bound, so the noise alone covers the forgotten rows"


@dataclass(frozen=True)
class Measured:
    """The step, and every number the bound needs. Private: `step.update` is the model before noise.

    `distance` is the declared one, or what was estimated for this step, with the evidence in `estimate`.
    """

    step: Step
    facts: dict[str, Fact]
    failures: dict[str, float]
    distance: Distance
    estimate: Json | None = None


@dataclass(frozen=True)
class Unlearned:
    """What may be published: the noised model and its certificate."""

    model: LinearModel
    certificate: Certificate


def unlearn(
    model: LinearModel | Any,
    forget: tuple[Any, Any],
    surrogate: tuple[Any, Any] | Stream | Any,
    *,
    progress: Progress = silent,
    insecure_test_seed: int | None = None,
    **options: Any,
) -> Unlearned:
    """Remove the forget rows from a model whose source is gone; see `make_request` for the options.

    `model` is a LinearModel, or a K x d weight array with `bias`, `n_source`, `l2`, `loss`, `max_norm` and
    `training_residual` given as options. `forget` and `surrogate` are (features, labels), or streams; the surrogate's labels
    may be left out. Nothing the caller passes is changed. `insecure_test_seed` makes the noise reproducible, hence worthless.
    """
    found = unlearn_in_group(
        model, forget, surrogate, progress=progress, insecure_test_seed=insecure_test_seed, **options
    )
    assert found is not None
    return found


def unlearn_in_group(
    model: LinearModel | Any,
    forget: tuple[Any, Any],
    surrogate: tuple[Any, Any] | Stream | Any,
    *,
    group: Group = ALONE,
    progress: Progress = silent,
    insecure_test_seed: int | None = None,
    **options: Any,
) -> Unlearned | None:
    """The same in each process of a group; None but in the first, which alone draws noise and has something to publish."""
    request = make_request(model, forget, surrogate, group=group, progress=progress, **options)
    measured = measure(request, progress=progress, seed=insecure_test_seed)
    result, refusal = None, None
    if group.first:
        try:
            result = certify(request, measured, insecure_test_seed=insecure_test_seed)
        except ExpungeError as error:
            refusal = error
    group.total(torch.ones(1))  # nothing is handed over unless every process came to the end
    if refusal is not None:
        raise refusal
    return result


def measure(request: Request, *, progress: Progress = silent, seed: int | None = None) -> Measured:
    """The step, and what the bound needs to know of it."""
    # the paper's appendix weights the surrogate's Hessian by its own size; everything else by the source's
    n = request.n_surrogate if request.bound == "paper" and request.sizes == "surrogate" else request.n_source
    problem = SurrogateEquation(request.objective, request.weights, request.forget, request.surrogate, n)
    gauge = _gauge(request, progress)
    if request.step == "balanced":
        step = balanced_step(request, problem, gauge, progress=progress, seed=seed)
    else:
        step = newton_step(problem, single=request.step == "newton", progress=progress)
    distance = gauge.at(step.update)
    if request.bound == "paper":
        if not step.positive_definite:
            raise VacuousClaim(
                "n H_S - m H_U is not positive definite",
                "the paper's bound is for the undamped Newton step",
                "Use --bound residual, which covers any update.",
            )
        return Measured(step, _paper_facts(request, distance), {}, distance, gauge.evidence())
    failures = _request_failures(request, distance)
    heavy = distance.samples_rows and distance.kind not in ("same", "means")
    moments = _moments(request, step, distance, failures.get("eigenvalue"), heavy, seed, progress)
    facts = _residual_facts(request, step, moments, failures.get("sampling", 0.0))
    return Measured(step, facts, failures, distance, gauge.evidence())


@dataclass(frozen=True)
class Gauge:
    """How far the surrogate is from the source, for an update: the same for all where it was declared."""

    request: Request
    estimate: SourceEstimate | None

    def at(self, update: torch.Tensor) -> Distance:
        request = self.request
        if isinstance(request.distance, Distance):
            return request.distance
        assert self.estimate is not None
        return self.estimate.distance(
            request.objective, request.weights, update, in_memory(request.surrogate, ESTIMATE)
        )

    def evidence(self) -> Json | None:
        return None if self.estimate is None else self.estimate.evidence()


def _gauge(request: Request, progress: Progress) -> Gauge:
    if isinstance(request.distance, Distance):
        return Gauge(request, None)
    rows = in_memory(request.surrogate, ESTIMATE)
    if request.made_earlier is not None:
        estimate = request.made_earlier.belonging_to(request.weights, request.record, rows, request.distance)
    else:
        estimate = estimate_source(
            request.objective, request.weights, request.record, rows, request.distance, progress=progress
        )
    require_converged(estimate.sampled)
    return Gauge(request, estimate)


def balanced_step(
    request: Request, problem: SurrogateEquation, gauge: Gauge, *, progress: Progress = silent, seed: int | None = None
) -> Step:
    """The update with the smallest bound found among those held back by a pull toward 0.

    A longer update leaves less of the forgotten gradient (solver term) but relies more on the surrogate (surrogate and
    sampling terms). Pulls grow fourfold from l2; the search ends when the bound has risen twice, or is no better than
    for no update at all. Ranking needs no guarantee: the bound of the update chosen is computed anew afterwards.
    """

    def estimate(step: Step) -> float:
        distance = gauge.at(step.update)
        failures = _request_failures(request, distance)
        quick = None if "eigenvalue" not in failures else QUICK_FAILURE
        moments = _moments(request, step, distance, quick, False, seed, silent)
        facts = _residual_facts(request, step, moments, failures.get("sampling", 0.0))
        return residual_bound(residual_facts(facts), distance).total

    best = newton_step(problem, single=False, progress=progress)
    none = replace(best, update=torch.zeros_like(best.update), residual=best.residual_at_start, pull=math.inf)
    smallest, rises, pull = estimate(best), 0, request.record.l2
    for tried in range(MAX_PULLS):
        progress("Balancing the step", tried, None)
        step = newton_step(problem, single=False, pull=pull)
        found = estimate(step)
        rises = rises + 1 if found >= smallest else 0
        if found < smallest:
            best, smallest = step, found
        if rises == 2:
            break
        pull *= 4.0
    return none if estimate(none) <= smallest else best


def certify(request: Request, measured: Measured, *, insecure_test_seed: int | None = None) -> Unlearned:
    """Bound, noise, model, certificate; refuses a claim that says nothing and a model that is of no use."""
    claim = _claim(request, measured, generator_named(insecure_test_seed))
    derived = derive(claim)
    refuse_unsound(claim, derived, request.weights, request.force)
    noised = with_noise(request.weights + measured.step.update, derived, insecure_test_seed)
    published = from_matrix(noised, bias=request.record.bias, dtype=request.published_dtype)
    if not bool(torch.isfinite(published.matrix()).all()):
        raise ModelError(
            f"with noise of {derived.sigma:.3g} a weight leaves the range of {request.published_dtype}",
            "published weights must be finite",
            "Store the model in float32 or float64.",
        )
    published = published.with_record(record_after(request.record, request.forget.labels))
    return Unlearned(published, _certificate(request, measured, claim, derived, published))


def foresee(request: Request, measured: Measured) -> tuple[Claim, Derived]:
    """What `certify` would claim and derive, without drawing noise or refusing."""
    claim = _claim(request, measured, generator_named(None))
    return claim, derive(claim)


def _moments(
    request: Request,
    step: Step,
    distance: Distance,
    failure: float | None,
    heavy: bool,
    seed: int | None,
    progress: Progress,
) -> Moments:
    return change_moments(
        request.objective,
        request.weights,
        step.update,
        request.surrogate,
        failure=failure,
        heavy=heavy,
        slack=EIGENVALUE_SLACK if distance.kind in ("chi2", "kl") else SAMPLING_SLACK,
        seed=seed,
        advance=progress,
    )


# The facts of the bound -----------------------------------------------------------------------------------------


def _request_failures(request: Request, distance: Distance) -> dict[str, float]:
    failures = failures_for(distance, request.budget.delta)
    return failures if request.series is None else spread_failures(failures, request.series.planned)


def _training_residual(request: Request) -> Fact:
    record = request.record
    if request.distance.kind != "source":
        assert record.residual is not None
        carried = None if request.series is None else request.series.carried
        return Fact(record.residual, carried or record.provenance)
    measured = residual_upper(request.objective, request.weights, request.surrogate)
    slack = 2 * request.objective.rounding(request.weights, request.surrogate)
    if (
        record.provenance == "measured"
        and record.residual is not None
        and measured > record.residual * (1 + 1e-6) + slack
    ):
        raise DataError(
            f"on the rows given as the source the gradient has norm {measured:.3g}",
            f"at training it was {record.residual:.3g}",
            "These are not the rows the model was trained on; declare another distance.",
        )
    return Fact(measured, "measured")


def _residual_facts(request: Request, step: Step, moments: Moments, sampling: float) -> dict[str, Fact]:
    known = request.record.provenance
    objective, updated = request.objective, request.weights + step.update
    # the change over the surrogate is evaluated at the weights before and after, the forget set's gradient after
    rounding = request.n_source * objective.rounding(request.weights, request.surrogate)
    rounding += request.n_source * objective.rounding(updated, request.surrogate)
    rounding += request.n_forget * objective.rounding(updated, request.forget)
    facts = facts_of_step(
        request.record,
        n_source=request.n_source,
        n_forget=request.n_forget,
        n_surrogate=request.n_surrogate,
        training=_training_residual(request),
        rounding=Fact(rounding, "derived"),
        step=step,
        moments=moments,
        sampling=sampling,
    )
    if request.surrogate.has_weights:
        facts |= {
            # weights follow from the source's class counts, and are known no better than those
            "weight_largest": Fact(request.surrogate.largest_weight, known),
            "sampled_trace": Fact(moments.sampled_trace, known),
            "sampled_eigenvalue": Fact(moments.sampled_eigenvalue_upper, known),
            "sampled_largest": Fact(moments.sampled_largest, known),
        }
    return facts


def _paper_facts(request: Request, distance: Distance) -> dict[str, Fact]:
    constants = request.constants
    assert constants is not None
    gradient = float(request.objective.gradient(request.weights, request.forget).norm())
    known = request.record.provenance
    return {
        "n_source": Fact(request.n_source, known),
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


def _claim(request: Request, measured: Measured, generator: str) -> Claim:
    return Claim(
        epsilon=request.budget.epsilon,
        delta=request.budget.delta,
        bound=request.bound,
        facts=measured.facts,
        distance=measured.distance,
        failures=measured.failures,
        n_parameters=request.objective.n_parameters,
        generator=generator,
        convention=request.sizes,
        tuned=request.bound == "paper" and beyond_closed_form(measured.facts, request.objective.constants(0.0)),
    )


# The next of a series -------------------------------------------------------------------------------------------


def handed_on(request: Request, measured: Measured) -> LinearModel:
    """PRIVATE: the un-noised weights v, with `n - m` rows and `G = l2 Delta` (less the grid term) for a training residual."""
    bound = residual_bound(residual_facts(measured.facts), measured.distance)
    updated = (request.weights + measured.step.update).cpu()
    record = replace(
        record_after(request.record, request.forget.labels),
        noised=False,
        residual=request.record.l2 * bound.total * ROUND_UP,
    )
    return from_matrix(updated, bias=record.bias, dtype=torch.float64).with_record(record)


# Handing over ---------------------------------------------------------------------------------------------------


def _certificate(
    request: Request, measured: Measured, claim: Claim, derived: Derived, published: LinearModel
) -> Certificate:
    record, step = request.record, measured.step
    model: Json = {
        "before": {"sha256": request.model_sha256},
        "after": {"sha256": published.sha256()},
        "loss": record.loss,
        "l2": record.l2,
        "max_norm": record.max_norm,
        "row_bound": record.row_bound,
        "bias": record.bias,
        "dtype": str(request.published_dtype).removeprefix("torch."),
        "record": record.provenance,
    }
    if record.encoder is not None:
        model["encoder"] = record.encoder
    return build(
        claim,
        derived,
        model=model,
        sizes=described_sizes(
            n_source=request.n_source,
            n_forget=request.n_forget,
            n_surrogate=request.n_surrogate,
            parameters=request.objective.n_parameters,
            classes=request.objective.n_classes,
            features=request.model.n_features,
        ),
        step=described_step(step, request.step),
        data={
            "rows_scaled_to_max_norm": request.scaled,
            "surrogate_dtype": str(request.surrogate.dtype).removeprefix("torch."),
            "effective_surrogate_rows": request.surrogate.effective,
        }
        | ({"class_counts": list(record.class_counts or ())} if measured.distance.matched else {})
        | ({} if request.series is None else {"sequence": request.series.described()}),
        estimate=measured.estimate,
        notes=request.notes + (() if math.isfinite(step.pull) else (NO_UPDATE,)),
        **issued_with(),
    )
