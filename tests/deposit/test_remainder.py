"""How rows bend along an update: naive dense references, float64's share, suprema that hold."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from deposit_problems import noised_gauges
from expunge.deposit import with_surrogate as module
from expunge.deposit.matrices import Blocks, Norm
from expunge.deposit.with_surrogate import GradientRemainder, remainder_of
from expunge.heads import Rows, head_for

CASES = [("softmax", 4), ("softmax", 2), ("one-vs-rest", 3), ("logistic", 1)]
WIDTH, ROWS, BOUND = 5, 120, 3.0


def example(loss: str, classes: int, *, weighted: bool = False, size: float = 0.3) -> GradientRemainder:
    generator = torch.Generator().manual_seed(classes)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    features = normal(ROWS, WIDTH)
    features *= (BOUND / features.norm(dim=1)).clamp(max=1.0)[:, None]
    weights = normal(ROWS).exp() if weighted else None
    if weights is not None:
        weights /= weights.mean()
    head = head_for(loss, l2=0.7, n_classes=classes, n_features=WIDTH, row_bound=BOUND)
    update = normal(classes, WIDTH) * size
    if loss == "softmax":
        update -= update.mean(dim=0)
    rows = Rows(features, torch.zeros(ROWS, dtype=torch.int64), weights)
    return remainder_of(head, normal(classes, WIDTH), update, rows)


def norm_for(bends: GradientRemainder, seed: int = 0) -> tuple[Norm, Tensor]:
    """A random norm in the head's own blocks, and its matrix over all weights."""
    classes, joint = len(bends.weights), bends.head.name == "softmax"
    size, count = (classes * WIDTH, 1) if joint else (WIDTH, classes)
    drawn = torch.randn((count, size, size), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    values = drawn @ drawn.mT + torch.eye(size, dtype=torch.float64)
    norm = Norm.of(Blocks(values, joint))
    assert norm is not None
    return norm, torch.block_diag(*values)


def naive(bends: GradientRemainder) -> Tensor:
    """psi of every row by automatic differentiation, rows x weights."""
    made = []
    for x in bends.rows.blocks()[0].features:  # type: ignore[index]

        def gradient(weights: Tensor, x: Tensor = x) -> Tensor:
            return torch.outer(bends.head.predictions((weights @ x)[None])[0], x)

        _, linear = torch.autograd.functional.jvp(gradient, bends.weights, bends.update)
        made.append((gradient(bends.weights + bends.update) - gradient(bends.weights) - linear).reshape(-1))
    return torch.stack(made)


def largest_of(bends: GradientRemainder, features: Tensor) -> Tensor:
    """c of other rows."""
    rows = Rows(features, torch.zeros(len(features), dtype=torch.int64))
    return torch.cat([c for _, c in replace(bends, rows=rows).pieces()])


def close(value: float, expected: Any) -> None:
    assert value == pytest.approx(float(expected), rel=1e-7)


@pytest.mark.parametrize(("loss", "classes"), CASES)
@pytest.mark.parametrize("weighted", [False, True])
def test_moments_are_those_of_a_naive_reference(loss: str, classes: int, weighted: bool) -> None:
    bends = example(loss, classes, weighted=weighted)
    norm, matrix = norm_for(bends)
    psi = naive(bends)
    shares = torch.ones(ROWS, dtype=torch.float64) if bends.rows.weights is None else bends.rows.weights  # type: ignore[attr-defined]
    half = torch.linalg.solve_triangular(torch.linalg.cholesky(matrix), psi.T, upper=False).T
    mean = (half * shares[:, None]).mean(dim=0)
    about = half - mean
    squares = about.square().sum(dim=1)
    covariance = (about * shares[:, None]).T @ about / ROWS
    found = bends.moments(norm, reach=1.0)
    close(found.change_mean, mean.norm())
    close(found.change_trace, covariance.trace())
    top = float(torch.linalg.eigvalsh(covariance)[-1])
    assert top <= found.change_eigenvalue <= 1.01 * top
    close(found.change_fourth, (shares * squares.square()).mean())
    close(found.change_largest, squares.max().sqrt())
    close(found.change_longest, half.norm(dim=1).max())
    assert found.change_fourth_eigenvalue == found.change_largest**2 * found.change_eigenvalue
    close(found.sampled_trace, (shares.square() * squares).mean())
    close(found.sampled_largest, (shares * squares.sqrt()).max())
    assert found.sampled_eigenvalue <= min(found.sampled_trace, float(shares.max()) * found.change_eigenvalue)
    close(found.longest_row, bends.rows.blocks()[0].features.norm(dim=1).max())  # type: ignore[index]
    assert torch.allclose(bends.mean, (psi * shares[:, None]).mean(dim=0).reshape(bends.weights.shape), rtol=1e-10)


@pytest.mark.parametrize(("loss", "classes"), CASES)
def test_the_covariance_is_the_naive_one(loss: str, classes: int) -> None:
    bends, psi = example(loss, classes), naive(example(loss, classes))
    about = psi - psi.mean(dim=0)
    assert torch.allclose(bends.covariance.values[0], about.T @ about / ROWS, rtol=1e-9, atol=1e-14)


def test_classes_one_by_one_are_never_below_all_together(monkeypatch: pytest.MonkeyPatch) -> None:
    bends = example("one-vs-rest", 3)
    norm, _ = norm_for(bends)
    whole = bends.moments(norm, 1.0).change_eigenvalue
    monkeypatch.setattr(module, "WHOLE", 1)
    apart = example("one-vs-rest", 3)
    assert apart.covariance.values.shape == (3, WIDTH, WIDTH)
    assert whole * 0.99 <= apart.moments(norm, 1.0).change_eigenvalue <= 3.1 * whole


def test_rows_are_solved_for_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    bends = example("softmax", 4)
    norm, _ = norm_for(bends)
    at_once = torch.cat([squares for _, _, squares in bends.squares(norm)])
    monkeypatch.setattr(module, "AT_ONCE", 1)
    assert torch.allclose(torch.cat([squares for _, _, squares in bends.squares(norm)]), at_once, rtol=1e-13)


@pytest.mark.parametrize(("loss", "classes"), CASES)
@pytest.mark.parametrize("size", [1e-3, 0.3, 30.0])
def test_no_admissible_row_bends_more_than_the_largest(loss: str, classes: int, size: float) -> None:
    bends = example(loss, classes, size=size)
    gauges = noised_gauges(bends.rows)
    difference = bends.update if loss != "softmax" else (bends.update[:, None] - bends.update[None]).reshape(-1, WIDTH)
    reach = BOUND * float(difference.norm(dim=1).max())
    directions = torch.randn((4000, WIDTH), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    longest = directions / directions.norm(dim=1, keepdim=True) * BOUND
    assert float(largest_of(bends, longest).norm(dim=1).max()) <= bends.largest(reach)
    held = bends.rows.blocks()[0].features  # type: ignore[index]
    inside = min(gauge.kappa * float(gauge.length(difference).max()) for gauge in gauges)
    within = bends.largest(min(reach, inside), gauges)
    assert float(largest_of(bends, held).norm(dim=1).max()) <= within
    assert within <= bends.largest(reach) * (1 + 1e-12)


def test_the_supremum_is_in_the_norm() -> None:
    bends = example("softmax", 4)
    norm, _ = norm_for(bends)
    found = bends.moments(norm, reach=2.0)
    expected = bends.largest(2.0) * BOUND / math.sqrt(norm.least)
    assert found.change_supremum == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize(("loss", "classes"), CASES)
def test_what_float64_loses_of_a_row_is_within_its_bound(loss: str, classes: int) -> None:
    bends = example(loss, classes)
    exact = _in_longer_numbers(bends)
    off = (largest_of(bends, bends.rows.blocks()[0].features) - exact).abs()  # type: ignore[index]
    assert float(off.norm(dim=1).max()) * BOUND <= bends.row_error
    assert bends.row_error < 1e-10
    assert bends.mean_error >= bends.row_error


def _in_longer_numbers(bends: GradientRemainder) -> Tensor:
    from mpmath import exp, matrix, mp

    mp.dps = 40
    rows = []
    for x in bends.rows.blocks()[0].features[:20].tolist():  # type: ignore[index]
        z = matrix(bends.weights.tolist()) * matrix(x)
        b = matrix(bends.update.tolist()) * matrix(x)

        def link(outputs: Any) -> list[Any]:
            if bends.head.name != "softmax":
                return [1 / (1 + exp(-value)) for value in outputs]
            total = sum(exp(value) for value in outputs)
            return [exp(value) / total for value in outputs]

        before, after = link(z), link(z + b)
        mean = sum(p * step for p, step in zip(before, b, strict=True))
        curved = [
            p * (step - mean if bends.head.name == "softmax" else (1 - p) * step)
            for p, step in zip(before, b, strict=True)
        ]
        rows.append([float(a - p - c) for a, p, c in zip(after, before, curved, strict=True)])
    made = torch.tensor(rows, dtype=torch.float64)
    rest = largest_of(bends, bends.rows.blocks()[0].features[20:])  # type: ignore[index]
    return torch.cat([made, rest])


def test_the_regulariser_has_no_part_in_it() -> None:
    bends = example("softmax", 4)
    assert bends.head.l2 == 0.0
    assert replace(bends, head=replace(bends.head, l2=5.0)).mean.equal(bends.mean)
