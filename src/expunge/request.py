"""What the user asks, validated once, at the door."""

from __future__ import annotations

import hashlib
import math
import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from expunge.bounds.paper import SIZE_CONVENTIONS, PaperConstants
from expunge.data import EncodedRows, as_features, as_labels, class_matched, encode, encoder_of, prepare
from expunge.data.prepare import Label
from expunge.distance import Distance, Estimation, parse_distance, parse_route
from expunge.errors import DataError, ModelError, OptionError, UselessModel
from expunge.model import LARGEST, MOST_ROWS, SMALLEST, LinearModel, TrainingRecord, checked_model, declared_record
from expunge.objectives import LinearHead, Rows, objective_for
from expunge.sequence import Sequence as Series

STEPS = ("converged", "newton", "balanced")
BOUNDS = ("residual", "paper")
DTYPES = {"float64": torch.float64, "float32": torch.float32}
LARGEST_EPSILON, SMALLEST_DELTA = 1e6, 1e-300
FEWEST_SAMPLED_ROWS = 100  # below this, a sample's moments say too little about its population


@dataclass(frozen=True)
class Budget:
    """(epsilon, delta): what the certificate is to say."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        positive(self.epsilon, "epsilon", "Values from 0.1 to 5 are usual; smaller protects more.")
        if self.epsilon > LARGEST_EPSILON:
            raise OptionError(
                f"epsilon {self.epsilon}",
                f"above {LARGEST_EPSILON:g} it promises nothing",
                "Values from 0.1 to 5 are usual.",
            )
        if 0 < self.delta < SMALLEST_DELTA:
            raise OptionError(f"delta {self.delta}", f"it must be at least {SMALLEST_DELTA:g}", "Use for example 1/n.")
        if not 0 < self.delta < 1:
            raise OptionError(
                f"delta {self.delta}",
                "it must lie strictly between 0 and 1",
                "Use at most 1/n; with delta 1 every mechanism is certified and the certificate says nothing.",
            )


@dataclass(frozen=True)
class Request:
    """A model, what to forget, what stands in for the source, and the budget. There is no field for the source."""

    model: LinearModel
    model_sha256: str
    record: TrainingRecord
    objective: LinearHead
    weights: Tensor
    forget: Rows
    surrogate: Rows
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


def positive(value: float, name: str, remedy: str) -> float:
    """The value as a float, if it is a number above 0 whose powers stay within float64."""
    number = not isinstance(value, bool) and isinstance(value, (int, float, np.floating, np.integer))
    if not number or not 0 < value < math.inf:
        raise OptionError(f"{name} {value}", "it must be a finite number above 0", remedy)
    if not SMALLEST <= value <= LARGEST:
        raise OptionError(f"{name} {value}", f"it must lie between {SMALLEST:g} and {LARGEST:g}", remedy)
    return float(value)


def choice(value: str, options: Sequence[str], name: str) -> str:
    """The value, if it is one of the options."""
    if value not in options:
        raise OptionError(
            f"{name} {value!r}", f"it must be one of {', '.join(options)}", f"Choose one of them for {name}."
        )
    return value


def computing_device(name: str) -> torch.device:
    """The torch device of that name, if it can be used here."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()
    except (
        RuntimeError,
        AssertionError,
        NotImplementedError,
        ImportError,
        AttributeError,
        TypeError,
        ValueError,
    ) as error:
        raise OptionError(
            f"device {name!r} ({type(error).__name__})", "a device torch can use here is needed", "Use cpu."
        ) from error
    return device


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
    distance: Distance | Estimation | str,
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
    force: bool = False,
    model_sha256: str | None = None,
    series: Series | None = None,
) -> Request:
    """Check everything that can be checked before any work is done.

    `distance` is declared (`same`, `chi2:0.1`, ...), or to be estimated (`estimate`, `estimate:kl`, an `Estimation`). With
    `match_classes` surrogate rows are weighted to the source's class counts, and the distance is the source's from that.
    With `forget_class` the rows of that class among those given are forgotten, and they must be all the source had.
    """
    budget = Budget(epsilon, delta)
    declared = _wanted(distance)
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
    objective = objective_for(
        record.loss,
        l2=record.l2,
        n_classes=linear.n_classes,
        n_features=linear.n_features + int(record.bias),
        row_bound=record.row_bound,
    )
    if forget_class is not None:
        forget = _of_class(forget, forget_class, record)
    forget_rows, forget_scaled = rows_of(forget, linear, record, DTYPES[record.rows_dtype], place, "the forget set")
    forget_rows = replace(forget_rows, features=forget_rows.features.double())
    check_sizes(len(forget_rows), record, force)
    surrogate_rows, surrogate_scaled = rows_of(surrogate, linear, record, DTYPES[dtype], place, "the surrogate set")
    labelled = isinstance(surrogate, tuple) and surrogate[1] is not None
    notes = notes_on(forget_rows, surrogate_rows, record, declared, has_labels=labelled)
    notes += class_notes(forget_rows, surrogate_rows, record, forget_class, has_labels=labelled)
    notes += _encoder_notes(record, forget, surrogate)
    if declared.matched:
        given = len(surrogate_rows)
        surrogate_rows = matched_rows(surrogate_rows, record, labelled)
        if len(surrogate_rows) < given:
            notes += (f"{given - len(surrogate_rows)} surrogate rows of classes the source had none of were left out",)
    if declared.samples_rows:
        require_enough(surrogate_rows)
    if isinstance(declared, Estimation):
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
        scaled={"forget": forget_scaled, "surrogate": surrogate_scaled},
        notes=notes if series is None or series.note is None else (*notes, series.note),
        force=force,
        series=series,
    )


def _wanted(distance: Distance | Estimation | str) -> Distance | Estimation:
    if not isinstance(distance, str):
        return distance
    route = parse_route(distance)
    return parse_distance(distance) if route is None else Estimation(route)


def require_enough(surrogate: Rows) -> None:
    """Refuse a surrogate whose moments say too little of its population's. Weights of at most q make s rows count as s/q."""
    if len(surrogate) < FEWEST_SAMPLED_ROWS:
        raise DataError(
            f"the surrogate set has {len(surrogate)} rows",
            f"at least {FEWEST_SAMPLED_ROWS} are needed before its moments can stand for its population's",
            "Add surrogate rows, or declare the distance between the sets themselves (between samples) if it is known.",
        )
    if len(surrogate) / surrogate.largest_weight < FEWEST_SAMPLED_ROWS:
        raise DataError(
            f"with matched classes a surrogate row weighs up to {surrogate.largest_weight:.3g}, so that its {len(surrogate):,} rows count as few as {len(surrogate) / surrogate.largest_weight:.0f}",
            f"at least {FEWEST_SAMPLED_ROWS} are needed before its moments can stand for its population's",
            "Add surrogate rows of the classes that it has too few of, or leave --match-classes out and declare a distance.",
        )


def matched_rows(surrogate: Rows, record: TrainingRecord, labelled: bool) -> Rows:
    """The surrogate, weighted to the class counts of the source."""
    if record.class_counts is None:
        raise ModelError(
            "the model's record has no class counts",
            "matching classes needs the source's",
            "Give them with --class-counts, in the order of the classes; model cards often have them.",
        )
    if not labelled:
        raise DataError(
            "the surrogate has no labels", "matching classes needs them", "Give (features, labels), or a label column."
        )
    return class_matched(surrogate, record.class_counts, record.classes)


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


def rows_of(
    given: tuple[Any, Any] | Any,
    model: LinearModel,
    record: TrainingRecord,
    dtype: torch.dtype,
    device: torch.device,
    name: str,
) -> tuple[Rows, int]:
    """Rows ready for the model's objective from (features, labels), or features alone, and how many had to be scaled."""
    values, labels = given if isinstance(given, tuple) else (given, None)
    require_encoder(given, record, name)
    features = as_features(values, name)
    if labels is None:
        if name == "the forget set":
            raise DataError(
                f"{name}: no labels", "the gradient of what is forgotten needs them", "Give (features, labels)."
            )
        indices = torch.zeros(features.shape[0], dtype=torch.int64)
    else:
        indices = encode(as_labels(labels, features.shape[0], name), record.classes, name)
    prepared = prepare(
        features,
        indices,
        max_norm=record.max_norm,
        bias=record.bias,
        dtype=dtype,
        device=device,
        width=model.n_features,
        name=name,
    )
    return prepared.rows, prepared.scaled


def require_encoder(given: Any, record: TrainingRecord, name: str) -> None:
    """Refuse features that say they were made by another encoder than those the model was trained on."""
    made_by = encoder_of(given)
    if made_by is not None and record.encoder is not None and made_by != record.encoder:
        raise DataError(
            f"{name}: features of encoder {made_by[:16]}...",
            f"the model was trained on those of {record.encoder[:16]}...",
            "Embed these rows with the encoder, and the preparation, that was used for training.",
        )


def _encoder_notes(record: TrainingRecord, forget: Any, surrogate: Any) -> tuple[str, ...]:
    """Which features nobody can say the encoder of; two sets of different encoders are refused."""
    sets = {"the forget set": forget, "the surrogate set": surrogate}
    made_by = {name: encoder_of(given) for name, given in sets.items()}
    named = {digest for digest in made_by.values() if digest is not None}
    if len(named) > 1:
        raise DataError(
            "the forget set and the surrogate set were made by different encoders",
            "all features must come from the one the model was trained on",
            "Embed both with the same encoder.",
        )
    if record.encoder is None:
        return ("the model's record names no encoder; that of the rows could not be compared",) if named else ()
    return tuple(
        f"{name} names no encoder; that its features come from the one recorded at training was not checked"
        for name, digest in made_by.items()
        if digest is None
    )


def _of_class(given: tuple[Any, Any], wanted: Label, record: TrainingRecord) -> tuple[Any, Any]:
    """The rows of one class; refuses a class that is unknown or not there, and rows that are not all the source had of it."""
    known: dict[Label, Label] = {
        **{str(value): value for value in record.classes},
        **{value: value for value in record.classes},
    }
    if wanted not in known:
        shown = ", ".join(repr(value) for value in record.classes[:12]) + (" ..." if len(record.classes) > 12 else "")
        raise OptionError(
            f"class {wanted!r} is to be forgotten", f"the classes are {shown}", "Name one of the model's classes."
        )
    label = known[wanted]
    features = as_features(given[0], "the forget set")
    labels = as_labels(given[1], len(features), "the forget set")
    chosen = (
        labels == label
        if labels.dtype.kind == ("U" if isinstance(label, str) else "i")
        else np.zeros(len(labels), bool)
    )
    count, index = int(chosen.sum()), record.classes.index(label)
    if count == 0:
        raise DataError(
            f"the forget set has no rows of class {label!r}",
            "its training rows are needed: what is forgotten is their gradient",
            "Give a file that holds them.",
        )
    if record.class_counts is not None and count < record.class_counts[index]:
        raise DataError(
            f"the forget set has {count:,} rows of class {label!r}",
            f"the source had {record.class_counts[index]:,}, and a class is forgotten only with all of them",
            "Give all its rows; to forget only these, leave --forget-class out.",
        )
    return EncodedRows(features[torch.from_numpy(chosen).to(features.device)], labels[chosen], encoder_of(given))


def class_notes(
    forget: Rows, surrogate: Rows, record: TrainingRecord, asked: Label | None, has_labels: bool
) -> tuple[str, ...]:
    """What becomes of classes that are forgotten whole."""
    if record.class_counts is None:
        if asked is None:
            return ()
        return ("the record has no class counts; that these are all rows the source had of the class was not checked",)
    counts = Counter(forget.labels.tolist())
    standing = Counter(surrogate.labels.tolist()) if has_labels else None
    notes = []
    for index in sorted(index for index, count in counts.items() if count == record.class_counts[index]):
        kept = "" if standing is None else f"its {standing[index]:,} surrogate rows stay, since "
        notes.append(
            f"every row of class {record.classes[index]!r} is forgotten ({counts[index]:,}); the model keeps its weights for that class; "
            f"{kept}the surrogate stands for the whole source"
        )
    return tuple(notes)


def check_sizes(n_forget: int, record: TrainingRecord, force: bool) -> None:
    """Refuse to forget everything and, unless forced, more than half."""
    n_source = record.n_source
    if n_forget >= n_source:
        raise DataError(
            f"{n_forget:,} rows to forget of a source of {n_source:,}",
            "at least one row must be retained",
            "Check n_source; if all rows are to go, delete the model.",
        )
    if 2 * n_forget > n_source and not force:
        raise UselessModel(
            f"{n_forget:,} of {n_source:,} rows are to be forgotten",
            "more than half leaves a model that is mostly guesswork",
            "Retrain on what is left, or insist with --force (force=True).",
        )


def notes_on(
    forget: Rows, surrogate: Rows, record: TrainingRecord, distance: Distance | Estimation, has_labels: bool
) -> tuple[str, ...]:
    """What is odd about the data but not an error; each is recorded in the certificate."""
    notes = []
    repeated = len(forget) - len({row for row, _ in _row_keys(forget.features, forget.labels)})
    if repeated:
        notes.append(
            f"{repeated} of {len(forget)} forget rows are repeats of another; each was counted as one training row"
        )
    counts = Counter(forget.labels.tolist())
    if record.class_counts is not None:
        for index, count in counts.items():
            if count > record.class_counts[index]:
                raise DataError(
                    f"{count} rows of class {record.classes[index]!r} are to be forgotten",
                    f"the source had {record.class_counts[index]}",
                    "Check the labels; these rows cannot all have been trained on.",
                )
    if has_labels:
        present = set(surrogate.labels.tolist())
        absent = [record.classes[index] for index in range(len(record.classes)) if index not in present]
        if absent:
            notes.append("the surrogate has no rows of class " + ", ".join(repr(value) for value in absent))
    if distance.kind == "source":
        _require_source(forget, surrogate, record, has_labels)
    else:
        occurring = {row for row, _ in rows_in_common(forget, surrogate)}
        shared = sum(
            row in occurring for row, _ in _row_keys(forget.features.to(surrogate.features.dtype), forget.labels)
        )
        if shared:
            notes.append(
                f"{shared} of {len(forget)} forget rows are also in the surrogate; it should hold none of them"
            )
    return tuple(notes)


def _require_source(forget: Rows, given: Rows, record: TrainingRecord, has_labels: bool) -> None:
    """Refuse rows that are given as the source but cannot be it."""
    if not has_labels:
        raise DataError(
            "the source rows have no labels", "with distance source they are needed", "Give (features, labels)."
        )
    if given.features.dtype != DTYPES[record.rows_dtype]:
        raise DataError(
            f"the source rows are kept in {str(given.features.dtype).removeprefix('torch.')}",
            f"the model was trained on {record.rows_dtype}",
            f"Use --dtype {record.rows_dtype}.",
        )
    if len(given) != record.n_source:
        raise DataError(
            f"the surrogate has {len(given):,} rows",
            f"the source had {record.n_source:,}",
            "With distance source, give the source itself.",
        )
    counts = tuple(torch.bincount(given.labels, minlength=len(record.classes)).tolist())
    if record.class_counts is not None and counts != record.class_counts:
        raise DataError(
            f"the rows given as the source have class counts {counts}",
            f"at training they were {record.class_counts}",
            "With distance source, give the source itself.",
        )
    found = rows_in_common(forget, given)
    wanted = Counter(_row_keys(forget.features, forget.labels))
    lacking = sum(max(0, count - found.get(key, 0)) for key, count in wanted.items())
    if lacking:
        raise DataError(
            f"{lacking} of {len(forget)} forget rows are not among the source rows given, with these labels and as often",
            "with distance source every forget row must be",
            "Give the source itself, or declare another distance.",
        )


def _row_keys(features: Tensor, labels: Tensor) -> list[tuple[bytes, int]]:
    """A digest of each row's values in float64, and its label; a block at a time is converted."""
    digests = [
        hashlib.blake2b(row.tobytes(), digest_size=20).digest()
        for block in torch.split(features, 1024)
        for row in (block.cpu().double() + 0.0).numpy()  # so that -0 is 0
    ]
    return list(zip(digests, labels.tolist(), strict=True))


def rows_in_common(forget: Rows, surrogate: Rows) -> Counter[tuple[bytes, int]]:
    """How often each row of the forget set occurs, value for value, in the surrogate, by the label it has there."""
    columns = np.unique(np.linspace(0, forget.n_features - 1, 8).astype(int))
    left, right = forget.features.cpu(), surrogate.features.cpu()
    keys = np.ascontiguousarray(left[:, columns].to(right.dtype).numpy())
    others = np.ascontiguousarray(right[:, columns].numpy())
    void = np.dtype((np.void, keys.dtype.itemsize * keys.shape[1]))
    hits = torch.from_numpy(np.flatnonzero(np.isin(others.view(void).reshape(-1), keys.view(void).reshape(-1))))
    asked = {row for row, _ in _row_keys(left.to(right.dtype), forget.labels)}
    return Counter(key for key in _row_keys(right[hits], surrogate.labels.cpu()[hits]) if key[0] in asked)


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
