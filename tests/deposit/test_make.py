"""Making a deposit: its anchor is the optimum, and noise, its numbers bound what they say, and what is rehearsed."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from deposit_problems import LONG, Made, drawn, made, minimiser, prepared, problem_of, whole
from expunge.bounds.deposit import deposit_bound
from expunge.bounds.scale import LARGEST_SCALE, is_power_of_four
from expunge.deposit import forecast, make
from expunge.deposit.forecast import Rehearsal, Trial, choose, rehearse_sizes, sizes_for, try_removal
from expunge.deposit.make import (
    anchor_noise,
    anchor_scales,
    make_from_rows,
    require_size,
    require_whole,
    with_most_noise,
)
from expunge.deposit.region import smallest_region
from expunge.deposit.shape import gram_of
from expunge.deposit.step import Penalty, RetainedProblem, Setting
from expunge.deposit.sums import sums_of
from expunge.errors import BeyondPolicy, DataError, ModelError, VacuousClaim
from expunge.heads import Rows, head_for
from expunge.rows.hashes import hash_rows
from expunge.train import train
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


def best_of(case: Made) -> Array:
    """The optimum that the deposit's anchor has noise around."""
    assert case.model.record is not None
    rows = Rows(torch.from_numpy(prepared(case)), torch.from_numpy(case.y))
    return make_from_rows(case.model, case.model.record, rows, (case.X, case.y), seed=0).optimum.numpy()


@pytest.mark.parametrize(("loss", "options"), KINDS)
def test_the_anchor_is_the_optimum_and_noise_whatever_the_weights_were(loss: str, options: dict[str, Any]) -> None:
    case = made(loss, **options)
    problem = problem_of(case)
    W, _ = minimiser(problem.X, problem.y, loss, problem.diagonal(problem.n), problem.anchor)
    assert best_of(case) == pytest.approx(W.astype(float), rel=1e-9, abs=1e-11)
    record, numbers = case.deposit.record, case.deposit.numbers
    assert record.weights_sha256 == case.deposit.model.weights_sha256()
    assert (record.n_source, record.provenance, record.noised, record.residual) == (120, "measured", True, None)
    if loss == "softmax":
        assert np.abs(problem.anchor.sum(axis=0)).max() < 1e-14 * np.abs(problem.anchor).max() * 100
    assert numbers.anchor_noise in anchor_scales(problem.anchor.size, 120, quadratic=loss == "ridge")
    seen = problem.anchor.size - (problem.anchor.shape[1] if loss == "softmax" else 0)
    length = problem.length(problem.anchor - W, case.deposit.shape)
    low, high = chi2.ppf([1e-6, 1.0 - 1e-6], seen)
    assert math.sqrt(low) < length / numbers.anchor_noise < math.sqrt(high)


@pytest.mark.parametrize("scale", [30.0, -30.0])
def test_the_optimum_is_reached_from_far_away(scale: float) -> None:
    case = made("softmax")
    far = torch.full((3, 4), scale, dtype=torch.float64) * torch.arange(12.0).reshape(3, 4)
    weight, bias = far[:, :3], far[:, 3]
    model = replace(case.model, weight=weight, bias=bias).with_record(case.model.record)  # type: ignore[arg-type]
    assert best_of(replace(case, model=model)) == pytest.approx(best_of(case), rel=1e-8, abs=1e-10)


def test_the_noise_of_an_anchor_by_hand() -> None:
    """From `4 sqrt(p)/n`, n up to a power of two, by roots of two to what 25 rows do together, or one in 200; a square
    has no cap, and many weights have no room."""
    most, *between, least = anchor_scales(16, 1_000_000, quadratic=False)
    assert (most, least) == (16.0 / 2.0**20, 5.0 / 2.0**20)
    assert between == pytest.approx([16.0 / 2.0 ** (20 + k / 2) for k in (1, 2, 3)], rel=1e-12)
    assert anchor_scales(1, 1_000_000, quadratic=False) == (4.0 / 2.0**20,)
    assert anchor_scales(16, 1_000_000, quadratic=True) == (64.0 / 2.0**20,)
    assert anchor_scales(16, 2**20, quadratic=False) == anchor_scales(16, 2**19 + 1, quadratic=False)
    assert anchor_scales(16, 1_000, quadratic=False)[-1] == pytest.approx(math.sqrt(1024 / 200) / 1024.0, rel=1e-12)
    assert anchor_scales(16, 1_000, quadratic=True) == (64.0 / 1024.0,)
    assert anchor_scales(2_001, 2**20, quadratic=False) == (5.0 / 2.0**20,)


@pytest.mark.parametrize("loud", range(6))
def test_of_the_noises_the_first_that_is_quiet_is_taken(loud: int) -> None:
    """The last, where none is: as many as `loud` are not."""
    scales, tried = (16.0, 8.0, 4.0, 2.0, 1.0), []

    def made(scale: float) -> Any:
        tried.append(scale)
        return SimpleNamespace(numbers=SimpleNamespace(anchor_noise=scale))

    taken_one = with_most_noise(made, scales, lambda each: each.numbers.anchor_noise <= 16.0 / 2**loud)
    assert taken_one.numbers.anchor_noise == scales[min(loud, 4)]
    assert len(tried) <= 4


def test_an_anchor_has_no_more_noise_than_nearly_all_can_leave_with() -> None:
    """Of many rows it may be long; few rows have no room for the most."""
    rng = np.random.default_rng(3)
    scales = {}
    for count in (200, 6_000):
        X = rng.normal(size=(count, 4))
        y = (X @ np.ones(4) + rng.logistic(size=count) > 0.0).astype(int)
        kept = deposit_of(train(X, y, l2=1.0 / count, loss="logistic", max_norm="largest"), X, y, seed=4)
        scales[count] = kept.numbers.anchor_noise, anchor_scales(kept.anchor.numel(), count, quadratic=False)
    assert scales[6_000][0] == scales[6_000][1][0]
    assert scales[200][0] < scales[200][1][0]


@pytest.mark.parametrize("loss", ["softmax", "logistic", "one-vs-rest", "ridge"])
def test_the_noise_of_an_anchor_has_the_covariance_of_the_shape(loss: str) -> None:
    """Whitened by the shape of the source, 4,000 draws are standard normal."""
    problem = drawn(1, loss, n=80, width=2, l2=0.05)
    weights, rows = torch.from_numpy(problem.anchor), problem.rows(slice(None))
    gram, penalty, rng = gram_of(rows), problem.penalty(80), np.random.default_rng(7)
    draws = [anchor_noise(problem.head, gram, penalty, weights, 0.25, rng).numpy() for _ in range(4000)]
    white = np.array([(each @ problem.shape[0].numpy()).reshape(-1) for each in draws]) / 0.25
    size = white.shape[1]
    assert np.abs(white.mean(axis=0)).max() < 5.0 / math.sqrt(4000)
    assert np.cov(white.T) == pytest.approx(np.eye(size), abs=6.0 * math.sqrt(2.0 / 4000))


def test_noise_is_secret_and_drawn_anew_unless_a_test_fixes_it() -> None:
    case = made("softmax", n=60)
    anchors = [deposit_of(case.model, case.X, case.y, seed=seed).anchor for seed in (None, None, 1, 1)]
    assert not torch.equal(anchors[0], anchors[1])
    assert torch.equal(anchors[2], anchors[3])


def test_columns_far_from_their_middle_end_at_one_optimum_wherever_the_weights_began() -> None:
    """A step from 1e-8 away gains less of the objective than what its sum over the rows loses."""
    rng = np.random.default_rng(1)
    X = np.column_stack([rng.normal(100.0, 1.0, (80, 2)), np.ones(80)])
    rows = Rows(torch.from_numpy(X), torch.from_numpy(rng.integers(0, 2, 80)))
    head = head_for("softmax", l2=0.0, n_classes=2, n_features=3, row_bound=200.0)

    def reached(start: torch.Tensor) -> torch.Tensor:
        return make.optimum(head, rows, Setting(start, 200.0, (), False, True), Penalty(1 / 80, free=True))

    there = reached(torch.zeros(2, 3, dtype=torch.float64))
    scores = []
    for seed in range(100):
        off = np.random.default_rng(seed).normal(scale=10.0 ** -(3 + seed % 6), size=(2, 3))
        scores.append(X @ reached(there + torch.from_numpy(off)).numpy().T)
    assert np.ptp(scores, axis=0).max() < 1e-11


@pytest.mark.parametrize(("loss", "options"), KINDS)
def test_the_shape_s_numbers_bound_its_matrix(loss: str, options: dict[str, Any]) -> None:
    case = made(loss, **options)
    ellipsoid, problem = case.deposit.ellipsoid, problem_of(case)
    M0 = whole((case.deposit.shape @ case.deposit.shape.mT).numpy(), problem).astype(float)
    values = np.linalg.eigvalsh(M0)
    assert values[-1] <= ellipsoid.largest <= 4.1 * values[-1]
    assert is_power_of_four(ellipsoid.largest), "more digits would be those of somebody's row"
    assert 0.97 * values[0] <= ellipsoid.least <= values[0]
    assert ellipsoid.inverse_trace == pytest.approx(np.trace(np.linalg.inv(M0)), rel=1e-6, abs=0.0)


def test_the_least_eigenvalue_is_that_of_the_factors_product() -> None:
    """What is drawn from is L L', not what float64 makes of it."""
    rng = np.random.default_rng(0)
    case = made("logistic", bias=False)

    def with_shape(factor: Array) -> Any:
        changed = replace(case.deposit)
        changed.__dict__["shape"] = torch.from_numpy(factor)[None]  # where a cached property keeps it
        return changed.ellipsoid

    for seed in range(8):
        axes = np.linalg.qr(rng.normal(size=(3, 3)))[0]
        factor = np.linalg.cholesky((axes * np.array([1.0, 1.0, 10.0 ** -(5 + seed)])) @ axes.T)
        exact = factor.astype(LONG) @ factor.astype(LONG).T
        values, found_here = np.linalg.eigvalsh(exact.astype(float)), with_shape(factor)
        assert found_here.least <= values[0] * (1 + 1e-16 / values[0])
        assert found_here.largest >= values[-1] * (1 - 1e-15)
    with pytest.raises(ModelError, match="not positive definite"):
        with_shape(np.linalg.cholesky(np.diag([1.0, 1.0, 1e-16])))


@pytest.mark.parametrize(("loss", "options"), KINDS)
def test_what_noise_does_to_outputs(loss: str, options: dict[str, Any]) -> None:
    """On a typical row: the deviation that noise of scale 1 gives an output, and the size of the model's own."""
    case = made(loss, **options)
    X, anchor = prepared(case), case.deposit.reference_weights.numpy()  # a ridge anchor's own outputs are mostly noise
    problem = problem_of(case)
    rng = np.random.default_rng(0)
    M0 = whole((case.deposit.shape @ case.deposit.shape.mT).numpy(), problem).astype(float)
    noise = np.linalg.solve(np.linalg.cholesky(M0).T, rng.normal(size=(M0.shape[0], 4000))).T.reshape(-1, *anchor.shape)
    outputs = np.einsum("skd,nd->snk", noise, X)
    assert case.deposit.output_noise == pytest.approx(math.sqrt((outputs**2).mean()), rel=0.05, abs=0.0)
    own = X @ (anchor - anchor.mean(axis=0) if loss == "softmax" else anchor).T
    assert case.deposit.output_spread == pytest.approx(math.sqrt((own**2).mean()), rel=1e-3, abs=0.0)


@pytest.mark.parametrize(("loss", "options"), KINDS)
def test_levels_are_powers_of_four_from_what_moves_no_output_by_more_than_a_hundredth(
    loss: str, options: dict[str, Any]
) -> None:
    deposit = made(loss, **options).deposit
    assert len(deposit.levels) == 6
    assert all(map(is_power_of_four, deposit.levels))
    assert [later / one for one, later in pairwise(deposit.levels)] == [4.0] * 5
    assert 0.0025 < deposit.levels[0] * deposit.output_noise <= 0.01 * (1.0 + 1e-9)
    assert deposit.levels[-1] * deposit.output_noise > 1.0, "outputs are log-odds, or of 0 and 1"


def test_what_is_kept_of_the_rows() -> None:
    case = made("softmax")
    numbers = case.deposit.numbers
    assert (numbers.n_rows, numbers.forgotten, numbers.generation) == (120, 0, 0)
    assert numbers.class_counts == tuple(np.bincount(case.y))
    assert numbers.row_bound == pytest.approx(math.sqrt(37.0), rel=1e-9, abs=0.0)
    assert numbers.kappas == tuple(gauge.kappa for gauge in case.deposit.gauges)
    assert len(case.deposit.gauges) == 2
    assert made("ridge").deposit.gauges == ()
    hashes = hash_rows(case.deposit.key, case.X, case.y)
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
    for memory, most in ((8 * 18 * 20_000**2, 20_000), (8 << 30, make.MOST_WEIGHTS)):
        known = SimpleNamespace(total_memory=memory)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _, known=known: known)
        assert make.most_weights(cuda) == most
    assert make.most_weights(CPU) == make.MOST_WEIGHTS


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
        make_from_rows(case.model, case.model.record, rows, (case.X[:3], case.y[:3]), seed=0)


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
    zeros = np.zeros_like(case.X)
    rows = Rows(torch.from_numpy(zeros), torch.from_numpy(case.y))
    found_here = make_from_rows(case.model, record, rows, (zeros, case.y), seed=0)
    deposit = found_here.deposit
    assert deposit.gauges == ()
    assert float(found_here.optimum.abs().max()) == 0.0
    assert deposit.gram.unseen.tolist() == [0, 1, 2]


# Rehearsal --------------------------------------------------------------------------------------------------------------------


def test_rows_too_small_for_the_grid_have_no_levels_of_noise_and_say_so() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 2)) * 1e-4, np.arange(40) % 2
    model = train(X, y, l2=0.01, max_norm=1.0, bias=False)
    with pytest.raises(DataError, match="smaller than a thousandth"):
        unlearn(model, (X[:1], y[:1]), epsilon=1.0, delta=1e-3, deposit=deposit_of(model, X, y, seed=0))


def test_a_trial_is_the_radius_that_forgetting_would_need() -> None:
    case = made("softmax", l2=0.1)
    problem = problem_of(case)
    rows = Rows(torch.from_numpy(problem.X[:3]), torch.from_numpy(case.y[:3]))
    gone = sums_of(problem.head, case.deposit.anchor, rows, case.deposit.gauges, third=True)
    sums = case.deposit.sums.without(gone)
    setting = replace(case.deposit.setting, stiff=float(sums.curvature.diagonal.mean()))
    result = smallest_region(
        RetainedProblem(setting, sums, case.deposit.penalty(117), problem.shape_of(np.arange(3, 120)))
    )
    assert result is not None
    assert try_removal(case.deposit, rows).radius == pytest.approx(
        deposit_bound(result.facts).radius, rel=1e-6, abs=0.0
    )
    everything_but_one = Rows(torch.from_numpy(problem.X[1:]), torch.from_numpy(case.y[1:]))
    logistic = made("logistic", l2=1e-9, free=True)
    assert (
        try_removal(logistic.deposit, replace(everything_but_one, labels=torch.from_numpy(logistic.y[1:]))).radius
        == math.inf
    )


def test_rehearsals_are_of_random_groups() -> None:
    case = made("ridge", n=60)
    rows = Rows(torch.from_numpy(prepared(case)), torch.from_numpy(case.y))
    told: list[tuple[str, int, int | None]] = []
    made_of = rehearse_sizes(case.deposit, rows, (1, 30, 31), 24, seed=3, progress=lambda *seen: told.append(seen))
    assert [each.rows for each in made_of] == [1, 30]  # not more than half
    assert all(each.none == 0 for each in made_of)
    rng = np.random.default_rng(3)
    radii = [
        try_removal(case.deposit, choose(rows, rng.choice(60, 1, replace=False))) for _ in range(forecast.GROUPS[0][1])
    ]
    assert [each.radius for each in made_of[0].trials] == [each.radius for each in radii]
    assert len(told) == 2 * forecast.GROUPS[0][1]


def test_rows_are_taken_by_number_across_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("expunge.heads.rows.BLOCK_BYTES", 16 * 8 * 3)
    rows = Rows(torch.arange(150.0, dtype=torch.float32).reshape(50, 3), torch.arange(50))
    assert len(rows.blocks()) == 2
    some = choose(rows, [40, 3, 17])
    assert some.labels.tolist() == [3, 17, 40]
    assert some.features.tolist() == rows.features[[3, 17, 40]].tolist()
    assert some.features.dtype == torch.float64


def rehearsed_with(rows: int, *radii: float) -> Rehearsal:
    return Rehearsal(rows, tuple(Trial(radius, None) for radius in radii))


def test_a_rehearsal_by_hand() -> None:
    some = rehearsed_with(10, *(float(number) for number in range(1, 21)), math.inf, math.inf)
    assert (some.radius, some.none, some.finite[:2]) == (20.0, 2, [1.0, 2.0])
    nothing = rehearsed_with(1, math.inf)
    assert (nothing.radius, nothing.none) == (math.inf, 1)


def test_sizes_that_are_rehearsed() -> None:
    assert sizes_for(50) == ((1, 10, 100), ())
    assert sizes_for(1_009) == ((1, 10, 100), ())
    assert sizes_for(1_010) == ((1, 10, 100), (101,))
    assert sizes_for(50_000) == ((1, 10, 100, 500), (5_000,))


def test_a_tenth_of_the_source_can_go() -> None:
    """A random one, another than those that were rehearsed."""
    case = made("softmax", n=4_000, width=8, l2=0.01)
    chosen = np.random.default_rng(0).permutation(4_000)[:400]
    result = unlearn(
        case.model, (case.X[chosen], case.y[chosen]), epsilon=1.0, delta=1e-5, deposit=case.deposit, force=True
    )
    assert result.certificate.content["status"] == "proven"


def test_a_region_beyond_all_noise_is_none() -> None:
    """Noise has a largest scale."""
    case = made("softmax", n=20, classes=4, l2=1e-6, seed=2)
    rows = Rows(torch.from_numpy(prepared(case)), torch.from_numpy(case.y))
    radii = [each.radius for part in rehearse_sizes(case.deposit, rows, (1, 10), 24, seed=0) for each in part.trials]
    assert math.inf in radii
    assert max((radius for radius in radii if radius < math.inf), default=0.0) <= LARGEST_SCALE
    with pytest.raises((BeyondPolicy, VacuousClaim)):
        unlearn(case.model, (case.X[:1], case.y[:1]), epsilon=0.1, delta=1e-5, deposit=case.deposit, force=True)
