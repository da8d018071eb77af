"""What the user asks, validated once, at the door."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from expunge.bounds.paper import SIZE_CONVENTIONS, PaperConstants
from expunge.data.prepare import Label
from expunge.distance import Distance, Estimation, parse_distance, parse_route
from expunge.errors import DataError, ModelError, OptionError
from expunge.heads import LinearHead, Rows, RowSet, head_for
from expunge.heads.rows import in_memory
from expunge.model import LinearModel, checked_model, declared_record
from expunge.record import MOST_ROWS, TrainingRecord
from expunge.request.execution import DTYPES, computing_device
from expunge.request.guarantee import BOUNDS, STEPS, Budget
from expunge.request.rows import (
    Reading,
    check_sizes,
    encoder_notes,
    is_labelled,
    matched_rows,
    of_class,
    require_enough,
    rows_of,
    whole_set,
)
from expunge.request.series import Sequence as Series
from expunge.request.survey import class_notes, notes_on, survey
from expunge.runtime.checks import choice, positive
from expunge.runtime.group import ALONE, Group
from expunge.runtime.memory import Memory
from expunge.runtime.progress import Progress, silent


@dataclass(frozen=True)
class Request:
    """A model, what to forget, what stands in for the source, and the budget. There is no field for the source."""

    model: LinearModel
    model_sha256: str
    record: TrainingRecord
    objective: LinearHead
    weights: Tensor
    forget: Rows
    surrogate: RowSet
    distance: Distance | Estimation
    budget: Budget
    step: str
    bound: str
    constants: PaperConstants | None
    sizes: str
    scaled: dict[str, int]
    notes: tuple[str, ...]
    force: bool
    series: Series | None = None
    made_earlier: Any = (
        None  # the SourceEstimate that was given for a distance, of which `distance` is then the settings
    )

    @property
    def published_dtype(self) -> torch.dtype:
        """What the published weights are stored in: the model's own type, or that of the first of a series."""
        kept = None if self.series is None or self.series.store is None else getattr(torch, self.series.store)
        return self.model.weight.dtype if kept is None else kept

    @property
    def n_source(self) -> int:
        return self.record.n_source

    @property
    def n_forget(self) -> int:
        return len(self.forget)

    @property
    def n_surrogate(self) -> int:
        return len(self.surrogate)


def record_for(
    model: LinearModel,
    *,
    n_source: int | None,
    l2: float | None,
    loss: str | None,
    max_norm: float | None,
    training_residual: float | None,
    classes: Sequence[Label] | None,
    class_counts: Sequence[int] | None = None,
) -> TrainingRecord:
    """The model's own record, or one declared by options; an option that contradicts a record is an error."""
    given = {"n_source": n_source, "l2": l2, "loss": loss, "max_norm": max_norm, "training_residual": training_residual}
    size = n_source if model.record is None or n_source is not None else model.record.n_source
    counts = None if class_counts is None else _counts(class_counts, model, size or 0)
    if model.record is not None:
        if model.record.class_counts is None and counts is not None and model.record.provenance == "declared":
            return replace(model.record, class_counts=counts)
        own = {**vars(model.record), "training_residual": model.record.residual}
        for name, value in {**given, "class_counts": counts}.items():
            if value is not None and value != own[name]:
                raise ModelError(
                    f"{name} {value} was given, but the model's record says {own[name]}",
                    "they must agree",
                    "Leave the option out; the record was written at training.",
                )
        return model.record
    if n_source is None or l2 is None or loss is None or max_norm is None or training_residual is None:
        missing = [name for name, value in given.items() if value is None]
        raise ModelError(
            f"the model has no training record and {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not given",
            "a certificate needs these facts",
            "Give them as options ("
            + ", ".join("--" + name.replace("_", "-") for name in missing)
            + "); they will be marked declared.",
        )
    if type(n_source) is not int or not 1 <= n_source <= MOST_ROWS:
        raise OptionError(
            f"n_source {n_source!r}",
            "it must be a whole number, at least 1 (from 1 to 2^53)",
            "Give the number of training rows.",
        )
    if math.isnan(training_residual) or not 0 <= training_residual < math.inf:
        raise OptionError(
            f"training_residual {training_residual}",
            "it must be a finite number, at least 0",
            "Give the norm of the training objective's gradient at the weights as stored.",
        )
    if classes is not None and (len(classes) != model.n_classes or len(set(classes)) != len(classes)):
        raise OptionError(
            f"{len(classes)} classes",
            f"{model.n_classes} different ones are needed",
            "Name one class a weight row, in order.",
        )
    return declared_record(
        model,
        n_source=n_source,
        l2=positive(l2, "l2", "Give the lambda of (lambda/2)||w||^2 beside the MEAN loss; sklearn's is 1/(C n)."),
        loss=loss,
        max_norm=positive(max_norm, "max_norm", "Give the largest norm a training row could have."),
        residual=training_residual,
        classes=classes,
        class_counts=counts,
    )


def _counts(given: Sequence[int], model: LinearModel, n_source: int) -> tuple[int, ...]:
    """Class counts that can be."""
    try:
        counts = tuple(operator.index(count) for count in given)
    except TypeError:
        counts = ()
    if len(counts) != model.n_classes or min(counts, default=-1) < 0 or sum(counts) != n_source:
        raise OptionError(
            f"class_counts {tuple(given)}",
            f"{model.n_classes} whole numbers that add up to n_source ({n_source:,}) are needed",
            "Give how many training rows each class had, in the order of the weight rows.",
        )
    return counts


def make_request(
    model: LinearModel | Any,
    forget: tuple[Any, Any],
    surrogate: tuple[Any, Any] | Any,
    *,
    epsilon: float,
    delta: float,
    distance: Distance | Estimation | str | Any,
    match_classes: bool = False,
    forget_class: Label | None = None,
    bias: Any = None,
    step: str | None = None,
    bound: str = "residual",
    constants: PaperConstants | str | None = None,
    sizes: str = "source",
    n_source: int | None = None,
    l2: float | None = None,
    loss: str | None = None,
    max_norm: float | None = None,
    training_residual: float | None = None,
    classes: Sequence[Label] | None = None,
    class_counts: Sequence[int] | None = None,
    dtype: str = "float64",
    device: str = "cpu",
    memory: str | int | None = None,
    group: Group = ALONE,
    force: bool = False,
    progress: Progress = silent,
    model_sha256: str | None = None,
    series: Series | None = None,
) -> Request:
    """Check everything that can be checked before any work is done.

    `distance` is declared (`same`, `chi2:0.1`, ...), or to be estimated (`estimate`, `estimate:kl`, an `Estimation`), or
    was estimated earlier (a `SourceEstimate`, of this model). With `match_classes` surrogate rows are weighted to the
    source's class counts, and the distance is the source's from that.
    With `forget_class` the rows of that class among those given are forgotten, and they must be all the source had.
    `memory` (`1.5GB`) is a limit for this process; a stream that does not fit is read anew in each pass. In a `group` each
    process goes over its own share of the surrogate.
    """
    budget = Budget(epsilon, delta)
    made_earlier = None if isinstance(distance, (str, Distance, Estimation)) else distance
    declared = _wanted(distance if made_earlier is None else made_earlier.wanted)
    if match_classes:
        declared = replace(declared, matched=True)
    choice(bound, BOUNDS, "bound")
    step = choice(step or ("newton" if bound == "paper" else "converged"), STEPS, "step")
    if bound == "paper" and step != "newton":
        raise OptionError(
            f"step {step!r}", "the paper's bound is for one Newton step", "Use --step newton, or --bound residual."
        )
    choice(sizes, SIZE_CONVENTIONS, "sizes")
    choice(dtype, tuple(DTYPES), "dtype")
    if constants is not None and bound != "paper":
        raise OptionError(
            "constants were given", "only the paper's bound uses them", "Leave them out, or choose --bound paper."
        )
    if series is not None and bound == "paper":
        raise OptionError(
            "a series with the paper's bound", "only the residual bound can be carried forward", "Use --bound residual."
        )
    place = computing_device(device)
    linear = model if isinstance(model, LinearModel) else checked_model(model, bias)
    record = record_for(
        linear,
        n_source=n_source,
        l2=l2,
        loss=loss,
        max_norm=max_norm,
        training_residual=training_residual,
        classes=classes,
        class_counts=class_counts,
    )
    if record.noised:
        raise ModelError(
            "this model is the noised result of an earlier unlearning",
            "the bound needs a model near its optimum, and the noise took this one away from it",
            "Unlearn both requests together from the model before noise, or retrain.",
        )
    objective = head_for(
        record.loss,
        l2=record.l2,
        n_classes=linear.n_classes,
        n_features=linear.n_features + int(record.bias),
        row_bound=record.row_bound,
    )
    reading = Reading(Memory.of(memory), group, progress)
    forget = whole_set(forget, reading, "the forget set")
    if forget_class is not None:
        forget = of_class(forget, forget_class, record)
    given_rows = rows_of(forget, linear, record, DTYPES[record.rows_dtype], place, "the forget set")
    forget_rows = in_memory(given_rows, "what is to be forgotten")
    forget_rows = replace(forget_rows, features=forget_rows.features.double())
    check_sizes(len(forget_rows), record, force)
    if group.size > 1:
        asked_for = (budget, str(declared), step, bound, sizes, dtype, str(constants), record)
        parts = (linear.matrix(), forget_rows.features, forget_rows.labels)
        held = b"".join(part.cpu().contiguous().numpy().tobytes() for part in parts)
        group.require_alike(repr(asked_for).encode() + held, "model, forget set or options")
    surrogate_rows = rows_of(surrogate, linear, record, DTYPES[dtype], place, "the surrogate set", reading)
    labelled = is_labelled(surrogate)
    asked = forget_rows
    if dtype != record.rows_dtype:  # long rows are scaled otherwise in another dtype
        alike = rows_of(forget, linear, record, DTYPES[dtype], place, "the forget set")
        asked = in_memory(alike, "what is to be forgotten")
    seen = survey(asked, surrogate_rows, linear.n_classes, progress)
    notes = notes_on(forget_rows, surrogate_rows, seen, record, declared, has_labels=labelled)
    notes += class_notes(forget_rows, seen, record, forget_class, has_labels=labelled)
    notes += encoder_notes(record, forget, surrogate)
    if declared.matched:
        given = len(surrogate_rows)
        surrogate_rows = matched_rows(surrogate_rows, record, labelled, seen.counts)
        if len(surrogate_rows) < given:
            notes += (f"{given - len(surrogate_rows)} surrogate rows of classes the source had none of were left out",)
    if declared.samples_rows:
        require_enough(surrogate_rows)
    if isinstance(declared, Estimation):
        in_memory(surrogate_rows, "an estimated distance")
        require_estimable(declared, record, labelled, bound)
        _require_own_source(declared)
    return Request(
        model=linear,
        model_sha256=model_sha256 or linear.sha256(),
        record=record,
        objective=objective,
        weights=linear.matrix(place),
        forget=forget_rows,
        surrogate=surrogate_rows,
        distance=declared,
        budget=budget,
        step=step,
        bound=bound,
        constants=_paper_constants(constants, objective, record) if bound == "paper" else None,
        sizes=sizes,
        scaled={"forget": forget_rows.n_scaled, "surrogate": surrogate_rows.n_scaled},
        notes=notes if series is None or series.note is None else (*notes, series.note),
        force=force,
        series=series,
        made_earlier=made_earlier,
    )


def _wanted(distance: Distance | Estimation | str) -> Distance | Estimation:
    if not isinstance(distance, str):
        return distance
    route = parse_route(distance)
    return parse_distance(distance) if route is None else Estimation(route)


def require_estimable(wanted: Estimation, record: TrainingRecord, labelled: bool, bound: str) -> None:
    """Refuse what cannot be estimated before any chain is run."""
    if record.loss != "softmax":
        raise OptionError(
            f"distance {wanted} for loss {record.loss}",
            "only softmax implies a density over features and probabilities of labels",
            "Declare a distance.",
        )
    if bound == "paper" and wanted.route != "kl":
        raise OptionError(
            f"distance {wanted} with the paper's bound", "it takes a total variation", "Use --distance estimate:kl."
        )
    if wanted.route == "kl" and not labelled:
        raise DataError(
            "the surrogate has no labels",
            "the conditional part of the KL needs them",
            "Give labels, or use --distance estimate, which needs none.",
        )


def _require_own_source(wanted: Estimation) -> None:
    """A certificate cannot rest on an estimate whose source was made of the surrogate."""
    if wanted.support == "gaussian" and wanted.mean is None:
        raise OptionError(
            "an estimate on a Gaussian reference with the surrogate's own moments",
            "it finds the surrogate near itself, whatever the source was; a certificate needs more",
            "Use --support ball, or --moments with what is known of the source; expunge distance shows the difference.",
        )


def _paper_constants(
    constants: PaperConstants | str | None, objective: LinearHead, record: TrainingRecord
) -> PaperConstants:
    """The paper bound's constants: given, the paper's own (`paper`), or the objective's closed forms (`derived`)."""
    if isinstance(constants, PaperConstants):
        remedy = "Give constants that hold for every example, or --constants derived."
        positive(constants.strong_convexity, "alpha", remedy)
        positive(constants.smoothness, "beta", remedy)
        positive(constants.lipschitz, "L", remedy)
        if constants.hessian_lipschitz != 0:
            positive(constants.hessian_lipschitz, "gamma", remedy)
        return constants
    if constants == "paper":
        return PaperConstants.of_the_experiments(record.l2)
    if constants in (None, "derived"):
        weights_norm = math.sqrt(2.0 * math.log(objective.n_classes) / record.l2)
        closed = objective.constants(
            weights_norm if record.loss == "softmax" else math.sqrt(objective.n_classes / record.l2)
        )
        return PaperConstants(closed.strong_convexity, closed.smoothness, closed.lipschitz, closed.hessian_lipschitz)
    raise OptionError(f"constants {constants!r}", "they are 'derived', 'paper' or a PaperConstants", "Use derived.")
