"""Networks as heads use them: frozen copies, what is refused, and the products of a module's objective."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import hessian, jacrev

from expunge.errors import DataError, ModelError
from expunge.heads.network import (
    Examples,
    ModuleObjective,
    class_scores,
    frozen_copy,
    require_real,
    require_running_statistics,
)
from small_networks import examples, trained


def test_a_frozen_copy_is_a_copy_in_float64_that_nothing_trains() -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(), nn.Flatten(), nn.Linear(8, 3)).train()
    inputs = torch.randn(5, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    copied = frozen_copy(module, "cpu")
    assert module.training
    assert all(part.dtype == torch.float32 and part.requires_grad for part in module.parameters())
    assert not copied.training
    assert all(part.dtype == torch.float64 and not part.requires_grad for part in copied.parameters())
    torch.testing.assert_close(copied(inputs.double()), module.eval().double()(inputs.double()))


def test_an_output_that_depends_on_its_batch_is_refused() -> None:
    require_running_statistics(nn.BatchNorm1d(3))
    with pytest.raises(ModelError, match=r"'1' \(BatchNorm1d\) keeps no running statistics"):
        require_running_statistics(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, track_running_stats=False)))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool, torch.complex64])
def test_inputs_without_derivatives_are_refused(dtype: torch.dtype) -> None:
    require_real(torch.zeros(2))
    with pytest.raises(DataError, match="real numbers are needed"):
        require_real(torch.zeros(2, dtype=dtype))


def failing(inputs: Tensor) -> Tensor:
    raise KeyError("no such input")


def test_a_network_gives_one_row_of_scores_an_input() -> None:
    linear, inputs = nn.Linear(4, 3), torch.zeros(5, 4)
    assert class_scores(linear, inputs).shape == (5, 3)
    with pytest.raises(DataError, match=r"does not take inputs of shape \(5, 2\)"):
        class_scores(linear, torch.zeros(5, 2))
    with pytest.raises(DataError, match="no such input"):
        class_scores(failing, inputs)
    for odd in (lambda x: x.sum(dim=1), lambda x: x[:-1], lambda x: x[:, :, None]):
        with pytest.raises(ModelError, match="one row of class scores an input"):
            class_scores(odd, inputs)


@pytest.mark.parametrize("curvature", ["gauss-newton", "hessian"])
def test_products_are_those_of_the_dense_matrices(curvature: str) -> None:
    objective = ModuleObjective(trained(), l2=0.1, curvature=curvature, block=4)
    inputs, labels = examples(10)

    def loss(at: Tensor) -> Tensor:
        return nn.functional.cross_entropy(objective.outputs(at, inputs), labels) + 0.05 * at.square().sum()

    w = objective.weights
    torch.testing.assert_close(objective.gradient(w, Examples(inputs, labels)), jacrev(loss)(w))
    if curvature == "hessian":
        dense = hessian(loss)(w)
    else:
        jacobian = jacrev(lambda at: objective.outputs(at, inputs))(w)
        p = objective.outputs(w, inputs).softmax(dim=1)
        middle = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
        dense = torch.einsum("nkp,nkl,nlq->pq", jacobian, middle, jacobian) / 10 + 0.1 * torch.eye(len(w)).double()
    direction = torch.linspace(-1, 1, len(w), dtype=torch.float64)
    torch.testing.assert_close(objective.product(w, direction, Examples(inputs, labels)), dense @ direction)


@pytest.mark.parametrize("curvature", ["gauss-newton", "hessian"])
def test_blocks_do_not_matter(curvature: str) -> None:
    """Neither does a block of one example, whose derivatives torch gets wrong for some layers."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3))
    module(torch.randn(20, 1, 3, 3))
    inputs, labels = examples(7)
    found = []
    for block in (1, 3, 100):
        objective = ModuleObjective(module, l2=0.1, curvature=curvature, block=block)
        w = objective.weights
        direction = torch.linspace(-1, 1, len(w), dtype=torch.float64)
        rows = Examples(inputs, labels)
        products = objective.product(w, direction, rows)
        torch.testing.assert_close(objective.curvature(w, rows).product(direction), products)
        found.append(torch.cat([objective.gradient(w, rows), products]))
    torch.testing.assert_close(found[0], found[2])
    torch.testing.assert_close(found[1], found[2])


def test_rows_labelled_by_the_network_itself_are_at_their_minimum() -> None:
    """Only the regulariser's gradient is left there, and the Hessian is Gauss-Newton's matrix."""
    exact, curved = (
        ModuleObjective(trained(), l2=0.1, curvature=kind, block=4) for kind in ("gauss-newton", "hessian")
    )
    rows = Examples(*examples(10, seed=2))
    own, w = curved.as_predicted(rows), curved.weights
    assert torch.equal(own.inputs, rows.inputs)
    torch.testing.assert_close(own.labels, curved.outputs(w, rows.inputs).softmax(dim=1))
    torch.testing.assert_close(curved.gradient(w, own), 0.1 * w)
    direction = torch.linspace(-1, 1, len(w), dtype=torch.float64)
    torch.testing.assert_close(curved.product(w, direction, own), exact.product(w, direction, rows))
