"""What a fitted estimator minimises, read off it; and estimators of the same kind with other weights.

    LogisticRegression, its CV           C sum s ell + ||w||^2/2         l2 = 1/(C n), for fewer rows more of it
    RidgeClassifier, its CV              sum s (z - t)^2 + alpha ||w||^2 l2 = alpha/n: C is 1/alpha
    SGDClassifier(loss='log_loss')       mean s ell + (alpha/2) ||w||^2  l2 = alpha, whatever the rows
    OneVsRestClassifier                  the same, once for each class

with s the weights of the classes. The intercept is not penalised, except by liblinear.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.linear_model import (
    LogisticRegression,
    LogisticRegressionCV,
    RidgeClassifier,
    RidgeClassifierCV,
    SGDClassifier,
)
from sklearn.multiclass import OneVsRestClassifier
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.validation import check_is_fitted

from expunge.errors import ModelError
from expunge.record import Label
from expunge.sklearn.refusals import Estimator, not_taken

RIDGES = (RidgeClassifier, RidgeClassifierCV)
COARSE_MARK = "expunge_coarse_"  # on what `coarsen` made coarse: a digest of what it had learnt then
# what of a fitted estimator goes over to one with other weights: nothing else, since the rest was learnt from rows
CARRIED_BY_MANY = ("label_binarizer_", "classes_", "n_features_in_", "feature_names_in_")
CARRIED = (*CARRIED_BY_MANY, "_label_binarizer", "C_", "alpha_", "l1_ratio_", COARSE_MARK)
L2 = "Fit with an L2 penalty, the default."


@dataclass(frozen=True)
class Objective:
    """`matrix` has a row for each class (one for two, where the loss is `logistic`), an intercept as last column.

    `strength` is C, or with `per_row` the l2 itself. `chosen`: by cross-validation. `free`: the intercept is not
    penalised. `class_weight` is as the estimator has it.
    """

    loss: str
    matrix: NDArray[np.float64]
    classes: NDArray[Any]
    bias: bool
    free: bool
    strength: float
    per_row: bool
    chosen: bool
    class_weight: Any

    @property
    def balanced(self) -> bool:
        """Whether the weights of classes were worked out from how many rows each had."""
        return isinstance(self.class_weight, str)

    def weights_of(self, labels: NDArray[Any]) -> NDArray[np.float64] | None:
        """How much a row of each class counts; None where all count alike."""
        if self.class_weight is None:
            return None
        found = compute_class_weight(self.class_weight, classes=self.classes, y=labels)
        weights: NDArray[np.float64] = np.asarray(found, dtype=np.float64)
        if not (np.isfinite(weights).all() and (weights > 0.0).all()):
            raise ModelError(
                f"class weights {', '.join(f'{weight:g}' for weight in weights[:8])}",
                "each must be above 0",
                "Leave the rows of a class that does not count out, and fit again.",
            )
        return weights


def objective_of(estimator: Estimator) -> Objective:
    """What the estimator minimises; refuses whatever is not known, with the nearest thing that can be taken."""
    if isinstance(estimator, OneVsRestClassifier):
        return _one_vs_rest(estimator)
    if not isinstance(estimator, (LogisticRegression, SGDClassifier, *RIDGES)):
        raise not_taken(estimator)
    check_is_fitted(estimator)
    if isinstance(estimator, LogisticRegression):
        return _logistic(estimator)
    if isinstance(estimator, SGDClassifier):
        return _descent(estimator)
    return _ridge(estimator)


def _made(estimator: Estimator, **known: Any) -> Objective:
    weight = np.atleast_2d(np.asarray(estimator.coef_, dtype=np.float64))
    offsets = np.broadcast_to(np.asarray(estimator.intercept_, dtype=np.float64).reshape(-1), (len(weight),))
    bias = bool(estimator.fit_intercept)
    matrix = np.column_stack([weight, offsets]) if bias else weight
    known = {"per_row": False, "chosen": False, "free": bias} | known
    return Objective(
        matrix=matrix, classes=np.asarray(estimator.classes_), bias=bias, class_weight=estimator.class_weight, **known
    )


def _logistic(estimator: Estimator) -> Objective:
    name, chosen = type(estimator).__name__, isinstance(estimator, LogisticRegressionCV)
    strengths = np.unique(np.asarray(estimator.C_ if chosen else estimator.C, dtype=np.float64))
    ratio = getattr(estimator, "l1_ratio_" if chosen else "l1_ratio", None)
    penalty = getattr(estimator, "penalty", "l2")
    mixed = any(each not in (None, 0.0) for each in np.atleast_1d(np.asarray(ratio, dtype=object)).tolist())
    if penalty not in ("l2", "deprecated") or mixed or not np.isfinite(strengths).all():
        raise ModelError(
            f"{name} with penalty {penalty!r}, l1_ratio {ratio!r}, C {strengths.tolist()}",
            "an L2 penalty is needed: with L1, or with none, no bound holds",
            L2 if np.isfinite(strengths).all() else "Fit with a finite C, for example 100.",
        )
    if chosen and not estimator.refit:
        raise ModelError(
            f"{name} with refit=False", "its weights are a mean over folds, not an optimum", "Fit with refit=True."
        )
    if len(strengths) > 1:
        raise ModelError(
            f"{name} with another C for each class", "one C for all classes is needed", "Fit LogisticRegression(C=...)."
        )
    single = len(np.atleast_2d(estimator.coef_)) == 1
    penalised = estimator.solver == "liblinear"
    require_own_classes(estimator, "ovr" if single or penalised else "multinomial")
    if penalised and not single:
        raise ModelError(
            f"{name} with solver 'liblinear' and several classes",
            "it fits one class against the rest",
            "Fit with solver='lbfgs', or a OneVsRestClassifier.",
        )
    if penalised and estimator.fit_intercept and estimator.intercept_scaling != 1:
        raise ModelError(
            f"{name} with solver 'liblinear' and intercept_scaling {estimator.intercept_scaling:g}",
            "liblinear penalises the intercept, as no other solver does, by this",
            "Fit with solver='lbfgs', or with intercept_scaling=1.",
        )
    free = bool(estimator.fit_intercept) and not penalised
    loss = "logistic" if single else "softmax"
    return _made(estimator, loss=loss, strength=float(strengths[0]), chosen=chosen, free=free)


def require_own_classes(estimator: Estimator, usual: str) -> None:
    """Refuse `multi_class`, which scikit-learn had up to 1.7, where it asks for another loss than the usual one."""
    asked = getattr(estimator, "multi_class", "auto")
    if asked not in ("auto", "deprecated", usual):
        raise ModelError(
            f"{type(estimator).__name__} with multi_class {asked!r}",
            "its loss must be that of later versions: a sigmoid for two classes, softmax for several",
            "Fit without multi_class, or a OneVsRestClassifier.",
        )


def _ridge(estimator: Estimator) -> Objective:
    chosen = isinstance(estimator, RidgeClassifierCV)
    alpha = float(estimator.alpha_ if chosen else estimator.alpha)
    if alpha <= 0.0:
        raise ModelError(f"alpha {alpha:g}", "an L2 penalty is needed", "Fit with an alpha above 0, for example 1.")
    if getattr(estimator, "positive", False):
        raise ModelError(
            "a RidgeClassifier with positive=True", "weights must be free to move", "Fit with positive=False."
        )
    if np.ndim(estimator.classes_) != 1 or getattr(estimator._label_binarizer, "y_type_", "").startswith("multilabel"):
        raise ModelError("several labels a row", "one label a row is needed", "Fit one classifier a label.")
    made = _made(estimator, loss="ridge", strength=1.0 / alpha, chosen=chosen)
    if len(made.matrix) > 1:
        return made
    return Objective(**{**vars(made), "matrix": np.concatenate([-made.matrix, made.matrix])})


def _descent(estimator: Estimator) -> Objective:
    if estimator.loss != "log_loss":
        raise ModelError(
            f"SGDClassifier with loss {estimator.loss!r}",
            "its loss must be smooth and known",
            "Fit with loss='log_loss', or a LogisticRegression.",
        )
    if estimator.penalty != "l2" or not estimator.alpha > 0.0:
        raise ModelError(
            f"SGDClassifier with penalty {estimator.penalty!r}, alpha {estimator.alpha:g}",
            "an L2 penalty is needed: with L1, elastic net or none no bound holds",
            "Fit with penalty='l2' and an alpha above 0.",
        )
    single = len(np.atleast_2d(estimator.coef_)) == 1
    if not single and estimator.class_weight is not None:
        raise ModelError(
            "SGDClassifier with class_weight and several classes",
            "it weighs a class in its own problem only, so that a row counts differently in each",
            "Fit LogisticRegression(class_weight='balanced').",
        )
    loss = "logistic" if single else "one-vs-rest"
    return _made(estimator, loss=loss, strength=float(estimator.alpha), per_row=True)


def _one_vs_rest(estimator: Estimator) -> Objective:
    check_is_fitted(estimator)
    if estimator.multilabel_:
        raise ModelError(
            "a OneVsRestClassifier with several labels a row",
            "one label a row is needed",
            "Fit one classifier a label, and keep a deposit of each.",
        )
    parts = [part for part in estimator.estimators_ if hasattr(part, "coef_")]
    if len(parts) < len(estimator.estimators_) or not parts:
        raise not_taken(estimator.estimator)
    read = [objective_of(part) for part in parts]
    first = read[0]
    if any(each.class_weight is not None for each in read):
        raise ModelError(
            f"a OneVsRestClassifier of {type(parts[0]).__name__} with class_weight",
            "a row would count differently for each class",
            "Fit LogisticRegression(class_weight='balanced') itself: it takes several classes.",
        )
    if any(each.strength != first.strength for each in read):
        raise ModelError(
            f"a OneVsRestClassifier of {type(parts[0]).__name__} with another penalty for each class",
            "one for all classes is needed",
            f"Fit {type(parts[0]).__name__} itself, which takes several classes and chooses once.",
        )
    loss = first.loss
    if len(read) > 1:
        loss = "ridge" if loss == "ridge" else "one-vs-rest"
    rows = [each.matrix if len(read) == 1 else each.matrix[-1:] for each in read]
    return Objective(
        **{**vars(first), "loss": loss, "matrix": np.concatenate(rows), "classes": np.asarray(estimator.classes_)}
    )


def carrying(estimator: Estimator, weights: NDArray[np.float64]) -> Estimator:
    """An estimator of the same kind with these weights; of what the old one learnt, only its classes go over."""
    fresh = clone(estimator)
    if isinstance(estimator, OneVsRestClassifier):
        parts = estimator.estimators_
        rows = [weights] if len(parts) == 1 else [weights[index : index + 1] for index in range(len(parts))]
        fresh.estimators_ = [carrying(part, row) for part, row in zip(parts, rows, strict=True)]
        return _with(fresh, estimator, CARRIED_BY_MANY)
    if isinstance(estimator, RIDGES) and np.atleast_2d(estimator.coef_).shape[0] == 1:
        weights = weights[-1:]
    width = np.atleast_2d(estimator.coef_).shape[1]
    fresh.coef_ = np.ascontiguousarray(weights[:, :width]).reshape(np.shape(estimator.coef_))
    offsets = weights[:, width] if estimator.fit_intercept else np.zeros(len(weights))
    fresh.intercept_ = offsets.copy() if np.ndim(estimator.intercept_) else float(offsets[0])
    return _with(fresh, estimator, CARRIED)


def _with(fresh: Estimator, estimator: Estimator, names: tuple[str, ...]) -> Estimator:
    for name in names:
        if name in vars(estimator):
            setattr(fresh, name, vars(estimator)[name])
    return fresh


def labels_of_classes(classes: NDArray[Any]) -> tuple[Label, ...]:
    """Classes as a record has them: whole numbers or text."""
    return tuple(value if isinstance(value, str) else int(value) for value in classes.tolist())
