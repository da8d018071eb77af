"""What a fitted estimator minimises, read off it; and estimators of the same kind with other weights.

    LogisticRegression, its CV           C sum s ell + ||w||^2/2         l2 = 1/(C n), for fewer rows more of it
    RidgeClassifier, its CV              sum s (z - t)^2 + alpha ||w||^2 l2 = alpha/n: C is 1/alpha
    SGDClassifier(loss='log_loss')       mean s ell + (alpha/2) ||w||^2  l2 = alpha, whatever the rows
    OneVsRestClassifier                  one of these, once for each class

with s the weights of the classes. The intercept is not penalised, except by liblinear.

`from_sklearn` and `to_sklearn` are for models of whose source no deposit was made. With two classes
`LogisticRegression` has one weight vector w; ours has one row a class, and its optimum is (-w/2, w/2) at twice that l2,
since `||(-w/2, w/2)||^2 = ||w||^2/2`; the two-class w of `RidgeClassifier` becomes the rows (-w, w). An intercept that
is not penalised has no strong convexity, hence no bound without anything of the source: it is refused there.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
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
from expunge.heads import head_for
from expunge.model import LinearModel, checked_model, declared_record, one_row_a_class
from expunge.record import LOGISTIC, RIDGE, SOFTMAX, Label
from expunge.rows import as_features, as_labels, bound_rows, encode, order_columns
from expunge.train import residual_upper

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
WITH_DEPOSIT = ("Pipeline", "LogisticRegressionCV", "RidgeClassifierCV", "SGDClassifier", "OneVsRestClassifier")
REQUIRED = "an L2 penalty is needed, and a smooth loss: both known, and the same for every class"
EACH_LABEL = "Fit one classifier a label, with a deposit each."
BINS = "Fit a LogisticRegression on the same columns, cut into bins by KBinsDiscretizer where thresholds matter."
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
    # `multi_class`, which scikit-learn had up to 1.7, may ask for another loss than the usual one
    asked, usual = getattr(estimator, "multi_class", "auto"), "ovr" if single or penalised else "multinomial"
    other, one_by_one = asked not in ("auto", "deprecated", usual), "Fit with solver='lbfgs', or a OneVsRestClassifier."
    _refuse(
        (
            penalty not in ("l2", "deprecated") or mixed,
            f"{name} with penalty {penalty!r}, l1_ratio {ratio!r}",
            "Fit with an L2 penalty, the default.",
        ),
        (not np.isfinite(strengths).all(), f"{name} without a penalty", "Fit with a finite C, for example 100."),
        (chosen and not estimator.refit, f"{name} whose weights are a mean over folds", "Fit with refit=True."),
        (len(strengths) > 1, f"{name} with another C for each class", "Fit LogisticRegression(C=...)."),
        (other, f"{name} with multi_class {asked!r}", "Fit without multi_class, or a OneVsRestClassifier."),
        (penalised and not single, f"{name} with solver 'liblinear' and several classes", one_by_one),
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


# Without a deposit ----------------------------------------------------------------------------------------------------

ORIGIN = "Pass the estimator the model came from."


def from_sklearn(
    estimator: Estimator,
    *,
    n_source: int,
    max_norm: float,
    training_residual: float | None = None,
    source: tuple[Any, Any] | None = None,
) -> LinearModel:
    """A fitted LogisticRegression or RidgeClassifier as a model with a declared record.

    Give `training_residual`, the norm of OUR objective's gradient at the weights, or `source`, the training rows, to
    have it measured while they still exist: scikit-learn's default tolerance stops far from the optimum. Rows must have
    been trained on unscaled and be at most `max_norm` long; weights per class or per row are not supported.
    """
    objective = _read_plain(estimator)
    weight, loss, l2 = objective.matrix, objective.loss, 1.0 / (objective.strength * n_source)
    if loss == "logistic":
        weight, loss, l2 = np.concatenate([-weight, weight]) / 2.0, "softmax", 2.0 * l2
    model, names = checked_model(weight, name="the scikit-learn model"), _columns(estimator)
    classes = tuple(objective.classes.tolist())
    if training_residual is None:
        if source is None:
            raise ModelError(
                "neither training_residual nor source was given",
                "the bound needs to know how far training stopped from the optimum",
                "Pass source=(X, y) while the training rows exist, or the gradient's norm as training_residual.",
            )
        values, given = order_columns(source, names, model.n_features, "the source")
        features = as_features(values, "the source")
        if features.shape[0] != n_source:
            found = f"the source has {features.shape[0]} rows"
            raise ModelError(found, f"n_source is {n_source}", "Give the rows that were trained on.")
        labels = encode(as_labels(given, n_source, "the source"), classes, "the source")
        rows = bound_rows(
            features, labels, max_norm=max_norm, bias=False, dtype=torch.float64, device=torch.device("cpu"),
            width=model.n_features, name="the source",
        )  # fmt: skip
        head = head_for(loss, l2=l2, n_classes=model.n_classes, n_features=model.n_features, row_bound=max_norm)
        training_residual = residual_upper(head, model.matrix(), rows)
    record = declared_record(
        model, n_source=n_source, l2=l2, loss=loss, max_norm=max_norm, residual=training_residual,
        classes=classes, features=names,
    )  # fmt: skip
    return model.with_record(record)


def to_sklearn(model: LinearModel, like: Estimator) -> Estimator:
    """A copy of the fitted estimator `like` that carries the model's weights, its bias and its order of classes.

    Rows are taken as features: prepared, and at most as long as the model's norm bound (`LinearModel.predict` scales
    longer ones, scikit-learn does not). A copy with a bias says `fit_intercept=True`, since that is what it has.
    """
    _read_plain(like)
    logistic, record, names = isinstance(like, LogisticRegression), model.record, _columns(like)
    classes, kind = np.asarray(like.classes_).tolist(), type(like).__name__
    if record is not None:
        losses = (SOFTMAX.name, LOGISTIC.name) if logistic else (RIDGE.name,)
        if record.loss not in losses:
            raise ModelError(f"a model with loss {record.loss}", f"{kind} has {' and '.join(losses)}", ORIGIN)
        if record.table is not None and names is not None:
            raise ModelError(
                "a model that was trained on a table, which it prepares, and an estimator that was fitted on a frame",
                "the estimator would take its columns as they are",
                "Pass one that was fitted on arrays of prepared features, or use the model's own predict.",
            )
        if names is not None and record.features not in (None, names):
            raise ModelError(
                "the estimator was fitted on other columns than the model, or on the same in another order",
                f"the model's are {', '.join(map(repr, (record.features or ())[:8]))}",
                ORIGIN,
            )
    model = one_row_a_class(model)
    known = classes if record is None else list(model.classes)  # without a record rows are in the estimator's order
    found, wanted = (model.n_features, sorted(known)), (np.atleast_2d(like.coef_).shape[1], sorted(classes))
    if len(known) != model.n_classes or found != wanted:
        raise ModelError(
            f"the model has {model.n_features} features, and its classes are {', '.join(map(repr, known[:8]))}",
            f"the estimator has {wanted[0]}, and its classes are {', '.join(map(repr, classes[:8]))}",
            ORIGIN,
        )
    matrix = model.matrix().double().numpy()[[known.index(label) for label in classes]]
    if np.atleast_2d(like.coef_).shape[0] == 1:
        matrix = (matrix[1:] - matrix[:1]) * (1.0 if logistic else 0.5)
    form = copy(like)
    return with_weights(form.set_params(fit_intercept=model.bias is not None), matrix)


def _columns(estimator: Estimator) -> tuple[str, ...] | None:
    """The columns of the data frame that an estimator was fitted on."""
    names = getattr(estimator, "feature_names_in_", None)
    return None if names is None else tuple(str(name) for name in names)


def _read_plain(estimator: Estimator) -> Objective:
    """The objective of an estimator that needs no deposit; refuses the others."""
    name = type(estimator).__name__
    if name in WITH_DEPOSIT:
        raise ModelError(
            f"{name} is not supported without a deposit",
            "LogisticRegression and RidgeClassifier alone are understood",
            "While the source is there, make a deposit (expunge.sklearn.deposit).",
        )
    if not isinstance(estimator, (LogisticRegression, RidgeClassifier)):
        raise unsupported(estimator)
    check_is_fitted(estimator)
    rules = {  # scikit-learn does not penalise the intercept: the objective is not strongly convex in it
        "fit_intercept=True": bool(estimator.fit_intercept),
        "fit_intercept=False and an intercept that is not 0": bool(np.any(np.asarray(estimator.intercept_) != 0.0)),
        "class_weight": estimator.class_weight is not None,
    }
    for found in (name for name, broken in rules.items() if broken):
        raise ModelError(
            f"{name} with {found}",
            "without a deposit no bound holds for what is not penalised, and every row must count the same",
            "While the source is there, make a deposit (expunge.sklearn.deposit); else fit without, with a column of "
            "ones for an intercept, or use expunge.train(bias=True).",
        )
    return read_objective(estimator)
