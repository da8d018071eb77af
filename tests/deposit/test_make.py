"""Making a deposit: its anchor is the optimum, and noise, its numbers bound what they say, and what is rehearsed."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from sklearn.linear_model import LogisticRegression

from deposit_problems import LONG, Made, drawn, made, minimiser, prepared, problem_of, whole
from expunge.bounds.calibration import is_power_of_four
from expunge.deposit import make
from expunge.deposit.file import read_deposit
from expunge.deposit.forecast import Trial, loudest, nearly_all_leave, rehearse
from expunge.deposit.make import (
    anchor_noise,
    anchor_scales,
    make_deposit,
    make_from_rows,
    require_possible,
    require_whole,
    with_most_noise,
)
from expunge.deposit.matrices import gram_of
from expunge.deposit.region import Penalty, Setting
from expunge.errors import DataError, ModelError, OptionError
from expunge.heads import Rows, head_for
from expunge.model import LinearModel
from expunge.request.promise import Declared, Execution
from expunge.request.request import record_for
from expunge.rows import stream
from expunge.rows.hashes import hash_rows
from expunge.rows.streams import StreamedRows
from expunge.runtime import arrays as engine
from expunge.runtime.group import Group
from expunge.train import train
from expunge.unlearn import deposit as deposit_of
from expunge.unlearn import unlearn
from reference_cases import together
from small_deposit import N_SOURCE, assert_same, kept, rows, source, trained, write_files

pytestmark = pytest.mark.usefixtures("one_thread")
Array = Any
CPU = "cpu"
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
    rows = Rows(prepared(case), case.y)
    return engine.to_numpy(make_from_rows(case.model, case.model.record, rows, (case.X, case.y), seed=0).optimum)


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


@pytest.mark.parametrize("scale", [30.0])
def test_the_optimum_is_reached_from_far_away(scale: float) -> None:
    case = made("softmax")
    far = np.full((3, 4), scale, dtype=np.float64) * np.arange(12.0).reshape(3, 4)
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


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("loud", range(6))
def test_of_the_noises_the_first_that_is_quiet_is_taken(loud: int, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the one on that is foreseen; the last, where none is: as many as `loud` are not."""
    scales, made = (16.0, 8.0, 4.0, 2.0, 1.0), []
    monkeypatch.setattr(make, "loudest", lambda _: 16.0 / 2**loud)

    def with_noise(scale: float) -> Any:
        made.append(scale)
        return scale

    chosen, people = with_most_noise(with_noise, scales, lambda scale: (Trial(scale * 0.999, None),), first)
    assert chosen == scales[min(max(first, loud), 4)]
    assert people == (Trial(chosen * 0.999, None),)  # type: ignore[operator]
    assert made == list(scales[first : scales.index(chosen) + 1])  # type: ignore[arg-type]


def test_the_noise_foreseen_is_what_it_comes_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it begins is where it ends, and no larger noise would have done."""
    begun: list[tuple[Any, ...]] = []
    own = make.with_most_noise

    def spied(with_noise: Any, scales: Any, tried: Any, first: int) -> Any:
        begun.append((with_noise, scales, tried, first))
        return own(with_noise, scales, tried, first)

    monkeypatch.setattr(make, "with_most_noise", spied)
    rng = np.random.default_rng(3)
    X = rng.normal(size=(300, 8))
    y = (X @ np.ones(8) + rng.logistic(size=300) > 0.0).astype(int)
    stored = deposit_of(train(X, y, l2=1.0 / 300, loss="logistic", max_norm="largest"), X, y, seed=4)
    ((with_noise, scales, _, first),) = begun
    assert 0 < first < len(scales) - 1
    assert scales[first] == stored.numbers.anchor_noise
    louder = with_noise(scales[first - 1])
    rows = Rows(np.column_stack([X, np.ones(len(X))]) if stored.record.bias else X, y)
    radii = [each.radius for each in rehearse(louder, rows, 1, seed=4)]
    assert not nearly_all_leave(radii, loudest(louder))


def test_an_anchor_has_no_more_noise_than_nearly_all_can_leave_with() -> None:
    """Of many rows it may be long; few rows have no room for the most."""
    rng = np.random.default_rng(3)
    scales = {}
    for count in (200, 6_000):
        X = rng.normal(size=(count, 4))
        y = (X @ np.ones(4) + rng.logistic(size=count) > 0.0).astype(int)
        kept = deposit_of(train(X, y, l2=1.0 / count, loss="logistic", max_norm="largest"), X, y, seed=4)
        scales[count] = kept.numbers.anchor_noise, anchor_scales(engine.size(kept.anchor), count, quadratic=False)
    assert scales[6_000][0] == scales[6_000][1][0]
    assert scales[200][0] < scales[200][1][0]


@pytest.mark.parametrize("loss", ["softmax", "ridge"])
def test_the_noise_of_an_anchor_has_the_covariance_of_the_shape(loss: str) -> None:
    """Whitened by the shape of the source, 4,000 draws are standard normal."""
    problem = drawn(1, loss, n=80, width=2, l2=0.05)
    weights, rows = problem.anchor, problem.rows(slice(None))
    gram, penalty, rng = gram_of(rows), problem.penalty(80), np.random.default_rng(7)
    draws = [engine.to_numpy(anchor_noise(problem.head, gram, penalty, weights, 0.25, rng)) for _ in range(4000)]
    white = np.array([(each @ engine.to_numpy(problem.shape[0])).reshape(-1) for each in draws]) / 0.25
    size = white.shape[1]
    assert np.abs(white.mean(axis=0)).max() < 5.0 / math.sqrt(4000)
    assert np.cov(white.T) == pytest.approx(np.eye(size), abs=6.0 * math.sqrt(2.0 / 4000))


def test_noise_is_secret_and_drawn_anew_unless_a_test_fixes_it() -> None:
    case = made("softmax", n=60)
    anchors = [deposit_of(case.model, case.X, case.y, seed=seed).anchor for seed in (None, None, 1, 1)]
    assert not engine.equal(anchors[0], anchors[1])
    assert engine.equal(anchors[2], anchors[3])


def test_columns_far_from_their_middle_end_at_one_optimum_wherever_the_weights_began() -> None:
    """A step from 1e-8 away gains less of the objective than what its sum over the rows loses."""
    rng = np.random.default_rng(1)
    X = np.column_stack([rng.normal(100.0, 1.0, (80, 2)), np.ones(80)])
    rows = Rows(X, rng.integers(0, 2, 80))
    head = head_for("softmax", l2=0.0, n_classes=2, n_features=3, row_bound=200.0)

    def reached(start: np.ndarray) -> np.ndarray:
        return make.optimum(head, rows, Setting(start, 200.0, (), False, True), Penalty(1 / 80, free=True))

    there = reached(np.zeros((2, 3)))
    own = make.optimum(replace(head, l2=1.0), rows, Setting(there, 200.0, (), False, True), Penalty(1 / 80, free=True))
    assert np.allclose(own, there, rtol=0.0, atol=1e-9), "the penalty is all the regulariser there is"
    scores = []
    for seed in range(12):
        off = np.random.default_rng(seed).normal(scale=10.0 ** -(3 + seed % 6), size=(2, 3))
        scores.append(X @ engine.to_numpy(reached(there + off)).T)
    assert np.ptp(scores, axis=0).max() < 1e-9


@pytest.mark.parametrize(("loss", "options"), KINDS)
def test_the_shape_s_numbers_bound_its_matrix(loss: str, options: dict[str, Any]) -> None:
    case = made(loss, **options)
    ellipsoid, problem = case.deposit.ellipsoid, problem_of(case)
    M0 = whole(engine.to_numpy(case.deposit.shape @ case.deposit.shape.mT), problem).astype(float)
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
        changed.__dict__["shape"] = factor[None]  # where a cached property keeps it
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
    X, anchor = (
        prepared(case),
        engine.to_numpy(case.deposit.reference_weights),
    )  # a ridge anchor's own outputs are mostly noise
    problem = problem_of(case)
    rng = np.random.default_rng(0)
    M0 = whole(engine.to_numpy(case.deposit.shape @ case.deposit.shape.mT), problem).astype(float)
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


# Refusals ---------------------------------------------------------------------------------------------------------------------


def test_a_gpu_keeps_what_its_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda")
    for memory, most in ((8 * 18 * 20_000**2, 20_000), (8 << 30, make.MOST_WEIGHTS)):
        known = SimpleNamespace(total_memory=memory)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _, known=known: known)
        assert make.most_weights(cuda) == most
    assert make.most_weights(CPU) == make.MOST_WEIGHTS


def test_a_hessian_that_is_too_large_is_refused_with_the_remedy() -> None:
    def check(loss: str, classes: int, width: int) -> None:
        model = LinearModel(np.zeros((classes, width), dtype=np.float64))
        require_possible(
            model, record_for(model, Declared(l2=1.0, loss=loss, max_norm=1.0, n_source=5, training_residual=0.0)), CPU
        )

    check("softmax", 10, 1200)
    check("one-vs-rest", 10, 12_000)
    with pytest.raises(ModelError, match="Train a ridge head"):
        check("softmax", 10, 1201)
    with pytest.raises(ModelError, match=r"12,001 x 12,001.* Use fewer features"):
        check("ridge", 3, 12_001)


def test_rows_that_are_not_as_many_as_were_trained_on_are_refused() -> None:
    case = made("softmax")
    with pytest.raises(DataError, match="119 rows; the model was trained on 120"):
        deposit_of(case.model, case.X[1:], case.y[1:])
    rows = Rows(prepared(case), case.y)
    assert case.model.record is not None
    with pytest.raises(DataError, match="3 rows as given, 120 as used"):
        make_from_rows(case.model, case.model.record, rows, (case.X[:3], case.y[:3]), seed=0)


def test_an_l2_that_is_not_the_fixed_c_s_is_refused() -> None:
    case = made("softmax", fixed_c=True)
    rows = Rows(prepared(case), case.y)
    record = case.model.record
    assert record is not None
    require_whole(record, rows)
    with pytest.raises(ModelError, match="a fixed C is l2"):
        require_whole(replace(record, l2=0.011), rows)


def test_rows_without_any_feature_are_refused_while_the_source_is_there() -> None:
    """Nothing could leave such a deposit: no noise follows from the shape of nothing."""
    case = made("softmax", bias=False)
    record = case.model.record
    assert record is not None
    zeros = np.zeros_like(case.X)
    rows = Rows(zeros, case.y)
    with pytest.raises(DataError, match="every feature of every row is zero"):
        make_from_rows(case.model, record, rows, (zeros, case.y), seed=0)


def test_rows_too_small_for_the_grid_have_no_levels_of_noise_and_say_so() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 2)) * 1e-4, np.arange(40) % 2
    model = train(X, y, l2=0.01, max_norm=1.0, bias=False)
    with pytest.raises(DataError, match="smaller than a thousandth"):
        unlearn(model, (X[:1], y[:1]), epsilon=1.0, delta=1e-3, deposit=deposit_of(model, X, y, seed=0))


def test_a_tenth_of_the_source_can_go() -> None:
    """A random one, another than those that were rehearsed."""
    case = made("softmax", n=4_000, width=8, l2=0.01)
    chosen = np.random.default_rng(0).permutation(4_000)[:400]
    result = unlearn(
        case.model, (case.X[chosen], case.y[chosen]), epsilon=1.0, delta=1e-5, deposit=case.deposit, force=True
    )
    assert result.certificate.content["status"] == "proven"


# Keeping a deposit: of arrays, of streams, of rows that are not the source's


def test_a_stream_gives_what_arrays_give() -> None:
    features, labels = source()
    cuts = [slice(0, 150), slice(150, 151), slice(151, N_SOURCE)]
    blocks = stream(lambda: ((features[part], labels[part]) for part in cuts))
    streamed = make_deposit(trained(), blocks, seed=3)
    assert isinstance(streamed.rows, StreamedRows)
    assert_same(kept().deposit, streamed.deposit)


@pytest.mark.slow  # so does the command, in a group, among those that are not
def test_a_group_gives_what_one_process_gives(tmp_path: Path) -> None:
    """The driver reads small blocks, so that both processes have several."""
    write_files(tmp_path)
    (tmp_path / "rows").mkdir()
    for name, array in zip("Xy", source(), strict=True):
        np.save(tmp_path / "rows" / f"{name}.npy", array)
    driver = Path(__file__).parents[1] / "group_driver.py"
    together([sys.executable, str(driver), str(tmp_path), str(tmp_path / "made.deposit"), "deposit"], 2)
    assert_same(kept().deposit, read_deposit(tmp_path / "made.deposit"))


def test_other_rows_are_refused() -> None:
    features, labels = source()
    with pytest.raises(DataError, match="its own rows"):
        make_deposit(trained(), stream(lambda: [source()]), execution=Execution(group=Group(0, 2)))
    with pytest.raises(DataError, match="399 rows"):
        make_deposit(trained(), (features[1:], labels[1:]))
    with pytest.raises(DataError, match="gradient has norm"):
        make_deposit(trained(), (features * 1.001, labels))
    with pytest.raises(DataError, match="no labels"):
        make_deposit(trained(), (features, None))


def test_a_noised_model_is_refused() -> None:
    noised = unlearn(trained(), rows(1), epsilon=1.0, delta=1e-3, deposit=kept().deposit)
    with pytest.raises(ModelError, match="noised"):
        make_deposit(noised.model, source())


def test_a_bare_model_needs_what_it_minimised_and_nothing_else() -> None:
    bare = LinearModel(trained().weight, trained().bias)
    with pytest.raises(ModelError, match="l2"):
        make_deposit(bare, source())
    made = make_deposit(bare, source(), declared=Declared(l2=0.01, loss="softmax", max_norm=3.0), seed=3).deposit
    assert made.record.provenance == "measured"
    assert made.record.class_counts == trained().record.class_counts  # type: ignore[union-attr]
    result = unlearn(bare, rows(1), epsilon=1.0, delta=1e-3, deposit=made)
    assert result.certificate.status == "proven"


def test_rows_that_were_trained_on_in_float32_are_taken_as_they_are_given() -> None:
    model = train(*source(), l2=0.01, max_norm=3.0, bias=True, dtype="float32")
    assert make_deposit(model, source(), seed=3).deposit.numbers.n_rows == N_SOURCE


def test_a_hessian_that_is_too_large_is_refused_before_anything_is_read() -> None:
    wide = LinearModel(np.zeros((10, 2000), dtype=np.float64))
    with pytest.raises(ModelError, match="Train a ridge head"):
        make_deposit(wide, (np.zeros((5, 2000)), np.zeros(5)), declared=Declared(l2=1.0, loss="softmax", max_norm=1.0))


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_a_freed_bias_is_scikit_learn_s_intercept(loss: str) -> None:
    generator = np.random.default_rng(4)
    features = generator.standard_normal((300, 3))
    labels = (features[:, 0] + generator.standard_normal(300) > 1.0).astype(int)
    model = train(features, labels, l2=0.2, max_norm=6.0, loss=loss, bias=True)
    made = make_deposit(model, (features, labels), free_bias=True, seed=1)
    freed, two = made.optimum, loss == "softmax"
    fitted = LogisticRegression(C=(2.0 if two else 1.0) / (0.2 * 300), solver="newton-cholesky", tol=1e-12)
    fitted.fit(features, labels)
    expected = np.concatenate([fitted.coef_[0], fitted.intercept_])
    found = freed[1] - freed[0] if two else freed[0]
    np.testing.assert_allclose(engine.to_numpy(found), expected, atol=1e-9)
    assert float(engine.norm(freed - model.matrix())) > 0.1, "the penalty was on it before"
    record = made.deposit.record
    assert (record.free_bias, record.provenance) == (True, "measured")


def test_a_freed_model_in_another_type_says_its_own_residual() -> None:
    features, labels = source()
    biased, none = (train(features, labels, l2=0.05, max_norm=4.0, bias=bias) for bias in (True, False))
    made = make_deposit(biased, (features, labels), free_bias=True, seed=1)
    assert engine.equal(made.model(np.float64).matrix(), made.optimum)
    small = made.model(np.float32)
    assert small.weight.dtype == np.float32
    assert small.record is not None
    assert small.record.residual is not None
    assert 1e-10 < small.record.residual < 1e-5
    result = unlearn(small, (features[:2], labels[:2]), epsilon=1.0, delta=1e-3, deposit=made.deposit)
    assert result.statement.status == "proven"
    with pytest.raises(OptionError, match=r"without one.*--bias"):
        make_deposit(none, source(), free_bias=True)
