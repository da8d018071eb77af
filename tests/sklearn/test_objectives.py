"""What an estimator minimises, and what is not supported."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import (
    LogisticRegression,
    LogisticRegressionCV,
    RidgeClassifier,
    RidgeClassifierCV,
    SGDClassifier,
)
from sklearn.multiclass import OneVsRestClassifier

from expunge.errors import ModelError
from expunge.sklearn.objectives import Objective, read_objective, with_weights
from sklearn_models import EXACT, numbers

# What an estimator minimises: its weights are where that objective has no slope, and what is not described is refused.


def fit(estimator: Any, classes: int) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return estimator.fit(*numbers(classes))


def slope(found: Objective, classes: int) -> float:
    """The norm of the gradient of the objective as it is described, written out by its formula."""
    features, labels = numbers(classes)
    rows = np.column_stack([features, np.ones(len(features))]) if found.bias else features
    hot = labels[:, None] == found.classes[None]
    outputs = rows @ found.matrix.T
    if found.loss == "ridge":
        residuals = outputs - (2.0 * hot - 1.0)
    elif found.loss == "softmax":
        powers = np.exp(outputs)
        residuals = powers / powers.sum(axis=1, keepdims=True) - hot
    else:
        residuals = 1.0 / (1.0 + np.exp(-outputs)) - (hot if len(found.matrix) > 1 else hot[:, 1:])
    weights = found.class_weights(labels)
    shares = np.ones(len(rows)) if weights is None else hot @ weights
    penalty = np.full(rows.shape[1], found.strength if found.per_row else 1.0 / (found.strength * len(rows)))
    penalty[-1] = 0.0 if found.free else penalty[-1]
    return float(np.linalg.norm((residuals * shares[:, None]).T @ rows / len(rows) + penalty * found.matrix))


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize(
    "estimator",
    [
        LogisticRegression(C=2.0, **EXACT),
        LogisticRegression(fit_intercept=False, **EXACT),
        LogisticRegression(class_weight="balanced", solver="newton-cg", **EXACT),
        LogisticRegression(class_weight={"clerk": 3.0, "cook": 0.5}, **EXACT),
        LogisticRegressionCV(Cs=3, cv=2, **EXACT),
        RidgeClassifier(alpha=3.0),
        RidgeClassifier(alpha=3.0, class_weight="balanced", fit_intercept=False),
        RidgeClassifierCV(alphas=(0.5, 5.0)),
        OneVsRestClassifier(LogisticRegression(C=0.7, **EXACT)),
        OneVsRestClassifier(RidgeClassifier(alpha=2.0)),
    ],
)
def test_the_objective_has_no_slope_at_the_weights(estimator: Any, classes: int) -> None:
    model = fit(estimator, classes)
    found = read_objective(model)
    assert slope(found, classes) < 1e-6
    again = with_weights(model, found.matrix)
    assert np.array_equal(again.predict(numbers(classes)[0]), model.predict(numbers(classes)[0]))
    assert np.allclose(again.decision_function(numbers(classes)[0]), model.decision_function(numbers(classes)[0]))
    assert found.labels == ("clerk", "cook", "none")[:classes]


@pytest.mark.parametrize("classes", [2, 3])
def test_descent_is_by_its_alpha_whatever_the_rows(classes: int) -> None:
    found = read_objective(fit(SGDClassifier(loss="log_loss", alpha=0.02, random_state=0), classes))
    assert (found.strength, found.per_row, found.loss) == (0.02, True, "logistic" if classes == 2 else "one-vs-rest")


@pytest.mark.parametrize(
    ("estimator", "classes", "said"),
    [
        (LogisticRegression(l1_ratio=1.0, solver="saga", tol=0.1), 2, "an L2 penalty is needed"),
        (LogisticRegression(l1_ratio=0.5, solver="saga", tol=0.1), 2, "an L2 penalty is needed"),
        (LogisticRegression(C=np.inf), 2, "finite C"),
        (LogisticRegressionCV(Cs=2, cv=2, refit=False), 2, "refit=True"),
        (LogisticRegressionCV(Cs=2, cv=2, l1_ratios=(1.0,), solver="saga", tol=0.1), 2, "an L2 penalty is needed"),
        (LogisticRegression(solver="liblinear", intercept_scaling=3.0), 2, "intercept_scaling=1"),
        (LogisticRegression(class_weight={"clerk": 0.0, "cook": 1.0}), 2, "each must be above 0"),
        (RidgeClassifier(alpha=0.0), 2, "alpha above 0"),
        (RidgeClassifier(positive=True), 2, "positive=False"),
        (SGDClassifier(loss="log_loss", penalty="elasticnet"), 2, "penalty='l2'"),
        (SGDClassifier(loss="log_loss", penalty="l1"), 2, "penalty='l2'"),
        (SGDClassifier(loss="log_loss", penalty=None), 2, "penalty='l2'"),
        (SGDClassifier(loss="log_loss", class_weight="balanced"), 3, "class_weight='balanced'"),
        (OneVsRestClassifier(LogisticRegression(class_weight="balanced")), 3, "class_weight='balanced'"),
    ],
)
def test_what_is_not_described_is_refused_with_a_remedy(estimator: Any, classes: int, said: str) -> None:
    model = fit(estimator, classes)
    with pytest.raises(ModelError, match=said):
        read_objective(model).class_weights(numbers(classes)[1])


def test_another_penalty_for_each_class_is_refused() -> None:
    model = fit(OneVsRestClassifier(LogisticRegressionCV(Cs=2, cv=2)), 3)
    model.estimators_[0].C_ = np.array([123.0])
    with pytest.raises(ModelError, match="another penalty for each class"):
        read_objective(model)
    single = fit(LogisticRegressionCV(Cs=2, cv=2), 3)
    single.C_ = np.array([1.0, 2.0, 3.0])
    with pytest.raises(ModelError, match="another C for each class"):
        read_objective(single)
