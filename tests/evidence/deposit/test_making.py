"""Making a deposit: its anchor is the optimum, its numbers bound what they say, its radii follow from a rehearsal."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from deposit_problems import LONG, gradient, made, minimiser, prepared, problem_of, whole
from expunge.bounds.deposit import deposit_bound
from expunge.bounds.scale import LARGEST_SCALE
from expunge.data.row_hashes import row_hashes
from expunge.errors import BeyondPolicy, DataError, ModelError
from expunge.evidence.deposit import making
from expunge.evidence.deposit.making import (
    FINEST,
    Rehearsal,
    Trial,
    least_radius,
    make_deposit,
    outputs_of,
    rehearse,
    require_size,
    require_whole,
    taken,
    trial,
    two_digits,
)
from expunge.evidence.deposit.radii import radii_for
from expunge.evidence.deposit.routes import found
from expunge.evidence.deposit.setting import Penalty, Setting
from expunge.heads import Rows, head_for
from expunge.unlearn import deposit as deposit_of
from expunge.unlearn import unlearn

pytestmark = pytest.mark.usefixtures("one_thread")
Array = Any
CPU = torch.device("cpu")
KINDS = [
    ("softmax", {}),
    ("softmax", {"free": True, "fixed_c": True}),
    ("logistic", {"free": True, "fixed_c": True}),
    ("one-vs-rest", {"bias": False}),
    ("ridge", {"free": True}),
]


@pytest.mark.parametrize(("loss", "options"), KINDS)
def test_the_anchor_is_the_optimum_whatever_the_weights_were(loss: str, options: dict[str, Any]) -> None:
    case = made(loss, **options)
    problem = problem_of(case)
    W, _ = minimiser(problem.X, problem.y, loss, problem.diagonal(problem.n), problem.anchor)
    assert problem.anchor == pytest.approx(W.astype(float), rel=1e-9, abs=1e-11)
    record = case.deposit.record
    left = gradient(problem.anchor, problem.X, problem.y, loss) + problem.diagonal(problem.n) * problem.anchor
    assert float(np.linalg.norm(left.astype(float))) <= record.residual < 1e-9
    assert record.weights_sha256 == case.deposit.model.weights_sha256()
    assert (record.n_source, record.provenance, record.noised) == (120, "measured", False)
    if loss == "softmax":
        assert np.abs(problem.anchor.sum(axis=0)).max() < 1e-14 * np.abs(problem.anchor).max() * 100


@pytest.mark.parametrize("scale", [30.0, -30.0])
def test_the_optimum_is_reached_from_far_away(scale: float) -> None:
    case = made("softmax")
    far = torch.full((3, 4), scale, dtype=torch.float64) * torch.arange(12.0).reshape(3, 4)
    weight, bias = far[:, :3], far[:, 3]
    model = replace(case.model, weight=weight, bias=bias).with_record(case.model.record)  # type: ignore[arg-type]
    again = deposit_of(model, case.X, case.y, seed=0)
    assert again.model.matrix().numpy() == pytest.approx(case.deposit.model.matrix().numpy(), rel=1e-8, abs=1e-10)


def test_columns_far_from_their_middle_end_at_one_optimum_wherever_the_weights_began() -> None:
    """A step from 1e-8 away gains less of the objective than what its sum over the rows loses."""
    rng = np.random.default_rng(1)
    X = np.column_stack([rng.normal(100.0, 1.0, (80, 2)), np.ones(80)])
    rows = Rows(torch.from_numpy(X), torch.from_numpy(rng.integers(0, 2, 80)))
    head = head_for("softmax", l2=0.0, n_classes=2, n_features=3, row_bound=200.0)

    def reached(start: torch.Tensor) -> torch.Tensor:
        return making.optimum(head, rows, Setting(start, 200.0, (), False, True), Penalty(1 / 80, free=True))

    there = reached(torch.zeros(2, 3, dtype=torch.float64))
    scores = []
    for seed in range(100):
        off = np.random.default_rng(seed).normal(scale=10.0 ** -(3 + seed % 6), size=(2, 3))
        scores.append(X @ reached(there + torch.from_numpy(off)).numpy().T)
    assert np.ptp(scores, axis=0).max() < 1e-11


@pytest.mark.parametrize(("loss", "options"), KINDS)
def test_the_shape_s_numbers_bound_its_matrix(loss: str, options: dict[str, Any]) -> None:
    case = made(loss, **options)
    numbers, problem = case.deposit.numbers, problem_of(case)
    M0 = whole((case.deposit.shape @ case.deposit.shape.mT).numpy(), problem).astype(float)
    values = np.linalg.eigvalsh(M0)
    assert values[-1] <= numbers.shape_largest <= 1.14 * values[-1]
    assert numbers.shape_largest == float(f"{numbers.shape_largest:.1e}"), (
        "more digits would be those of somebody's row"
    )
    assert 0.97 * values[0] <= numbers.shape_least <= values[0]
    assert numbers.shape_inverse_trace == pytest.approx(np.trace(np.linalg.inv(M0)), rel=1e-6, abs=0.0)
    assert numbers.stiff == pytest.approx(
        float(case.deposit.sums.curvature.values.diagonal(dim1=1, dim2=2).mean()), rel=1e-9, abs=0.0
    )


def test_the_least_eigenvalue_is_that_of_the_factors_product() -> None:
    """What is drawn from is L L', not what float64 makes of it."""
    rng = np.random.default_rng(0)
    case = made("logistic", bias=False)
    for seed in range(8):
        axes = np.linalg.qr(rng.normal(size=(3, 3)))[0]
        factor = np.linalg.cholesky((axes * np.array([1.0, 1.0, 10.0 ** -(5 + seed)])) @ axes.T)
        shape = torch.from_numpy(factor)[None]
        rows = Rows(torch.from_numpy(case.X), torch.from_numpy(case.y))
        numbers = making._numbers(case.deposit.head, case.deposit.setting, shape, case.deposit.sums, rows, (), seed=0)
        exact = factor.astype(LONG) @ factor.astype(LONG).T
        values = np.linalg.eigvalsh(exact.astype(float))
        assert numbers.shape_least <= values[0] * (1 + 1e-16 / values[0])
        assert numbers.shape_largest >= values[-1] * (1 - 1e-15)
    shape = torch.from_numpy(np.linalg.cholesky(np.diag([1.0, 1.0, 1e-16])))[None]
    with pytest.raises(ModelError, match="not positive definite"):
        making._numbers(case.deposit.head, case.deposit.setting, shape, case.deposit.sums, rows, (), seed=0)


@pytest.mark.parametrize(("loss", "options"), KINDS)
def test_what_noise_does_to_outputs(loss: str, options: dict[str, Any]) -> None:
    """On a typical row: the deviation that noise of scale 1 gives an output, and the size of the model's own."""
    case = made(loss, **options)
    X, anchor, numbers = prepared(case), case.deposit.model.matrix().numpy(), case.deposit.numbers
    problem = problem_of(case)
    rng = np.random.default_rng(0)
    M0 = whole((case.deposit.shape @ case.deposit.shape.mT).numpy(), problem).astype(float)
    noise = np.linalg.solve(np.linalg.cholesky(M0).T, rng.normal(size=(M0.shape[0], 4000))).T.reshape(-1, *anchor.shape)
    outputs = np.einsum("skd,nd->snk", noise, X)
    if loss == "softmax":  # what all classes share no prediction sees
        outputs -= outputs.mean(axis=2, keepdims=True)
    assert numbers.output_noise == pytest.approx(math.sqrt((outputs**2).mean()), rel=0.05, abs=0.0)
    own = X @ (anchor - anchor.mean(axis=0) if loss == "softmax" else anchor).T
    assert numbers.output_spread == pytest.approx(math.sqrt((own**2).mean()), rel=1e-9, abs=0.0)
    inverse = torch.linalg.inv(case.deposit.shape)
    rows = Rows(torch.from_numpy(X), torch.from_numpy(case.y))
    assert outputs_of(case.deposit.setting, inverse, rows) == pytest.approx(
        (numbers.output_noise, numbers.output_spread), rel=1e-9, abs=0.0
    )


def test_what_is_kept_of_the_rows() -> None:
    case = made("softmax")
    numbers = case.deposit.numbers
    assert (numbers.n_rows, numbers.forgotten, numbers.generation) == (120, 0, 0)
    assert numbers.class_counts == tuple(np.bincount(case.y))
    assert numbers.row_bound == pytest.approx(math.sqrt(37.0), rel=1e-9, abs=0.0)
    assert numbers.kappas == tuple(gauge.kappa for gauge in case.deposit.gauges)
    assert len(case.deposit.gauges) == 3
    assert made("ridge").deposit.gauges == ()
    hashes = row_hashes(case.deposit.key, case.X, case.y)
    assert sorted(hashes.hex(0)) == case.deposit.hashes.hex(0)  # in an order that says nothing
    order = [hashes.hex(0).index(each) for each in case.deposit.hashes.hex(0)]
    assert [hashes.hex(1)[i] for i in order] == case.deposit.hashes.hex(1)
    assert [hashes.hex(2)[i] for i in order] == case.deposit.hashes.hex(2)


def test_keys_are_secret_and_differ() -> None:
    case = made("ridge", n=40)
    keys = {deposit_of(case.model, case.X, case.y).numbers.key for _ in range(2)}
    assert len(keys) == 2


def test_two_labels_of_a_single_vector_are_counted() -> None:
    case = made("logistic")
    assert case.deposit.numbers.class_counts == tuple(np.bincount(case.y))
    assert case.deposit.model.matrix().shape == (1, 4)


# Refusals ---------------------------------------------------------------------------------------------------------------------


def test_a_gpu_keeps_what_its_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda")
    for memory, most in ((8 * 18 * 20_000**2, 20_000), (8 << 30, making.MOST_WEIGHTS)):
        known = SimpleNamespace(total_memory=memory)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _, known=known: known)
        assert making.most_weights(cuda) == most
    assert making.most_weights(CPU) == making.MOST_WEIGHTS


def test_a_hessian_that_is_too_large_is_refused_with_the_remedy() -> None:
    def head(loss: str, classes: int, width: int) -> Any:
        return head_for(loss, l2=0.0, n_classes=classes, n_features=width, row_bound=1.0)

    require_size(head("softmax", 10, 1200), CPU)
    require_size(head("one-vs-rest", 10, 12_000), CPU)
    with pytest.raises(ModelError, match="one-vs-rest or ridge"):
        require_size(head("softmax", 10, 1201), CPU)
    with pytest.raises(ModelError, match="12,001 x 12,001"):
        require_size(head("ridge", 3, 12_001), CPU)


def test_rows_that_are_not_as_many_as_were_trained_on_are_refused() -> None:
    case = made("softmax")
    with pytest.raises(DataError, match="119 rows; the model was trained on 120"):
        deposit_of(case.model, case.X[1:], case.y[1:])
    rows = Rows(torch.from_numpy(prepared(case)), torch.from_numpy(case.y))
    assert case.model.record is not None
    with pytest.raises(DataError, match="3 rows as given, 120 as used"):
        make_deposit(case.model, case.model.record, rows, (case.X[:3], case.y[:3]), seed=0)


def test_an_l2_that_is_not_the_fixed_c_s_is_refused() -> None:
    case = made("softmax", fixed_c=True)
    rows = Rows(torch.from_numpy(prepared(case)), torch.from_numpy(case.y))
    record = case.model.record
    assert record is not None
    require_whole(record, rows)
    with pytest.raises(ModelError, match="a fixed C is l2"):
        require_whole(replace(record, l2=0.011), rows)


def test_features_that_are_all_zero_have_no_gauge_and_a_deposit_all_the_same() -> None:
    case = made("softmax", bias=False)
    record = case.model.record
    assert record is not None
    deposit = deposit_of(case.model, np.zeros_like(case.X), case.y, seed=0)
    assert deposit.gauges == ()
    assert float(deposit.model.matrix().abs().max()) == 0.0


# Rehearsal --------------------------------------------------------------------------------------------------------------------


def test_a_trial_is_the_radius_that_forgetting_would_need() -> None:
    case = made("softmax", l2=0.1)
    problem = problem_of(case)
    rows = Rows(torch.from_numpy(problem.X[:3]), torch.from_numpy(case.y[:3]))
    sums = case.deposit.sums.without(problem.of(np.arange(3)))
    result = found(case.deposit.setting, sums, case.deposit.penalty(117), case.deposit.shape)
    assert result is not None
    assert trial(case.deposit, rows).radius == pytest.approx(deposit_bound(result.facts).radius, rel=1e-6, abs=0.0)
    everything_but_one = Rows(torch.from_numpy(problem.X[1:]), torch.from_numpy(case.y[1:]))
    logistic = made("logistic", l2=1e-9, free=True)
    assert (
        trial(logistic.deposit, replace(everything_but_one, labels=torch.from_numpy(logistic.y[1:]))).radius == math.inf
    )


def test_rehearsals_are_of_random_groups() -> None:
    case = made("ridge", n=60)
    rows = Rows(torch.from_numpy(prepared(case)), torch.from_numpy(case.y))
    told: list[tuple[str, int, int | None]] = []
    made_of = rehearse(case.deposit, rows, (1, 30, 31), 24, seed=3, progress=lambda *seen: told.append(seen))
    assert [each.rows for each in made_of] == [1, 30]  # not more than half
    assert all(each.none == 0 for each in made_of)
    rng = np.random.default_rng(3)
    radii = [trial(case.deposit, taken(rows, rng.choice(60, 1, replace=False))) for _ in range(making.GROUPS[0][1])]
    assert [each.radius for each in made_of[0].trials] == [each.radius for each in radii]
    assert len(told) == 2 * making.GROUPS[0][1]


def test_rows_are_taken_by_number_across_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("expunge.heads.rows.BLOCK_BYTES", 16 * 8 * 3)
    rows = Rows(torch.arange(150.0, dtype=torch.float32).reshape(50, 3), torch.arange(50))
    assert len(rows.blocks()) == 2
    some = taken(rows, [40, 3, 17])
    assert some.labels.tolist() == [3, 17, 40]
    assert some.features.tolist() == rows.features[[3, 17, 40]].tolist()
    assert some.features.dtype == torch.float64


def rehearsed_with(rows: int, *radii: float) -> Rehearsal:
    return Rehearsal(rows, tuple(Trial(radius, None) for radius in radii))


def test_a_rehearsal_by_hand() -> None:
    some = rehearsed_with(10, *(float(number) for number in range(1, 21)), math.inf, math.inf)
    assert (some.usual, some.radius, some.none, some.finite[:2]) == (18.0, 20.0, 2, [1.0, 2.0])
    few = rehearsed_with(10, 3.0, 1.0, 2.0, 4.0)
    assert (few.usual, few.radius, few.none) == (4.0, 4.0, 0)
    nothing = rehearsed_with(1, math.inf)
    assert (nothing.usual, nothing.radius, nothing.none) == (math.inf, math.inf, 1)


def test_the_first_radius_is_far_above_what_float64_makes_of_the_weights() -> None:
    case = made("ridge")
    smallest = case.deposit.ellipsoid.smallest(case.deposit.numbers.radii[0])
    weights = float(case.deposit.model.matrix().norm())
    assert smallest >= FINEST * (1.0 + weights) * (1 - 1e-9)
    assert least_radius(case.deposit) == pytest.approx(
        FINEST * (1.0 + weights) / case.deposit.ellipsoid.smallest(1.0), rel=1e-9, abs=0.0
    )
    least = least_radius(case.deposit)
    assert case.deposit.numbers.radii == (
        two_digits(least),
        two_digits(math.sqrt(10.0) * least),
        two_digits(10.0 * least),
    )


def test_a_tenth_of_the_source_is_rehearsed_and_can_go() -> None:
    """A random one, another than those that were rehearsed: its radius is covered where theirs were."""
    case = made("softmax", n=4_000, width=8, l2=0.01)
    rows = Rows(torch.from_numpy(prepared(case)), torch.from_numpy(case.y))
    chosen = np.random.default_rng(0).permutation(4_000)[:400]
    needed = trial(case.deposit, taken(rows, chosen)).radius
    ordinary = radii_for(rehearse(case.deposit, rows, (1, 10, 40, 100), 24, seed=0), least_radius(case.deposit))
    assert case.deposit.numbers.radii[: len(ordinary)] == ordinary
    assert ordinary[-1] < needed < case.deposit.numbers.radii[-1]
    result = unlearn(
        case.model, (case.X[chosen], case.y[chosen]), epsilon=1.0, delta=1e-5, deposit=case.deposit, force=True
    )
    assert result.certificate.content["status"] == "proven"


def test_a_region_beyond_all_noise_is_none() -> None:
    """Noise has a largest scale; lists beyond it could not be divided, or ended in an error about --noise."""
    case = made("softmax", n=20, classes=4, l2=1e-6, seed=2)
    rows = Rows(torch.from_numpy(prepared(case)), torch.from_numpy(case.y))
    radii = [each.radius for part in rehearse(case.deposit, rows, (1, 10), 24, seed=0) for each in part.trials]
    assert math.inf in radii
    assert max(radius for radius in radii if radius < math.inf) <= LARGEST_SCALE < case.deposit.numbers.radii[-1]
    with pytest.raises(BeyondPolicy):
        unlearn(case.model, (case.X[:1], case.y[:1]), epsilon=0.1, delta=1e-5, deposit=case.deposit, force=True)
