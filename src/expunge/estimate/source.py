"""The source as the model remembers it: sampled features, and how far the surrogate is from them.

    samples of exp(-E(x))            langevin.py, on a support that makes it a density
    KL(surrogate || source)          conditional part (conditional.py) + marginal part (donsker_varadhan.py)
    ||E_D phi_u - E_S phi_u||        means.py

Every number here is an estimate. It depends on the support, and a classifier is not trained to know its features'
density: docs/sharp-edges.md says what was found where the truth is known.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from expunge.data import prepare
from expunge.distance import Distance, Estimation
from expunge.distance.inequalities import tv_upper_from_kl
from expunge.errors import DataError, ModelError, OptionError
from expunge.estimate.conditional import ConditionalDivergence, conditional_divergence
from expunge.estimate.donsker_varadhan import DonskerVaradhanLower, donsker_varadhan
from expunge.estimate.langevin import Ball, Box, Diagnostics, LinearEnergy, Support, Target, Whitened, langevin
from expunge.estimate.means import MeansDifference, means_difference
from expunge.estimate.origin import Origin, origin_of
from expunge.heads import LinearHead, Rows
from expunge.record import TrainingRecord
from expunge.runtime.budget import NO_LIMIT, Budget
from expunge.runtime.memory import memory_limit
from expunge.runtime.progress import Progress, silent

PAPER_STEP = 0.02
UPPER = 1.6449  # standard errors added before a KL enters a bound: 95 % one-sided
LEAST_ACCEPTANCE = 0.05


@dataclass(frozen=True)
class SampledSource:
    """Rows drawn from the density the model implies on a support, in the form the objective takes."""

    rows: Rows
    n_features: int
    diagnostics: Diagnostics
    support: str
    step_size: float
    steps: int

    @property
    def features(self) -> Tensor:
        """Without the constant feature of a bias."""
        return self.rows.features[:, : self.n_features]


@dataclass(frozen=True)
class KullbackLeiblerEstimate:
    """KL(surrogate || sampled source) = conditional + marginal.

    Infinite where one part is, or where rows cannot tell.
    """

    conditional: ConditionalDivergence
    marginal: DonskerVaradhanLower

    @property
    def raw(self) -> float:
        return self.conditional.value + min(self.marginal.raw, self.marginal.ceiling)

    @property
    def value(self) -> float:
        """Negative estimates become 0."""
        return max(0.0, self.raw)

    @property
    def standard_error(self) -> float:
        return math.hypot(self.conditional.standard_error, self.marginal.standard_error)

    @property
    def upper(self) -> float:
        """What enters a bound: the value plus 1.64 standard errors; infinite where the marginal part is saturated.

        A value below 0 is a poor fit, not a distance below 0: the standard errors are added to 0.
        """
        if self.marginal.saturated or math.isinf(self.raw):
            return math.inf
        return self.value + UPPER * self.standard_error

    @property
    def tv_upper(self) -> float:
        """Total variation by Pinsker or Bretagnolle and Huber, of `upper`."""
        return tv_upper_from_kl(self.upper)


@dataclass(frozen=True)
class SourceEstimate:
    """What was estimated, of what, and the distance it gives for an update.

    Made by `estimate_source`, or by `compare`; `saved.py` writes it to a file and reads it back.
    """

    wanted: Estimation
    sampled: SampledSource
    kl: KullbackLeiblerEstimate | None
    origin: Origin

    def belonging_to(
        self, weights: Tensor, record: TrainingRecord, surrogate: Rows, wanted: Estimation
    ) -> SourceEstimate:
        """The estimate for use with this model and surrogate, on their device; refused where it was made of others.

        Samples belong to the model. The KL belongs to the surrogate too, and is left out where the route does not use
        it. `wanted` may differ from the estimate's own in what its use adds: route, sampling,
        matched.
        """
        origin = origin_of(weights, record, surrogate)
        for name in ("weights", "encoder", "max_norm", "bias"):
            made_of, at_hand = getattr(self.origin, name), getattr(origin, name)
            if made_of != at_hand:
                raise ModelError(
                    f"the estimate was made of another model ({name} {_short(made_of)})",
                    f"samples of one model say nothing of another, and here it is {_short(at_hand)}",
                    "Estimate again, of this model: expunge distance --out.",
                )
        kl = self.kl if wanted.route == "kl" else None
        if wanted.route == "kl" and (kl is None or self.origin.surrogate != origin.surrogate):
            raise DataError(
                "the estimate has no KL" if kl is None else "the estimate's KL is that of another surrogate",
                "the KL enters this bound, and it is between the surrogate at hand (rows, labels, class weights, "
                "float64) and the source",
                "Estimate again, with this surrogate, the same --match-classes and with it the same --forget: expunge "
                "distance --out.",
            )
        rows = self.sampled.rows
        moved = replace(rows, features=rows.features.to(weights.device), labels=rows.labels.to(weights.device))
        return SourceEstimate(wanted, replace(self.sampled, rows=moved), kl, origin)

    def means(self, objective: LinearHead, weights: Tensor, update: Tensor, surrogate: Rows) -> MeansDifference:
        """The difference of means at this update."""
        return means_difference(objective, weights, update, self.sampled.rows, surrogate, seed=self.wanted.seed)

    def distance(self, objective: LinearHead, weights: Tensor, update: Tensor, surrogate: Rows) -> Distance:
        """The distance that enters the bound, by the route that was asked for."""
        if self.wanted.route == "kl":
            assert self.kl is not None
            kind, value = "tv", self.kl.tv_upper
        else:
            kind, value = "means", self.means(objective, weights, update, surrogate).upper
        return Distance(kind, value, provenance="estimated", sampling=self.wanted.sampling, matched=self.wanted.matched)

    def evidence(self) -> dict[str, Any]:
        """For the certificate: how the number came about, in JSON's terms (null for infinite)."""
        wanted = {
            name: value
            for name, value in asdict(self.wanted).items()
            if name not in ("mean", "covariance", "sampling", "matched", "box")
        }
        stated: dict[str, Any] = wanted | {
            "support": self.sampled.support,
            "step_size": self.sampled.step_size,
            "diagnostics": asdict(self.sampled.diagnostics) | {"converged": self.sampled.diagnostics.converged},
        }
        if self.kl is not None:
            stated |= {
                "conditional": asdict(self.kl.conditional),
                "marginal_lower": asdict(self.kl.marginal) | {"saturated": self.kl.marginal.saturated},
                "kl": {"raw": self.kl.raw, "standard_error": self.kl.standard_error, "upper": self.kl.upper},
            }
        finite: dict[str, Any] = _finite(stated)
        return finite


def _short(value: Any) -> str:
    return f"{value[:16]}..." if isinstance(value, str) else "none" if value is None else str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def estimate_source(
    objective: LinearHead,
    weights: Tensor,
    record: TrainingRecord,
    surrogate: Rows,
    wanted: Estimation,
    *,
    progress: Progress = silent,
) -> SourceEstimate:
    """Sample the source, and estimate the KL where the route needs it."""
    sampled = sample_source(weights, record, surrogate, wanted, progress=progress)
    kl = None
    if wanted.route == "kl":
        kl = KullbackLeiblerEstimate(
            conditional_divergence(objective, weights, surrogate, seed=wanted.seed, progress=progress),
            marginal_divergence(surrogate, sampled.features, wanted, progress=progress),
        )
    return SourceEstimate(wanted, sampled, kl, origin_of(weights, record, surrogate))


def require_converged(sampled: SampledSource) -> None:
    """Refuse chains that are still on their way."""
    diagnostics = sampled.diagnostics
    if not diagnostics.converged:
        raise DataError(
            f"the chains have not converged (split R-hat {diagnostics.r_hat:.3f}, "
            f"drift of norms {diagnostics.drift:+.2f} standard deviations)",
            "R-hat up to 1.1 and a drift within 1 are needed before samples can stand for the source",
            "Use more --steps (steps=), another --step-size (step_size=) or another --support (support=).",
        )


def marginal_divergence(
    surrogate: Rows,
    source_features: Tensor,
    wanted: Estimation,
    *,
    budget: Budget = NO_LIMIT,
    folds: list[float] | None = None,
    progress: Progress = silent,
) -> DonskerVaradhanLower:
    """KL of the surrogate's features relative to the source's, from samples of the latter (or real ones)."""
    return donsker_varadhan(
        surrogate.features[:, : source_features.shape[1]],
        source_features,
        weights=surrogate.weights,
        epochs=wanted.epochs,
        seed=wanted.seed,
        budget=budget,
        folds=folds,
        progress=progress,
    )


def sample_source(
    weights: Tensor,
    record: TrainingRecord,
    surrogate: Rows,
    wanted: Estimation,
    *,
    budget: Budget = NO_LIMIT,
    progress: Progress = silent,
) -> SampledSource:
    """Langevin samples on the support that was asked for; rows longer than max_norm are scaled to it, as everywhere."""
    width = weights.shape[1] - int(record.bias)
    if wanted.chains * width * 64 > memory_limit():
        raise OptionError(
            f"{wanted.chains:,} chains of {width:,} features",
            "they must fit into memory",
            "Use fewer --chains (chains=).",
        )
    begun = _beginning(weights, record, surrogate, wanted)
    step = wanted.step_size if wanted.step_size is not None else _default_step(wanted, begun.variance, width)
    if step > begun.variance:
        raise OptionError(
            f"step size {step:g}",
            f"on this support a feature has the variance {begun.variance:.3g}; steps above it jump about at random",
            f"Use {PAPER_STEP * begun.variance:.3g}, or leave --step-size (step_size) out.",
        )
    drawn = langevin(
        begun.target,
        begun.start,
        n_steps=wanted.steps,
        step=step,
        support=begun.support,
        metropolis=wanted.metropolis,
        seed=wanted.seed + 1,
        budget=budget,
        progress=progress,
    )
    if drawn.diagnostics.acceptance < LEAST_ACCEPTANCE:
        raise DataError(
            f"Metropolis' rule accepted {100 * drawn.diagnostics.acceptance:.1f} % of the steps",
            f"at least {100 * LEAST_ACCEPTANCE:g} % are needed for the chains to move",
            f"Use a --step-size (step_size=) well below {step:.3g}.",
        )
    points = begun.target.features(drawn.points) if isinstance(begun.target, Whitened) else drawn.points
    prepared = prepare(
        points,
        torch.zeros(len(points), dtype=torch.int64),
        max_norm=record.max_norm,
        bias=record.bias,
        dtype=torch.float64,
        device=weights.device,
        name="the sampled features",
    )
    return SampledSource(prepared.rows, width, drawn.diagnostics, begun.words, step, drawn.steps)


@dataclass(frozen=True)
class _Beginning:
    """What chains sample and where they start; `variance` is the support's for one feature, `words` describe it."""

    target: Target
    support: Support | None
    start: Tensor
    variance: float
    words: str


def _beginning(weights: Tensor, record: TrainingRecord, surrogate: Rows, wanted: Estimation) -> _Beginning:
    width = weights.shape[1] - int(record.bias)
    dtype = torch.float64 if wanted.metropolis else torch.float32
    energy = LinearEnergy(weights[:, :width].to(dtype), weights[:, width].to(dtype) if record.bias else None)
    generator = torch.Generator(device=weights.device).manual_seed(wanted.seed)
    shape = (wanted.chains, width)
    if wanted.support == "gaussian":
        mean, root, origin = _reference(surrogate, width, wanted, dtype)
        start = torch.randn(shape, generator=generator, dtype=dtype, device=weights.device)
        words = f"Gaussian reference with {origin}; steps in its whitened coordinates"
        return _Beginning(Whitened(energy, mean, root), None, start, 1.0, words)
    if wanted.support == "box":
        half = record.max_norm if wanted.box is None else wanted.box
        start = (torch.rand(shape, generator=generator, dtype=dtype, device=weights.device) * 2 - 1) * half
        words = f"box from {-half:g} to {half:g} in every feature, by reflection"
        return _Beginning(energy, Box(-half, half), start, half**2 / 3.0, words)
    projected = wanted.support == "projected-ball"
    start = torch.randn(shape, generator=generator, dtype=dtype, device=weights.device)
    radius = torch.rand((wanted.chains, 1), generator=generator, dtype=dtype, device=weights.device) ** (1 / width)
    start = start / start.norm(dim=1, keepdim=True) * radius * record.max_norm
    words = f"ball of radius {record.max_norm:g}, by {'projection' if projected else 'reflection'}"
    support = Ball(record.max_norm, project=projected)
    return _Beginning(energy, support, start, record.max_norm**2 / (width + 2), words)


def _default_step(wanted: Estimation, variance: float, width: int) -> float:
    """The paper's step in units of the support's variance per feature.

    Metropolis' rule rejects what leaves the support, and in a ball or box of many dimensions nearly all the volume lies
    at the edge: there the step shrinks with the dimension.
    """
    if wanted.metropolis and wanted.support != "gaussian":
        return variance * min(PAPER_STEP, 1.0 / width)
    return variance * PAPER_STEP


def _reference(surrogate: Rows, width: int, wanted: Estimation, dtype: torch.dtype) -> tuple[Tensor, Tensor, str]:
    """Mean and a root of the covariance of the Gaussian reference, and where they come from."""
    device = surrogate.features.device
    if wanted.mean is not None and wanted.covariance is not None:
        mean = torch.from_numpy(np.array(wanted.mean, dtype=np.float64)).to(device)
        covariance = torch.from_numpy(np.array(wanted.covariance, dtype=np.float64)).to(device)
        if mean.shape != (width,) or covariance.shape != (width, width):
            raise OptionError(
                f"a Gaussian reference of shapes {tuple(mean.shape)} and {tuple(covariance.shape)}",
                f"the model has {width} features",
                "Give a mean of that length and a square covariance.",
            )
        origin = "the moments given"
    else:
        features = surrogate.features[:, :width].double()
        each = torch.ones(len(surrogate), dtype=torch.float64, device=device)
        if surrogate.weights is not None:
            each = surrogate.weights
        # centred at a row first, so that a feature that does not vary has exactly its value as mean and no variance
        away = features - features[0]
        shift = (each[:, None] * away).mean(dim=0)
        mean = features[0] + shift
        covariance = (away * each[:, None]).T @ away / len(surrogate) - torch.outer(shift, shift)
        origin = "the surrogate's own moments"
    values, vectors = torch.linalg.eigh((covariance + covariance.T) / 2)
    if not bool(torch.isfinite(values).all()) or float(values.min()) < -1e-8 * max(float(values.max()), 1e-300):
        raise OptionError(
            "the Gaussian reference's covariance is not positive semi-definite",
            "a covariance is needed",
            "Check how it was computed.",
        )
    root = vectors * values.clamp(min=0.0).sqrt()
    root[covariance.diagonal() == 0.0] = 0.0  # a feature that does not vary is not to vary by rounding
    return mean.to(dtype), root.to(dtype), origin
