"""Rows that are too long, counted by their length."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from expunge.heads.scaling import scaling_of


def lengths(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_share_the_factor_and_the_bound_that_would_do() -> None:
    norms = np.concatenate([np.full(50, 0.5), np.linspace(2.0, 8.0, 150)])
    found = scaling_of(torch.from_numpy(norms), 1.0)
    assert (found.n_rows, found.n_scaled, found.share) == (200, 150, 0.75)
    assert found.factor == pytest.approx(1.0 / np.median(norms[50:]), rel=0.05)
    would_scale = int((norms > found.bound_for_few).sum())
    assert would_scale <= 2
    assert (norms > 0.96 * found.bound_for_few).sum() >= 2
    none = scaling_of(lengths(0.0, 1.0, 1.0 + 1e-9), 1.0)
    assert (none.n_scaled, none.factor, none.bound_for_few) == (0, 1.0, 1.0)
    extreme = scaling_of(lengths(1e300, 1e-300), 1e-30)
    assert extreme.n_scaled == 1


def test_the_longest_rows_that_there_are_can_be_counted() -> None:
    found = scaling_of(torch.tensor([1.75917228e308], dtype=torch.float64), 1.0)
    assert found.n_scaled == 1
    assert found.bound_for_few == 2.0**1023
