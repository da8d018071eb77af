"""ForgettingClassifier: scikit-learn's own checks, and rows that leave."""

from __future__ import annotations

import pickle
import warnings
from unittest.mock import patch

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import check_estimator

from expunge.deposit import forecast
from expunge.errors import DataError, ModelError, VacuousClaim
from expunge.runtime.arrays import to_numpy
from expunge.sklearn import ForgettingClassifier, ServesFew
from sklearn_models import numbers

X, Y = numbers(3)
ASKED = {"epsilon": 1.0, "delta": 1e-3}


@pytest.fixture(autouse=True)
def _few_rehearsals(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many groups are rehearsed is tested beside making.py."""
    monkeypatch.setattr(forecast, "GROUPS", ((10**9, 4),))


def test_scikit_learn_s_own_checks_pass() -> None:
    with warnings.catch_warnings(), patch("expunge.deposit.forecast.GROUPS", ((10**9, 1),)):
        warnings.simplefilter("ignore")
        found = check_estimator(ForgettingClassifier(), on_fail="raise")
    status = {each["check_name"]: each["status"] for each in found}
    assert len(status) > 40
    assert {name for name, said in status.items() if said != "passed"} <= {"check_array_api_input"}


@pytest.mark.parametrize(
    "inside", [None, make_pipeline(StandardScaler(), LogisticRegression(C=0.5)), RidgeClassifier()]
)
def test_rows_leave_and_the_rest_goes_on(inside: object) -> None:
    model = ForgettingClassifier(inside).fit(X, Y)
    before = model.predict(X)
    assert model.forget(X[:4], Y[:4], **ASKED) is model
    assert (model.certificate_.status, model.deposit_.numbers.n_rows) == ("proven", len(X) - 4)
    assert np.mean(model.predict(X) == before) > 0.9
    with pytest.raises(DataError, match="not in what is left"):
        model.forget(X[:1], Y[:1], **ASKED)
    model.forget(X[4:5], Y[4:5], **ASKED)
    assert model.deposit_.numbers.forgotten == 5
    assert hasattr(model, "predict_proba") == (not isinstance(inside, RidgeClassifier))
    assert model.decision_function(X).shape == (len(X), 3)
    again = pickle.loads(pickle.dumps(model)).forget(X[5:6], Y[5:6], **ASKED)
    assert again.deposit_.numbers.forgotten == 6
    assert not hasattr(model.fit(X, Y), "certificate_"), "a new fit begins anew"


def test_a_seed_makes_one_fit_like_another() -> None:
    """The key, and the noise in anchor and gauges."""
    made = []
    for seed in (0, 0, np.random.RandomState(3)):
        kept = ForgettingClassifier(random_state=seed).fit(X[:60], Y[:60]).deposit_
        made.append((kept.key, to_numpy(kept.anchor).tobytes(), to_numpy(kept.gauges[0].factor).tobytes()))
    assert made[0] == made[1]
    assert not set(made[0]) & set(made[2])


def test_it_is_at_the_optimum() -> None:
    model = ForgettingClassifier(LogisticRegression(tol=0.5)).fit(X, Y)
    exact = LogisticRegression(tol=1e-10, max_iter=10_000).fit(X, Y)
    np.testing.assert_allclose(model.estimator_.coef_, exact.coef_, atol=1e-5)


def test_it_works_where_estimators_do() -> None:
    search = GridSearchCV(ForgettingClassifier(LogisticRegression()), {"estimator__C": [1.0]}, cv=2).fit(X, Y)
    assert search.best_estimator_.forget(X[:1], Y[:1], **ASKED).certificate_.status == "proven"
    assert cross_val_score(make_pipeline(StandardScaler(), ForgettingClassifier()), X, Y, cv=2).mean() > 0.6
    assert not hasattr(clone(search.best_estimator_), "deposit_")


def test_what_cannot_be_taken_is_refused_at_fit() -> None:
    with pytest.raises(ModelError, match="LogisticRegression"):
        ForgettingClassifier(LinearSVC()).fit(X, Y)
    with pytest.raises(NotFittedError):
        ForgettingClassifier().forget(X[:1], Y[:1], **ASKED)


def test_rows_of_which_none_can_leave_are_warned_of_while_they_are_there() -> None:
    few = np.array([[0.0], [1e3]])
    with pytest.warns(ServesFew, match=r"0 of \d+ random people could leave.*Do not delete the source"):
        model = ForgettingClassifier().fit(few, [0, 1])
    assert model.predict(few).tolist() == [0, 1]
    with pytest.raises(VacuousClaim):
        model.forget(few[:1], [0], **ASKED)
