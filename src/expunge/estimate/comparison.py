"""Whether an estimate from samples tells anything: where it does not, there is no number, but a reason.

Samples stand for the source only if the chains have mixed; a relative entropy from rows is only one if it is not at the
limit of what so many rows can show, and if the parts of the rows that each gave one agree.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from expunge.distance import Estimation, shift_total_variation
from expunge.errors import ModelError
from expunge.estimate.donsker_varadhan import DonskerVaradhanLower
from expunge.estimate.source import (
    CONFIDENCE,
    KullbackLeiblerEstimate,
    MeansDifference,
    SampledSource,
    SourceEstimate,
    conditional_divergence,
    doubt_chains,
    marginal_divergence,
    means_difference,
    origin_of,
    sample_source,
)
from expunge.heads import Rows
from expunge.heads.rows import in_memory
from expunge.model import LinearModel
from expunge.record import TrainingRecord
from expunge.request.promise import computing_device, require_estimable
from expunge.request.request import head_of, record_without
from expunge.request.sets import column_notes, is_labelled, refuse_squashed, rows_of, weighted_rows
from expunge.rows.columns import prepare_frames
from expunge.runtime.arrays import Array, Device, engine_dtype
from expunge.runtime.progress import Progress, silent
from expunge.solve.newton import RetainedEquation, newton_step

TELLS_NOTHING = "this tells nothing"
FAILED = -2.0  # standard errors: a relative entropy is not below 0
DISAGREEMENT = 3.0  # standard errors that the folds' own spread may be of the mean
LEAST_DISAGREEMENT = 0.1
INSTEAD = (
    "Declare a distance that can be defended (--distance chi2:... at unlearn), with a margin.",
    "Where the source still exists, keep a deposit of it (expunge deposit): then no distance is needed.",
)


def doubt_entropy(found: DonskerVaradhanLower, folds: Sequence[float]) -> list[str]:
    """What keeps an estimate from rows from being a relative entropy; `folds` are the values of its parts."""
    reasons = []
    if found.saturated:
        reasons.append(f"the KL may be infinite, and total variation 1: {_why_infinite(found)}")
    if found.raw < FAILED * found.standard_error and found.raw < -LEAST_DISAGREEMENT:
        reasons.append(f"the network found less than nothing ({found.raw:.3g}), which no KL is: a fit that failed")
    spread = statistics.stdev(folds) / math.sqrt(len(folds))
    if spread > max(LEAST_DISAGREEMENT, DISAGREEMENT * found.standard_error):
        each = ", ".join(f"{value:.2g}" for value in folds)
        reasons.append(f"parts of the rows disagree on the KL of features: {each}")
    return reasons


def _why_infinite(found: DonskerVaradhanLower) -> str:
    if found.left_out:
        return f"{found.left_out} features are constant in one of the two sets only"
    return (
        f"the two sets hardly overlap, the network reached {found.value:.2f} of at most {found.ceiling:.2f} that so "
        "many rows can show"
    )


# Every estimate of the distance side by side, with uncertainty and direction, and the truth where it is known.


SURROGATE, FORGET, REFERENCE_SET = "the surrogate set", "the forget set", "the reference set"
SAMPLED, REFERENCE = "samples", "reference"


@dataclass(frozen=True)
class Line:
    """One estimate; in the limit its `direction` is on the `lower` or the `upper` side of the truth, or `neither`.

    Unless it `tells` something, it is not to be shown as a number.
    """

    name: str
    source: str
    value: float
    direction: str
    standard_error: float | None = None
    upper: float | None = None
    remark: str = ""
    tells: bool = True

    def to_dict(self) -> dict[str, Any]:
        """For JSON: null stands for infinite, and for what tells nothing."""
        content = asdict(self)
        for key in ("value", "standard_error", "upper"):
            if not self.tells or content[key] is None or not math.isfinite(content[key]):
                content[key] = None
        return content


@dataclass(frozen=True)
class Comparison:
    """What `expunge distance` reports; `reference_*` are from real source rows.

    `reasons` keep the samples from telling anything; they do where there are none.
    """

    lines: tuple[Line, ...]
    estimate: SourceEstimate
    surrogate: Rows
    reference: Rows | None
    kl: KullbackLeiblerEstimate
    reference_kl: KullbackLeiblerEstimate | None
    means: MeansDifference | None
    notes: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()

    @property
    def tells(self) -> bool:
        return not self.reasons

    @property
    def sampled(self) -> SampledSource:
        return self.estimate.sampled

    def to_dict(self) -> dict[str, Any]:
        """For JSON; null stands for infinite, and for what tells nothing."""
        estimate = self.estimate.evidence()
        return {
            "tells": self.tells,
            "reasons": list(self.reasons),
            "estimates": [line.to_dict() for line in self.lines],
            "support": self.sampled.support,
            "step_size": self.sampled.step_size,
            "diagnostics": estimate["diagnostics"],
            "marginal_lower": estimate["marginal_lower"] if self.tells else None,
            "conditional": estimate["conditional"],
            "surrogate_rows": len(self.surrogate),
            "effective_surrogate_rows": self.surrogate.effective,
            "notes": list(self.notes),
        }


def compare(
    model: LinearModel,
    surrogate: tuple[Any, Any],
    *,
    record: TrainingRecord,
    wanted: Estimation,
    forget: tuple[Any, Any] | None = None,
    reference: tuple[Any, Any] | Any = None,
    device: str = "cpu",
    progress: Progress = silent,
) -> Comparison:
    """Estimate the distance by both routes.

    `forget` gives an update to compare means at, and with matched classes what the surrogate is matched to: the rows
    that are retained. `reference` holds source rows.
    """
    surrogate = prepare_frames(surrogate, record, SURROGATE)
    require_estimable(replace(wanted, route="kl"), record, is_labelled(surrogate))
    place = computing_device(device)
    objective, weights = head_of(model, record), model.matrix(place)
    everything = {SURROGATE: surrogate, FORGET: forget, REFERENCE_SET: reference}
    given = {name: rows for name, rows in everything.items() if rows is not None}
    sets = prepare_sets(given, model, record, place, wanted)
    gone, real = sets.get(FORGET), sets.get(REFERENCE_SET)
    some = sets[SURROGATE]
    update = None
    if gone is not None:  # the update that the rows to forget call for
        equation = len(gone) * objective.gradient(weights, gone), some, record.n_source - len(gone)
        update = newton_step(RetainedEquation(objective, weights, *equation), single=False, progress=progress).update

    def means_with(rows: Rows | None) -> MeansDifference | None:
        if update is None or rows is None:
            return None
        return means_difference(objective, weights, update, rows, some, seed=wanted.seed)

    sampled = sample_source(weights, record, some, wanted, progress=progress)
    wanted = replace(wanted, steps=sampled.steps)
    means = means_with(sampled.rows)
    conditional = conditional_divergence(objective, weights, some, seed=wanted.seed, progress=progress)

    def entropy(features: Array) -> tuple[KullbackLeiblerEstimate, list[str]]:
        folds: list[float] = []
        marginal = marginal_divergence(some, features, wanted, folds=folds, progress=progress)
        return KullbackLeiblerEstimate(conditional, marginal), doubt_entropy(marginal, folds)

    kl, doubts = entropy(sampled.features)
    reasons = (*doubt_chains(sampled.diagnostics), *doubts)
    supremum = 0.0 if update is None else objective.change_sup(update)
    lines, real_kl = _lines(kl, means, supremum, SAMPLED, tells=not reasons), None
    if real is not None:
        real_kl, doubts = entropy(real.features[:, : model.n_features])
        own = _lines(real_kl, means_with(real), supremum, REFERENCE, tells=not doubts)
        # divergences first, differences of means after; the KL of labels is of the model, and the same in both
        lines = lines[:4] + own[1:4] + lines[4:] + own[4:]
    notes = column_notes(record, given)
    for name, rows in sets.items():  # rows that are longer than the norm bound
        notes += refuse_squashed(rows.scaling, name, record.max_norm, True)
    estimate = SourceEstimate(wanted, sampled, kl, origin_of(weights, record, some))
    return Comparison(tuple(lines), estimate, some, real, kl, real_kl, means, notes, reasons)


def prepare_sets(
    given: Mapping[str, Any], model: LinearModel, record: TrainingRecord, place: Device, wanted: Estimation
) -> dict[str, Rows]:
    """The rows of each set as the objective takes them; a matched surrogate is weighted like what is retained."""
    sets = {
        name: in_memory(rows_of(rows, model, record, engine_dtype("float64", place), place, name), "an estimate")
        for name, rows in given.items()
    }
    gone = sets.get(FORGET)
    if gone is not None and len(gone) >= record.n_source:
        raise ModelError(
            f"{len(gone)} rows to forget of a source of {record.n_source}",
            "at least one row must be retained",
            "Give --n-source (n_source=).",
        )
    left = record if gone is None else record_without(record, gone.labels)
    sets[SURROGATE] = in_memory(weighted_rows(sets[SURROGATE], left, wanted, labelled=True), "an estimate")
    return sets


def _lines(
    kl: KullbackLeiblerEstimate, means: MeansDifference | None, supremum: float, source: str, tells: bool
) -> list[Line]:
    """What the KL and the difference of means say, from samples or from real rows of the source."""
    labels, marginal = kl.conditional, kl.marginal

    def remark(raw: float) -> str:
        if marginal.saturated:
            return f"may be INFINITE: {_why_infinite(marginal)}"
        return f"raw {raw:.3g} became 0: a fit that failed, or no difference" if raw < 0.0 else ""

    own, lower = marginal.standard_error, remark(marginal.raw)
    from_kl = "from the upper value of the KL (Pinsker; Bretagnolle, Huber)"
    lines = [
        Line("KL of labels given features", "model", labels.value, "neither", labels.standard_error),
        Line("KL of features (Donsker-Varadhan)", source, marginal.value, "lower", own, None, lower, tells),
        Line("KL in all", source, kl.value, "neither", kl.standard_error, kl.upper, remark(kl.raw), tells),
        Line("total variation", source, kl.tv_upper, "neither", remark=from_kl, tells=tells),
    ]
    if means is not None:
        from_tv = shift_total_variation(kl.tv_upper, supremum)
        bootstrap = f"upper value: bootstrap, {100 * CONFIDENCE:g} %"
        # a mean of real rows of the source needs no overlap of anything
        told = tells or source == REFERENCE
        lines += [
            Line("difference of means, from TV", source, from_tv, "neither", None, None, "2 TV sup||phi_u||", tells),
            Line("difference of means, direct", source, means.value, "neither", None, means.upper, bootstrap, told),
        ]
    return lines
