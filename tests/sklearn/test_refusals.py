"""What cannot be taken is named with the nearest thing that can."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.cluster import Birch
from sklearn.decomposition import NMF, KernelPCA
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    VotingClassifier,
)
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.feature_selection import SelectFromModel
from sklearn.impute import IterativeImputer
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LinearRegression, LogisticRegression, Perceptron, SGDClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, QuantileTransformer, TargetEncoder
from sklearn.svm import SVC, LinearSVC
from sklearn.tree import DecisionTreeClassifier

from expunge.certificate.wording import READ
from expunge.errors import ModelError
from expunge.record import CLASS_WEIGHT
from expunge.sklearn import deposit
from expunge.sklearn.objectives import INSTEAD, unsupported
from expunge.sklearn.pipelines import COARSENED, HOLD_ROWS, NOT_NEEDED, OTHERWISE, SHAPES_ALONE, _every_part
from sklearn_models import numbers

X, Y = numbers(2)
Z = (Y[0] == Y).astype(int)


@pytest.mark.parametrize(
    ("estimator", "remedy"),
    [
        (SVC(), "LogisticRegression.*RBFSampler"),
        (LinearSVC(), "LogisticRegression"),
        (Perceptron(), "log_loss"),
        (DecisionTreeClassifier(), "KBinsDiscretizer"),
        (RandomForestClassifier(n_estimators=2), "KBinsDiscretizer"),
        (GradientBoostingClassifier(n_estimators=2), "KBinsDiscretizer"),
        (HistGradientBoostingClassifier(max_iter=2), "KBinsDiscretizer"),
        (MLPClassifier(max_iter=2), "last layer"),
        (KNeighborsClassifier(), "LogisticRegression"),
        (GaussianNB(), "LogisticRegression"),
        (CalibratedClassifierCV(LogisticRegression(), cv=2), "LogisticRegression itself"),
        (GridSearchCV(LogisticRegression(), {"C": [1.0]}, cv=2), "best_estimator_"),
        (OneVsOneClassifier(LogisticRegression()), "OneVsRestClassifier"),
        (OneVsRestClassifier(LinearSVC()), "LogisticRegression"),
        (OneVsRestClassifier(GaussianNB()), "LogisticRegression"),
        (VotingClassifier([("a", LogisticRegression()), ("b", GaussianNB())]), "one of its members"),
        (LinearRegression(), "Only classifiers"),
        (SGDClassifier(), "loss='log_loss'"),
        (SGDClassifier(loss="modified_huber"), "loss='log_loss'"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
@pytest.mark.parametrize("piped", [False, True])
def test_the_nearest_thing_that_can_be_taken_is_named(estimator: Any, remedy: str, piped: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = (make_pipeline(PolynomialOne(), estimator) if piped else estimator).fit(X, Z)
    with pytest.raises(ModelError, match=remedy) as caught:
        deposit(fitted, X, Z)
    assert caught.value.remedy.endswith(".")


class PolynomialOne(TransformerMixin, BaseEstimator):
    """A step that does nothing, as somebody might write one."""

    def fit(self, X: Any, y: Any = None) -> PolynomialOne:
        self.fitted_ = True
        return self

    def transform(self, X: Any) -> Any:
        return X


class OwnNystroem(Nystroem):
    """Under another name it holds rows all the same."""


class Remembering(PolynomialOne):
    """A step that nobody has heard of, and that keeps a number of each row."""

    def fit(self, X: Any, y: Any = None) -> Any:
        self.seen_ = np.asarray(X)[:, 0]
        return self


class Drawn(PolynomialOne):
    def fit_resample(self, X: Any, y: Any) -> tuple[Any, Any]:
        return X, y


@pytest.mark.parametrize(
    ("step", "remedy"),
    [
        (Nystroem(n_components=5), "Use RBFSampler"),
        (KernelPCA(n_components=2), "Use RBFSampler with PCA"),
        (QuantileTransformer(n_quantiles=20), "Use StandardScaler"),
        (make_pipeline(MinMaxScaler(), Birch(n_clusters=2)), "Use KMeans"),
        (Remembering(), "holds seen_, with something of each row"),
        (TargetEncoder(cv=2, target_type="binary"), "OneHotEncoder"),
        (Drawn(), "class_weight='balanced'"),
        (OwnNystroem(n_components=5), "Use RBFSampler"),
        (IterativeImputer(KNeighborsRegressor(2), max_iter=1), "holds no rows"),
        (SelectFromModel(SVC(kernel="linear")), "LinearSVC"),
        (make_pipeline(MinMaxScaler(), NMF(2, max_iter=5)), "TruncatedSVD"),
    ],
)
def test_steps_that_no_certificate_goes_with_are_named(step: Any, remedy: str) -> None:
    model = make_pipeline(step, LogisticRegression())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X[:60], Z[:60])
    with pytest.raises(ModelError, match=remedy):
        deposit(model, X[:60], Z[:60])


def test_several_labels_a_row_are_refused() -> None:
    model = MultiOutputClassifier(LogisticRegression()).fit(X, np.column_stack([Z, 1 - Z]))
    assert "one classifier a label" in unsupported(model).remedy
    many = OneVsRestClassifier(LogisticRegression()).fit(X, np.column_stack([Z, 1 - Z]))
    with pytest.raises(ModelError, match="one classifier a label"):
        deposit(many, X, Z)


def test_names_in_the_list_are_classes_of_scikit_learn() -> None:
    """A class that is renamed there would go unnoticed here."""
    from sklearn.utils import all_estimators

    known = {kind.__name__ for _, each in all_estimators() for kind in each.__mro__}
    assert set(INSTEAD) | set(HOLD_ROWS) | set(OTHERWISE) <= known
    assert set(NOT_NEEDED) | set(SHAPES_ALONE) | set(COARSENED) | set(READ) - {CLASS_WEIGHT} <= known
    assert "use expunge.LinearModel" in unsupported(PolynomialOne()).remedy
    assert len(list(_every_part(make_pipeline(PolynomialOne(), LogisticRegression())))) == 3
