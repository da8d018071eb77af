"""Rows, steps and Pipelines: taken apart, put together, and what no certificate goes with."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.cluster import Birch
from sklearn.compose import make_column_transformer
from sklearn.decomposition import NMF, KernelPCA
from sklearn.ensemble import (
    RandomForestClassifier,
    VotingClassifier,
)
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.feature_selection import SelectFromModel
from sklearn.frozen import FrozenEstimator
from sklearn.impute import IterativeImputer, KNNImputer, SimpleImputer
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LinearRegression, LogisticRegression, Perceptron, SGDClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline, make_union
from sklearn.preprocessing import (
    FunctionTransformer,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    PolynomialFeatures,
    QuantileTransformer,
    StandardScaler,
    TargetEncoder,
)
from sklearn.svm import SVC, LinearSVC

from expunge.certificate.wording import READ
from expunge.errors import DataError, ModelError
from expunge.record import CLASS_WEIGHT, LEARNT_FROM_SOURCE
from expunge.sklearn import coarsen, deposit
from expunge.sklearn.objectives import INSTEAD, unsupported
from expunge.sklearn.pipelines import (
    COARSENED,
    HOLD_ROWS,
    NOT_NEEDED,
    OTHERWISE,
    SHAPES_ALONE,
    SplitPipeline,
    _every_part,
    join_pipeline,
    read_labels,
    split_pipeline,
    to_table,
)
from sklearn_models import numbers

# A Pipeline taken apart and put together: the same predictions, other weights, and steps that are refused.


X, Y = numbers(2)


def nested() -> Pipeline:
    inner = make_pipeline(PolynomialFeatures(2), LogisticRegression(max_iter=1000))
    return Pipeline([("scale", StandardScaler()), ("nothing", "passthrough"), ("rest", inner)]).fit(X, Y)


def test_rows_that_a_step_does_not_take_are_refused_by_its_name() -> None:
    with pytest.raises(DataError, match=r"step 'scale' \(StandardScaler\)"):
        split_pipeline(nested()).transform(X[:, :2], "it")
    frame = pd.DataFrame(X, columns=list("abcd"))
    model = make_pipeline(make_column_transformer((StandardScaler(), ["a"])), LogisticRegression()).fit(frame, Y)
    shuffled = split_pipeline(model).transform(frame[["c", "d", "a", "b"]], "it")
    assert np.array_equal(shuffled, split_pipeline(model).transform(frame, "it"))


def test_a_pipeline_without_a_classifier_is_refused() -> None:
    for last in (StandardScaler(), "passthrough"):
        with pytest.raises(ModelError, match="ends in no classifier"):
            split_pipeline(Pipeline([("a", MinMaxScaler()), ("b", last)]).fit(X, Y))


def test_steps_that_hold_rows_are_found_wherever_they_are() -> None:
    within = make_union(StandardScaler(), make_pipeline(KNNImputer()))
    for step in (within, FrozenEstimator(within.fit(X)), make_union(FrozenEstimator(within))):
        hidden = make_pipeline(step, LogisticRegression()).fit(X, Y)
        with pytest.raises(ModelError, match="a row that is forgotten would still be there"):
            split_pipeline(hidden)
        assert split_pipeline(hidden, learnt_elsewhere=True).steps


def test_a_frozen_step_is_named_and_stripped_as_what_is_in_it() -> None:
    frozen = make_pipeline(FrozenEstimator(make_pipeline(StandardScaler()).fit(X)), LogisticRegression()).fit(X, Y)
    split = split_pipeline(frozen)
    assert split.preparation(None) == "learnt from the source: StandardScaler"
    assert split.preparation("learnt elsewhere") == "learnt elsewhere"
    published = join_pipeline(frozen, split.final)
    assert not hasattr(published[0][0], "n_samples_seen_")
    assert hasattr(frozen[0][0], "n_samples_seen_")
    np.testing.assert_array_equal(published.predict(X), frozen.predict(X))


def scaled_by(scale: float) -> Any:
    return lambda values: values / scale


@pytest.mark.parametrize(
    ("step", "learnt"),
    [
        (FunctionTransformer(np.tanh), False),
        (FunctionTransformer(), False),
        (FunctionTransformer(lambda values: 2.0 * values), False),
        (FunctionTransformer(StandardScaler().fit(np.eye(2)).transform), True),
        (FunctionTransformer(scaled_by(2.0)), True),
        (FunctionTransformer(partial(np.clip, a_min=0.0, a_max=1.0)), True),
        (FunctionTransformer(np.add, kw_args={"x2": 1.0}), True),
        (make_pipeline(Normalizer(), FunctionTransformer(scaled_by(2.0))), True),
    ],
)
def test_a_function_that_holds_something_may_have_learnt_it(step: Any, learnt: bool) -> None:
    """Where that came from nobody said: it counts as learnt from the source."""
    parts = SplitPipeline((("step", step),), LogisticRegression(), None)
    assert bool(parts.learnt) is learnt
    assert parts.preparation(None, chosen=False) == ("learnt from the source: FunctionTransformer" if learnt else None)


def gapped() -> tuple[np.ndarray, np.ndarray]:
    """A column of few values with many gaps, one of real numbers with few gaps, and one in which a person is alone."""
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.integers(0, 3, 500), rng.normal(size=500), np.full(500, np.nan)]).astype(float)
    rows[:100, 0], rows[100:104, 1], rows[7, 2] = np.nan, np.nan, 123.456
    return rows, rng.integers(0, 2, 500)


@pytest.mark.filterwarnings("ignore:Skipping features without any observed values")
@pytest.mark.parametrize("strategy", ["mean", "median"])
def test_a_coarse_imputer_keeps_nothing_that_few_rows_have(strategy: str) -> None:
    rows, labels = gapped()
    for given in (rows, pd.DataFrame(rows, columns=list("abc"))):
        imputer = coarsen(make_pipeline(SimpleImputer(strategy=strategy), LogisticRegression()), given, labels)[0]
        assert imputer.statistics_[0] in np.arange(0.5, 1.6, 0.01).round(2)
        assert np.isnan(imputer.statistics_[-1]), "one person's value; the column is left out"
        assert imputer.transform(given[:3]).shape == (3, 2)


def test_steps_without_a_coarse_form_stay_exact_and_are_named() -> None:
    rows, labels = gapped()
    rows = np.nan_to_num(rows)
    for step in (MinMaxScaler(), SimpleImputer(strategy="most_frequent"), StandardScaler(with_mean=False)):
        model = coarsen(make_pipeline(step, StandardScaler(), LogisticRegression()), rows, labels)
        assert split_pipeline(model).preparation(None) == f"{LEARNT_FROM_SOURCE}: {type(step).__name__}"


def test_a_column_in_which_every_value_is_rare_is_refused() -> None:
    names = np.array([[f"n{place:04d}"] for place in range(500)], dtype=object)
    with pytest.raises(ModelError, match="OneHotEncoder cannot be coarse: no value of a column is frequent"):
        coarsen(make_pipeline(OneHotEncoder(), LogisticRegression()), names, np.arange(500) % 2)


@pytest.mark.parametrize("gap", [None, np.nan, "none"])
def test_a_coarse_encoder_has_frequent_values_alone(gap: Any) -> None:
    rng = np.random.default_rng(1)
    words = rng.choice(["red", "blue"], 500).astype(object)
    words[:60], words[60] = gap, "Aaron"
    numbers = np.append(rng.integers(0, 3, 499), 77)
    frame = pd.DataFrame({"word": words, "number": numbers})
    made = coarsen(make_pipeline(OneHotEncoder(drop="first"), LogisticRegression()), frame, numbers % 2)
    texts, values = (list(each) for each in made[0].categories_)
    assert (values, len(texts), "Aaron" in texts) == ([0, 1, 2], 3, False)
    assert made[0].transform(frame).shape == (500, 6)
    assert made[0].transform(frame[60:61])[:, :3].sum() == 0.0, "a rare value is no value"


# What is not supported is named with the nearest thing that is.


Z = (Y[0] == Y).astype(int)


@pytest.mark.parametrize(
    ("estimator", "remedy"),
    [
        (SVC(), "LogisticRegression.*RBFSampler"),
        (LinearSVC(), "LogisticRegression"),
        (Perceptron(), "log_loss"),
        (RandomForestClassifier(n_estimators=2), "KBinsDiscretizer"),
        (MLPClassifier(max_iter=2), "last layer"),
        (KNeighborsClassifier(), "LogisticRegression"),
        (GaussianNB(), "LogisticRegression"),
        (CalibratedClassifierCV(LogisticRegression(), cv=2), "LogisticRegression itself"),
        (GridSearchCV(LogisticRegression(), {"C": [1.0]}, cv=2), "best_estimator_"),
        (OneVsOneClassifier(LogisticRegression()), "OneVsRestClassifier"),
        (OneVsRestClassifier(LinearSVC()), "LogisticRegression"),
        (VotingClassifier([("a", LogisticRegression()), ("b", GaussianNB())]), "one of its members"),
        (LinearRegression(), "Only classifiers"),
        (SGDClassifier(), "loss='log_loss'"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_the_nearest_thing_that_is_supported_is_named(estimator: Any, remedy: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = make_pipeline(PolynomialOne(), estimator).fit(X, Z)
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


HOLDING = (
    Nystroem(n_components=5),
    OwnNystroem(n_components=5),
    KernelPCA(n_components=2),
    QuantileTransformer(n_quantiles=20),
    make_pipeline(MinMaxScaler(), Birch(n_clusters=2)),
    IterativeImputer(KNeighborsRegressor(2), max_iter=1),
    SelectFromModel(SVC(kernel="linear")),
)


@pytest.mark.parametrize(
    ("step", "remedy"),
    [
        *((step, "holds rows that it was fitted on.*RBFSampler, PCA") for step in HOLDING),
        (Remembering(), "holds seen_, with something of each row"),
        (TargetEncoder(cv=2, target_type="binary"), "OneHotEncoder"),
        (make_pipeline(MinMaxScaler(), NMF(2, max_iter=5)), "TruncatedSVD"),
        (Drawn(), "class_weight='balanced'"),
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


# Rows and labels made plain: what they hold, and what is refused with a remedy.


def test_words_where_the_classifier_begins_are_refused() -> None:
    with pytest.raises(DataError, match="OneHotEncoder"):
        to_table(np.array([["a", 1.0]], dtype=object), "it")
    with pytest.raises(DataError, match="finite"):
        to_table(np.array([[np.nan, 1.0]]), "it")


@pytest.mark.parametrize("odd", [None, float("nan"), 1.5, b"a", 3])
def test_labels_that_are_mixed_or_missing_are_refused(odd: object) -> None:
    with pytest.raises(DataError, match="labels of dtype object"):
        read_labels(np.array(["a", odd], dtype=object), 2, "it")
