"""A Pipeline taken apart and put together: the same predictions, other weights, and steps that are refused."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.impute import KNNImputer, SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline, make_union
from sklearn.preprocessing import (
    FunctionTransformer,
    MinMaxScaler,
    Normalizer,
    OrdinalEncoder,
    PolynomialFeatures,
    StandardScaler,
)

from expunge.errors import DataError, ModelError, OptionError
from expunge.record import LEARNT_COARSE, LEARNT_ELSEWHERE, LEARNT_FROM_SOURCE
from expunge.sklearn import coarsen
from expunge.sklearn.pipelines import SplitPipeline, join_pipeline, split_pipeline
from sklearn_models import numbers

X, Y = numbers(2)


def nested() -> Pipeline:
    inner = make_pipeline(PolynomialFeatures(2), LogisticRegression(max_iter=1000))
    return Pipeline([("scale", StandardScaler()), ("nothing", "passthrough"), ("rest", inner)]).fit(X, Y)


def test_rows_are_prepared_as_the_pipeline_prepares_them() -> None:
    model = nested()
    parts = split_pipeline(model)
    assert [name for name, _ in parts.steps] == ["scale", "polynomialfeatures"]
    assert parts.final is model[-1][-1]
    assert np.array_equal(parts.final.predict(parts.transform(X, "it")), model.predict(X))
    alone = split_pipeline(parts.final)
    assert (alone.steps, alone.learnt) == ((), ())


def test_put_together_it_has_the_new_end_and_copies_of_the_rest() -> None:
    model = nested()
    other = LogisticRegression(max_iter=1000).fit(split_pipeline(model).transform(X, "it"), Y[::-1])
    whole = join_pipeline(model, other)
    assert whole[-1][-1] is other
    assert model[-1][-1] is not other
    assert whole[0] is not model[0]
    assert np.array_equal(whole.predict(X), other.predict(split_pipeline(model).transform(X, "it")))
    assert join_pipeline(other, other) is other


def test_where_preparation_was_learnt() -> None:
    parts = split_pipeline(nested())
    assert parts.preparation(None) == f"{LEARNT_FROM_SOURCE}: StandardScaler"
    assert parts.preparation(LEARNT_ELSEWHERE) == LEARNT_ELSEWHERE
    chosen = parts.preparation(LEARNT_ELSEWHERE, chosen=True)
    assert chosen == f"{LEARNT_FROM_SOURCE}: LogisticRegression", "its penalty was chosen on the source"
    plain = split_pipeline(make_pipeline(Normalizer(), LogisticRegression()).fit(X, Y))
    assert (plain.learnt, plain.preparation(None)) == ((), None)
    for said in ("yesterday", LEARNT_COARSE):
        with pytest.raises(OptionError, match="preparation"):
            parts.preparation(said)


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
    hidden = make_pipeline(make_union(StandardScaler(), make_pipeline(KNNImputer())), LogisticRegression()).fit(X, Y)
    with pytest.raises(ModelError, match="a row that is forgotten would still be there"):
        split_pipeline(hidden)
    assert split_pipeline(hidden, learnt_elsewhere=True).steps


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
@pytest.mark.parametrize("strategy", ["mean", "median", "most_frequent"])
@pytest.mark.parametrize("as_frame", [False, True])
def test_a_coarse_imputer_keeps_nothing_that_few_rows_have(strategy: str, as_frame: bool) -> None:
    rows, labels = gapped()
    columns = [0, 2] if strategy == "most_frequent" else [0, 1, 2]
    given = pd.DataFrame(rows[:, columns], columns=[f"c{each}" for each in columns]) if as_frame else rows[:, columns]
    model = make_pipeline(SimpleImputer(strategy=strategy, add_indicator=True), LogisticRegression())
    imputer = coarsen(model, given, labels)[0]
    assert imputer.statistics_[0] in (
        (0.0, 1.0, 2.0) if strategy == "most_frequent" else np.arange(0.5, 1.6, 0.01).round(2)
    )
    assert np.isnan(imputer.statistics_[-1]), "one person's value; the column is left out"
    assert imputer.indicator_.features_.tolist() == [0, len(columns) - 1], "four gaps are no indicator"
    assert imputer.transform(given[:3]).shape == (3, len(columns) - 1 + 2)


def test_a_coarse_imputer_is_refused_where_no_value_is_frequent() -> None:
    rows, labels = gapped()
    names = np.array([[f"n{place:04d}"] for place in range(500)], dtype=object)
    for strategy, given in (("most_frequent", rows[:, [1]]), ("most_frequent", names), (np.max, rows[:, [0]])):
        with pytest.raises(ModelError, match="SimpleImputer cannot be coarse"):
            coarsen(make_pipeline(SimpleImputer(strategy=strategy), LogisticRegression()), given, labels)
    words = np.array([["red"]] * 300 + [["blue"]] * 199 + [["Aaron"]], dtype=object)
    words[5] = np.nan
    coding = make_pipeline(SimpleImputer(strategy="most_frequent"), OrdinalEncoder())
    assert coarsen(make_pipeline(coding, LogisticRegression()), words, labels)[0][0].statistics_.tolist() == ["red"]
