"""Tangent weights as a linear head: rows of Jacobians against products with them, and what float64 may lose."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import expunge.heads.tangent as jacobians
from expunge.heads.tangent import NETWORK_ROUNDOFFS, JacobianRidge, JacobianRows, Tangent
from expunge.runtime.arrays import equal, norm
from tangent_problems import examples, network

pytestmark = pytest.mark.usefixtures("one_thread")


def made(count: int = 11, max_norm: float = 1.5, block: int = 4) -> tuple[JacobianRidge, JacobianRows]:
    inputs, labels = examples(count, 1)
    objective = Tangent(network(0), l2=0.0, max_norm=max_norm, block=block)
    rows = JacobianRows(objective, objective.rows(inputs, torch.from_numpy(labels)))
    head = JacobianRidge(0.0, 1, objective.n_parameters, max_norm, outputs=3, longest_target=rows.longest_target)
    return head, rows


def some_weights(head: JacobianRidge, seed: int = 0) -> Tensor:
    return torch.randn((1, head.n_features), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def features_of(rows: JacobianRows) -> Tensor:
    return torch.cat([block.features for block in rows.blocks()])


def test_an_example_is_as_many_rows_as_it_has_outputs() -> None:
    head, rows = made()
    basis = torch.eye(head.n_features, dtype=torch.float64)
    products = [rows.objective.features_times(direction, rows.examples) for direction in basis]
    torch.testing.assert_close(features_of(rows), torch.stack(products, dim=2).flatten(0, 1))
    assert [block.start for block in rows.blocks()] == [0, 4, 8]
    assert (len(rows), rows.outputs, rows.n_features) == (11, 3, 27)
    lengths = features_of(rows).reshape(11, -1).norm(dim=1)
    torch.testing.assert_close(lengths, rows.examples.lengths)
    assert float(lengths.max()) <= head.row_bound


def test_loss_and_gradient_are_those_of_the_tangent_weights() -> None:
    head, rows = made()
    weights = some_weights(head)
    torch.testing.assert_close(
        head.gradient(weights, rows)[0], rows.objective.gradient(weights[0], rows.examples), rtol=1e-11, atol=1e-13
    )
    off = rows.predictions(weights) - rows.objective.targets(rows.examples, slice(None))
    assert head.loss(weights, rows) == pytest.approx(0.5 * float(off.square().sum()) / 11, rel=1e-12)


def test_jacobians_are_kept_where_they_are_few_and_the_same_where_not(monkeypatch: pytest.MonkeyPatch) -> None:
    head, rows = made()
    kept = [list(rows.blocks()), list(rows.blocks())]
    assert all(one.features is two.features for one, two in zip(*kept, strict=True))
    monkeypatch.setattr(jacobians, "KEPT_BYTES", 8 * 11 * 3 * head.n_features)
    assert next(rows.blocks()).features is kept[0][0].features, "just as many"
    monkeypatch.setattr(jacobians, "KEPT_BYTES", 8 * 11 * 3 * head.n_features - 1)
    formed = [list(rows.blocks()), list(rows.blocks())]
    assert all(one.features is not two.features for one, two in zip(*formed, strict=True))
    for one, two in zip(kept[0], formed[0], strict=True):
        assert equal(one.features, two.features)
        assert equal(one.labels, two.labels)


def test_examples_are_taken_by_number() -> None:
    _, rows = made()
    some = rows.taken(torch.tensor([1, 7]))
    assert some.labels.tolist() == rows.labels[[1, 7]].tolist()
    torch.testing.assert_close(features_of(some), features_of(rows).reshape(11, 3, -1)[[1, 7]].flatten(0, 1))


def test_no_residual_is_above_its_bound_by_hand() -> None:
    head, rows = made()
    weights = some_weights(head)
    targets = rows.objective.targets(rows.examples, slice(None))
    assert rows.longest_target == pytest.approx(
        math.sqrt(3.0) + float(rows.examples.offsets.norm(dim=1).max()), rel=1e-8
    )
    assert head.residual_sup(weights) == float(norm(weights)) * 1.5 + rows.longest_target
    assert float((rows.predictions(weights) - targets).norm(dim=1).max()) <= head.residual_sup(weights)


def test_rounding_by_hand() -> None:
    head = JacobianRidge(0.5, 1, 10, 2.0, outputs=3, longest_target=4.0)
    weights = torch.zeros((1, 10), dtype=torch.float64)
    weights[0, 0] = 3.0
    terms = 3 * 7 + 10 + 4 * NETWORK_ROUNDOFFS + 64
    assert head.rounding(weights, range(7)) == pytest.approx(
        2.0**-53 * (2.0 * terms * (10.0 + 6.0) + 4 * 0.5 * 3.0), rel=1e-12, abs=0.0
    )
    assert head.moment_roundoffs(7) == 3 * 7 + 4 * NETWORK_ROUNDOFFS + 64


@pytest.mark.parametrize("seed", range(5))
def test_rounding_covers_another_order_of_summing(seed: int) -> None:
    """The same examples in other blocks and another order: no farther apart than both may be off."""
    head, rows = made(30)
    weights, order = some_weights(head, seed), torch.randperm(30, generator=torch.Generator().manual_seed(seed))
    other = JacobianRows(Tangent(network(0), l2=0.0, max_norm=1.5, block=7), rows.examples[order])
    away = float(norm(head.gradient(weights, rows) - head.gradient(weights, other)))
    assert away <= 2.0 * head.rounding(weights, rows)
    assert head.rounding(weights, rows) >= rows.objective.rounding(weights[0], rows.examples)
