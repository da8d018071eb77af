"""A small desk: three well separated classes, one model trained, nothing asked yet."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from expunge.desk import Desk, Policy, accept, create_desk, open_desk, run, withdraw
from expunge.model import LinearModel
from expunge.train import train

N_SOURCE = 300


def _rows(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    labels = np.arange(count) % 3
    features = 2.0 * np.eye(3, 4)[labels] + 0.3 * np.random.default_rng(seed).normal(size=(count, 4))
    return features / np.linalg.norm(features, axis=1, keepdims=True), labels


@pytest.fixture(scope="session")
def source() -> tuple[np.ndarray, np.ndarray]:
    return _rows(N_SOURCE, 1)


@pytest.fixture(scope="session")
def surrogate() -> tuple[np.ndarray, np.ndarray]:
    return _rows(400, 2)


@pytest.fixture(scope="session")
def trained(source: tuple[np.ndarray, np.ndarray]) -> LinearModel:
    return train(*source, l2=0.1, max_norm=1.0)


@pytest.fixture(scope="session")
def policy() -> Policy:
    return Policy(epsilon=0.5, delta=1e-3, distance="same", planned=10, force=True)


@pytest.fixture(scope="session")
def empty(
    trained: LinearModel,
    surrogate: tuple[np.ndarray, np.ndarray],
    policy: Policy,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A desk nobody has asked anything. Its key is known, and with it all its noise, so that no test hangs on chance."""
    with mock.patch("expunge.desk.create.new_key", return_value=bytes(range(32))):
        return create_desk(tmp_path_factory.mktemp("desk") / "desk", trained, surrogate, policy).layout.folder


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[Path], Desk]:
    def make(folder: Path) -> Desk:
        shutil.copytree(folder, tmp_path / "desk")
        return open_desk(tmp_path / "desk")

    return make


@pytest.fixture
def desk(empty: Path, copy: Callable[[Path], Desk]) -> Desk:
    return copy(empty)


@pytest.fixture(scope="session")
def used(empty: Path, source: tuple[np.ndarray, np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A desk with two published models, a withdrawn request and a pending one."""
    folder = tmp_path_factory.mktemp("used") / "desk"
    shutil.copytree(empty, folder)
    desk, (X, y) = open_desk(folder), source
    for number in range(2):
        accept(desk, X[number : number + 1], y[number : number + 1], f"case {number}")
        run(desk)
    accept(desk, X[5:6], y[5:6], "a mistake")
    withdraw(desk, 3, "asked by mistake")
    accept(desk, X[6:8], y[6:8], "waiting")
    return folder


@pytest.fixture
def ledger(used: Path, copy: Callable[[Path], Desk]) -> Desk:
    return copy(used)
