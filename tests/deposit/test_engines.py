"""Every sum, matrix, step and region is the same for numpy's arrays and for torch's tensors, and of the engine asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deposit_problems import LOSSES, drawn
from expunge.deposit import matrices, region, sums
from expunge.deposit.file import parse_deposit
from expunge.deposit.make import make_deposit
from expunge.deposit.matrices import Blocks, Norm, gram_of
from expunge.deposit.membership import answers
from expunge.deposit.region import Penalty, RetainedProblem, Setting
from expunge.deposit.verify import verify_deposits
from expunge.heads import Rows
from expunge.runtime.arrays import is_tensor, to_numpy
from expunge.train import train
from expunge.unlearn import unlearn
from small_deposit import rows, source

pytestmark = pytest.mark.usefixtures("one_thread")
Array = Any
CLOSE = 1e-12  # of the largest entry


def arrays_of(value: Any) -> Iterator[Array]:
    """Every array in it, and every number."""
    if is_dataclass(value):
        for field in fields(value):
            yield from arrays_of(getattr(value, field.name))
    elif isinstance(value, tuple | list):
        for each in value:
            yield from arrays_of(each)
    elif value is not None and not isinstance(value, str):
        yield value


def require_alike(compute: Callable[[Callable[[Array], Array]], Any], close: float = CLOSE) -> None:
    """The same from both, each of its own engine; numpy's without a warning."""
    with np.errstate(all="raise", under="ignore"):
        plain = list(arrays_of(compute(np.array)))
    tensors = list(arrays_of(compute(lambda array: torch.from_numpy(np.array(array)))))
    assert len(plain) == len(tensors)
    for one, other in zip(plain, tensors, strict=True):
        assert not is_tensor(one)
        assert isinstance(one, np.ndarray) == is_tensor(other)
        there = to_numpy(other) * 1.0
        assert np.shape(one) == there.shape
        if np.size(one):
            assert np.abs(one - there).max() <= close * max(np.abs(there).max(), 1e-300)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("seed", range(3))
def test_sums_and_what_is_left_of_them(loss: str, seed: int) -> None:
    problem = drawn(seed, loss, n=40, width=4, classes=2 if seed == 2 else 3)
    with_third = sums.has_third(problem.head)

    def compute(make: Callable[[Array], Array]) -> Any:
        whole = Rows(make(problem.X), make(problem.y))
        weighted = replace(whole, weights=make(np.random.default_rng(seed).dirichlet(np.ones(40)) * 40))
        gone, anchor = Rows(whole.features[:3], whole.labels[:3]), make(problem.anchor)
        gram = gram_of(whole)
        gauges = sums.gauges_of(whole, gram, np.random.default_rng(seed))

        def of(rows: Rows) -> sums.Sums:
            return sums.sums_of(problem.head, anchor, rows, gauges, third=with_third, gram=gram_of(rows))

        made = of(whole)
        left = made.without(of(gone))
        third = () if left.third is None else (sums.pull(left.third, anchor, joint=sums.is_joint(problem.head)),)
        factor = matrices.shape_of(problem.head, left.gram, make(np.full(anchor.shape[1], 0.1)))
        rested = matrices.rested(anchor, left.gram, make(np.full(anchor.shape[1], 0.1)))
        gauge = [(gauge.lost, gauge.squares(whole.features), gauge.length(anchor)) for gauge in gauges]
        centred = matrices.centred_shape(factor, 3)
        return [made, left, of(weighted), gauges, gauge, third, factor, centred, rested, matrices.unused(gram)]

    require_alike(compute)


@pytest.mark.parametrize(("blocks", "width"), [(1, 5), (3, 5), (1, 300), (2, 300)])
def test_matrices(blocks: int, width: int) -> None:
    rng = np.random.default_rng(width + blocks)
    tall = rng.normal(size=(blocks, 2 * width, width))
    values, other, vectors = tall.mT @ tall / width, tall.mT[:, :, :3] @ tall[:, :3], rng.normal(size=(4, width))
    vectors = vectors if blocks == 1 else vectors[:blocks]

    def compute(make: Callable[[Array], Array]) -> Any:
        matrix, second, weights = (Blocks(make(each), joint=False) for each in (values, other, vectors))
        norm = Norm.of(matrix)
        assert norm is not None
        gradient = weights.values
        return [
            (norm.factor, norm.solved(gradient), norm.dual(gradient), norm.least, norm.most(second, 1e-3)),
            (matrices.square_of(norm.factor), matrices.inverse_of(norm.factor[0]), matrices.largest(second)),
            (matrix.product(gradient), matrix.form(gradient), matrix.row_sum(), matrix.frobenius, matrix.trace),
            (matrix.plus(1.0), matrix.combined(2.0, second, -0.5), matrix.times(3.0), matrix.largest_entry),
        ]

    require_alike(compute)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("seed", range(3))
def test_steps_and_regions(loss: str, seed: int) -> None:
    problem = drawn(seed, loss, n=300, width=3, classes=3, steps=50, tails=50.0)
    gone, head = 4, problem.head
    regions: list[list[float]] = []

    def compute(make: Callable[[Array], Array]) -> Any:
        whole, anchor = Rows(make(problem.X), make(problem.y)), make(problem.anchor)
        forget = Rows(whole.features[:gone], whole.labels[:gone])
        gram, softmax = gram_of(whole), sums.is_joint(head)
        gauges = sums.gauges_of(whole, gram, np.random.default_rng(seed))
        third = sums.has_third(head) and seed > 0
        made, out = (
            sums.sums_of(head, anchor, rows, gauges, third=third, gram=gram_of(rows)) for rows in (whole, forget)
        )
        setting = Setting(anchor, head.row_bound, gauges, loss == "ridge", softmax, 1.0)
        penalty, left = Penalty(1e-2, seed == 2), made.without(out)
        shape = matrices.shape_of(head, left.gram, penalty.diagonal(anchor)[0])
        retained = RetainedProblem(setting, left, penalty, shape)
        found = region.smallest_region(retained)
        assert found is not None
        sizes = [found.facts.size, *(each.facts.size for each in region.regions(retained, ties=True))]
        regions.append(sizes)
        return [found.update, retained.linear_step]

    require_alike(compute, 1e-11)
    # of a square all there is may be rounding
    assert regions[0] == pytest.approx(regions[1], rel=1e-9, abs=1e-14)


def test_a_deposit_is_made_asked_and_verified_by_either_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (X, y), found, stored = source(), [], []
    for tensors in (True, False):
        monkeypatch.setattr("expunge.runtime.arrays.TENSORS", tensors)
        made = make_deposit(train(X, y, l2=0.1, max_norm=1.0, bias=True), (X, y), seed=1).deposit
        stored.append(made.to_bytes())
        read = [parse_deposit(bytearray(content), tmp_path) for content in stored]  # the other engine's too
        assert [each.to_bytes() for each in read] == stored
        assert all(is_tensor(each.sums.gradient) == is_tensor(each.anchor) == tensors for each in read)
        assert [each.there for each in answers(read[-1], rows(1, 2))] == [True, True]
        gone = unlearn(None, rows(1, 2), deposit=read[0], epsilon=1.0, delta=1e-3, force=True)
        gone.model.save(tmp_path / f"{tensors}.safetensors")
        checks = verify_deposits(
            gone.certificate, gone.deposit, read[0], rows(1, 2), tmp_path / f"{tensors}.safetensors"
        )
        assert len(checks) > 50
        found.append([gone.certificate.sigma, gone.certificate.total])
    one, two = (parse_deposit(content, tmp_path) for content in stored)
    np.testing.assert_allclose(one.anchor, two.anchor, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-9)
    monkeypatch.setattr("expunge.runtime.arrays.TENSORS", True)  # an auditor with the other engine
    verify_deposits(gone.certificate, parse_deposit(gone.deposit.to_bytes(), tmp_path), None, None)
