"""Deposits of estimators as people fit them, deletions, what is refused and what is said."""

from __future__ import annotations

import math
import pickle
import random
import warnings
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, Normalizer, StandardScaler

from examples.near_boosting import FEWER, MARKS, boosted, credit, measured, outputs_of_trees, parted, written
from expunge.certificate.verify import verify_statement
from expunge.certificate.wording import PREPARATIONS, WEIGHTED
from expunge.deposit import forecast
from expunge.deposit.region import smallest_region
from expunge.errors import DataError, ModelError, OptionError
from expunge.record import LEARNT_COARSE, LEARNT_ELSEWHERE, LEARNT_FROM_SOURCE
from expunge.runtime.arrays import norm, to_numpy
from expunge.runtime.values import LARGEST
from expunge.sklearn import ExactPreparation, NotAtOptimum, coarsen, deposit, unlearn
from expunge.sklearn.deletion import make
from expunge.sklearn.objectives import with_weights
from expunge.sklearn.pipelines import split_pipeline
from sklearn_models import CASES, GONE, N, away, fitted, numbers, people, refit_matrix, some

# Deposits of estimators as people fit them: deletions beside refits, what is refused, what is said.


ASKED = {"epsilon": 1.0, "delta": 1e-3}


@pytest.fixture(autouse=True)
def _few_rehearsals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two groups of each size are enough; how many are rehearsed is tested in tests/deposit/test_make.py."""
    monkeypatch.setattr(forecast, "GROUPS", ((10**9, 2),))


def drawn(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 4))
    return x, (x @ [1.0, -2.0, 0.5, 0.0] + rng.logistic(size=n) > 0.3).astype(int)


def test_the_deposit_from_before_is_refused_for_an_estimator_that_rows_have_left() -> None:
    x, y = numbers(2)
    fitted = LogisticRegression().fit(x, y)
    kept = deposit(fitted, x, y, seed=1)
    first = unlearn(fitted, (x[:1], y[:1]), kept, epsilon=1.0, delta=1e-3)
    with pytest.raises(ModelError, match="whoever was forgotten since would be back"):
        unlearn(first.estimator, (x[1:2], y[1:2]), kept, epsilon=1.0, delta=1e-3)
    second = unlearn(first.estimator, (x[1:2], y[1:2]), first.deposit, epsilon=1.0, delta=1e-3)
    assert second.deposit.numbers.forgotten == 2
    again = unlearn(fitted, (x[1:2], y[1:2]), first.deposit, epsilon=1.0, delta=1e-3)
    assert again.deposit.numbers.generation == 2, "the estimator from before is only a form for the new one"


# Rows as people have them ---------------------------------------------------------------------------------------------


FRAME = pd.DataFrame(numbers(2)[0], columns=["a", "b", "c", "d"])


@pytest.mark.parametrize(
    ("straight", "rows"),
    [
        (FRAME, FRAME[["d", "a", "c", "b"]]),
        (pl.from_pandas(FRAME), pl.from_pandas(FRAME)[["b", "a", "d", "c"]]),
        (FRAME, pl.from_pandas(FRAME)),
        (scipy.sparse.csr_matrix(FRAME.to_numpy()), FRAME.to_numpy().astype(object)),
    ],
    ids=["pandas", "polars", "one for the other", "arrays"],
)
def test_frames_and_sparse_rows_are_the_rows_they_hold(straight: Any, rows: Any) -> None:
    labels = numbers(2)[1]
    model = LogisticRegression().fit(straight, labels)
    kept = deposit(model, straight, labels, seed=1)
    plain = deposit(LogisticRegression().fit(*numbers(2)), *numbers(2), seed=1)
    np.testing.assert_allclose(kept.model.matrix(), plain.model.matrix(), atol=1e-9)
    made = unlearn(model, (rows[:5], labels[:5]), kept, **ASKED)
    assert made.deposit.numbers.n_rows == len(labels) - 5
    assert kept.record.features == (("a", "b", "c", "d") if hasattr(straight, "columns") else None)
    assert len(made.estimator.predict(straight)) == len(labels)


@pytest.mark.parametrize(
    "given",
    [
        lambda y: pd.Series(y, dtype="category"),
        lambda y: pl.Series(y.tolist()),
        lambda y: y.tolist(),
        lambda y: y == y[0],
        lambda y: (y == y[0]).astype(float),
        lambda y: (y == y[0]).astype(int).astype(object),
        lambda y: (y == y[0]).astype(np.uint8),
    ],
)
def test_labels_of_every_kind(given: object) -> None:
    features, labels = numbers(2)
    y = given(labels)  # type: ignore[operator]
    # scikit-learn takes no whole numbers of dtype object
    plain = np.asarray(y).astype(int) if np.asarray(y).dtype.kind == "O" and type(y[0]) is int else y
    model = LogisticRegression().fit(features, plain)
    kept = deposit(model, features, y, seed=1)
    made = unlearn(model, (features[:3], y[:3]), kept, **ASKED)
    assert made.estimator.predict(features).dtype == model.predict(features).dtype
    assert set(made.estimator.predict(features)) == set(model.classes_)


def test_rows_that_were_not_there_and_labels_that_are_none_are_refused() -> None:
    model, kept = fitted("columns")
    frame, labels = people()
    with pytest.raises(DataError, match="not in what is left of the source"):
        unlearn(model, (frame[:1].assign(age=99), labels[:1]), kept, **ASKED)
    with pytest.raises(DataError, match="is not a class of the model"):
        unlearn(model, (frame[:1], ["ugly"]), kept, **ASKED)
    with pytest.raises(DataError, match="step 'columntransformer'"):
        unlearn(model, (frame[:1].to_numpy(), labels[:1]), kept, **ASKED)
    with pytest.raises(DataError, match="no column 'job'"):
        unlearn(model, (frame[:1].drop(columns="job"), labels[:1]), kept, **ASKED)
    with pytest.raises(DataError, match="no labels"):
        unlearn(model, (frame[:1], None), kept, **ASKED)


# What is kept, and what is said ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("far", [-1.0, -3000.0])
def test_a_model_that_had_not_converged_is_moved_to_its_own_optimum_and_that_is_said(far: float) -> None:
    features, labels = numbers(2)
    rough = SGDClassifier(loss="log_loss", alpha=0.01, max_iter=1, tol=None, random_state=3).fit(features, labels)
    rough.coef_, rough.intercept_ = far * np.array([[1.0, -2.0, 3.0, 0.5]]), np.array([far])
    with pytest.warns(NotAtOptimum, match="% of the source's rows another class"):
        made = make(rough, features, labels, seed=1)
    smooth = LogisticRegression(C=1.0 / (0.01 * len(labels)), tol=1e-10, max_iter=10_000).fit(features, labels)
    found = with_weights(rough, to_numpy(made.optimum))
    np.testing.assert_allclose(found.coef_, smooth.coef_, atol=1e-5)
    np.testing.assert_allclose(found.intercept_, smooth.intercept_, atol=1e-5)


def test_nothing_of_the_model_before_is_in_the_one_that_is_handed_over() -> None:
    """Weights along the path of a cross-validation, counts of steps, averages: whatever was learnt from rows."""
    model, kept = fitted("cross-validation")
    made = unlearn(model, tuple(part[:2] for part in numbers(3)), kept, **ASKED)
    assert {name for name in vars(made.estimator[-1]) if name.endswith("_")} == {
        *("classes_", "coef_", "intercept_", "C_", "n_features_in_", "l1_ratio_"),
    }
    averaged = SGDClassifier(loss="log_loss", alpha=0.1, average=True, random_state=0).fit(*numbers(2))
    with patch("expunge.sklearn.deletion.MOVED", 1.0):
        kept = deposit(averaged, *numbers(2), seed=1)
    made = unlearn(averaged, tuple(part[:2] for part in numbers(2)), kept, **ASKED)
    text = pickle.dumps(made.estimator)
    assert averaged.coef_.tobytes() in pickle.dumps(averaged)
    assert averaged.coef_.tobytes() not in text
    assert not [name for name in vars(made.estimator) if "average_" in name or "standard" in name]


def test_where_preparation_was_learnt_is_said() -> None:
    features, labels = numbers(2)
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(features, labels)
    with pytest.warns(ExactPreparation, match=r"coarsen\(pipeline, X, y\)"):
        exact = deposit(model, features, labels, seed=1)
    coarse = coarsen(model, features, labels)
    said = {
        LEARNT_FROM_SOURCE: (model, exact),
        LEARNT_COARSE: (coarse, deposit(coarse, features, labels, seed=1)),
        LEARNT_ELSEWHERE: (model, deposit(model, features, labels, seed=1, preparation=LEARNT_ELSEWHERE)),
    }
    first = {
        LEARNT_FROM_SOURCE: "PROVEN for the weights. StandardScaler was learnt with the forgotten rows and is unchanged",
        LEARNT_COARSE: "PROVEN for the weights. Preparation was learnt from the source, forgotten rows included, and made",
        LEARNT_ELSEWHERE: "proven",
    }
    for word, (pipeline, kept) in said.items():
        made = unlearn(pipeline, (features[:2], labels[:2]), kept, **ASKED)
        assert made.statement.content["limits"][-1] == PREPARATIONS[word]
        assert made.headline.startswith(first[word])
        assert made.headline in repr(made)
        assert made.statement.content["guarantee"].endswith(made.headline.removeprefix("PROVEN for the weights. ")) or (
            word == LEARNT_ELSEWHERE
        )
    with pytest.raises(OptionError, match="by heart"):
        deposit(model, features, labels, preparation="by heart")
    stateless = make_pipeline(FunctionTransformer(np.tanh), Normalizer(), LogisticRegression()).fit(features, labels)
    assert deposit(stateless, features, labels, seed=1).record.preparation is None
    _, chosen = fitted("ridge")
    assert chosen.record.preparation == f"{LEARNT_FROM_SOURCE}: RidgeClassifierCV", "alpha was chosen on the source"


def test_balanced_weights_are_warned_of_and_coarse_ones_do_not_tell_the_class_of_who_left() -> None:
    """The same rows are retained; somebody of either class has left. Exact weights put the two models far apart."""
    features, labels = numbers(2)
    somebody = features[:1] + 0.1
    apart = {}
    for coarse in (False, True):
        means, kept = [], None
        for label in ("clerk", "cook"):
            rows, names = np.vstack([features, somebody]), np.append(labels, label)
            model = LogisticRegression(class_weight="balanced")
            model = coarsen(model, rows, names) if coarse else model.fit(rows, names)
            with warnings.catch_warnings():
                warnings.simplefilter("error" if coarse else "ignore", ExactPreparation)
                whole = deposit(model, rows, names, seed=1)
            word = LEARNT_COARSE if coarse else LEARNT_FROM_SOURCE
            assert whole.record.preparation == f"{word}: class_weight"
            kept = unlearn(model, (somebody, [label]), whole, **ASKED).deposit
            step = smallest_region(kept.problem)
            assert step is not None
            means.append(kept.anchor + step.update)
        assert kept is not None
        apart[coarse] = float(norm((means[0] - means[1]) @ kept.shape[0])) / kept.levels[0]
    assert apart[False] > 1.0, "deviations of the smallest noise"
    assert apart[True] < 0.1
    with pytest.warns(ExactPreparation, match="class_weight was learnt with the forgotten rows"):
        deposit(LogisticRegression(class_weight="balanced").fit(features, labels), features, labels, seed=1)


@pytest.mark.filterwarnings("ignore::expunge.sklearn.ExactPreparation")
@pytest.mark.parametrize(
    "kind", [LogisticRegression(C=3.0), SGDClassifier(loss="log_loss", alpha=0.05, random_state=0)]
)
def test_what_is_handed_out_does_not_tell_how_many_rows_each_class_had(kind: Any) -> None:
    """Largest weights of balanced classes are n/(K n_min): C or l2 times that, exactly, is the label of who left."""
    features, labels = numbers(2)
    model = clone(kind).set_params(class_weight="balanced").fit(features, labels)
    with patch("expunge.sklearn.deletion.MOVED", 1.0):
        made = unlearn(model, (features[:1], labels[:1]), deposit(model, features, labels, seed=1), **ASKED)
    record, said = made.model.record, made.statement.content["model"]
    times = said["fixed_c"] / 3.0 if record.fixed_c else 0.05 / said["l2"]
    assert times > 1.0
    assert math.log2(times).is_integer()
    assert (record.fixed_c, record.l2) == (said.get("fixed_c"), said["l2"])


def test_coarse_class_weights_are_rounded_by_chance_and_the_headline_names_them() -> None:
    """Of 95 rows in a class there are 90 or 100, as chance has it; seven count as ten."""
    features = np.random.default_rng(0).normal(size=(1000, 2))
    labels = np.repeat([0, 1], [905, 95])
    weighted = LogisticRegression(class_weight="balanced")
    with patch("expunge.rows.preparation._chance", random.Random(0)):
        found = {round(coarsen(weighted, features, labels).class_weight[1], 3) for _ in range(20)}
    assert found == {5.556, 5.0}
    assert coarsen(weighted, features, np.repeat([0, 1], [993, 7])).class_weight[1] == 1000 / 20
    made = coarsen(weighted, features, labels)
    result = unlearn(made, (features[:1], labels[:1]), deposit(made, features, labels, seed=1), **ASKED)
    assert "Balanced class weights are among it" in result.headline
    assert "Balanced class weights are among it" in result.statement.content["guarantee"]
    own = made.set_params(class_weight={0: 1.0, 1: 2.0}).fit(features, labels)
    assert deposit(own, features, labels, seed=1).record.preparation is None, "nobody counted rows for these"


def test_what_does_not_go_with_the_estimator_is_refused() -> None:
    model, kept = fitted("balanced")
    with pytest.raises(ModelError, match="the deposit is of one of logistic loss"):
        unlearn(LogisticRegression().fit(*numbers(3)), tuple(part[:1] for part in numbers(3)), kept, **ASKED)
    for given in (None, "model.deposit"):
        with pytest.raises(OptionError, match=r"type (NoneType|str).*expunge\.read_deposit"):
            unlearn(LogisticRegression(), numbers(2), given, **ASKED)
    assert repr(unlearn(model, tuple(part[:1] for part in numbers(2)), kept, **ASKED)) == (
        "<LogisticRegression after unlearning, epsilon 1, delta 0.001: PROVEN for the weights. class_weight was learnt "
        "with the forgotten rows and is unchanged (class_weight: balanced weights count the rows of each class, so that "
        "the model shows of which the forgotten were).>"
    )


def test_too_many_weights_are_refused_before_rows_are_made_dense() -> None:
    model = LogisticRegression(max_iter=2)
    rows = scipy.sparse.random(40, 13_000, density=0.01, format="csr", random_state=0)
    with pytest.warns(match="converge"):
        model.fit(rows, np.arange(40) % 2)
    with pytest.raises(ModelError, match="max_features=2000"):
        deposit(model, rows, np.arange(40) % 2)


def test_the_norm_bound_is_not_a_row_s_length() -> None:
    """A power of two above it, in the deposit alone: what is published has none."""
    x, y = drawn(300, 3)
    fitted = LogisticRegression().fit(x, y)
    kept = deposit(fitted, x, y, seed=1)
    longest = float(np.linalg.norm(x, axis=1).max())
    assert kept.record.norm_measured
    assert longest < kept.record.max_norm == 2.0 ** np.ceil(np.log2(longest))
    made = unlearn(fitted, (x[:1], y[:1]), kept, **ASKED)
    assert made.statement.content["model"]["max_norm"] == made.model.record.max_norm == LARGEST


# Ten models as people write them: each ends in a certificate, predicts, and the refit lies inside the region.


@pytest.mark.parametrize("name", CASES)
def test_each_ends_in_a_certificate_and_the_refit_is_inside(name: str) -> None:
    model, kept = fitted(name)
    X, y = CASES[name].rows()
    before = model.predict(X)
    gone = (some(X, slice(GONE)), some(y, slice(GONE)))
    result = unlearn(model, forget=gone, deposit=kept, epsilon=1.0, delta=1e-3)
    assert result.certificate.status == "proven"
    assert verify_statement(result.statement, None, result.certificate)
    assert result.deposit.numbers.n_rows == N - GONE
    # the Pipeline works, is of the same kind, and the one that was given is as it was
    assert type(result.estimator) is type(model)
    found = result.estimator.predict(X)
    assert set(found) <= set(np.asarray(y))
    assert np.array_equal(model.predict(X), before)
    # the refit, by scikit-learn, with what was frozen at training
    radius, distance = result.certificate.total, away(name)
    assert distance <= radius, f"{distance:.3g} of {radius:.3g}"
    refit = refit_matrix(name)[1].predict(split_pipeline(model).transform(X, "the source"))
    assert np.mean(found == refit) > 0.95
    # what is outside the guarantee is said
    limits = result.statement.content["limits"]
    learnt = len(getattr(model, "steps", "x")) > 1 or name in ("ridge", "balanced")
    assert (PREPARATIONS[LEARNT_FROM_SOURCE] in limits) == learnt
    assert (WEIGHTED in limits) == (name in ("balanced", "three classes, balanced", "descent", "columns"))


def test_a_head_on_trees_that_were_grown_on_public_rows_is_proven_without_a_reservation() -> None:
    """The smallest form of examples/near_boosting.py, and the figures in their place on the page."""
    parts = parted(credit(n_rows=1600), n_public=300, n_test=300)
    trees = make_pipeline(*boosted(parts["public"], outputs_of_trees, n_trees=3, rate=0.5, least=50))
    told = measured(trees, 0.3, parts, draws=1, people=1)
    assert told["weights"] == 4
    assert [row["headline"] for row in told["deletions"]] == ["proven", "proven"]
    told["deletions"][1] = {"epsilon": 0.1, "draw": 0, "refused": "VacuousClaim"}
    fewer = {str(n): dict.fromkeys(("head", "boosting"), told) for n in FEWER}
    table = {
        "rows": dict.fromkeys(parts, 300),
        "boosting": {},
        "pipelines": {"trees": told},
        "fewer public rows": fewer,
    }
    page = written(f"before\n{MARKS[0]}\nold\n{MARKS[1]}\nafter\n", {"Credit-like": table})
    assert page.startswith("before\n")
    assert page.endswith("\nafter\n")
    assert "old" not in page
    assert "| -, - (1 of 1 refused) |" in page
