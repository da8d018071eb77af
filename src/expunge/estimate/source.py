"""The source as the model remembers it: sampled features, how far the surrogate is from them, and the file of both.

The KL between surrogate and source is that of labels given features plus that of features (the paper's Proposition
4.5). The first is cross-fitted, the second Donsker and Varadhan's; what the residual bound really needs, the difference
of means `||E_R phi_u - E_S phi_u||`, is measured directly, with samples standing for the retained rows.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from expunge.distance import Distance, Estimation, tv_upper_from_kl
from expunge.errors import DataError, FileError, ModelError, OptionError
from expunge.estimate.donsker_varadhan import DonskerVaradhanLower, donsker_varadhan, rows_as_tensors, tensor
from expunge.estimate.langevin import Diagnostics, LinearEnergy, langevin
from expunge.heads import LinearHead, Rows
from expunge.record import TrainingRecord
from expunge.rows import bound_rows
from expunge.rows.arrays import DAMAGE, Array, damage_error, read_npz
from expunge.rows.features import row_norms
from expunge.runtime.arrays import Array as Either
from expunge.runtime.arrays import to_numpy
from expunge.runtime.files import readable
from expunge.runtime.memory import memory_limit
from expunge.runtime.progress import Progress, silent
from expunge.runtime.strict_json import read_as, read_json
from expunge.train import minimise

FOLDS = 5
TOLERANCE = 1e-6  # gradient norm of a fold's model: far below what its rows' randomness moves it by
DRAWS, DRAW_BLOCK = 400, 64  # of the bootstrap, and how many at once
CONFIDENCE = 0.95
BOOTSTRAP_ROWS = 8192  # of one set: enough to learn how its mean varies
PAPER_STEP = 0.02
FEWEST_SAMPLES = 100.0  # effective ones
UPPER = 1.6449  # standard errors added before a KL enters a bound: 95 % one-sided
SCHEMA = "expunge/estimate/1"
MOMENTS = ("mean", "covariance")


@dataclass(frozen=True)
class ConditionalDivergence:
    """Mean log ratio and its standard error.

    Neither an upper nor a lower bound on the KL of the conditionals: p_S falls short of the surrogate's own conditional
    (too small), and p_D stands for the source's, which it only approximates (either way).
    """

    value: float
    standard_error: float
    folds: int
    n_rows: int


def conditional_divergence(
    objective: LinearHead,
    weights: Either,
    surrogate: Rows,
    *,
    seed: int = 0,
    progress: Progress = silent,
) -> ConditionalDivergence:
    """Mean over surrogate rows of `log p_S(y|x) - log p_D(y|x)`; only for losses that are minus a log probability.

    p_D is the trained model's probability, p_S that of a model of the same kind trained on the surrogate. Cross-fitted:
    each row is judged by a surrogate model that was trained on the other folds.
    """
    rows = len(surrogate)
    if rows < 2 * FOLDS:
        raise DataError(f"{rows} surrogate rows for {FOLDS} folds", "two rows a fold are needed", "Add surrogate rows.")
    weights, surrogate = tensor(weights), rows_as_tensors(surrogate)
    generator = torch.Generator().manual_seed(seed)
    fold = (torch.randperm(rows, generator=generator) % FOLDS).to(surrogate.features.device)
    judged: list[Tensor] = []
    start = None
    for index in range(FOLDS):
        progress("Models on the surrogate", index, FOLDS)
        held = fold == index
        start = minimise(objective, select_rows(surrogate, ~held), start=start, tolerance=TOLERANCE)
        features, labels = surrogate.features[held].double(), surrogate.labels[held]
        ratios = objective.losses(features @ weights.T, labels) - objective.losses(features @ start.T, labels)
        each = torch.ones_like(ratios) if surrogate.weights is None else surrogate.weights[held]
        judged.append(torch.stack([ratios, each]))
    progress("Models on the surrogate", FOLDS, FOLDS)
    ratios, each = torch.cat(judged, dim=1)
    rows = len(ratios)
    if not bool(torch.isfinite(ratios).all()):
        raise DataError(
            "a log ratio of the two models' probabilities is not a number",
            "finite logits are needed",
            "Check the model's weights; values this large are not from training.",
        )
    each = each / each.mean()
    mean = float((each * ratios).mean())
    error = float((each * (ratios - mean)).square().sum().sqrt()) / rows
    return ConditionalDivergence(mean, error, len(judged), rows)


def select_rows(rows: Rows, chosen: Either) -> Rows:
    """Some of the rows, their weights brought back to mean 1."""
    weights = None if rows.weights is None else rows.weights[chosen] / rows.weights[chosen].mean()
    return replace(rows, features=rows.features[chosen], labels=rows.labels[chosen], weights=weights)


@dataclass(frozen=True)
class MeansDifference:
    """The difference of means as found, and its upper confidence value.

    It speaks of the samples' own distribution. Whether that is the source's nobody knows, so this bounds nothing.
    """

    value: float
    upper: float


def means_difference(
    objective: LinearHead,
    weights: Either,
    update: Either,
    samples: Rows,
    surrogate: Rows,
    *,
    seed: int = 0,
) -> MeansDifference:
    """`||mean over samples - mean over surrogate||` of phi_update; the upper value is the bootstrap's."""
    weights, update = tensor(weights), tensor(update)
    samples, surrogate = rows_as_tensors(samples), rows_as_tensors(surrogate)
    generator = torch.Generator(device=weights.device).manual_seed(seed)
    difference = objective.change_mean(weights, update, samples) - objective.change_mean(weights, update, surrogate)
    moved = difference.reshape(1, -1) + _fluctuations(objective, weights, update, samples, DRAWS, generator)
    moved -= _fluctuations(objective, weights, update, surrogate, DRAWS, generator)
    value = float(difference.norm())
    return MeansDifference(value, max(value, float(torch.quantile(moved.norm(dim=1), CONFIDENCE))))


def _fluctuations(
    objective: LinearHead, weights: Tensor, update: Tensor, rows: Rows, draws: int, generator: torch.Generator
) -> Tensor:
    """Draws x p: what the rows' mean of f would differ by, `sum g_i w_i (f_i - c) / sqrt(r s)` over r of the s rows."""
    used = min(len(rows), BOOTSTRAP_ROWS)
    chosen = torch.randperm(len(rows), generator=generator, device=weights.device)[:used]
    features = rows.features[chosen].double()
    each = torch.ones_like(features[:, 0]) if rows.weights is None else rows.weights[chosen]
    changes = objective.change(weights, update, features)
    centre = objective.change_mean(weights, update, rows)
    parts = []
    for start in range(0, draws, DRAW_BLOCK):
        count = min(DRAW_BLOCK, draws - start)
        multipliers = torch.randn((count, used), generator=generator, dtype=torch.float64, device=weights.device) * each
        by_class = [(multipliers * changes[:, index]) @ features for index in range(objective.n_classes)]
        total = torch.stack(by_class, dim=1) - multipliers.sum(dim=1)[:, None, None] * centre
        parts.append(total.reshape(count, -1) / math.sqrt(used * len(rows)))
    return torch.cat(parts)


@dataclass(frozen=True)
class Origin:
    """Digests of the weights (bias column included) and of the surrogate as used, and the features' own facts."""

    weights: str
    surrogate: str
    encoder: str | None
    max_norm: float
    bias: bool


def origin_of(weights: Either, record: TrainingRecord, surrogate: Rows) -> Origin:
    """The origin of an estimate made of these; digests are SHA-256 over dtype, shape and bytes of each array."""

    def digest_of(*arrays: Either) -> str:
        digest = hashlib.sha256()
        for array in arrays:
            plain = to_numpy(array)
            digest.update(f"{plain.dtype} {plain.shape}\n".encode() + plain.tobytes())
        return digest.hexdigest()

    rows = [each for each in (surrogate.features, surrogate.labels, surrogate.weights) if each is not None]
    return Origin(digest_of(weights), digest_of(*rows), record.encoder, record.max_norm, record.bias)


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
        """The drawn rows' features, without the constant one of a bias."""
        return self.rows.features[:, : self.n_features]


@dataclass(frozen=True)
class KullbackLeiblerEstimate:
    """KL(surrogate || sampled source) = conditional + marginal."""

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
        if self.marginal.saturated:
            return math.inf
        return self.value + UPPER * self.standard_error

    @property
    def tv_upper(self) -> float:
        """Total variation by Pinsker or Bretagnolle and Huber, of `upper`."""
        return tv_upper_from_kl(self.upper)


@dataclass(frozen=True)
class SourceEstimate:
    """What was estimated, of what, and the distance it gives for an update.

    Made by `estimate_source`, or by `compare`; `estimate_bytes` writes it to a file, `read_estimate` reads it back.
    """

    wanted: Estimation
    sampled: SampledSource
    kl: KullbackLeiblerEstimate | None
    origin: Origin

    def belonging_to(
        self, weights: Either, record: TrainingRecord, surrogate: Rows, wanted: Estimation
    ) -> SourceEstimate:
        """The estimate for use with this model and surrogate, on their device; refused where it was made of others.

        Samples belong to the model. The KL belongs to the surrogate too, and is left out where the route does not use
        it. `wanted` may differ from the estimate's own in what its use adds: route, sampling, matched.
        """
        origin = origin_of(weights, record, surrogate)
        for name in ("weights", "encoder", "max_norm", "bias"):
            made_of, at_hand = (getattr(each, name) for each in (self.origin, origin))
            if made_of != at_hand:
                raise ModelError(
                    f"the estimate was made of another model ({name} {str(made_of)[:16]})",
                    f"samples of one model say nothing of another, and here it is {str(at_hand)[:16]}",
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

    def means(self, objective: LinearHead, weights: Either, update: Either, surrogate: Rows) -> MeansDifference:
        """The difference of means at this update."""
        return means_difference(objective, weights, update, self.sampled.rows, surrogate, seed=self.wanted.seed)

    def distance(self, objective: LinearHead, weights: Either, update: Either, surrogate: Rows) -> Distance:
        """The distance that enters the bound, by the route that was asked for."""
        if self.wanted.route == "kl":
            assert self.kl is not None
            kind, value = "tv", self.kl.tv_upper
        else:
            kind, value = "means", self.means(objective, weights, update, surrogate).upper
        return Distance(kind, value, provenance="estimated", sampling=self.wanted.sampling, matched=self.wanted.matched)

    def evidence(self) -> dict[str, Any]:
        """For the certificate: how the number came about, in JSON's terms (null for infinite)."""
        omitted = ("mean", "covariance", "sampling", "matched")
        wanted = {name: value for name, value in asdict(self.wanted).items() if name not in omitted}
        diagnostics = self.sampled.diagnostics
        stated: dict[str, Any] = wanted | {
            "support": self.sampled.support,
            "step_size": self.sampled.step_size,
            "diagnostics": asdict(diagnostics)
            | {"r_hat": _finite(diagnostics.r_hat), "converged": diagnostics.converged},
        }
        if self.kl is not None:
            stated |= {
                "conditional": asdict(self.kl.conditional),
                "marginal_lower": asdict(self.kl.marginal) | {"saturated": self.kl.marginal.saturated},
                "kl": {
                    "raw": self.kl.raw,
                    "standard_error": self.kl.standard_error,
                    "upper": _finite(self.kl.upper),
                },
            }
        return stated


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def estimate_source(
    objective: LinearHead,
    weights: Either,
    record: TrainingRecord,
    surrogate: Rows,
    wanted: Estimation,
    *,
    progress: Progress = silent,
) -> SourceEstimate:
    """Sample the source, and estimate the KL where the route needs it; torch computes, whatever rows come in."""
    weights, surrogate = tensor(weights), rows_as_tensors(surrogate)
    sampled = sample_source(weights, record, surrogate, wanted, progress=progress)
    kl = None
    if wanted.route == "kl":
        kl = KullbackLeiblerEstimate(
            conditional_divergence(objective, weights, surrogate, seed=wanted.seed, progress=progress),
            marginal_divergence(surrogate, sampled.features, wanted, progress=progress),
        )
    return SourceEstimate(wanted, sampled, kl, origin_of(weights, record, surrogate))


def doubt_chains(found: Diagnostics) -> list[str]:
    """What keeps samples from standing for the density they were drawn from."""
    reasons = []
    if not found.converged:
        reasons.append(
            f"the chains have not mixed (split R-hat {found.r_hat:.3f}, at most 1.1 is needed; drift of norms "
            f"{found.drift:+.2f} sd)"
        )
    if found.effective_samples < FEWEST_SAMPLES:
        reasons.append(
            f"the chains count as {found.effective_samples:,.0f} independent samples, and {FEWEST_SAMPLES:g} are needed"
        )
    return reasons


def require_mixed(sampled: SampledSource) -> None:
    """Refuse chains that are still on their way, or count as few."""
    if reasons := doubt_chains(sampled.diagnostics):
        raise DataError(
            "; ".join(reasons),
            "chains must have mixed before samples can stand for the source",
            "Use more --steps (steps=), another --step-size (step_size=) or another --support (support=).",
        )


def marginal_divergence(
    surrogate: Rows, source_features: Either, wanted: Estimation, **options: Any
) -> DonskerVaradhanLower:
    """KL of the surrogate's features relative to the source's, from samples of the latter (or real ones)."""
    features = surrogate.features[:, : source_features.shape[1]]
    settings: dict[str, Any] = {"weights": surrogate.weights, "epochs": wanted.epochs, "seed": wanted.seed}
    return donsker_varadhan(features, source_features, **settings, **options)


def support_words(wanted: Estimation, max_norm: float) -> str:
    """What makes the model's density over features integrable, in words."""
    if wanted.support == "ball":
        return f"ball of radius {max_norm:g}, by reflection"
    moments = "the surrogate's own moments" if wanted.mean is None else "the moments given"
    return f"Gaussian reference with {moments}; steps in its whitened coordinates"


def sample_source(
    weights: Either,
    record: TrainingRecord,
    surrogate: Rows,
    wanted: Estimation,
    *,
    progress: Progress = silent,
) -> SampledSource:
    """Langevin samples on the support that was asked for; rows longer than max_norm are scaled to it, as everywhere."""
    weights, surrogate = tensor(weights), rows_as_tensors(surrogate)
    width, longest = weights.shape[1] - int(record.bias), record.max_norm
    if wanted.chains * width * 64 > memory_limit():
        raise OptionError(
            f"{wanted.chains:,} chains of {width:,} features",
            "they must fit into memory",
            "Use fewer --chains (chains=).",
        )
    generator = torch.Generator(device=weights.device).manual_seed(wanted.seed)
    kind: dict[str, Any] = {"dtype": torch.float32, "device": weights.device, "generator": generator}
    energy = LinearEnergy(weights[:, :width].float(), weights[:, width].float() if record.bias else None)
    start = torch.randn((wanted.chains, width), **kind)
    if wanted.support == "gaussian":
        mean, root = _reference(surrogate, width, wanted)
        energy, radius, variance = energy.whitened(mean, root), None, 1.0
    else:
        radius, variance = longest, longest**2 / (width + 2)
        lengths = torch.rand((wanted.chains, 1), **kind) ** (1 / width)
        start = start / start.norm(dim=1, keepdim=True) * lengths * longest
    step = variance * PAPER_STEP if wanted.step_size is None else wanted.step_size
    if step > variance:
        raise OptionError(
            f"step size {step:g}",
            f"on this support a feature has the variance {variance:.3g}; steps above it jump about at random",
            f"Use {PAPER_STEP * variance:.3g}, or leave --step-size (step_size) out.",
        )
    settings: dict[str, Any] = {"n_steps": wanted.steps, "step": step, "radius": radius, "seed": wanted.seed + 1}
    drawn = langevin(energy, start, progress=progress, **settings)
    rows = bound_rows(
        drawn.points if radius is not None else mean + drawn.points @ root.T,
        torch.zeros(wanted.chains, dtype=torch.int64),
        max_norm=longest,
        bias=record.bias,
        dtype=torch.float64,
        device=weights.device,
        name="the sampled features",
    )
    return SampledSource(rows, width, drawn.diagnostics, support_words(wanted, longest), step, drawn.steps)


def _reference(surrogate: Rows, width: int, wanted: Estimation) -> tuple[Tensor, Tensor]:
    """Mean and a root of the covariance of the Gaussian reference: those given, or the surrogate's."""
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
    else:
        features = surrogate.features[:, :width].double()
        each = torch.ones_like(features[:, 0]) if surrogate.weights is None else surrogate.weights
        # centred at a row first, so that a feature that does not vary has exactly its value as mean and no variance
        away = features - features[0]
        shift = (each[:, None] * away).mean(dim=0)
        mean = features[0] + shift
        covariance = (away * each[:, None]).T @ away / len(surrogate) - torch.outer(shift, shift)
    values, vectors = torch.linalg.eigh((covariance + covariance.T) / 2)
    if not bool(torch.isfinite(values).all()) or float(values.min()) < -1e-8 * max(float(values.max()), 1e-300):
        raise OptionError(
            "the Gaussian reference's covariance is not positive semi-definite",
            "a covariance is needed",
            "Check how it was computed.",
        )
    root = vectors * values.clamp(min=0.0).sqrt()
    root[covariance.diagonal() == 0.0] = 0.0  # a feature that does not vary is not to vary by rounding
    return mean.float(), root.float()


# An estimate in a file, so that it is made once, looked at, and then used: what `expunge distance --out` writes.


@dataclass(frozen=True)
class EstimateFacts:
    """What the file says in JSON; the samples, and the moments of a Gaussian reference, are arrays beside it."""

    schema: str
    settings: Estimation
    step_size: float
    diagnostics: Diagnostics
    origin: Origin
    conditional: ConditionalDivergence | None
    marginal: DonskerVaradhanLower | None


def estimate_bytes(estimate: SourceEstimate) -> bytes:
    """The file, byte for byte."""
    wanted, sampled, kl = estimate.wanted, estimate.sampled, estimate.kl
    parts = (None, None) if kl is None else (kl.conditional, kl.marginal)
    plain = replace(wanted, mean=None, covariance=None)
    facts = EstimateFacts(SCHEMA, plain, sampled.step_size, sampled.diagnostics, estimate.origin, *parts)
    arrays = {name: getattr(wanted, name) for name in MOMENTS if getattr(wanted, name) is not None}
    arrays["samples"] = sampled.features.double().cpu().contiguous().numpy()
    stream = io.BytesIO()
    np.savez(stream, allow_pickle=False, facts=np.array(json.dumps(asdict(facts), allow_nan=False)), **arrays)
    return stream.getvalue()


def read_estimate(path: str | Path) -> SourceEstimate:
    """The estimate in a file, checked; on the CPU until it is brought to a model."""
    location = readable(Path(path))
    try:
        arrays = read_npz(location, ("samples", "facts"), optional=MOMENTS)
    except DAMAGE as error:
        raise damage_error(location, error) from error
    try:
        return _parse(arrays.pop("facts"), arrays)
    except (ValueError, RecursionError, OptionError) as error:
        found = error.found if isinstance(error, OptionError) else str(error)[:200]
        required, remedy = "an estimate as it was written is needed", "Write it anew with expunge distance --out."
        raise FileError(f"{location}: {found}", required, remedy) from error


def _parse(text: Array, arrays: dict[str, Array]) -> SourceEstimate:
    content = read_json(text.item()) if text.shape == () and text.dtype.kind == "U" else None
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise ValueError(f"its facts are not those of {SCHEMA}")
    facts = read_as(EstimateFacts, content)
    if odd := [name for name, values in arrays.items() if values.dtype != np.float64 or not np.isfinite(values).all()]:
        raise ValueError(f"{odd[0]} of dtype {arrays[odd[0]].dtype}, or not finite, for finite float64")
    samples, origin, diagnostics = arrays["samples"], facts.origin, facts.diagnostics
    wanted = replace(facts.settings, mean=arrays.get("mean"), covariance=arrays.get("covariance"))
    if samples.ndim != 2 or len(samples) != wanted.chains or samples.shape[1] == 0:
        raise ValueError(f"samples of shape {samples.shape} for {wanted.chains} chains")
    features = torch.from_numpy(np.ascontiguousarray(samples))
    longest = float(row_norms(features).max())
    if not longest <= origin.max_norm * (1.0 + 1e-12):
        raise ValueError(f"a sample of norm {longest}, above {origin.max_norm}")
    if origin.bias:
        features = torch.cat([features, torch.ones(len(features), 1, dtype=torch.float64)], dim=1)
    kl = None
    if facts.conditional is not None and facts.marginal is not None:
        kl = KullbackLeiblerEstimate(facts.conditional, facts.marginal)
    words = support_words(wanted, origin.max_norm)
    rows = Rows(features, torch.zeros(len(features), dtype=torch.int64))
    sampled = SampledSource(rows, samples.shape[1], diagnostics, words, facts.step_size, wanted.steps)
    return SourceEstimate(wanted, sampled, kl, origin)
