"""Weights of scikit-learn models of whose source nothing was kept, both ways.

`LogisticRegression` minimises `C sum ell + ||w||^2/2`, which is n C times our objective with `l2 = 1/(C n)`. With two
classes it has one weight vector w; ours has one row a class, and its optimum is (-w/2, w/2) at twice that l2, since
`||(-w/2, w/2)||^2 = ||w||^2/2`. `RidgeClassifier` minimises `sum (z - t)^2 + alpha ||w||^2`, so `l2 = alpha/n`; its
two-class w becomes the rows (-w, w).

An intercept that scikit-learn does not penalise has no strong convexity, hence no bound without anything of the
source: here it is refused. With a deposit, made while the source is there, it is taken as it is (keeping.py).
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV, RidgeClassifier
from sklearn.utils.validation import check_is_fitted

from expunge.errors import ModelError
from expunge.heads import Rows, head_for
from expunge.model import LinearModel, checked_model, declared_record, one_row_a_class
from expunge.record import LOGISTIC, RIDGE, SOFTMAX
from expunge.rows import as_features, as_labels, bound_rows, encode, order_columns
from expunge.sklearn.objectives import require_own_classes
from expunge.sklearn.refusals import Estimator, not_taken
from expunge.train import residual_upper

WITH_DEPOSIT = ("Pipeline", "LogisticRegressionCV", "RidgeClassifierCV", "SGDClassifier", "OneVsRestClassifier")


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
    _require_plain(estimator)
    logistic = isinstance(estimator, LogisticRegression)
    weight = np.atleast_2d(np.asarray(estimator.coef_, dtype=np.float64))
    two = weight.shape[0] == 1
    if two:
        weight = np.concatenate([-weight, weight]) * (0.5 if logistic else 1.0)
    l2 = (2.0 if two else 1.0) / (estimator.C * n_source) if logistic else estimator.alpha / n_source
    model = checked_model(weight, name="the scikit-learn model")
    classes = tuple(np.asarray(estimator.classes_).tolist())
    loss = "softmax" if logistic else "ridge"
    fitted_on = getattr(estimator, "feature_names_in_", None)  # of a data frame
    names = None if fitted_on is None else tuple(str(name) for name in fitted_on)
    if training_residual is None:
        if source is None:
            raise ModelError(
                "neither training_residual nor source was given",
                "the bound needs to know how far training stopped from the optimum",
                "Pass source=(X, y) while the training rows exist, or the gradient's norm as training_residual.",
            )
        source = order_columns(source, names, model.n_features, "the source")
        training_residual = _measure(model, source, classes, n_source=n_source, l2=l2, loss=loss, max_norm=max_norm)
    record = declared_record(
        model,
        n_source=n_source,
        l2=l2,
        loss=loss,
        max_norm=max_norm,
        residual=training_residual,
        classes=classes,
        features=names,
    )
    return model.with_record(record)


def to_sklearn(model: LinearModel, like: Estimator) -> Estimator:
    """A copy of the fitted estimator `like` that carries the model's weights, its bias and its order of classes.

    Rows are taken as features: prepared, and at most as long as the model's norm bound (`LinearModel.predict` scales
    longer ones, scikit-learn does not). A copy with a bias says `fit_intercept=True`, since that is what it has.
    """
    _require_plain(like)
    check_is_fitted(like)
    _require_same(model, like)
    model = one_row_a_class(model)
    width = np.atleast_2d(like.coef_).shape[1]
    if len(like.classes_) != model.n_classes or width != model.n_features:
        raise ModelError(
            f"the model is {model.n_classes} x {model.n_features}",
            f"the estimator is {len(like.classes_)} x {width}",
            "Pass the estimator the model came from.",
        )
    weight, order = model.weight.double().numpy(), _order(model, like)
    bias = np.zeros(model.n_classes) if model.bias is None else model.bias.double().numpy()
    weight, bias = weight[order], bias[order]
    if np.atleast_2d(like.coef_).shape[0] == 1:
        factor = 1.0 if isinstance(like, LogisticRegression) else 0.5
        weight, bias = (weight[1:] - weight[:1]) * factor, (bias[1:] - bias[:1]) * factor
    copy = deepcopy(like)
    copy.coef_ = weight.astype(like.coef_.dtype).reshape(like.coef_.shape)
    copy.intercept_ = np.zeros_like(like.intercept_)
    if model.bias is not None:
        copy.set_params(fit_intercept=True)
        copy.intercept_ = bias.astype(like.coef_.dtype)
    return copy


def _require_same(model: LinearModel, like: Estimator) -> None:
    """Refuse an estimator that would make something else of the weights than the model does."""
    record = model.record
    if record is None:
        return
    losses = (SOFTMAX.name, LOGISTIC.name) if isinstance(like, LogisticRegression) else (RIDGE.name,)
    if record.loss not in losses:
        raise ModelError(
            f"a model with loss {record.loss}",
            f"{type(like).__name__} has the probabilities, or outputs, of {' and '.join(losses)}",
            "Pass an estimator of the model's own loss.",
        )
    fitted_on = getattr(like, "feature_names_in_", None)  # of a data frame
    if fitted_on is None:
        return
    if record.table is not None:
        raise ModelError(
            "a model that was trained on a table, which it prepares, and an estimator that was fitted on a frame",
            "the estimator would take its columns as they are",
            "Pass one that was fitted on arrays of prepared features, or use the model's own predict.",
        )
    if record.features is not None and tuple(str(name) for name in fitted_on) != record.features:
        raise ModelError(
            "the estimator was fitted on other columns than the model, or on the same in another order",
            f"the model's are {', '.join(map(repr, record.features[:8]))}",
            "Pass the estimator the model came from.",
        )


def _order(model: LinearModel, like: Estimator) -> list[int]:
    """For each class of the estimator the model's row of it; without a record rows are taken to be in its order."""
    if model.record is None:
        return list(range(model.n_classes))
    known, wanted = list(model.classes), np.asarray(like.classes_).tolist()
    if set(known) != set(wanted):
        raise ModelError(
            f"the model's classes are {', '.join(map(repr, known[:8]))}",
            f"the estimator's are {', '.join(map(repr, wanted[:8]))}",
            "Pass the estimator the model came from.",
        )
    return [known.index(label) for label in wanted]


def _require_plain(estimator: Estimator) -> None:
    """Refuse what our objectives do not describe."""
    name = type(estimator).__name__
    if isinstance(estimator, LogisticRegressionCV) or not isinstance(estimator, (LogisticRegression, RidgeClassifier)):
        if name in WITH_DEPOSIT:
            raise ModelError(
                f"a {name}",
                "without a deposit LogisticRegression and RidgeClassifier alone are understood",
                "While the source is there, make a deposit (expunge.sklearn.deposit), which takes it.",
            )
        raise not_taken(estimator)
    check_is_fitted(estimator)
    if estimator.fit_intercept:
        raise ModelError(
            f"{name} with fit_intercept=True",
            "scikit-learn does not penalise the intercept, so the objective is not strongly convex in it and no bound "
            "holds",
            "While the source is there, make a deposit (expunge.sklearn.deposit); else append a column of ones to the "
            "features and fit with fit_intercept=False, or train with expunge.train(bias=True).",
        )
    if np.any(np.asarray(estimator.intercept_) != 0.0):
        raise ModelError(
            f"{name} with fit_intercept=False and an intercept that is not 0",
            "it would be lost",
            "Set it to 0, or train with expunge.train(bias=True).",
        )
    if estimator.class_weight is not None:
        raise ModelError(
            f"{name} with class_weight",
            "without a deposit every row must count the same",
            "Make a deposit while the source is there (expunge.sklearn.deposit), or fit without class weights.",
        )
    if isinstance(estimator, LogisticRegression):
        l1 = getattr(estimator, "l1_ratio", None)
        penalty = getattr(estimator, "penalty", "l2")
        if (penalty not in ("l2", "deprecated")) or l1 not in (None, 0, 0.0) or not np.isfinite(estimator.C):
            raise ModelError(
                f"{name} with penalty {penalty!r}, l1_ratio {l1!r}, C {estimator.C}",
                "an L2 penalty is needed",
                "Fit with an L2 penalty.",
            )
        require_own_classes(estimator, "ovr" if len(estimator.classes_) == 2 else "multinomial")
        if estimator.solver == "liblinear" and len(estimator.classes_) > 2:
            raise ModelError(
                f"{name} with solver 'liblinear'",
                "one multinomial model is needed, not one against the rest",
                "Fit with solver='lbfgs'.",
            )


def _measure(
    model: LinearModel,
    source: tuple[Any, Any],
    classes: tuple[Any, ...],
    *,
    n_source: int,
    l2: float,
    loss: str,
    max_norm: float,
) -> float:
    features = as_features(source[0], "the source")
    if features.shape[0] != n_source:
        raise ModelError(
            f"the source has {features.shape[0]} rows", f"n_source is {n_source}", "Give the rows that were trained on."
        )
    labels = encode(as_labels(source[1], features.shape[0], "the source"), classes, "the source")
    rows: Rows = bound_rows(
        features, labels, max_norm=max_norm, bias=False, dtype=torch.float64, device=torch.device("cpu"),
        width=model.n_features, name="the source",
    )  # fmt: skip
    objective = head_for(loss, l2=l2, n_classes=model.n_classes, n_features=model.n_features, row_bound=max_norm)
    return residual_upper(objective, model.matrix(), rows)
