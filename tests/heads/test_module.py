"""Any torch module: products against dense matrices."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import hessian, jacrev

from expunge.heads.examples import Examples
from expunge.heads.module import ModuleObjective
from small_networks import examples, trained


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
