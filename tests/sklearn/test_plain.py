"""scikit-learn models both ways: the same objective, the same predictions, and a refusal where no bound can hold."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV, RidgeClassifier, SGDClassifier

import expunge
from expunge.sklearn import from_sklearn, to_sklearn


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


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize(
    "estimator", [LogisticRegression(fit_intercept=False, max_iter=500), RidgeClassifier(fit_intercept=False)]
)
def test_there_and_back_is_the_same_model(classes: int, estimator: object) -> None:
    x, y = digits(classes)
    fitted = estimator.fit(x, y + 3)
    model = from_sklearn(fitted, n_source=len(x), max_norm=1.0, training_residual=1e-3)
    back = to_sklearn(model, fitted)
    assert np.allclose(back.coef_, fitted.coef_)
    assert np.array_equal(back.predict(x), fitted.predict(x))
    assert np.array_equal(model.predict(x), fitted.predict(x))
    assert set(model.classes) == set(range(3, 3 + classes))


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
    ],
)
def test_what_our_objective_does_not_describe_is_refused_with_a_remedy(estimator: object, word: str) -> None:
    x, y = digits(2)
    with pytest.raises(expunge.ModelError, match=word):
        from_sklearn(estimator.fit(x, y), n_source=len(x), max_norm=1.0, training_residual=0.1)


def test_the_residual_must_come_from_somewhere() -> None:
    x, y = digits(2)
    with pytest.raises(expunge.ModelError, match="training_residual"):
        from_sklearn(LogisticRegression(fit_intercept=False).fit(x, y), n_source=len(x), max_norm=1.0)


@pytest.mark.parametrize("estimator", [LogisticRegressionCV(Cs=2, cv=2), SGDClassifier(loss="log_loss")])
def test_what_only_a_deposit_takes_is_sent_there(estimator: object) -> None:
    x, y = digits(2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = estimator.fit(x, y)
    with pytest.raises(expunge.ModelError, match="make a deposit"):
        from_sklearn(fitted, n_source=len(x), max_norm=1.0, training_residual=0.1)


def test_another_estimator_is_refused() -> None:
    from sklearn.svm import LinearSVC

    x, y = digits(2)
    with pytest.raises(expunge.ModelError, match="LinearSVC"):
        from_sklearn(LinearSVC().fit(x, y), n_source=len(x), max_norm=1.0, training_residual=0.1)


@pytest.mark.parametrize("loss", ["softmax", "ridge", "logistic"])
@pytest.mark.parametrize("classes", [2, 3])
def test_bias_and_order_of_classes_go_along(loss: str, classes: int) -> None:
    """The estimator sorts its labels otherwise (as text), and has no intercept of its own: nothing may be lost."""
    if loss == "logistic" and classes > 2:
        pytest.skip("one vector is of two classes")
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
