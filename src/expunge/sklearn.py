"""scikit-learn models, both ways.

`LogisticRegression` minimises `C sum ell + ||w||^2/2`, which is n C times our objective with `l2 = 1/(C n)`. With two
classes it has one weight vector w; ours has one row a class, and its optimum is (-w/2, w/2) at twice that l2, since
`||(-w/2, w/2)||^2 = ||w||^2/2`. `RidgeClassifier` minimises `sum (z - t)^2 + alpha ||w||^2`, so `l2 = alpha/n`; its
two-class w becomes the rows (-w, w).

An intercept that scikit-learn does not penalise has no strong convexity, hence no bound without anything of the
source: there it is refused. With a deposit, made while the source is there, it is taken as it is: `deposit` and
`unlearn` are for estimators as people fit them, on rows that are prepared already, and hand back an estimator of the
same kind.
"""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.utils.validation import check_is_fitted

from expunge.certificate.content import Certificate
from expunge.certificate.statement import Statement
from expunge.data import as_features, as_labels, encode, in_order, prepare
from expunge.distance import Distance
from expunge.errors import DataError, ModelError
from expunge.evidence.deposit.contents import Deposit
from expunge.evidence.deposit.making import make_deposit
from expunge.heads import Rows, head_for
from expunge.model import LinearModel, checked_model, declared_record, from_matrix
from expunge.record import TrainingRecord
from expunge.request.execution import computing_device
from expunge.runtime.progress import Progress, silent
from expunge.train import residual_upper
from expunge.unlearn import unlearn as unlearn_model

Estimator = Any  # LogisticRegression or RidgeClassifier; scikit-learn has no types
DELETIONS = "expunge_deletions_"  # how many an estimator has been through


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
        source = in_order(source, names, model.n_features, "the source")
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


@dataclass(frozen=True)
class Unlearned:
    """`estimator` and `statement` may be handed out; `certificate` and `deposit` are private.

    `model` is what a file of the published weights holds.
    """

    estimator: Estimator
    model: LinearModel
    statement: Statement
    certificate: Certificate
    deposit: Deposit


def deposit(
    estimator: Estimator,
    X: Any,
    y: Any,
    *,
    device: str = "cpu",
    progress: Progress = silent,
    seed: int | None = None,
) -> Deposit:
    """Keep what later deletions need of the rows that a fitted estimator was trained on. PRIVATE; docs/deposit.md.

    The reference is what you would do yourself: refit on the retained rows with the same C (or alpha), the intercept
    not penalised, rows prepared as they are now. The anchor is the optimum, reached from the estimator's weights.

    >>> import numpy as np
    >>> from sklearn.linear_model import LogisticRegression
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.normal(size=(200, 3)), rng.integers(0, 2, 200)
    >>> kept = deposit(LogisticRegression().fit(X, y), X, y)
    >>> result = unlearn(LogisticRegression().fit(X, y), (X[:1], y[:1]), kept, epsilon=1.0, delta=1e-3)
    >>> result.certificate.status, result.deposit.numbers.n_rows
    ('proven', 199)
    """
    _require_kind(estimator)
    fitted_on = getattr(estimator, "feature_names_in_", None)
    names = None if fitted_on is None else tuple(str(name) for name in fitted_on)
    width = np.atleast_2d(estimator.coef_).shape[1]
    given = in_order((X, y), names, width, "the source")
    features = as_features(given[0], "the source")
    classes = tuple(np.asarray(estimator.classes_).tolist())
    labels = encode(as_labels(given[1], features.shape[0], "the source"), classes, "the source")
    model = _with_record(estimator, features, labels, classes, names)
    assert model.record is not None
    rows = prepare(
        features, labels, max_norm=model.record.max_norm, bias=model.record.bias, dtype=torch.float64,
        device=computing_device(device), width=width, name="the source",
    ).rows  # fmt: skip
    if rows.n_scaled:
        raise DataError("rows longer than the longest", "none is", "Give finite rows.")
    return make_deposit(model, model.record, rows, (given[0], given[1]), progress=progress, seed=seed)[0]


def unlearn(
    estimator: Estimator,
    forget: tuple[Any, Any],
    deposit: Deposit,
    surrogate: tuple[Any, Any] | Any = None,
    *,
    epsilon: float,
    delta: float,
    distance: Distance | str | None = None,
    force: bool = False,
    device: str = "cpu",
    progress: Progress = silent,
) -> Unlearned:
    """Take rows out of a fitted estimator of whose source a deposit was kept; nothing that is passed is changed.

    A surrogate, with its distance from what is retained, is used where the deposit alone would need more noise: the
    certificate is then conditional.
    """
    _require_kind(estimator)
    _require_later(estimator, deposit)
    made = unlearn_model(
        deposit.model,
        forget,
        surrogate,
        epsilon=epsilon,
        delta=delta,
        distance=distance,
        deposit=deposit,
        force=force,
        device=device,
        progress=progress,
    )
    copy = deepcopy(estimator)
    weights = made.model.matrix().numpy()
    if isinstance(estimator, RidgeClassifier) and np.atleast_2d(estimator.coef_).shape[0] == 1:
        weights = weights[1:]
    shape = np.shape(estimator.coef_)
    copy.coef_ = weights[:, : np.atleast_2d(estimator.coef_).shape[1]].reshape(shape)
    copy.intercept_ = weights[:, -1] if estimator.fit_intercept else np.zeros_like(estimator.intercept_)
    setattr(copy, DELETIONS, made.deposit.numbers.generation)
    return Unlearned(copy, made.model, made.statement, made.certificate, made.deposit)


def _require_later(estimator: Estimator, deposit: Deposit) -> None:
    """Refuse a deposit from before the deletions that an estimator has been through."""
    been, own = getattr(estimator, DELETIONS, 0), deposit.numbers.generation
    if been > own:
        raise ModelError(
            f"the estimator has been through {been} {'deletion' if been == 1 else 'deletions'}",
            f"the deposit through {own}: whoever was forgotten since would be back",
            "Give the deposit of the last result, and destroy this one.",
        )


def _with_record(
    estimator: Estimator, features: torch.Tensor, labels: torch.Tensor, classes: tuple[Any, ...], names: Any
) -> LinearModel:
    """The estimator's weights with what a deposit has to know of its training."""
    logistic, n = isinstance(estimator, LogisticRegression), int(features.shape[0])
    weight = np.atleast_2d(np.asarray(estimator.coef_, dtype=np.float64))
    offsets = np.broadcast_to(np.asarray(estimator.intercept_, dtype=np.float64).reshape(-1), (len(weight),))
    bias = bool(estimator.fit_intercept)
    matrix = np.column_stack([weight, offsets]) if bias else weight
    loss = ("logistic" if len(weight) == 1 else "softmax") if logistic else "ridge"
    if not logistic and len(matrix) == 1:
        matrix = np.concatenate([-matrix, matrix])
    constant = float(estimator.C) if logistic else 1.0 / float(estimator.alpha)
    record = TrainingRecord(
        n,
        classes,
        tuple(torch.bincount(labels, minlength=len(classes)).tolist()),
        1.0 / (constant * n),
        loss,
        two_digits(float(features.double().norm(dim=1).max())),
        bias,
        0.0,
        features=names,
        free_bias=True if bias else None,
        fixed_c=constant,
    )
    return from_matrix(torch.from_numpy(np.array(matrix)), bias=bias, dtype=torch.float64).with_record(record)


def _require_kind(estimator: Estimator) -> None:
    """Refuse estimators whose objective is another."""
    _require_plain(estimator, intercept=True)
    if getattr(estimator, "solver", None) == "liblinear" and estimator.fit_intercept:
        raise ModelError(
            f"{type(estimator).__name__} with solver 'liblinear' and an intercept",
            "liblinear penalises the intercept, as no other solver does",
            "Fit with solver='lbfgs', or with fit_intercept=False on rows that have a column of ones.",
        )


def two_digits(length: float) -> float:
    """Rounded up to two significant digits: it is published, and must not be the length of somebody's row.

    >>> two_digits(14.383), two_digits(0.02)
    (15.0, 0.021)
    """
    power = 10.0 ** (math.floor(math.log10(length)) - 1) if length > 0.0 else 1.0
    return float(f"{(math.floor(length / power) + 1) * power:.1e}")


def to_sklearn(model: LinearModel, like: Estimator) -> Estimator:
    """A copy of the fitted estimator `like` that carries the model's weights."""
    _require_plain(like)
    check_is_fitted(like)
    weight = model.weight.double().numpy()
    if len(like.classes_) != model.n_classes or np.atleast_2d(like.coef_).shape[1] != model.n_features:
        raise ModelError(
            f"the model is {model.n_classes} x {model.n_features}",
            f"the estimator is {len(like.classes_)} x {np.atleast_2d(like.coef_).shape[1]}",
            "Pass the estimator the model came from.",
        )
    if np.atleast_2d(like.coef_).shape[0] == 1:
        weight = (weight[1:] - weight[:1]) * (1.0 if isinstance(like, LogisticRegression) else 0.5)
    copy = deepcopy(like)
    copy.coef_ = weight.astype(like.coef_.dtype).reshape(like.coef_.shape)
    copy.intercept_ = np.zeros_like(like.intercept_)
    return copy


def _require_plain(estimator: Estimator, intercept: bool = False) -> None:
    """Refuse what our objectives do not describe; with a deposit an intercept may be free."""
    name = type(estimator).__name__
    if not isinstance(estimator, (LogisticRegression, RidgeClassifier)):
        raise ModelError(
            f"a {name}", "LogisticRegression and RidgeClassifier are understood", "Use expunge.LinearModel directly."
        )
    check_is_fitted(estimator)
    if estimator.fit_intercept and not intercept:
        raise ModelError(
            f"{name} with fit_intercept=True",
            "scikit-learn does not penalise the intercept, so the objective is not strongly convex in it and no bound "
            "holds",
            "While the source is there, make a deposit (expunge.sklearn.deposit); else append a column of ones to the "
            "features and fit with fit_intercept=False, or train with expunge.train(bias=True).",
        )
    if estimator.class_weight is not None:
        raise ModelError(f"{name} with class_weight", "every row must count the same", "Fit without class weights.")
    if isinstance(estimator, LogisticRegression):
        l1 = getattr(estimator, "l1_ratio", None)
        penalty = getattr(estimator, "penalty", "l2")
        if (penalty not in ("l2", "deprecated")) or l1 not in (None, 0, 0.0) or not np.isfinite(estimator.C):
            raise ModelError(
                f"{name} with penalty {penalty!r}, l1_ratio {l1!r}, C {estimator.C}",
                "an L2 penalty is needed",
                "Fit with an L2 penalty.",
            )
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
    rows: Rows = prepare(
        features, labels, max_norm=max_norm, bias=False, dtype=torch.float64, device=torch.device("cpu"),
        width=model.n_features, name="the source",
    ).rows  # fmt: skip
    objective = head_for(loss, l2=l2, n_classes=model.n_classes, n_features=model.n_features, row_bound=max_norm)
    return residual_upper(objective, model.matrix(), rows)
