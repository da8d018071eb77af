"""What is unlearned from: a model with its record, or what is declared of it; a state; what a certificate says of it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import expunge
from asking import asked
from class_shift import shifted_problem
from expunge.certificate.verify import verify
from expunge.desk import Policy, accept, create_desk, models, open_desk, run, verify_desk
from expunge.door import ONE_VECTOR
from expunge.errors import ExpungeError, ModelError
from expunge.heads import Rows
from expunge.model import LinearModel, one_row_a_class
from expunge.request.promise import Series
from expunge.request.request import (
    Past,
    anchored_bytes,
    describe_data,
    describe_sizes,
    head_of,
    nothing_forgotten,
    read_anchored,
    record_after,
    record_without,
    retained_counts,
)
from expunge.rows import bound_rows
from expunge.runtime.arrays import copy, dtype_name, equal, norm, to_numpy, zeros
from expunge.train import train

pytestmark = pytest.mark.usefixtures("one_thread")
Parts = dict[str, tuple[np.ndarray, np.ndarray]]


def test_a_noised_model_is_not_unlearned_again(parts: Parts) -> None:
    model = train(*parts["source"], l2=0.05, max_norm=2.0, force=True)
    options: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-3, "distance": "same", "force": True}
    published = expunge.unlearn(model, parts["forget"], parts["surrogate"], **options).model
    with pytest.raises(ModelError, match="noised"):
        expunge.unlearn(published, parts["forget"], parts["surrogate"], **options)


# What is declared of a model without a record, and a record of other weights ---------------------------------------------


def test_facts_may_be_declared_for_a_model_without_a_record_if_they_are_possible() -> None:
    model, X, y, gone, S = shifted_problem(1)
    bare = {"n_source": 600, "l2": 0.05, "loss": "softmax", "max_norm": 1.0, "training_residual": model.record.residual}
    given = {"epsilon": 1.0, "delta": 0.01, "distance": "same", "match_classes": True, "force": True}
    forget, weights = (X[gone], y[gone]), to_numpy(model.weight)
    counts = model.record.class_counts
    request = asked(weights, forget, S, class_counts=counts, **bare, **given)
    own = asked(model, forget, S, **given)
    np.testing.assert_allclose(
        to_numpy(request.surrogate.weights), to_numpy(own.surrogate.weights), rtol=1e-7, atol=1e-7
    )
    with pytest.raises(ModelError, match="no class counts"):
        asked(weights, forget, S, **bare, **given)
    for wrong, said in (
        *(
            ({"class_counts": counts}, "class counts")
            for counts in ((300, 300), (599, 1, 1), (601, -1, 0), (1.5, 2, 3))
        ),
        ({"n_source": 0}, "n_source 0"),
        ({"n_source": 600.0}, "n_source 600.0"),
        ({"training_residual": math.nan}, "residual nan"),
        ({"l2": -1.0}, "l2 -1.0"),
        ({"max_norm": 1e40}, "max_norm 1e.40"),
        ({"classes": (1, 1, 2)}, r"classes \(1, 1, 2\)"),
        ({"classes": (1, 2)}, "3 weight rows, 2 classes"),
    ):
        with pytest.raises(ModelError, match=said):
            asked(weights, forget, S, **bare | wrong, **given)
    for known, said in (({"class_counts": (200, 200, 200)}, "class_counts"), ({"classes": (2, 1, 0)}, "classes")):
        with pytest.raises(ModelError, match=f"{said} .* was given, but the model's record says"):
            asked(model, forget, S, **known, **given)


def test_declared_class_counts_are_named_as_declared() -> None:
    model, X, y, gone, S = shifted_problem(1, n=3000, s=3000)
    made = expunge.unlearn(
        to_numpy(model.weight), (X[gone[:1]], y[gone[:1]]), S, epsilon=2.0, delta=1e-3, distance="same", match_classes=True,
        class_counts=np.bincount(y), force=True, n_source=3000, l2=0.05, loss="softmax", max_norm=1.0,
        training_residual=model.record.residual,
    )  # fmt: skip
    verify(made.certificate)
    retained = np.bincount(y) - np.bincount(y[gone[:1]], minlength=3)
    assert made.certificate.content["data"]["class_counts"] == retained.tolist()
    assert any("weight_largest" in sentence for sentence in made.certificate.content["assumptions"])


def table(seed: int = 3, rows: int = 900) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    features = generator.standard_normal((rows, 4))
    labels = np.where(features[:, 0] + generator.standard_normal(rows) > 0.3, "yes", "no")
    return features, labels


X, Y = table()
FORGET, SURROGATE = (X[:3], Y[:3]), (X[400:], Y[400:])
ONE = train(X[:400], Y[:400], l2=0.05, max_norm=5.0, loss="logistic", bias=True)
TWO = train(X[:400], Y[:400], l2=0.1, max_norm=5.0, loss="softmax", bias=True)
PROMISE: dict[str, Any] = {"epsilon": 5.0, "delta": 1e-3, "distance": "same", "force": True}


def others(model: LinearModel) -> dict[str, LinearModel]:
    """The record of a model beside weights that it is not of."""
    twice = LinearModel(np.concatenate([model.weight, model.weight]), np.concatenate([model.bias, model.bias]))
    return {
        "the weights are not those": replace(model, weight=3.0 * model.weight),
        "weight rows": replace(twice, record=model.record),
        "the record says bias False": model.with_record(replace(model.record, bias=False)),
    }


@pytest.mark.parametrize("model", [ONE, TWO], ids=["logistic", "softmax"])
@pytest.mark.parametrize("said", ["the weights are not those", "weight rows", "the record says bias False"])
def test_a_record_of_other_weights_is_refused(model: LinearModel, said: str, tmp_path: Path) -> None:
    other = others(model)[said]
    with pytest.raises(ModelError, match=said):
        expunge.unlearn(other, FORGET, SURROGATE, **PROMISE)
    with pytest.raises(ModelError, match=said):
        create_desk(tmp_path / "desk", other, SURROGATE, Policy(planned=2, **PROMISE))
    with pytest.raises(ModelError, match=said):
        expunge.deposit(other, X[:400], Y[:400])
    assert not (tmp_path / "desk").exists()


# One weight vector for two classes ----------------------------------------------------------------------------------------


def rows_for() -> Rows:
    indices = (Y[:400] == "yes").astype(np.int64)
    kept: dict[str, Any] = {"dtype": np.dtype("float64"), "device": "cpu", "width": 4, "name": "rows"}
    return bound_rows(X[:400], indices, max_norm=5.0, bias=True, **kept)


def test_the_objective_is_the_same_at_any_weights() -> None:
    rows, generator = rows_for(), np.random.default_rng(7)
    for _ in range(5):
        drawn = generator.normal(size=(1, 5))
        one = replace(ONE, weight=drawn[:, :4].copy(), bias=drawn[:, 4].copy())
        two = one_row_a_class(one)
        before, after = head_of(one, one.record), head_of(two, two.record)
        assert after.loss(two.matrix(), rows) == pytest.approx(before.loss(one.matrix(), rows), rel=1e-14)
        gradient = before.gradient(one.matrix(), rows)
        np.testing.assert_allclose(
            to_numpy(after.gradient(two.matrix(), rows)),
            to_numpy(np.concatenate([-gradient, gradient])),
            rtol=1e-7,
            atol=1e-7,
        )
        assert np.array_equal(one.predict(X), two.predict(X))


def test_the_minimiser_is_the_same_and_the_residual_holds() -> None:
    record = one_row_a_class(ONE).record
    assert (record.loss, record.l2) == ("softmax", 0.1)
    two = one_row_a_class(ONE).matrix()
    np.testing.assert_allclose(to_numpy(two), to_numpy(TWO.matrix()), rtol=0.0, atol=1e-10)
    assert float(norm(head_of(TWO, record).gradient(two, rows_for()))) <= record.residual
    assert record.residual == pytest.approx(math.sqrt(2.0) * ONE.record.residual, rel=1e-12)
    assert record.residual > math.sqrt(2.0) * ONE.record.residual


@pytest.mark.parametrize("store", ["float64", "float32"])
def test_it_is_unlearned_as_softmax_is_and_the_certificate_verifies(store: str, tmp_path: Path) -> None:
    one, two = (
        train(X[:400], Y[:400], l2=l2, max_norm=5.0, loss=loss, bias=True, store=store)
        for loss, l2 in (("logistic", 0.05), ("softmax", 0.1))
    )
    result, other = (expunge.unlearn(each, FORGET, SURROGATE, **PROMISE, insecure_test_seed=5) for each in (one, two))
    assert ONE_VECTOR in result.statement.content["notes"], "a public note: it says nothing of who left"
    assert ONE_VECTOR not in other.statement.content["notes"]
    assert result.certificate.content["model"]["before"]["sha256"] == one.sha256()
    assert result.certificate.total == pytest.approx(other.certificate.total, rel=1e-6)
    limit = 1e-10 if store == "float64" else 1e-6
    np.testing.assert_allclose(to_numpy(result.model.matrix()), to_numpy(other.model.matrix()), rtol=0.0, atol=limit)
    secret = expunge.unlearn(one, FORGET, SURROGATE, **PROMISE)
    secret.model.save(tmp_path / "model.safetensors")
    assert verify(secret.certificate, tmp_path / "model.safetensors"), "all of it passed"


def test_numbers_that_cannot_be_halved_become_float64() -> None:
    least = float(np.finfo(np.float32).smallest_subnormal)  # the least there is
    weight = np.array([[1.0, 1.0, 1.0, least]], np.float32)
    two = one_row_a_class(replace(ONE, weight=weight, bias=np.zeros(1, np.float32)))
    assert dtype_name(two.weight.dtype) == "float64"
    assert float(two.weight[1, 3]) == least / 2.0


def test_a_desk_takes_it_and_names_the_file_that_was_given(tmp_path: Path) -> None:
    told: list[str] = []
    create_desk(tmp_path / "desk", ONE, SURROGATE, Policy(planned=2, **PROMISE), say=told.append)
    desk = open_desk(tmp_path / "desk")
    assert ONE_VECTOR in told
    accept(desk, *FORGET, reference="one")
    (made,) = run(desk).published
    assert made.certificate.content["model"]["before"]["sha256"] == ONE.sha256()
    assert len(models(desk)) == 1
    verify_desk(desk)


# The private state of a series --------------------------------------------------------------------------------------------


def state_of(bias: bool = False) -> LinearModel:
    rng = np.random.default_rng(0)
    labels = np.arange(90) % 3
    return train(rng.normal(size=(90, 4)) + np.eye(3, 4)[labels], labels, l2=0.1, max_norm=9.0, bias=bias)


@pytest.mark.parametrize("bias", [False, True])
def test_a_state_survives_its_file(bias: bool, tmp_path: Path) -> None:
    made = state_of(bias)
    past = nothing_forgotten(made).with_rows((zeros(made.matrix()) + 1.0), (2, 0, 1))
    (tmp_path / "state").write_bytes(anchored_bytes(made, past))
    again, read = read_anchored(tmp_path / "state")
    assert equal(again.matrix(), made.matrix())
    assert again.record == made.record
    assert equal(read.gradients, past.gradients)
    assert (read.counts, read.n_rows) == ((2, 0, 1), 3)
    left = record_without(made.record, (2, 0, 1))
    assert (left.n_source, left.class_counts) == (87, (28, 30, 29))
    fewer = record_without(left, np.array([1, 1]))
    assert (fewer.n_source, fewer.class_counts) == (85, (28, 28, 29))


@pytest.mark.parametrize(
    "change",
    [
        lambda parts: parts.pop("forgotten"),
        lambda parts: parts.pop("counts"),
        lambda parts: parts.update(forgotten=np.zeros((3, 5))),
        lambda parts: parts.update(counts=np.array([1, 2])),
        lambda parts: parts.update(counts=np.array([1, -2, 1])),
        lambda parts: parts.update(weight=parts["weight"] + 1.0),
    ],
)
def test_a_state_that_does_not_fit_is_refused(change: Any, tmp_path: Path) -> None:
    made = state_of()
    forgotten, counts = np.zeros((3, 4)), np.array([0, 0, 0])
    parts = {"weight": copy(made.weight), "forgotten": forgotten, "counts": counts}
    save_file(parts, tmp_path / "whole", metadata={"expunge": made.record.to_json()})
    read_anchored(tmp_path / "whole")
    change(parts)
    save_file(parts, tmp_path / "state", metadata={"expunge": made.record.to_json()})
    with pytest.raises(ExpungeError):
        read_anchored(tmp_path / "state")


# What a certificate says of a request -------------------------------------------------------------------------------------


def made(parts: Parts, **options: Any) -> Any:
    model = train(*parts["source"], l2=0.05, max_norm=2.0, bias=True, force=True)
    given = {"epsilon": 1.0, "delta": 1e-3, "distance": "same", "force": True} | options
    return asked(model, parts["forget"], parts["surrogate"], **given)


def test_the_record_afterwards_says_nothing_of_who_left(parts: Parts) -> None:
    request = made(parts)
    after = record_after(request)
    left = np.bincount(parts["source"][1], minlength=3) - np.bincount(parts["forget"][1], minlength=3)
    assert after.n_source == 200, "296 to one digit, rounded down"
    assert (after.class_counts, after.residual, after.noised) == (None, None, True)
    assert retained_counts(request) == list(left)
    assert (after.l2, after.max_norm, after.classes) == (0.05, 2.0, request.record.classes)
    assert not request.record.noised


def test_sizes_scaled_rows_weights_and_a_place_in_a_series_are_told(parts: Parts) -> None:
    request = made(parts, dtype="float32")
    sizes = {"n_source": 300, "n_forget": 4, "n_surrogate": 300, "n_retain": 296}
    assert describe_sizes(request) == sizes | {"parameters": 21, "classes": 3, "features": 6}
    data = describe_data(request, request.distance)
    for name in ("forget", "surrogate"):
        long = int((np.linalg.norm(parts[name][0], axis=1) > 2.0).sum())
        assert data["rows_scaled_to_max_norm"][name] == long
    assert (data["surrogate_dtype"], data["effective_surrogate_rows"]) == ("float32", 300)
    assert not {"class_counts", "sequence"} & set(data)
    matched = made(parts, match_classes=True)
    data = describe_data(matched, matched.distance)
    assert data["class_counts"] == retained_counts(matched)
    weights = to_numpy(matched.surrogate.weights)
    assert data["effective_surrogate_rows"] == pytest.approx(weights.sum() ** 2 / (weights**2).sum(), rel=1e-12)
    placed = made(parts, series=Series(5))
    assert describe_data(placed, placed.distance)["sequence"] == Series(5).describe() | {"forgotten_before": 0}
    later = made(parts, series=Series(5, 2, Past(np.zeros((3, 7)), (1, 0, 2))))
    assert describe_data(later, later.distance)["sequence"]["forgotten_before"] == 3
    assert np.array(retained_counts(later)).tolist() == (np.array(retained_counts(placed)) - [1, 0, 2]).tolist()
