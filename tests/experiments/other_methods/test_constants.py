"""Constants of the peers' proofs, beside gradients and descents of real rows."""

from __future__ import annotations

import pytest
import torch

from experiments.other_methods.constants import Descent, constants_of
from expunge.errors import OptionError
from expunge.evaluate.case import Case
from expunge.heads import head_for


def test_closed_form_of_two_losses() -> None:
    softmax = constants_of(head_for("softmax", l2=0.1, n_classes=2, n_features=3, row_bound=2.0))
    assert (softmax.strong, softmax.smooth) == pytest.approx((0.1, 2.1))
    assert softmax.lipschitz == pytest.approx(2.0 * 2.0**0.5)
    logistic = constants_of(head_for("logistic", l2=0.1, n_classes=1, n_features=3, row_bound=1.0))
    assert (logistic.smooth, logistic.lipschitz) == pytest.approx((0.35, 1.0))
    assert logistic.curvature_change == pytest.approx(1.0 / (6.0 * 3.0**0.5))


def test_a_loss_without_a_bounded_gradient_is_refused() -> None:
    with pytest.raises(OptionError, match="grows with the weights"):
        constants_of(head_for("ridge", l2=0.1, n_classes=2, n_features=3, row_bound=1.0))


def test_no_gradient_moves_more_when_rows_leave(unit: Case) -> None:
    bound = constants_of(unit.objective).gradient_shift(6, 300)
    assert bound == pytest.approx(2 * 6 * 2.0**0.5 / 300, rel=1e-6)
    torch.manual_seed(0)
    for scale in (0.0, 1.0, 30.0):
        weights = scale * torch.randn(unit.weights.shape, dtype=torch.float64)
        moved = unit.objective.gradient(weights, unit.rows["retain"]) - unit.objective.gradient(
            weights, unit.rows["train"]
        )
        assert float(moved.norm()) <= bound


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_two_models_come_nearer_by_the_contraction(unit: Case, share: float) -> None:
    constants = constants_of(unit.objective)
    step = share * constants.fastest
    torch.manual_seed(1)
    first, second = (2.0 * torch.randn(unit.weights.shape, dtype=torch.float64) for _ in range(2))
    after = [one - step * unit.objective.gradient(one, unit.rows["retain"]) for one in (first, second)]
    assert float((after[0] - after[1]).norm()) <= constants.contraction(step) * float((first - second).norm())


def test_what_the_proofs_do_not_cover_is_refused() -> None:
    constants = Descent(0.1, 1.0, 1.0, 1.0)
    assert constants.contraction(constants.fastest) == pytest.approx(0.9 / 1.1)
    with pytest.raises(ValueError, match="at most"):
        constants.contraction(1.01 * constants.fastest)
    with pytest.raises(ValueError, match="some stay"):
        constants.gradient_shift(10, 10)
