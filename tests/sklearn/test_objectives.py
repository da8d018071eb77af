"""What an estimator minimises, weights both ways, and what is not supported."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import (
    LogisticRegression,
    LogisticRegressionCV,
    RidgeClassifier,
    RidgeClassifierCV,
    SGDClassifier,
)
from sklearn.multiclass import OneVsRestClassifier

import expunge
from expunge.errors import ModelError
from expunge.sklearn import from_sklearn, to_sklearn
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


@pytest.mark.parametrize(("classes", "asked"), [(2, "multinomial"), (3, "ovr")])
def test_another_loss_by_multi_class_is_refused(classes: int, asked: str) -> None:
    """Up to scikit-learn 1.7 it made two classes a softmax of (-w, w), and several one against the rest."""
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(60, 2)), np.arange(60) % classes
    model = LogisticRegression(fit_intercept=False).fit(features, labels)
    for usual in ("auto", "deprecated", "ovr" if classes == 2 else "multinomial"):
        model.multi_class = usual
        assert read_objective(model).loss == ("logistic" if classes == 2 else "softmax")
    model.multi_class = asked
    with pytest.raises(ModelError, match="multi_class"):
        read_objective(model)
    with pytest.raises(ModelError, match="multi_class"):
        from_sklearn(model, n_source=60, max_norm=5.0, training_residual=0.0)


# scikit-learn models both ways: the same objective, the same predictions, and a refusal where no bound can hold.


def digits(classes: int) -> tuple[np.ndarray, np.ndarray]:
    x, y = load_digits(return_X_y=True)
    x = x / np.linalg.norm(x, axis=1, keepdims=True) / (1 + 1e-12)
    return x[y < classes][:600], y[y < classes][:600]


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("kind", ["logistic", "ridge"])
def test_the_converted_weights_are_at_the_optimum_of_our_objective(classes: int, kind: str) -> None:
    x, y = digits(classes)
    logistic = LogisticRegression(C=2.0, fit_intercept=False, tol=1e-10, max_iter=5000)
    estimator = (logistic if kind == "logistic" else RidgeClassifier(alpha=3.0, fit_intercept=False)).fit(x, y)
    model = from_sklearn(estimator, n_source=len(x), max_norm=1.0, source=(x, y))
    assert model.record.residual < 1e-6
    assert model.record.provenance == "declared"
    ours = expunge.train(x, y, l2=model.record.l2, max_norm=1.0, loss=model.record.loss)
    assert np.allclose(ours.weight.numpy(), model.weight.numpy(), atol=1e-4)


def test_unlearning_a_scikit_learn_model_leaves_the_estimator_alone() -> None:
    x, y = digits(3)
    fitted = LogisticRegression(C=0.1, fit_intercept=False, tol=1e-8, max_iter=5000).fit(x[:200], y[:200])
    before = fitted.coef_.copy()
    model = from_sklearn(fitted, n_source=200, max_norm=1.0, source=(x[:200], y[:200]))
    result = expunge.unlearn(
        model, (x[:2], y[:2]), (x[200:], y[200:]), epsilon=2.0, delta=1e-3, distance="same", force=True
    )
    published = to_sklearn(result.model, fitted)
    assert np.array_equal(fitted.coef_, before)
    assert not np.array_equal(published.coef_, before)
    assert result.certificate.status == "conditional"


@pytest.mark.parametrize(
    ("estimator", "word"),
    [
        (LogisticRegression(), "intercept"),
        (RidgeClassifier(), "intercept"),
        (LogisticRegression(fit_intercept=False, class_weight="balanced"), "class_weight"),
        (LogisticRegression(fit_intercept=False, l1_ratio=1.0, solver="saga", tol=0.1), "L2"),
        (LogisticRegressionCV(Cs=2, cv=2), "make a deposit"),
        (SGDClassifier(loss="log_loss"), "make a deposit"),
        (LogisticRegression(fit_intercept=False), "training_residual"),
    ],
)
def test_what_our_objective_does_not_describe_is_refused_with_a_remedy(estimator: object, word: str) -> None:
    x, y = digits(2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = estimator.fit(x, y)
    with pytest.raises(expunge.ModelError, match=word):
        from_sklearn(fitted, n_source=len(x), max_norm=1.0, training_residual=None if "resid" in word else 0.1)


@pytest.mark.parametrize(("loss", "classes"), [("logistic", 2), ("ridge", 2), ("ridge", 3), ("softmax", 3)])
def test_bias_and_order_of_classes_go_along(loss: str, classes: int) -> None:
    """The estimator sorts its labels otherwise (as text), and has no intercept of its own: nothing may be lost."""
    x, y = digits(classes)
    y = np.array([9, 10, 11])[y]
    rows = x - x.mean(axis=0) + 0.05 * (y[:, None] - 9)
    model = expunge.train(rows, y, l2=1e-3, max_norm=9.0, loss=loss, bias=True)
    like = RidgeClassifier(fit_intercept=False) if loss == "ridge" else LogisticRegression(fit_intercept=False)
    given = to_sklearn(model, like.fit(rows, y))
    assert np.array_equal(given.predict(rows), model.predict(rows))
    words = expunge.train(rows, y.astype(str), l2=1e-3, max_norm=9.0, loss=loss, bias=True)
    fitted = like.fit(rows, y.astype(str))
    turned = to_sklearn(words, fitted)
    assert np.array_equal(turned.predict(rows), words.predict(rows))
    fitted.classes_ = fitted.classes_[::-1]
    assert np.array_equal(to_sklearn(words, fitted).predict(rows), words.predict(rows)), "another order"
    if loss != "ridge":
        assert given.predict_proba(rows) == pytest.approx(model.predict_proba(rows), abs=1e-9)
    with pytest.raises(expunge.ModelError, match="classes are"):
        to_sklearn(model, fitted)
    with pytest.raises(expunge.ModelError, match="fit_intercept=True"):
        from_sklearn(given, n_source=len(x), max_norm=9.0, training_residual=0.0)
    given.set_params(fit_intercept=False)
    with pytest.raises(expunge.ModelError, match="an intercept that is not 0"):
        from_sklearn(given, n_source=len(x), max_norm=9.0, training_residual=0.0)


def test_an_estimator_that_would_make_something_else_of_the_weights_is_refused() -> None:
    x, y = digits(3)
    frame = pd.DataFrame(x[:, 2:6], columns=list("abcd"))
    logistic = LogisticRegression(fit_intercept=False, max_iter=500)
    with pytest.raises(expunge.ModelError, match="a model with loss ridge"):
        to_sklearn(expunge.train(x, y, l2=0.1, max_norm=1.0, loss="ridge"), logistic.fit(x, y))
    prepared = expunge.train(frame, y)
    with pytest.raises(expunge.ModelError, match="trained on a table"):
        to_sklearn(prepared, logistic.fit(frame, y))
    assert to_sklearn(prepared, LogisticRegression(fit_intercept=False).fit(frame.to_numpy(), y))
    as_it_is = expunge.train(frame, y, l2=0.1, max_norm=1.0, prepare="none")
    with pytest.raises(expunge.ModelError, match="in another order"):
        to_sklearn(as_it_is, logistic.fit(frame[list("badc")], y))
