"""scikit-learn models both ways: the same objective, the same predictions, and a refusal where no bound can hold."""

from unittest.mock import patch

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression, RidgeClassifier

import expunge
import expunge.sklearn
from expunge.errors import BeyondPolicy, ModelError
from expunge.sklearn import deposit, from_sklearn, to_sklearn, unlearn


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


def test_another_estimator_is_refused() -> None:
    from sklearn.svm import LinearSVC

    x, y = digits(2)
    with pytest.raises(expunge.ModelError, match="LinearSVC"):
        from_sklearn(LinearSVC().fit(x, y), n_source=len(x), max_norm=1.0, training_residual=0.1)


# With a deposit -----------------------------------------------------------------------------------------------------


def drawn(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 4))
    return x, (x @ [1.0, -2.0, 0.5, 0.0] + rng.logistic(size=n) > 0.3).astype(int)


def test_a_deletion_of_many_with_a_surrogate_beside_the_deposit() -> None:
    (x, y), other = drawn(3000, 1), drawn(3000, 2)
    fitted = LogisticRegression().fit(x, y)
    with patch("expunge.evidence.deposit.making.has_third", lambda head: False):  # with it none would be needed
        kept, many = expunge.sklearn.deposit(fitted, x, y, seed=1), (x[:900], y[:900])
    asked = {"epsilon": 1.0, "delta": 1e-3, "force": True}
    with pytest.raises(BeyondPolicy):
        expunge.sklearn.unlearn(fitted, many, kept, **asked)
    made = expunge.sklearn.unlearn(fitted, many, kept, other, distance="same", **asked)
    assert made.certificate.status == "conditional"
    refit = LogisticRegression(tol=1e-10, max_iter=1000).fit(x[900:], y[900:])
    assert np.allclose(made.estimator.coef_, refit.coef_, atol=0.2)
    few = expunge.sklearn.unlearn(fitted, (x[:1], y[:1]), kept, other, distance="same", **asked)
    assert few.certificate.status == "proven"


def table(classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows as people standardise them, with labels that pandas would hold as objects."""
    generator = np.random.default_rng(classes)
    x = generator.normal(size=(900, 4)) * np.array([1.0, 2.0, 0.5, 1.0])
    scores = x @ generator.normal(size=(4, classes)) + generator.gumbel(size=(900, classes))
    return x, np.array([f"class {label}" for label in scores.argmax(axis=1)], dtype=object)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("kind", [LogisticRegression, RidgeClassifier])
def test_estimators_as_people_fit_them_and_the_refit_beside(classes: int, kind: type) -> None:
    x, y = table(classes)
    fitted = kind().fit(x, y)
    kept = deposit(fitted, x, y, seed=1)
    result = unlearn(fitted, (x[:5], y[:5]), kept, epsilon=1.0, delta=1e-3)
    assert (result.certificate.status, result.deposit.numbers.n_rows) == ("proven", 895)
    options = {"tol": 1e-10, "max_iter": 10_000} if kind is LogisticRegression else {}
    refit = kind(**options).fit(x[5:], y[5:])
    assert type(result.estimator) is kind
    assert np.shape(result.estimator.coef_) == np.shape(fitted.coef_)
    assert set(result.estimator.predict(x)) == set(y)
    near = np.abs(result.estimator.decision_function(x) - refit.decision_function(x)).max()
    assert near < (1e-3 if kind is RidgeClassifier else 0.3), "a ridge head reaches the refit, with hardly any noise"
    assert np.mean(result.estimator.predict(x) == refit.predict(x)) > 0.98
    assert not hasattr(fitted, "expunge_deletions_"), "nothing that is passed is changed"


def test_the_deposit_from_before_is_refused_for_an_estimator_that_rows_have_left() -> None:
    x, y = table(2)
    fitted = LogisticRegression().fit(x, y)
    kept = deposit(fitted, x, y, seed=1)
    first = unlearn(fitted, (x[:1], y[:1]), kept, epsilon=1.0, delta=1e-3)
    with pytest.raises(ModelError, match="whoever was forgotten since would be back"):
        unlearn(first.estimator, (x[1:2], y[1:2]), kept, epsilon=1.0, delta=1e-3)
    second = unlearn(first.estimator, (x[1:2], y[1:2]), first.deposit, epsilon=1.0, delta=1e-3)
    assert second.deposit.numbers.forgotten == 2
    again = unlearn(fitted, (x[1:2], y[1:2]), first.deposit, epsilon=1.0, delta=1e-3)
    assert again.deposit.numbers.generation == 2, "the estimator from before is only a form for the new one"
