"""What a fitted estimator minimises, read off it; and estimators of the same kind with other weights.

    LogisticRegression, its CV           C sum s ell + ||w||^2/2         l2 = 1/(C n), for fewer rows more of it
    RidgeClassifier, its CV              sum s (z - t)^2 + alpha ||w||^2 l2 = alpha/n: C is 1/alpha
    SGDClassifier(loss='log_loss')       mean s ell + (alpha/2) ||w||^2  l2 = alpha, whatever the rows
    OneVsRestClassifier                  one of these, once for each class

with s the weights of the classes. The intercept is not penalised, except by liblinear.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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

Estimator = Any  # of scikit-learn, which has no types
RIDGES = (RidgeClassifier, RidgeClassifierCV)
COARSE_MARK = "expunge_coarse_"  # on what `coarsen` made coarse: a digest of what it had learnt then
# what of a fitted estimator goes over to one with other weights: nothing else, since the rest was learnt from rows
CARRIED_BY_MANY = ("label_binarizer_", "classes_", "n_features_in_", "feature_names_in_")
CARRIED = (*CARRIED_BY_MANY, "_label_binarizer", "C_", "alpha_", "l1_ratio_", COARSE_MARK)

SUPPORTED = (
    "LogisticRegression, LogisticRegressionCV, RidgeClassifier, RidgeClassifierCV, SGDClassifier(loss='log_loss'), a "
    "OneVsRestClassifier of one of these, or a Pipeline that ends in one"
)
REQUIRED = "an L2 penalty is needed, and a smooth loss: both known, and the same for every class"
EACH_LABEL = "Fit one classifier a label, with a deposit each."
BINS = (
    "Fit a LogisticRegression on the same columns, cut into bins by KBinsDiscretizer where thresholds matter, or on "
    "what trees of public rows say of a row (docs/tutorial-boosting.md)."
)
KERNEL = "Fit a LogisticRegression on the same columns; for a kernel, put RBFSampler or PolynomialFeatures before it."
ANYTHING = "Fit a LogisticRegression on the same columns, or use expunge.LinearModel."
INSTEAD = {  # by the name of the class, from the first that a class descends from; ANYTHING for all others
    **dict.fromkeys(("SVC", "NuSVC", "GaussianProcessClassifier", "QuadraticDiscriminantAnalysis"), KERNEL),
    **dict.fromkeys(("BaseDecisionTree", "BaseForest", "BaseGradientBoosting", "BaseHistGradientBoosting"), BINS),
    **dict.fromkeys(("_MultiOutputEstimator", "_BaseChain"), EACH_LABEL),
    **dict.fromkeys(("OneVsOneClassifier", "OutputCodeClassifier"), "Fit a OneVsRestClassifier of that estimator."),
    "Perceptron": "Fit SGDClassifier(loss='log_loss') or a LogisticRegression.",
    "BaseMultilayerPerceptron": "Use the last layer: a LogisticRegression on what the layers before it make of rows.",
    "CalibratedClassifierCV": "Give a LogisticRegression itself, whose probabilities need no calibration.",
    "BaseSearchCV": "Give what it chose: search.best_estimator_.",
    "_BaseHeterogeneousEnsemble": "Give one of its members that is supported.",
    "RegressorMixin": "Only classifiers are supported; cut the target into classes, or use a RidgeClassifier.",
}


def unsupported(estimator: Estimator) -> ModelError:
    """The error for an estimator that no objective of ours describes, with the nearest one that is."""
    ancestors = [kind.__name__ for kind in type(estimator).__mro__]
    remedy = next((INSTEAD[name] for name in ancestors if name in INSTEAD), ANYTHING)
    return ModelError(f"{type(estimator).__name__} is not supported", f"supported are {SUPPORTED}", remedy)


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

    @property
    def labels(self) -> tuple[Label, ...]:
        """Classes as a record has them: whole numbers or text."""
        return tuple(value if isinstance(value, str) else int(value) for value in self.classes.tolist())

    def class_weights(self, labels: NDArray[Any]) -> NDArray[np.float64] | None:
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


def read_objective(estimator: Estimator) -> Objective:
    """What the estimator minimises; refuses whatever is not known, with the nearest thing that is."""
    if isinstance(estimator, OneVsRestClassifier):
        return _one_vs_rest(estimator)
    if not isinstance(estimator, (LogisticRegression, SGDClassifier, *RIDGES)):
        raise unsupported(estimator)
    check_is_fitted(estimator)
    if isinstance(estimator, LogisticRegression):
        return _logistic(estimator)
    return _descent(estimator) if isinstance(estimator, SGDClassifier) else _ridge(estimator)


def _read(estimator: Estimator, *, loss: str, strength: float, **known: Any) -> Objective:
    weight = np.atleast_2d(np.asarray(estimator.coef_, dtype=np.float64))
    offsets = np.broadcast_to(np.asarray(estimator.intercept_, dtype=np.float64).reshape(-1), (len(weight),))
    bias = bool(estimator.fit_intercept)
    matrix = np.column_stack([weight, offsets]) if bias else weight
    known = {"free": bias, "per_row": False, "chosen": False} | known
    weighted = estimator.class_weight
    return Objective(
        loss, matrix, np.asarray(estimator.classes_), bias, strength=strength, class_weight=weighted, **known
    )


def _refuse(*rules: tuple[Any, str, str]) -> None:
    """Raise the error of the first rule that is broken: what was found, and the remedy."""
    for broken, found, remedy in rules:
        if broken:
            raise ModelError(found, REQUIRED, remedy)


def _logistic(estimator: Estimator) -> Objective:
    name, chosen = type(estimator).__name__, isinstance(estimator, LogisticRegressionCV)
    strengths = np.unique(np.asarray(estimator.C_ if chosen else estimator.C, dtype=np.float64))
    ratio = getattr(estimator, "l1_ratio_" if chosen else "l1_ratio", None)
    penalty = getattr(estimator, "penalty", "l2")
    mixed = any(each not in (None, 0.0) for each in np.atleast_1d(np.asarray(ratio, dtype=object)).tolist())
    single, penalised = len(np.atleast_2d(estimator.coef_)) == 1, estimator.solver == "liblinear"
    scaled = penalised and estimator.fit_intercept and estimator.intercept_scaling != 1
    _refuse(
        (
            penalty not in ("l2", "deprecated") or mixed,
            f"{name} with penalty {penalty!r}, l1_ratio {ratio!r}",
            "Fit with an L2 penalty, the default.",
        ),
        (not np.isfinite(strengths).all(), f"{name} without a penalty", "Fit with a finite C, for example 100."),
        (chosen and not estimator.refit, f"{name} whose weights are a mean over folds", "Fit with refit=True."),
        (len(strengths) > 1, f"{name} with another C for each class", "Fit LogisticRegression(C=...)."),
        (
            penalised and not single,
            f"{name} with solver 'liblinear' and several classes",
            "Fit with solver='lbfgs', or a OneVsRestClassifier.",
        ),
        (scaled, f"{name} with a scaled intercept", "Fit with solver='lbfgs', or with intercept_scaling=1."),
    )
    free = bool(estimator.fit_intercept) and not penalised
    loss = "logistic" if single else "softmax"
    return _read(estimator, loss=loss, strength=float(strengths[0]), chosen=chosen, free=free)


def _ridge(estimator: Estimator) -> Objective:
    chosen = isinstance(estimator, RidgeClassifierCV)
    alpha = float(estimator.alpha_ if chosen else estimator.alpha)
    kind = getattr(estimator._label_binarizer, "y_type_", "")
    several = np.ndim(estimator.classes_) != 1 or kind.startswith("multilabel")
    positive = getattr(estimator, "positive", False)
    _refuse(
        (alpha <= 0.0, f"a RidgeClassifier with alpha {alpha:g}", "Fit with an alpha above 0, for example 1."),
        (positive, "a RidgeClassifier whose weights are not free to move", "Fit with positive=False."),
        (several, "a RidgeClassifier with several labels a row", EACH_LABEL),
    )
    read = _read(estimator, loss="ridge", strength=1.0 / alpha, chosen=chosen)
    return read if len(read.matrix) > 1 else replace(read, matrix=np.concatenate([-read.matrix, read.matrix]))


def _descent(estimator: Estimator) -> Objective:
    single = len(np.atleast_2d(estimator.coef_)) == 1
    # with several classes it weighs a class in its own problem only, so that a row counts differently in each
    weighted = not single and estimator.class_weight is not None
    unpenalised = estimator.penalty != "l2" or not estimator.alpha > 0.0
    loss, found = estimator.loss, f"SGDClassifier with penalty {estimator.penalty!r}, alpha {estimator.alpha:g}"
    _refuse(
        (loss != "log_loss", f"SGDClassifier with loss {loss!r}", "Fit with loss='log_loss', or a LogisticRegression."),
        (unpenalised, found, "Fit with penalty='l2' and an alpha above 0."),
        (weighted, "SGDClassifier with class_weight", "Fit LogisticRegression(class_weight='balanced')."),
    )
    loss = "logistic" if single else "one-vs-rest"
    return _read(estimator, loss=loss, strength=float(estimator.alpha), per_row=True)


def _one_vs_rest(estimator: Estimator) -> Objective:
    check_is_fitted(estimator)
    _refuse((estimator.multilabel_, "a OneVsRestClassifier with several labels a row", EACH_LABEL))
    members = [member for member in estimator.estimators_ if hasattr(member, "coef_")]
    if len(members) < len(estimator.estimators_) or not members:
        raise unsupported(estimator.estimator)
    read = [read_objective(member) for member in members]
    one = f"Fit {type(members[0]).__name__} itself, which has several classes and chooses once."
    weighted, unlike = (any(each.class_weight is not None for each in read), len({each.strength for each in read}) > 1)
    _refuse(
        (weighted, "a OneVsRestClassifier with class_weight", "Fit LogisticRegression(class_weight='balanced')."),
        (unlike, "a OneVsRestClassifier with another penalty for each class", one),
    )
    first = replace(read[0], classes=np.asarray(estimator.classes_))
    if len(read) == 1:
        return first
    loss = "ridge" if first.loss == "ridge" else "one-vs-rest"
    return replace(first, loss=loss, matrix=np.concatenate([each.matrix[-1:] for each in read]))


def with_weights(estimator: Estimator, weights: NDArray[np.float64]) -> Estimator:
    """An estimator of the same kind with these weights; of what the old one learnt, only its classes go over."""
    fresh, many = clone(estimator), isinstance(estimator, OneVsRestClassifier)
    if many:
        members = estimator.estimators_
        rows = [weights] if len(members) == 1 else [weights[index : index + 1] for index in range(len(members))]
        fresh.estimators_ = [with_weights(member, row) for member, row in zip(members, rows, strict=True)]
    else:
        if isinstance(estimator, RIDGES) and np.atleast_2d(estimator.coef_).shape[0] == 1:
            weights = weights[-1:]
        width = np.atleast_2d(estimator.coef_).shape[1]
        fresh.coef_ = np.ascontiguousarray(weights[:, :width]).reshape(np.shape(estimator.coef_))
        offsets = weights[:, width] if estimator.fit_intercept else np.zeros(len(weights))
        alone = np.ndim(estimator.intercept_) == 0 and len(offsets) == 1
        fresh.intercept_ = float(offsets[0]) if alone else offsets.copy()
    for name in CARRIED_BY_MANY if many else CARRIED:
        if name in vars(estimator):
            setattr(fresh, name, vars(estimator)[name])
    return fresh
