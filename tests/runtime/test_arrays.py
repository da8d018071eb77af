"""Every helper gives the same numbers for numpy's arrays and for torch's tensors, and numpy's never load torch."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from expunge.errors import OptionError
from expunge.runtime import arrays

GENERATOR = np.random.default_rng(1)
TALL = GENERATOR.standard_normal((7, 3))
SQUARE = TALL.T @ TALL + np.eye(3)
STACK = np.stack([SQUARE, 2.0 * SQUARE])
FAR = np.array([[-800.0, 0.0, 800.0], [3.0, -1e-9, 50.0]])
BOTH: list[Callable[[Any], Any]] = [
    lambda make: arrays.softmax(make(FAR)),
    lambda make: arrays.sigmoid(make(FAR)),
    lambda make: arrays.log_sigmoid(make(FAR)),
    lambda make: arrays.log_sum_exp(make(FAR)),
    lambda make: arrays.softmax(make(TALL.T.copy()).T),
    lambda make: arrays.norm(make(TALL)),
    lambda make: arrays.add_product(make(SQUARE.copy()), make(TALL).T, make(TALL)),
    lambda make: arrays.add_scaled(make(SQUARE.copy()), -0.5, make(SQUARE)),
    lambda make: arrays.add_scaled(make(SQUARE.copy()), -0.5, make(TALL[0].copy())),
    lambda make: arrays.take_into(make(np.zeros(3)), make(TALL[0].copy()), make(np.array([2, 0, 2]))),
    lambda make: arrays.to_device(make(TALL), make(TALL).device),
    lambda make: arrays.add_to_diagonal(make(SQUARE.copy()), 2.0),
    lambda make: arrays.add_to_diagonal(make(np.stack([SQUARE, SQUARE])), 2.0),
    lambda make: arrays.add_to_diagonal(make(SQUARE.copy()), make(TALL[0].copy())),
    lambda make: arrays.cholesky(make(SQUARE)),
    lambda make: arrays.cholesky_solve(arrays.cholesky(make(SQUARE)), make(TALL.T.copy())),
    lambda make: arrays.cholesky_inverse(arrays.cholesky(make(SQUARE))),
    lambda make: arrays.solve_triangular(arrays.cholesky(make(SQUARE)), make(TALL.T.copy())),
    lambda make: arrays.solve_triangular(arrays.cholesky(make(SQUARE)).T, make(TALL.T.copy()), upper=True),
    lambda make: arrays.cholesky(make(STACK)),
    lambda make: arrays.solve_triangular(arrays.cholesky(make(STACK)), make(np.stack([TALL.T, TALL.T]))),
    lambda make: arrays.solve_triangular(arrays.cholesky(make(STACK)).mT, make(STACK), upper=True),
    lambda make: make(SQUARE)[arrays.upper_triangle(3, make(SQUARE))],
    lambda make: arrays.cast(make(TALL), "float32"),
    lambda make: arrays.double(arrays.cast(make(TALL), "float32")),
    lambda make: arrays.put([1.0, 2.0], make(TALL)),
    lambda make: arrays.put(torch.tensor([1.0, 2.0]), make(TALL), "float64"),
    lambda make: arrays.put(np.array([1, 2]), make(TALL)),
]


@pytest.mark.parametrize("compute", BOTH)
def test_both_engines_agree(compute: Callable[[Any], Any]) -> None:
    plain, tensor = compute(np.asarray), compute(torch.from_numpy)
    if not isinstance(plain, float):
        assert isinstance(plain, np.ndarray)
        assert isinstance(tensor, torch.Tensor)
        assert arrays.dtype_name(plain.dtype) == arrays.dtype_name(tensor.dtype)
    np.testing.assert_allclose(plain, arrays.to_numpy(tensor), rtol=1e-14, atol=1e-300)


@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy])
@pytest.mark.parametrize(
    "odd", [np.diag([1.0, -1.0]), np.diag([1.0, np.nan]), np.diag([np.nan] * 300), np.ones((2, 2))]
)
def test_a_matrix_that_is_not_positive_definite_has_no_factor(make: Any, odd: Any) -> None:
    assert arrays.cholesky(make(odd)) is None
    assert arrays.cholesky(make(np.stack([np.eye(len(odd)), odd]))) is None


@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy])
def test_nothing_is_copied_where_nothing_is_to_be_done_and_copies_are_ones_own(make: Any) -> None:
    array = make(TALL)
    assert arrays.double(array) is array
    assert arrays.cast(array, array.dtype) is array
    assert np.shares_memory(arrays.to_numpy(array), TALL)
    assert not np.shares_memory(arrays.to_numpy(arrays.copy(array)), TALL)
    assert arrays.contiguous(array.T).shape == (3, 7)
    assert arrays.equal(array, arrays.copy(array))
    assert not arrays.equal(array, array.T)
    assert arrays.size(array) == 21
    assert arrays.on_cpu(array.device)
    assert arrays.is_double(array.dtype)
    assert arrays.namespace_of(array.dtype) is arrays.namespace(array)


def test_what_only_torch_does_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert arrays.load_torch("device cuda") is torch
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(OptionError, match=r'device cuda, and torch is not .* pip install "expunge\[torch\]".*whl/cpu'):
        arrays.load_torch("device cuda")


def test_numpy_arrays_never_load_torch() -> None:
    program = """
import sys, numpy as np
from expunge.runtime import arrays
a = np.eye(3)
arrays.cholesky_solve(arrays.cholesky(arrays.double(a)), a), arrays.softmax(a), arrays.norm(a), arrays.put([1], a)
assert arrays.namespace(a) is arrays.namespace_of(a.dtype)
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("size", [1, 2, 9])
def test_triangular_systems_of_one_column_and_of_more(order: str, columns: int, size: int) -> None:
    generator = np.random.default_rng(size)
    lower = np.tril(generator.standard_normal((size, size))) + 5.0 * np.eye(size)
    right = generator.standard_normal((size, columns))
    for factor, upper in ((lower, False), (lower.T, True)):
        stored = np.asarray(factor, order=order)
        assert factor @ arrays.solve_triangular(stored, right, upper=upper) == pytest.approx(
            right, rel=1e-12, abs=1e-13
        )


@pytest.mark.parametrize(
    ("rows", "weights", "load", "one"),
    [(50_000, 100, 0.0, True), (50_000, 5_000, 0.0, False), (10, 2_001, 0.0, False), (50_000, 5_000, 99.0, True)],
)
def test_small_work_and_work_on_a_busy_machine_is_done_by_one_thread(
    rows: int, weights: int, load: float, one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def limit(self: object, limits: int, user_api: str) -> contextlib.AbstractContextManager[None]:
        asked.append(limits)
        return contextlib.nullcontext()

    monkeypatch.setattr("threadpoolctl.ThreadpoolController.limit", limit)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    with arrays.few_threads(rows, weights):
        assert asked == [1] * one
    monkeypatch.delattr(os, "getloadavg")  # as on Windows
    with arrays.few_threads(rows, weights):
        assert len(asked) == one + (weights < 2_000)


def test_libraries_that_are_loaded_later_are_limited_too() -> None:
    code = (
        "import numpy; from threadpoolctl import threadpool_info; from expunge.runtime.arrays import few_threads\n"
        "with few_threads(1, 1): pass\n"
        "import scipy.linalg\n"
        "with few_threads(1, 1): print({each['num_threads'] for each in threadpool_info() if each['user_api'] == 'blas'})"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "2", "OMP_NUM_THREADS": "2"},
    )
    assert ran.stdout.strip() == "{1}"
