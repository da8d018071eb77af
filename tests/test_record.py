"""The training record: written and read as it was, and refused where it cannot be."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from expunge import ModelError, train
from expunge.model import read_model
from expunge.record import LOSSES, Loss, TrainingRecord, names_problem, one_digit, prepared_by

OURS = "a" * 64


def rows(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    labels = np.arange(count) % 3
    features = 2.0 * np.eye(3, 4)[labels] + 0.3 * np.random.default_rng(seed).normal(size=(count, 4))
    return features / np.linalg.norm(features, axis=1, keepdims=True), labels


X, Y = rows(120, 1)


@pytest.fixture(scope="module")
def model() -> object:
    return train(X, Y, l2=0.1, max_norm=1, encoder=OURS)


def test_the_record_keeps_it_and_reads_it_back(model: object, tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(model.to_bytes())
    found, _ = read_model(tmp_path / "m.safetensors")
    assert found.record == model.record
    assert found.record.encoder == OURS


def test_what_is_not_known_is_not_written() -> None:
    text = train(X, Y, l2=0.1, max_norm=1).record.to_json()
    assert set(json.loads(text)) & {"encoder", "table", "fixed_c", "norm_measured"} == set()


@pytest.mark.parametrize(
    ("old", "new"),
    [('"expunge/record/1"', '"expunge/record/2"'), (f'"{OURS}"', '"A"'), (f'"{OURS}"', "7"), ('"encoder"', '"coder"')],
)
def test_an_impossible_record_is_refused(model: object, old: str, new: str) -> None:
    with pytest.raises(ModelError):
        TrainingRecord.from_json(model.record.to_json().replace(old, new), "it")


# How a table's columns became features -------------------------------------------------------------------------------

TABLE = {
    "label": "pays",
    "text_labels": True,
    "names": [],
    "columns": [
        {"column": "age", "kind": "number", "median": 40.0, "mean": 41.0, "scale": 2.0},
        {"column": "job", "kind": "category", "values": ["clerk"], "other": True},
    ],
    "dropped": [{"column": "id", "reason": "row numbers"}],
    "coarse": {"digits": 2, "rare": 10, "most": 10.0},
}
PREPARED = TrainingRecord(
    n_source=10, classes=("no", "yes"), class_counts=(4, 6), l2=0.1, loss="softmax", max_norm=3.0, bias=True,
    residual=1e-9, weights_sha256="0" * 64, features=("age", "job=clerk", "job=(other)"),
    preparation="learnt from the source, coarse", table=TABLE,
)  # fmt: skip


def test_a_table_is_read_back() -> None:
    assert TrainingRecord.from_json(PREPARED.to_json(), "r") == PREPARED


def changed(path: str, value: object) -> dict:
    content = json.loads(json.dumps(TABLE))
    *parts, last = path.split(".")
    inner = content
    for part in parts:
        inner = inner[int(part) if part.isdigit() else part]
    inner[last] = value
    return content


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("columns.0.scale", 0.0),
        ("columns.0.mean", 1),
        ("columns.0.mean", "41"),
        ("columns.0.kind", "category"),
        ("columns.0.column", "income"),
        ("columns.0.column", "job"),
        ("columns.1.values", [3]),
        ("columns.1.other", False),
        ("columns.1.code", "import os"),
        ("columns", []),
        ("label", "age"),
        ("label", None),
        ("dropped", [{"column": "id"}]),
        ("dropped", [{"column": "age", "reason": "twice"}]),
        ("text_labels", 1),
        ("more", 1),
        ("coarse", None),
        ("coarse", {"digits": 2}),
        ("coarse.digits", 0),
        ("coarse.rare", 10.0),
        ("coarse.most", float(10**40)),
    ],
)
def test_a_table_that_cannot_be_is_refused(path: str, value: object) -> None:
    with pytest.raises(ModelError, match="a table that makes no such features"):
        TrainingRecord.from_json(replace(PREPARED, table=changed(path, value)).to_json(), "r")


def test_a_table_goes_with_where_it_was_learnt() -> None:
    with pytest.raises(ModelError, match="a table"):
        TrainingRecord.from_json(replace(PREPARED, preparation=None).to_json(), "r")
    with pytest.raises(ModelError, match="preparation 'learnt from the source' of a table that was"):
        TrainingRecord.from_json(replace(PREPARED, preparation="learnt from the source").to_json(), "r")
    exact = replace(PREPARED, preparation="learnt from the source", table={**TABLE, "coarse": {}})
    assert TrainingRecord.from_json(exact.to_json(), "r") == exact


@pytest.mark.parametrize(
    ("said", "sound"),
    [
        ("learnt from the source: StandardScaler, PCA", True),
        ("learnt from the source", True),
        ("learnt elsewhere", True),
        ("learnt elsewhere: PCA", False),
        ("learnt from the source, coarse: PCA", False),
        ("learnt from the source, coarse: class_weight", True),
        ("learnt from the source: ", False),
        ("learnt from the source: PCA, PCA", False),
        ("learnt from the source: <b>", False),
        ("learnt from the source: " + ", ".join(f"A{place}" for place in range(101)), False),
    ],
)
def test_steps_are_named_by_their_classes(said: str, sound: bool) -> None:
    assert (prepared_by(said) is not None) is sound
    text = replace(PREPARED, table=None, features=None, preparation=said).to_json()
    if sound:
        assert TrainingRecord.from_json(text, "r").preparation == said
    else:
        with pytest.raises(ModelError, match="preparation"):
            TrainingRecord.from_json(text, "r")


# Constants of the losses ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "convexity", "smoothness", "lipschitz", "hessian_lipschitz"),
    [
        ("softmax", 0.5, 4.5 + 0.5, 3.0 * math.sqrt(2.0) + 2.5, 27.0 * math.sqrt(2.0) / (3.0 * math.sqrt(3.0))),
        ("ridge", 0.5, 9.0 + 0.5, (15.0 + 2.0) * 3.0 + 2.5, 0.0),
        ("logistic", 0.5, 2.25 + 0.5, 6.0 + 2.5, 27.0 / (6.0 * math.sqrt(3.0))),
    ],
)
def test_constants_in_closed_form(
    loss: str, convexity: float, smoothness: float, lipschitz: float, hessian_lipschitz: float
) -> None:
    """l2 = 0.5, four classes, rows of length 3, weights of length 5."""
    made = LOSSES[loss].constants
    found = made(0.5, 4, 3.0, 5.0)
    assert (found.strong_convexity, found.smoothness) == pytest.approx((convexity, smoothness), rel=1e-14)
    assert (found.lipschitz, found.hessian_lipschitz) == pytest.approx((lipschitz, hessian_lipschitz), rel=1e-14)


def test_what_a_certificate_knows_of_each_loss() -> None:
    assert {name for name, loss in LOSSES.items() if not loss.convex} == {"module"}
    assert {name for name, loss in LOSSES.items() if loss.one_vector} == {"tangent", "module"}
    assert {name for name, loss in LOSSES.items() if loss.one_row} == {"logistic"}
    assert {name for name, loss in LOSSES.items() if not loss.rounding_derived} == {"tangent", "module"}
    rows = {name: loss.weight_rows(5) for name, loss in LOSSES.items()}
    assert rows == {"softmax": 5, "one-vs-rest": 5, "ridge": 5, "logistic": 1, "tangent": 1, "module": 1}
    plain = Loss("plain", None)
    assert (plain.one_vector, plain.one_row, plain.rounding_derived) == (False, False, True)


# What is kept at most ---------------------------------------------------------------------------------------------------


def test_as_many_rows_as_float64_counts_and_no_more() -> None:
    for count, fine in ((1, True), (2**53, True), (0, False), (2**53 + 1, False)):
        text = replace(PREPARED, n_source=count, class_counts=None).to_json()
        if fine:
            assert TrainingRecord.from_json(text, "r").n_source == count
        else:
            with pytest.raises(ModelError, match="n_source"):
                TrainingRecord.from_json(text, "r")


def test_feature_names_at_their_limits_and_just_beyond() -> None:
    many = [str(number) for number in range(200_001)]
    assert names_problem(many[:-1]) is None
    assert "200,001 feature names" in str(names_problem(many))
    assert "0 feature names" in str(names_problem([]))
    assert names_problem(["a" * 300]) is None
    assert "300 characters" in str(names_problem(["a" * 301]))
    together = [f"{number:0300d}" for number in range(33_333)] + ["b" * 100]
    assert names_problem(together) is None
    assert "10,000,000 characters together" in str(names_problem([*together, "c"]))


def test_a_count_to_one_digit_by_hand() -> None:
    """Rounded down: what is handed out of a count does not tell how many left, but where a digit turns."""
    for count in range(1, 2500):
        digits = str(count)
        assert one_digit(count) == int(digits[0] + "0" * (len(digits) - 1))
    assert one_digit(0) == 0
    assert {one_digit(count) for count in range(3_000, 4_000)} == {3_000}
    assert one_digit(10**18 - 1) == 9 * 10**17
