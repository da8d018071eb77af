"""What does not change from deletion to deletion: regulariser, centring, the stiff direction, by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from expunge.deposit.blocks import Blocks
from expunge.deposit.setting import Penalty, Setting, not_definite
from expunge.errors import ModelError

WEIGHTS = torch.tensor([[1.0, 2.0], [3.0, -4.0]], dtype=torch.float64)


def setting(shift_free: bool) -> Setting:
    return Setting(WEIGHTS, 5.0, (), False, shift_free, 6.0)


def test_a_free_intercept_has_no_penalty() -> None:
    assert Penalty(0.5).diagonal(WEIGHTS).tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert Penalty(0.5, True).diagonal(WEIGHTS).tolist() == [[0.5, 0.0], [0.5, 0.0]]


def test_only_where_it_is_not_seen_is_what_is_common_taken_away() -> None:
    assert setting(True).centred(WEIGHTS).tolist() == [[-1.0, 3.0], [1.0, -3.0]]
    assert setting(False).centred(WEIGHTS) is WEIGHTS


def test_the_common_direction_is_made_stiff_and_no_other() -> None:
    flat = Blocks(torch.zeros((1, 4, 4), dtype=torch.float64), True)
    made = setting(True).stiffened(flat).values[0].numpy()
    assert made.tolist() == (3.0 * np.kron(np.ones((2, 2)), np.eye(2))).tolist()
    assert np.linalg.eigvalsh(made) == pytest.approx([0.0, 0.0, 6.0, 6.0], abs=1e-14)
    assert setting(False).stiffened(flat) is flat


def test_the_regulariser_is_on_the_diagonal_of_every_block() -> None:
    joint = setting(True).penalised(Blocks(torch.zeros((1, 4, 4), dtype=torch.float64), True), Penalty(0.5, True))
    assert joint.values[0].diagonal().tolist() == [0.5, 0.0, 0.5, 0.0]
    apart = setting(False).penalised(Blocks(torch.zeros((2, 2, 2), dtype=torch.float64), False), Penalty(0.5, True))
    assert [block.diagonal().tolist() for block in apart.values] == [[0.5, 0.0], [0.5, 0.0]]
    shared = setting(False).penalised(Blocks(torch.zeros((1, 2, 2), dtype=torch.float64), False), Penalty(0.5))
    assert shared.values[0].tolist() == [[0.5, 0.0], [0.0, 0.5]]


def test_a_matrix_that_is_not_definite_is_refused_with_a_remedy() -> None:
    with pytest.raises(ModelError, match="larger l2"):
        raise not_definite()
