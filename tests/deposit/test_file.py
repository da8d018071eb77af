"""A deposit's file: what is in it comes back, what is damaged is refused, and no row is in it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from deposit_problems import made, prepared
from expunge.deposit.file import METADATA, Deposit, packed, parse_deposit, read_deposit, unpacked
from expunge.deposit.sums import ERRORS
from expunge.errors import FileError
from expunge.runtime.arrays import copy, equal, to_numpy

pytestmark = pytest.mark.usefixtures("one_thread")
Array = Any
KINDS = [
    ("softmax", {}),
    ("logistic", {"free": True, "fixed_c": True}),
    ("one-vs-rest", {}),
    ("ridge", {"bias": False}),
]


def parts(content: bytes) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    length = int.from_bytes(content[:8], "little")
    return load(content), json.loads(json.loads(content[8 : 8 + length])["__metadata__"][METADATA])


def rebuilt(tensors: dict[str, np.ndarray], told: dict[str, Any]) -> bytes:
    return save(tensors, metadata={METADATA: json.dumps(told)})


@pytest.mark.parametrize(("loss", "options"), KINDS)
def test_a_deposit_comes_back_as_it_was(loss: str, options: dict[str, Any], tmp_path: Path) -> None:
    deposit = made(loss, **options).deposit
    path = tmp_path / "model.deposit"
    path.write_bytes(deposit.to_bytes())
    back = read_deposit(path)
    assert repr(back) == f"Deposit({loss}, {deposit.numbers.n_rows} rows left, 0 forgotten; private)"
    assert deposit.numbers.key not in repr(back.numbers)
    assert back.numbers == deposit.numbers
    assert back.record == deposit.record
    assert equal(back.model.matrix(), deposit.model.matrix())
    assert equal(back.shape, deposit.shape)
    assert equal(back.sums.gradient, deposit.sums.gradient)
    for one, other in zip(
        (back.sums.curvature, *back.sums.weighted), (deposit.sums.curvature, *deposit.sums.weighted), strict=True
    ):
        assert equal(one.values, other.values)
        assert one.joint == other.joint
    assert [gauge.kappa for gauge in back.gauges] == [gauge.kappa for gauge in deposit.gauges]
    for own, their in zip(back.gauges, deposit.gauges, strict=True):
        assert equal(own.factor, their.factor)
    assert all(np.array_equal(a, b) for a, b in zip(back.hashes.digests, deposit.hashes.digests, strict=True))
    assert back.sums.count == deposit.numbers.n_rows
    assert (back.sums.gradient_error, back.sums.curvature_error) == (
        deposit.sums.gradient_error,
        deposit.sums.curvature_error,
    )
    assert back.sums.weighted_errors == deposit.sums.weighted_errors
    assert back.to_bytes() == deposit.to_bytes()


def test_a_fixed_c_is_shared_by_fewer_rows_and_l2_stays() -> None:
    fixed, plain = made("logistic", free=True, fixed_c=True).deposit, made("logistic").deposit
    assert fixed.penalty(120).l2 == pytest.approx(0.01, rel=1e-12)
    assert fixed.penalty(60).l2 == pytest.approx(0.02, rel=1e-12)
    assert fixed.penalty(60).free
    assert plain.penalty(60).l2 == 0.01
    assert not plain.penalty(60).free


@pytest.mark.parametrize("size", [1, 2, 5])
def test_halves_of_matrices_by_hand_and_back(size: int) -> None:
    full = np.arange(2.0 * size * size, dtype=np.float64).reshape(2, size, size)
    symmetric, triangular = full + full.mT, np.tril(full)
    assert packed(symmetric).shape == (2, size * (size + 1) // 2)
    assert np.array_equal(unpacked(packed(symmetric), symmetric=True), to_numpy(symmetric))
    assert np.array_equal(unpacked(packed(triangular), symmetric=False), to_numpy(triangular))
    assert packed(np.array([[[1.0, 9.0], [2.0, 3.0]]])).tolist() == [[1.0, 2.0, 3.0]]
    with pytest.raises(ValueError, match="half of no matrix"):
        unpacked(np.zeros((1, 4)), symmetric=True)


def test_the_file_is_not_held_in_memory_for_its_small_parts(tmp_path: Path) -> None:
    """What is most of it may stay where it was read to; a view of anything else would keep all of it."""
    content = bytearray(made("softmax").deposit.to_bytes())
    read = parse_deposit(content, tmp_path)
    assert read.sums.third is not None
    tensors, _ = parts(bytes(content))
    shared = {name: np.shares_memory(np.frombuffer(content, np.uint8), to_numpy(each)) for name, each in kept_by(read)}
    largest = max(tensors, key=lambda name: tensors[name].nbytes)
    assert {name for name, yes in shared.items() if yes} <= {largest}
    assert read.to_bytes() == bytes(content)


def kept_by(deposit: Deposit) -> list[tuple[str, np.ndarray]]:
    sums = deposit.sums
    assert sums.third is not None
    return [("weight", deposit.model.weight), ("gradient", sums.gradient), ("third", sums.third)]


def test_no_row_is_in_the_file_at_any_precision() -> None:
    case = made("softmax", width=5)
    content = case.deposit.to_bytes()
    for values in (case.X, prepared(case)):
        for row in values:
            for value in row[:5]:
                assert np.float64(value).tobytes() not in content
                assert f"{value:.6f}".encode() not in content or abs(value) < 1e-3


def changed(**values: Any) -> bytes:
    tensors, told = parts(made("softmax").deposit.to_bytes())
    told["numbers"] |= values
    return rebuilt(tensors, told)


@pytest.mark.parametrize(
    "values",
    [
        {"schema": "expunge/deposit/9"},
        {"n_rows": 119},
        {"forgotten": 1},
        {"forgotten": -1, "n_rows": 121},
        {"generation": -1},
        {"row_bound": 0.0},
        {"row_bound": -6.0},
        {"kappas": [1.0]},
        {"kappas": [0.0, 1.0]},
        {"weighted_errors": [1.0]},
        {"gradient_error": -1e-9},
        {"curvature_error": -1e-9},
        {"curvature_error": 1e999},
        {"weighted_errors": [-1.0, 0.0]},
        {"generation": 1},
        {"forgotten": 1, "generation": 2},
        {"anchor_noise": -1.0},
        {"anchor_noise": 1e999},
        {"class_counts": [1, 1, 1]},
        {"key": "00"},
        {"n_rows": "120"},
        {"more": 1},
    ],
    ids=lambda values: ", ".join(f"{name} {value}" for name, value in values.items()),
)
def test_numbers_that_no_deposit_has_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(FileError, match="is not a deposit"):
        parse_deposit(changed(**values), Path("model.deposit"))


def spoilt(name: str, change: Any) -> bytes:
    tensors, told = parts(made("softmax").deposit.to_bytes())
    tensors[name] = change(tensors[name])
    return rebuilt({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, told)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("weight", lambda t: t + 1.0),
        ("weight", lambda t: t[:2]),
        ("gradient", lambda t: t[:, :2]),
        ("gradient", lambda t: t.astype(np.float32)),
        ("gradient", lambda t: np.full_like(t, float("nan"))),
        ("curvature", lambda t: t[:, :-1]),
        ("curvature", lambda t: t[:, :3]),
        ("moments", lambda t: t[:, :3]),
        ("moments", lambda t: t + 0.5),
        ("moments", lambda t: t + 2.0**53),
        ("support", lambda t: t[:2]),
        ("off", lambda t: t[:2]),
        ("off", lambda t: t + 0.5),
        ("support", lambda t: t - 1000.0),
        ("support", lambda t: t + 0.5),
        ("gauge.0", lambda t: t[:, :3]),
        ("gauge.1", lambda t: -t),
        ("weighted.1", lambda t: t[:, :3]),
        ("hashes.0", lambda t: t[1:]),
        ("hashes.1", lambda t: t.astype(np.int32)),
        ("hashes.2", lambda t: t[:, 1:]),
    ],
)
def test_tensors_that_do_not_belong_together_are_refused(name: str, change: Any) -> None:
    with pytest.raises(FileError, match="is not a deposit"):
        parse_deposit(spoilt(name, change), Path("model.deposit"))


def test_what_is_missing_or_cut_short_is_refused(tmp_path: Path) -> None:
    content = made("softmax").deposit.to_bytes()
    tensors, told = parts(content)
    assert parse_deposit(rebuilt({key: value for key, value in tensors.items() if key != "third"}, told), Path("x"))
    for name in tensors.keys() - {"third"}:  # without it a deposit reaches less far
        with pytest.raises(FileError, match="is not a deposit"):
            parse_deposit(rebuilt({key: value for key, value in tensors.items() if key != name}, told), Path("x"))
    for key in ("numbers", "record"):
        with pytest.raises(FileError, match="is not a deposit"):
            parse_deposit(rebuilt(tensors, {key: told[key]}), Path("x"))
    with pytest.raises(FileError):
        parse_deposit(content[: len(content) // 2], Path("x"))
    with pytest.raises(FileError):
        read_deposit(tmp_path / "nothing.deposit")
    with pytest.raises(FileError, match="is not a deposit"):
        parse_deposit(save(tensors, metadata={"other": "{}"}), Path("x"))


def test_nothing_travels_in_a_deposit_unseen() -> None:
    tensors, told = parts(made("softmax").deposit.to_bytes())
    more: list[tuple[dict[str, Any], dict[str, Any], dict[str, str]]] = [
        (tensors | {"rows": np.zeros(3)}, told, {}),
        (tensors | {"gauge.2": copy(tensors["gauge.0"])}, told, {}),
        (tensors, told | {"remark": "everybody"}, {}),
        (tensors, told, {"remark": "everybody"}),
    ]
    for given, said, beside in more:
        with pytest.raises(FileError, match=r"it also has (rows|gauge\.2|remark)"):
            parse_deposit(save(given, metadata={METADATA: json.dumps(said)} | beside), Path("x"))
    for key in ("zz" * 32, "ab  " * 16, "AB" * 32):
        told["numbers"]["key"] = key
        with pytest.raises(FileError, match="is not a deposit"):
            parse_deposit(rebuilt(tensors, told), Path("x"))
    tensors, told = parts(made("ridge").deposit.to_bytes())
    width = made("ridge").deposit.anchor.shape[1]
    lines = np.zeros((3, width * (width + 1) * (width + 2) // 6), dtype=np.float64)
    with pytest.raises(FileError, match="do not fit together"):
        parse_deposit(rebuilt(tensors | {"third": lines}, told), Path("x"))


def test_a_number_said_twice_or_not_a_number_is_refused() -> None:
    tensors, told = parts(made("softmax").deposit.to_bytes())
    text = json.dumps(told)
    for bad in (
        text.replace('"row_bound":', '"row_bound": 7.0, "row_bound":'),
        text.replace('"row_bound": ', '"row_bound": NaN, "x": '),
    ):
        with pytest.raises(FileError, match="is not a deposit"):
            parse_deposit(save(tensors, metadata={METADATA: bad}), Path("x"))


def test_the_fields_of_the_file_are_those_that_are_documented() -> None:
    tensors, told = parts(made("softmax").deposit.to_bytes())
    gauges = [f"{kind}.{index}" for kind in ("gauge", "weighted") for index in range(2)]
    assert set(tensors) == {
        "weight",
        "gradient",
        "curvature",
        "third",
        "moments",
        "support",
        "off",
        *gauges,
        "hashes.0",
        "hashes.1",
        "hashes.2",
    }
    assert set(told) == {"numbers", "record"}
    assert set(told["numbers"]) == {*asdict(made("softmax").deposit.numbers), *ERRORS}
