"""How often rows occur, counted by fingerprints."""

from __future__ import annotations

from collections import Counter

import numpy as np
import torch

from expunge.distance import Distance
from expunge.request.multiplicities import Multiplicities, row_prints


def test_equal_rows_have_equal_prints_and_others_do_not() -> None:
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(500, 7)))
    again = torch.cat([rows, rows[:3], torch.where(rows[:1] == 0, -0.0, rows[:1])])
    prints = row_prints(again)
    assert len(set(prints.tolist())) == 500
    assert prints[500:503].tolist() == prints[:3].tolist()


def test_counts_over_blocks() -> None:
    rows = torch.eye(4, dtype=torch.float64)
    counting = Multiplicities()
    for block in (rows[[0, 0, 1]], rows[[1, 1, 2]], rows[[3]]):
        counting.add(block)
    assert counting.occurring() == Counter({2: 1, 3: 1, 1: 2})


def test_only_samples_of_populations_are_counted() -> None:
    assert Multiplicities.of(Distance("same", 0.0)) is not None
    assert Multiplicities.of(Distance("chi2", 0.1, "samples")) is None
    assert Multiplicities.of(Distance("source", 0.0)) is None
