"""Training: the optimum scikit-learn finds, and a record whose residual is never below the true gradient norm."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression, RidgeClassifier

import expunge
import reference
from expunge.errors import ExpungeError
from expunge.evaluate.metrics import describe_fit
from expunge.heads import Rows, head_for
from expunge.model import LinearModel
from expunge.rows import bound_rows
from expunge.rows.preparation import Preparation
from expunge.rows.tables import frame_table
from expunge.runtime.arrays import double, dtype_name, equal, to_numpy
from expunge.train import minimise, residual_upper, train

pytestmark = pytest.mark.usefixtures("one_thread")

Array = Any
LOSSES = ("softmax", "ridge")


def cut_back(X: Array, max_norm: float) -> Array:
    """Rows longer than `max_norm` scaled down to it."""
    return X * np.minimum(1.0, max_norm / np.linalg.norm(X, axis=1, keepdims=True))


def seen_by(model: LinearModel, raw: Array) -> Array:
    """The rows a model was trained on: cut back, cast, constant feature appended; written out here once more."""
    record = model.record
    X = cut_back(np.asarray(raw, dtype=float), record.max_norm)
    if record.rows_dtype == "float32":
        X = X.astype(np.float32).astype(float)
    return np.hstack([X, np.ones((len(X), 1))]) if record.bias else X


def matrix_of(model: LinearModel) -> Array:
    return to_numpy(model.matrix())


def rows_and_labels(seed: int, n: int = 300, width: int = 6, classes: int = 4) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    X = rng.standard_t(3.0, size=(n, width))
    return X, (X @ rng.normal(size=(width, classes)) + rng.gumbel(size=(n, classes))).argmax(axis=1)


# The optimum ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("classes", "l2"), [(3, 1e-3), (4, 0.1), (10, 1e-2)])
def test_softmax_is_scikit_learn_s_logistic_regression(classes: int, l2: float, bias: bool) -> None:
    """C = 1/(l2 n); the intercept is a constant feature, regularised like the rest."""
    X, y = rows_and_labels(classes, classes=classes)
    model = train(X, y, l2=l2, max_norm=2.0, bias=bias, force=True)
    rows = cut_back(X, 2.0)
    rows = np.hstack([rows, np.ones((len(X), 1))]) if bias else rows
    other = LogisticRegression(
        C=1 / (l2 * len(X)), fit_intercept=False, tol=1e-10, max_iter=5000, solver="newton-cg"
    ).fit(rows, y)
    assert np.allclose(matrix_of(model), other.coef_, rtol=1e-5, atol=1e-6)
    assert np.array_equal(model.predict(X), other.predict(rows))


def test_two_classes_are_scikit_learn_s_with_half_the_penalty() -> None:
    """Rows -w/2 and w/2 of a softmax model with l2 are one logistic weight vector w with l2/2."""
    X, y = rows_and_labels(7, classes=2)
    model = train(X, y, l2=0.02, max_norm=2.0, force=True)
    other = LogisticRegression(C=1 / (0.01 * len(X)), fit_intercept=False, tol=1e-10, max_iter=5000, solver="newton-cg")
    other.fit(cut_back(X, 2.0), y)
    weights = matrix_of(model)
    assert np.allclose(weights[1] - weights[0], other.coef_[0], rtol=1e-5, atol=1e-6)
    assert np.allclose(weights[0], -weights[1], atol=1e-9)
    alone = train(X, y, l2=0.01, max_norm=2.0, loss="logistic", force=True)
    assert np.allclose(matrix_of(alone), weights[1:] - weights[:1], atol=1e-9)
    assert alone.predict_proba(X) == pytest.approx(model.predict_proba(X), abs=1e-9)
    fits = [describe_fit(each, (X, y)) for each in (alone, model)]
    assert fits[0] == fits[1]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("classes", [2, 5])
def test_ridge_is_the_closed_form_and_scikit_learn_s_ridge_classifier(classes: int, bias: bool) -> None:
    """alpha = l2 n, targets -1 and +1."""
    X, y = rows_and_labels(classes, classes=classes)
    l2, n = 0.03, len(X)
    model = train(X, y, l2=l2, max_norm=2.0, loss="ridge", bias=bias, force=True)
    rows = cut_back(X, 2.0)
    rows = np.hstack([rows, np.ones((n, 1))]) if bias else rows
    targets = 2.0 * np.eye(classes)[y] - 1.0
    closed = np.linalg.solve(rows.T @ rows / n + l2 * np.eye(rows.shape[1]), rows.T @ targets / n).T
    other = RidgeClassifier(alpha=l2 * n, fit_intercept=False, solver="cholesky").fit(rows, y)
    theirs = np.atleast_2d(other.coef_)  # one row for two classes
    assert np.allclose(matrix_of(model), closed, rtol=1e-10, atol=1e-12)
    assert np.allclose(matrix_of(model)[-len(theirs) :], theirs, rtol=1e-8, atol=1e-10)
    assert np.array_equal(model.predict(X), other.predict(rows))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("l2", [1e-8, 1e-4, 1.0, 1e4])
def test_training_ends_at_the_optimum_retraining_finds(loss: str, l2: float) -> None:
    X, y = rows_and_labels(3, n=120)
    model = train(X, y, l2=l2, max_norm=1.0, loss=loss, force=True)
    expected = reference.retrain(cut_back(X, 1.0), y, 4, l2, loss)
    assert model.record.residual < 1e-10
    allowed = (model.record.residual + expected.gradient_norm) / l2 + 1e-12 * np.linalg.norm(expected.weights)
    assert np.linalg.norm(matrix_of(model) - expected.weights) <= allowed


@pytest.mark.parametrize("loss", LOSSES)
def test_a_problem_large_enough_for_quasi_newton_and_conjugate_gradients_ends_there_too(loss: str) -> None:
    rng = np.random.default_rng(1)
    X, y = reference.random_rows(rng, 600, 300, 6)
    told: list[str] = []
    model = train(
        X, y, l2=1e-2, max_norm=1.0, loss=loss, progress=lambda stage, done, total: told.append(stage), force=True
    )
    assert "L-BFGS iterations" in told
    assert (
        reference.exact_gradient_norm(matrix_of(model), seen_by(model, X), y, 1e-2, loss)
        <= model.record.residual
        < 1e-10
    )


def test_rows_that_can_be_told_apart_do_not_run_away() -> None:
    """Separable classes and a tiny l2: weights grow, but training ends at the optimum."""
    X = np.vstack([np.eye(3)] * 20)
    y = np.tile(np.arange(3), 20)
    model = train(X, y, l2=1e-8, max_norm=1.0, force=True)
    assert model.record.residual < 1e-10
    assert np.linalg.norm(matrix_of(model)) <= math.sqrt(2 * math.log(3) / 1e-8)


@pytest.mark.parametrize(("loss", "classes"), [("softmax", 2), ("softmax", 3), ("logistic", 2), ("one-vs-rest", 3)])
def test_many_rows_of_few_weights_are_begun_with_some_of_them(loss: str, classes: int) -> None:
    """Sorted by class, and with a class that hardly any of the rows begun with are of."""
    X, y = rows_and_labels(8, n=170_000, width=5, classes=classes)
    X, y = np.clip(X, -3.0, 3.0), np.sort(np.where((y == 1) & (np.arange(len(y)) > 60), 0, y))
    told: list[str] = []
    model = train(X, y, l2=1e-6, max_norm=10.0, loss=loss, progress=lambda what, *_: told.append(what))
    assert "L-BFGS iterations" not in told
    assert model.record is not None
    assert model.record.residual < 1e-8
    assert told.count("Newton iterations") < 40


def test_minimise_goes_on_from_where_it_is_told() -> None:
    X, y = reference.random_rows(np.random.default_rng(2), 100, 5, 3)
    head = head_for("softmax", l2=1e-2, n_classes=3, n_features=5, row_bound=1.0)
    rows = Rows(X, y)
    best = minimise(head, rows)
    start = best + 0.1
    again = minimise(head, rows, start=start)
    assert np.allclose(to_numpy(best), to_numpy(again), atol=1e-9)
    assert equal(start, best + 0.1)


def test_a_looser_tolerance_stops_earlier_and_says_so() -> None:
    X, y = rows_and_labels(5)
    loose = train(X, y, l2=1e-3, max_norm=1.0, tolerance=1e-3, force=True).record
    tight = train(X, y, l2=1e-3, max_norm=1.0, force=True).record
    assert tight.residual < 1e-10 < loose.residual <= 1.01e-3


# The record -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", ["float64", "float32"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_recorded_residual_is_never_below_the_true_gradient_norm(
    loss: str, bias: bool, dtype: str, store: str
) -> None:
    """At the weights as stored, on the rows as kept, in 64-bit mantissas."""
    for seed in range(6):
        X, y = rows_and_labels(seed, n=40 * 3**seed)
        settings: dict[str, Any] = {"loss": loss, "bias": bias, "dtype": dtype, "store": store, "force": True}
        model = train(X / 4, y, l2=10.0 ** (-1 - seed % 4), max_norm=1.0, **settings)
        record = model.record
        assert dtype_name(model.weight.dtype) == store
        prepared = model_rows(model, X / 4)
        true = reference.exact_gradient_norm(matrix_of(model), prepared, y, record.l2, loss) / (1 + 2.0**-50)
        assert true <= record.residual <= true + 1e-11
        if store == "float32":
            assert true > 1e-10  # rounding the weights moved them off the optimum, and the record knows


def model_rows(model: LinearModel, raw: Array) -> Array:
    """The very rows of training, by the library's own preparation, checked against the rule written out here."""
    record = model.record
    kept = {"dtype": np.dtype(record.rows_dtype), "device": "cpu", "name": "rows"}
    labels = np.zeros(len(raw), np.int64)
    made = bound_rows(raw, labels, max_norm=record.max_norm, bias=record.bias, **kept)
    features = to_numpy(double(made.features))
    assert np.allclose(features, seen_by(model, raw), rtol=1e-6 if record.rows_dtype == "float32" else 1e-14, atol=0)
    assert np.linalg.norm(features, axis=1).max() <= record.row_bound * (1 + 1e-15)
    return features


def test_the_record_says_what_the_source_was() -> None:
    X, y = rows_and_labels(9, n=101, classes=3)
    names = np.array(["cat", "ant", "bee"])[y]
    model = train(X, names, l2=0.02, max_norm=1.5, loss="ridge", bias=True, dtype="float32", force=True)
    record = model.record
    assert record.n_source == 101
    assert record.classes == ("ant", "bee", "cat")
    assert record.class_counts == tuple(int((names == name).sum()) for name in record.classes)
    told = (record.l2, record.loss, record.max_norm, record.bias, record.rows_dtype)
    assert told == (0.02, "ridge", 1.5, True, "float32")
    assert record.row_bound == pytest.approx(math.sqrt(1.5**2 + 1), rel=1e-15)
    assert record.provenance == "measured"
    assert not record.noised
    assert record.weights_sha256 == model.weights_sha256()
    assert model.weight.shape == (3, 6)
    assert model.bias.shape == (3,)


def test_class_numbers_need_not_be_consecutive() -> None:
    X, y = rows_and_labels(4, classes=3)
    plain, spaced = (train(X, each, l2=0.1, max_norm=1.0, force=True) for each in (y, np.array([-5, 3, 40])[y]))
    assert spaced.record.classes == (-5, 3, 40)
    assert equal(plain.weight, spaced.weight)
    assert set(spaced.predict(X)) <= {-5, 3, 40}


@pytest.mark.parametrize("length", [2.0, 1e6, 1e120, 1e160, 1e300])
def test_rows_of_any_length_are_cut_back_to_the_bound_and_not_to_nothing(length: float) -> None:
    X, y = rows_and_labels(6, n=60)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    short, long = train(X, y, l2=0.1, max_norm=1.0, force=True), train(X * length, y, l2=0.1, max_norm=1.0, force=True)
    assert np.allclose(matrix_of(short), matrix_of(long), rtol=1e-9, atol=1e-12)


def test_training_repeats_itself_and_the_caller_s_arrays_are_not_changed() -> None:
    X, y = rows_and_labels(8)
    before, options = (
        (X.copy(), y.copy()),
        {"l2": 0.1, "max_norm": 0.5, "bias": True, "dtype": "float32", "force": True},
    )
    assert train(X, y, **options).sha256() == train(X, y, **options).sha256()
    assert np.array_equal(X, before[0])
    assert np.array_equal(y, before[1])


@pytest.mark.parametrize("loss", LOSSES)
def test_the_upper_bound_on_the_gradient_holds_anywhere(loss: str) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        X, y = reference.random_rows(rng, int(rng.integers(1, 3000)), 7, 3)
        head = head_for(loss, l2=float(10 ** rng.uniform(-6, 1)), n_classes=3, n_features=7, row_bound=1.0)
        W = rng.normal(size=(3, 7)) * 10 ** rng.uniform(-3, 3)
        true = reference.exact_gradient_norm(W, X, y, head.l2, loss) / (1 + 2.0**-50)
        assert true <= residual_upper(head, W, Rows(X, y)) <= true * (1 + 1e-9) + 1e-9


REFUSED: list[dict[str, Any]] = [
    {"l2": 0.0},
    {"l2": -1.0},
    {"l2": math.nan},
    {"max_norm": 0.0},
    {"max_norm": math.inf},
    {"tolerance": 0.0},
    {"dtype": "float16"},
    {"store": "int8"},
    {"loss": "hinge"},
    {"loss": "logistic"},
    {"device": "nowhere"},
]


@pytest.mark.parametrize("changed", REFUSED)
def test_options_that_make_no_sense_are_refused(changed: dict[str, Any]) -> None:
    X, y = rows_and_labels(0, n=30)
    with pytest.raises(ExpungeError):
        train(X, y, **{"l2": 0.1, "max_norm": 1.0, **changed})
    with pytest.raises(ExpungeError, match="one class"):
        train(X, np.zeros(30, dtype=int), l2=0.1, max_norm=1.0)


# Tables -----------------------------------------------------------------------------------------------------------


def people(n: int = 240, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age, job = rng.normal(40.0, 12.0, n), rng.choice(["clerk", "worker", "retired"], n)
    pays = np.where(age / 12 + (job == "clerk") + rng.logistic(size=n) > 3.7, "yes", "no")
    age[rng.random(n) < 0.1] = np.nan
    return pd.DataFrame({"age": age, "job": job, "pays": pays})


def test_a_prepared_table_gives_scikit_learn_s_model_with_its_defaults() -> None:
    """C = 1, two classes: l2 = 2/n for the rows -w/2 and w/2; the intercept is a column of ones, penalised too."""
    frame = people(200)
    told: list[str] = []
    model = train(frame, label="pays", tell=told.append)
    assert (model.record.l2, model.record.bias) == (2.0 / 200, True)
    assert model.record.max_norm == 3.0 * math.sqrt(5)
    made = Preparation.of(model.record.table or {})
    rows = np.column_stack([made.features(frame_table(frame, "t")), np.ones(200)])
    fitted = LogisticRegression(fit_intercept=False, tol=1e-10, max_iter=1000).fit(rows, frame["pays"])
    assert model.predict_proba(frame) == pytest.approx(fitted.predict_proba(rows), abs=1e-6)
    assert model.score(frame) == pytest.approx(fitted.score(rows, frame["pays"]))
    assert any("job (3 values, rare ones together)" in sentence for sentence in told)


def test_the_usual_l2_does_not_tell_one_row_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is handed out with every later model: 1/n of the source would count who was forgotten.

    Neither between two counts of one digit nor at the edge between 900 and 1,000, where rounding down would give l2 of
    1/1000 beside 999 retained rows: then somebody has left.
    """
    frame = people(241)
    models = [train(part, label="pays") for part in (frame, frame[:-1])]
    assert [model.record.l2 for model in models if model.record is not None] == [2.0 / 200, 2.0 / 200]
    monkeypatch.setattr("expunge.rows.preparation._chance", random.Random(7))
    frame = people(1000)[["age", "pays"]]
    shares = []
    for part in (frame, frame[:-1]):
        records = [train(part, label="pays", tolerance=1e-3).record for _ in range(40)]
        assert {record.l2 for record in records if record is not None} <= {2.0 / 900, 2.0 / 1000}
        shares.append(np.mean([record.l2 == 2.0 / 1000 for record in records if record is not None]))
    assert abs(shares[0] - shares[1]) < 0.15


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame, pa.table])
def test_frames_of_every_kind_give_one_model_from_training_to_forgetting(kind: type) -> None:
    frame = people()
    columns = {name: [None if value != value else value for value in frame[name]] for name in frame}
    model = train(kind(columns), label="pays")
    assert model.to_bytes() == train(frame.drop(columns="pays"), frame["pays"]).to_bytes()
    assert model.record.preparation == "learnt from the source, coarse"
    kept = expunge.deposit(model, frame, frame["pays"], seed=1)
    gone = kind({name: values[:2] for name, values in columns.items()})
    done = expunge.unlearn(model, gone, epsilon=1.0, delta=1e-3, deposit=kept)
    assert done.deposit.numbers.n_rows == 238
    assert done.model.record.table == model.record.table
    assert (done.model.predict(frame.drop(columns="pays")) == model.predict(frame)).mean() > 0.99


def test_a_sparse_matrix_is_its_dense_self_and_labels_may_be_objects() -> None:
    X, y = rows_and_labels(3)
    X = np.where(np.abs(X) > 1.0, X, 0.0)
    words = np.array([f"class {each}" for each in y], dtype=object)
    one, other = train(X, words, l2=0.1, max_norm=9.0), train(csr_matrix(X), words, l2=0.1, max_norm=9.0)
    assert one.to_bytes() == other.to_bytes()
    assert (other.predict(csr_matrix(X)) == one.predict(X)).all()
    kept = expunge.deposit(other, csr_matrix(X), words, seed=1)
    assert expunge.unlearn(other, (csr_matrix(X)[:2], words[:2]), epsilon=1.0, delta=1e-3, deposit=kept)


def test_the_longest_row_s_length_may_be_the_bound_rounded_up_to_a_power_of_two() -> None:
    X, y = rows_and_labels(4)
    record = train(X, y, l2=0.1, max_norm="largest").record
    longest = float(np.linalg.norm(X, axis=1).max())
    assert longest <= record.max_norm == 2.0 ** math.ceil(math.log2(longest))
    assert record.norm_measured, "and is not published"
    assert train(X, y, l2=0.1, max_norm=30.0).record.norm_measured is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"l2": 0.1}, "no max_norm"),
        ({"max_norm": 1.0}, "no l2"),
        ({}, "no l2 and no max_norm"),
        ({"l2": 0.1, "max_norm": "long"}, "a number, or 'largest'"),
        ({"l2": 0.1, "max_norm": 1.0, "label": "y"}, "only data frames"),
        ({"l2": 0.1, "max_norm": 1.0, "prepare": "table"}, "only data frames"),
        ({"l2": 0.1, "max_norm": 1.0, "prepare": "maybe"}, "auto, table, none"),
    ],
)
def test_arrays_have_no_usual_settings(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ExpungeError, match=message):
        train(*rows_and_labels(5), **options)


def test_preparation_can_be_learnt_elsewhere_and_the_record_says_so() -> None:
    model = train(people(), label="pays", prepare_from=people(seed=9))
    assert model.record.preparation == "learnt elsewhere"
    assert model.record.table == (train(people(seed=9), label="pays").record or model.record).table
