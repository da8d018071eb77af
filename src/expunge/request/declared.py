"""Facts of a training that was done elsewhere, as somebody declares them."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from expunge.certificate.model_file import require_record
from expunge.errors import ModelError, OptionError
from expunge.record import LOSSES, MOST_ROWS, Label, TrainingRecord, require_range
from expunge.runtime.checks import positive
from expunge.runtime.options import option

if TYPE_CHECKING:  # the command line shows these options, and torch takes a second to load
    from expunge.model import LinearModel


@dataclass(frozen=True)
class Declared:
    """What somebody states of a model that has no record; the certificate marks it as declared."""

    n_source: int | None = option("Number of training rows.", None, section="A model without a record")
    l2: float | None = option("The lambda of (lambda/2)||w||^2 beside the mean loss.", None)
    loss: str | None = option("softmax or ridge.", None)
    max_norm: float | None = option("Largest norm of a training row.", None)
    training_residual: float | None = option("Norm of the training gradient at these weights.", None)
    classes: Sequence[Label] | None = None
    class_counts: Sequence[int] | None = option("Training rows of each class, e.g. 120,80.", None)


NOTHING_DECLARED = Declared()


def record_for(model: LinearModel, declared: Declared = NOTHING_DECLARED) -> TrainingRecord:
    """The model's own record, or one declared by options; an option that contradicts a record is an error.

    So is a record of other weights: nothing that it says would be true of these.
    """
    if model.record is not None:
        digest, bias = model.weights_sha256(), model.bias is not None
        require_record(model.record, model.n_classes, bias, digest, "the model", model.n_features)
    n_source, l2, loss, max_norm = declared.n_source, declared.l2, declared.loss, declared.max_norm
    training_residual, class_counts = declared.training_residual, declared.class_counts
    facts = {"n_source": n_source, "l2": l2, "loss": loss, "max_norm": max_norm, "training_residual": training_residual}
    size = n_source if model.record is None or n_source is not None else model.record.n_source
    counts = None if class_counts is None else _counts(class_counts, model, size or 0)
    if model.record is not None:
        if model.record.class_counts is None and counts is not None and model.record.provenance == "declared":
            return replace(model.record, class_counts=counts)
        own = {**vars(model.record), "training_residual": model.record.residual}
        for name, value in {**facts, "class_counts": counts}.items():
            if value is not None and value != own[name]:
                raise ModelError(
                    f"{name} {value} was given, but the model's record says {own[name]}",
                    "they must agree",
                    "Leave the option out; the record was written at training.",
                )
        require_range(model.record)
        return model.record
    return _declared(model, declared, counts, facts)


def _declared(
    model: LinearModel, declared: Declared, counts: tuple[int, ...] | None, facts: dict[str, Any]
) -> TrainingRecord:
    """A record for a model trained elsewhere, if everything is there and possible."""
    from expunge.model import declared_record

    n_source, l2, loss, max_norm = declared.n_source, declared.l2, declared.loss, declared.max_norm
    training_residual, classes = declared.training_residual, declared.classes
    if n_source is None or l2 is None or loss is None or max_norm is None or training_residual is None:
        missing = [name for name, value in facts.items() if value is None]
        raise ModelError(
            f"the model has no training record and {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not "
            "given",
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
    if loss in LOSSES and LOSSES[loss].one_row:
        raise OptionError(
            f"loss {loss!r} for {model.n_classes} weight rows",
            "it has one weight vector, and a model without a record one row a class",
            "Declare softmax: with the rows -w/2 and w/2 and twice the l2 it is the same model.",
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


def _counts(class_counts: Sequence[int], model: LinearModel, n_source: int) -> tuple[int, ...]:
    """Class counts that can be."""
    try:
        counts = tuple(operator.index(count) for count in class_counts)
    except TypeError:
        counts = ()
    if len(counts) != model.n_classes or min(counts, default=-1) < 0 or sum(counts) != n_source:
        raise OptionError(
            f"class_counts {tuple(class_counts)}",
            f"{model.n_classes} whole numbers that add up to n_source ({n_source:,}) are needed",
            "Give how many training rows each class had, in the order of the weight rows.",
        )
    return counts
