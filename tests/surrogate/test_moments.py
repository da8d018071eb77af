"""Moments of the change of gradient against naive ones, and an eigenvalue bound that is above and not far above."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import reference
from class_shift import example
from expunge.heads import LinearHead, Rows, head_for
from expunge.heads.linear import SpreadSums
from expunge.runtime.arrays import to_numpy
from expunge.solve.linear import lanczos_steps
from expunge.surrogate import Moments, change_moments

pytestmark = pytest.mark.usefixtures("one_thread")
Array = Any
LOSSES = ("softmax", "ridge")


def rows_of(X: Array, dtype: torch.dtype = torch.float64) -> Rows:
    return Rows(torch.tensor(X, dtype=dtype), torch.zeros(len(X), dtype=torch.int64))


class Example:
    """Weights, an update and surrogate rows, with phi of every row in a table."""

    def __init__(self, loss: str, classes: int, width: int, n: int, *, seed: int = 0, bias: bool = False) -> None:
        rng = np.random.default_rng([seed, classes, width, n])
        self.X, _ = reference.random_rows(rng, n, width, classes, bias=bias)
        shape = (classes, self.X.shape[1])
        self.W, self.U = rng.normal(size=shape) * 2, rng.normal(size=shape) * 10 ** rng.uniform(-2, 1)
        self.loss = loss
        self.head: LinearHead = head_for(
            loss, l2=0.1, n_classes=classes, n_features=shape[1], row_bound=math.sqrt(2.0) if bias else 1.0
        )
        self.phi = reference.change_table(self.W, self.U, self.X, loss)
        self.centred = self.phi - self.phi.mean(axis=0)

    def moments(self, failure: float | None = 1e-9, *, heavy: bool = True, seed: int | None = 1) -> Moments:
        weights, update = torch.tensor(self.W), torch.tensor(self.U)
        return change_moments(self.head, weights, update, rows_of(self.X), failure=failure, heavy=heavy, seed=seed)

    @property
    def eigenvalue(self) -> float:
        return float(np.linalg.eigvalsh(self.centred.T @ self.centred / len(self.X))[-1])

    @property
    def fourth_eigenvalue(self) -> float:
        weighted = self.centred * np.linalg.norm(self.centred, axis=1, keepdims=True)
        return float(np.linalg.eigvalsh(weighted.T @ weighted / len(self.X))[-1])


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("classes", "width", "n"), [(2, 1, 30), (3, 5, 60), (7, 4, 200), (2, 12, 5)])
@pytest.mark.parametrize("loss", LOSSES)
def test_moments_equal_those_of_the_table_of_all_phi(loss: str, classes: int, width: int, n: int, bias: bool) -> None:
    example = Example(loss, classes, width, n, bias=bias)
    found, lengths = example.moments(), np.linalg.norm(example.centred, axis=1)
    assert found.change_mean == pytest.approx(np.linalg.norm(example.phi.mean(axis=0)), rel=1e-10)
    assert found.change_trace == pytest.approx(np.trace(example.centred.T @ example.centred) / n, rel=1e-9)
    assert found.change_fourth == pytest.approx(np.mean(lengths**4), rel=1e-9)
    assert found.change_largest == pytest.approx(lengths.max(), rel=1e-9)
    assert found.change_supremum == pytest.approx(example.head.change_sup(torch.tensor(example.U)), rel=1e-12)
    assert found.change_supremum >= np.linalg.norm(example.phi, axis=1).max()


@pytest.mark.parametrize("loss", LOSSES)
def test_moments_over_many_blocks_are_those_of_the_whole(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("expunge.heads.rows.BLOCK_BYTES", 1 << 18)
    rng = np.random.default_rng(2)
    X, _ = reference.random_rows(rng, 30_017, 12, 2)
    W, U = rng.normal(size=(2, 12)), rng.normal(size=(2, 12))
    head = head_for(loss, l2=0.1, n_classes=2, n_features=12, row_bound=1.0)
    rows = rows_of(X)
    assert len(list(rows.blocks())) > 2
    found = change_moments(head, torch.tensor(W), torch.tensor(U), rows, failure=1e-9, heavy=True, seed=0)
    change = reference.predictions(W + U, X, loss) - reference.predictions(W, X, loss)
    phi = (change[:, :, None] * X[:, None, :]).reshape(len(X), -1)
    centred = phi - phi.mean(axis=0)
    covariance = reference.product(centred.T, centred) / len(X)
    assert found.change_mean == pytest.approx(np.linalg.norm(phi.mean(axis=0)), rel=1e-9)
    assert found.change_trace == pytest.approx(np.trace(covariance), rel=1e-9)
    largest = np.linalg.eigvalsh(covariance)[-1]
    assert largest * (1 - 1e-10) <= found.change_eigenvalue <= largest * 1.05


def test_an_update_of_zero_has_moments_zero() -> None:
    example = Example("softmax", 3, 4, 20)
    example.U = np.zeros_like(example.W)
    found = example.moments()
    assert (
        found.change_mean,
        found.change_trace,
        found.change_fourth,
        found.change_largest,
        found.change_supremum,
    ) == (0.0, 0.0, 0.0, 0.0, 0.0)
    assert (found.change_eigenvalue, found.change_fourth_eigenvalue) == (0.0, 0.0)


@pytest.mark.parametrize("spread", [1e-5, 1e-7, 3e-8, 1e-8, 1e-9, 1e-11])
@pytest.mark.parametrize(("width", "repeats"), [(3, 30), (4000, 4)])
def test_a_spread_far_below_the_mean_is_never_understated(width: int, repeats: int, spread: float) -> None:
    """||f - c||^2 from squares of lengths loses it: 1e-16 of ||f||^2 is 1e-8 of ||f||, and long sums lose more."""
    for seed in range(repeats):
        rng = np.random.default_rng(seed)
        U, base = np.abs(rng.normal(size=(2, width))), np.full(width, 0.9 / math.sqrt(width))
        X = base * (1 + spread * rng.normal(size=(20, 1)))
        head = head_for("ridge", l2=0.1, n_classes=2, n_features=width, row_bound=1.0)
        exact = np.asarray(X, np.longdouble)
        phi = ((exact @ np.asarray(U, np.longdouble).T)[:, :, None] * exact[:, None, :]).reshape(20, -1)
        centred = (phi - phi.mean(axis=0)).astype(float)
        weights, update = torch.zeros((2, width), dtype=torch.float64), torch.tensor(U)
        found = change_moments(head, weights, update, rows_of(X), failure=1e-9, heavy=False, seed=seed)
        deviation = math.sqrt(np.linalg.eigvalsh(centred @ centred.T)[-1] / 20)
        longest = np.linalg.norm(centred, axis=1).max()
        slack = 1e-13 * found.change_mean  # of the inputs' own rounding, charged elsewhere
        assert math.sqrt(found.change_eigenvalue) >= deviation * (1 - 1e-6) - slack
        assert found.change_largest >= longest * (1 - 1e-6) - slack


def test_without_a_failure_probability_the_trace_stands_in() -> None:
    example = Example("softmax", 3, 4, 50)
    found = example.moments(None)
    assert found.change_eigenvalue == found.change_trace >= example.eigenvalue
    due = found.change_largest**2 * found.change_trace
    assert found.change_fourth_eigenvalue == pytest.approx(due, rel=1e-14, abs=0.0)
    assert found.change_fourth_eigenvalue >= example.fourth_eigenvalue
    assert abs(found.change_largest - 2.0) > 0.1


def test_a_seed_repeats_and_its_absence_does_not() -> None:
    """600 parameters: too many for Lanczos to be exact, so the start shows in the last digits."""
    rng = np.random.default_rng(5)
    X, _ = reference.random_rows(rng, 900, 300, 2, freedom=30.0)
    head = head_for("softmax", l2=0.1, n_classes=2, n_features=300, row_bound=1.0)
    weights, update = torch.tensor(rng.normal(size=(2, 300))), torch.tensor(rng.normal(size=(2, 300)))

    def bound(seed: int | None) -> float:
        return change_moments(head, weights, update, rows_of(X), failure=0.5, heavy=False, seed=seed).change_eigenvalue

    assert bound(3) == bound(3)
    assert bound(3) != bound(4)
    assert len({bound(None) for _ in range(4)}) > 1


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("chunk", range(4))
def test_the_bound_is_above_the_largest_eigenvalue_and_close(loss: str, chunk: int) -> None:
    """200 random updates and surrogates in all."""
    for seed in range(25 * chunk, 25 * chunk + 25):
        rng = np.random.default_rng(seed)
        example = Example(loss, int(rng.integers(2, 6)), int(rng.integers(1, 13)), int(rng.integers(2, 120)), seed=seed)
        found, top, fourth = example.moments(seed=seed), example.eigenvalue, example.fourth_eigenvalue
        rounding = 1e-13 * (found.change_mean**2 + found.change_trace)
        assert top * (1 - 1e-9) <= found.change_eigenvalue <= top * 1.03 + rounding
        assert (
            fourth * (1 - 1e-9)
            <= found.change_fourth_eigenvalue
            <= fourth * 1.03 + rounding * (found.change_mean**2 + found.change_largest**2)
        )


@pytest.mark.parametrize("heavy", [False, True])
def test_the_failure_probability_is_shared_among_the_eigenvalues_bounded(heavy: bool) -> None:
    """One of them may spend it all, two spend half each."""
    rng = np.random.default_rng(6)
    X, _ = reference.random_rows(rng, 400, 150, 3, freedom=30.0)
    head = head_for("softmax", l2=0.1, n_classes=3, n_features=150, row_bound=1.0)
    weights, update = torch.tensor(rng.normal(size=(3, 150))), torch.tensor(rng.normal(size=(3, 150)))
    told: dict[str, int | None] = {}
    change_moments(
        head,
        weights,
        update,
        rows_of(X),
        failure=1e-6,
        heavy=heavy,
        advance=lambda stage, done, total: told.update({stage: total}),
    )
    expected = lanczos_steps(450, 0.5e-6 if heavy else 1e-6)
    assert 2 * expected < 450
    steps = [total for stage, total in told.items() if stage.startswith("Lanczos")]
    assert steps == [400 * expected] * (1 + heavy)


@pytest.mark.parametrize("loss", LOSSES)
def test_weighted_moments_are_those_of_repeated_rows(loss: str) -> None:
    made = example(loss)
    found, plain = (
        change_moments(made["head"], made["W"], made["U"], made[name], failure=1e-9, heavy=True, seed=0)
        for name in ("once", "repeated")
    )
    for name in (
        "change_mean",
        "change_trace",
        "change_fourth",
        "change_supremum",
        "change_eigenvalue",
        "change_fourth_eigenvalue",
    ):
        assert getattr(found, name) == pytest.approx(getattr(plain, name), rel=1e-9), name
    assert plain.sampled_trace == plain.change_trace
    assert plain.sampled_eigenvalue == plain.change_eigenvalue
    assert plain.sampled_largest == plain.change_largest


@pytest.mark.parametrize("loss", LOSSES)
def test_what_a_weighted_mean_varies_by_is_that_of_the_table(loss: str) -> None:
    made = example(loss, n=80)
    weights = to_numpy(made["once"].weights)
    phi = reference.change_table(to_numpy(made["W"]), to_numpy(made["U"]), made["X"], loss)
    centred = phi - (weights[:, None] * phi).mean(axis=0)
    scaled = weights[:, None] * centred
    found = change_moments(made["head"], made["W"], made["U"], made["once"], failure=1e-9, heavy=False, seed=0)
    assert found.sampled_trace == pytest.approx((scaled**2).sum() / len(phi), rel=1e-9)
    assert found.sampled_largest == pytest.approx(np.linalg.norm(scaled, axis=1).max(), rel=1e-9)
    eigenvalue = np.linalg.eigvalsh(scaled.T @ scaled / len(phi))[-1]
    assert eigenvalue * (1 - 1e-9) <= found.sampled_eigenvalue <= eigenvalue * 1.05


@pytest.mark.parametrize(("size", "failure", "iterated"), [(1.0, 1e-9, True), (0.0, 1e-9, False), (1.0, None, False)])
def test_progress_is_told_in_rows_of_two_passes_and_of_lanczos(
    size: float, failure: float | None, iterated: bool
) -> None:
    """Where nothing spreads, or no eigenvalue is due, nothing is iterated."""
    made = Example("softmax", 3, 4, 20)
    told: list[tuple[str, int, int | None]] = []
    update = torch.full((3, 4), size, dtype=torch.float64)
    given = {"failure": failure, "heavy": True, "seed": 0, "advance": lambda *now: told.append(now)}
    change_moments(made.head, torch.tensor(made.W), update, rows_of(made.X), **given)
    assert told[:3] == [("Moments (rows)", done, 40) for done in (0, 20, 40)]
    stages = ["Lanczos, covariance (rows)", "Lanczos, fourth moment (rows)"] if iterated else []
    assert list(dict.fromkeys(stage for stage, _, _ in told[3:])) == stages
    first = [(done, total) for stage, done, total in told if stage == "Lanczos, covariance (rows)"]
    assert first == [(20 * step, 240) for step in range(1, len(first) + 1)], "twelve parameters are few: all steps"


def test_what_cancels_in_the_products_is_added_to_their_eigenvalue() -> None:
    """Products that may hide a hundredth of `trace + ||c||^2`: 0.01 (20 + 5^2), on top of a largest value of 4."""
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    spread = SimpleNamespace(
        mean=torch.tensor([[3.0, 0.0], [0.0, 4.0]], dtype=torch.float64),
        cancellation=0.01,
        knows_fourth=False,
        sums=lambda: SpreadSums(20.0, 1.0, 3.0, 3.0, 1.0, 20.0, 3.0),
        covariance_product=lambda direction, power, fourth: values * direction,
    )
    head = SimpleNamespace(spread=lambda *_: spread, change_sup=lambda update: 5.0)
    rows = rows_of(np.zeros((7, 2)))
    found = change_moments(head, values, values, rows, failure=1e-9, heavy=True, seed=0)
    assert found.change_eigenvalue == pytest.approx(4.0 + 0.45, rel=1e-8)
    assert found.change_fourth_eigenvalue == pytest.approx(9.0 * 4.45, rel=1e-8)
