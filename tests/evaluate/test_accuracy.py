"""Accuracies by hand."""

from __future__ import annotations

import torch

from expunge.evaluate.case import Case
from expunge.evaluate.metrics import accuracies, accuracy
from expunge.heads import Rows


def test_accuracies_by_hand(case: Case) -> None:
    for part, score in accuracies(case.retrained, case).items():
        rows = case.rows[part]
        hits = [int((case.retrained @ x).argmax()) == int(y) for x, y in zip(rows.features, rows.labels, strict=True)]
        assert score.value == sum(hits) / len(hits)
    constant = Rows(torch.zeros(4, 50, dtype=torch.float64), torch.tensor([0, 0, 1, 2]))
    assert accuracy(case.retrained, constant) == 0.5


def test_one_weight_vector_is_that_of_the_second_class() -> None:
    rows = Rows(torch.tensor([[2.0], [-1.0], [3.0], [0.0]]).double(), torch.tensor([1, 0, 0, 0]))
    assert accuracy(torch.tensor([[1.0]]).double(), rows) == 0.75
    assert accuracy(torch.tensor([[-1.0]]).double(), rows) == 0.5
