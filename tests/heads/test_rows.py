"""Sets of rows: weights are repeats, and blocks are summed whole."""

from __future__ import annotations

import pytest
import torch

from class_shift import example
from expunge.heads import Curvature

pytestmark = pytest.mark.usefixtures("one_thread")
LOSSES = ("softmax", "ridge")


@pytest.mark.parametrize("loss", LOSSES)
def test_a_weight_is_a_number_of_repeats(loss: str) -> None:
    made = example(loss)
    head, W, U, once, repeated = (made[name] for name in ("head", "W", "U", "once", "repeated"))
    assert head.loss(W, once) == pytest.approx(head.loss(W, repeated), rel=1e-13)
    for left, right in (
        (head.gradient(W, once), head.gradient(W, repeated)),
        (head.change_mean(W, U, once), head.change_mean(W, U, repeated)),
        (Curvature(head, W, once).product(U), Curvature(head, W, repeated).product(U)),
        (Curvature(head, W, once).dense(), Curvature(head, W, repeated).dense()),
        (Curvature(head, W, once).class_factor(), Curvature(head, W, repeated).class_factor()),
        (Curvature(head, W, once).feature_factor(), Curvature(head, W, repeated).feature_factor()),
    ):
        torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-14)
