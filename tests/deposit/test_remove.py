"""Rows leave a deposit: looked up, taken out of what is kept, the difference of copies charged, and what is frozen stays."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deposit_problems import LONG, Made, gradient, hessian, made, prepared, problem_of, slopes, whole
from expunge.bounds.deposit import deposit_bound
from expunge.deposit.evidence import DepositEvidence
from expunge.deposit.file import Deposit
from expunge.deposit.matrices import unsure
from expunge.deposit.membership import (
    SMOOTHNESS,
    Membership,
    answers,
    charged_sums,
    distances,
    look_up,
    remove_rows,
    require_members,
)
from expunge.deposit.region import smallest_region
from expunge.deposit.sums import Sums, threes
from expunge.errors import DataError
from expunge.heads import Rows
from expunge.rows.hashes import Matches
from expunge.runtime.arrays import equal, to_numpy
from expunge.train import train
from expunge.unlearn import deposit, unlearn
from small_deposit import kept, rows, trained

pytestmark = pytest.mark.usefixtures("one_thread")
Array = Any
REPRODUCIBLE = settings(derandomize=True, deadline=None, max_examples=40)
KINDS = ("softmax", "logistic", "one-vs-rest", "ridge")


def rows_of(case: Made, given_rows: Array, which: Array) -> Rows:
    """Rows as given, ready for the head."""
    ready = prepared(replace(case, X=given_rows))
    return Rows(ready, case.y[which])


def leave(deposit: Deposit, case: Made, which: Array, copy: Array | None = None) -> Deposit:
    given_rows = case.X[which] if copy is None else copy
    membership = look_up(deposit, given_rows, case.y[which])
    require_members(membership)
    rows = rows_of(case, given_rows, which)
    return remove_rows(deposit, rows, membership)


def matches(*precisions: int) -> Membership:
    levels = np.array(precisions, np.int64)
    return Membership(Matches(np.where(levels < 0, -1, np.arange(len(levels))), levels, np.ones(len(levels), np.int64)))


def off(case: Made, sums: Sums, which: Array) -> list[tuple[float, float]]:
    """By how much the sums are off those over the ORIGINAL rows, beside what they say."""
    problem, X, y = problem_of(case), prepared(case)[which], case.y[which]
    g = gradient(problem.anchor, X, y, problem.loss)
    made_of = [(float(np.linalg.norm((to_numpy(sums.gradient) - g).astype(float))), sums.gradient_error)]
    shares: list[Array | None] = [None]
    for gauge in case.deposit.gauges:
        inverse = np.linalg.inv(to_numpy(gauge.factor)).astype(LONG)
        shares.append(((inverse @ X.T) ** 2).sum(axis=0))
    stated = (sums.curvature_error, *sums.weighted_errors)
    for blocks, share, error in zip((sums.curvature, *sums.weighted), shares, stated, strict=True):
        H = hessian(problem.anchor, X, problem.loss, share)
        difference = (whole(to_numpy(blocks.values), problem) - H).astype(float)
        made_of.append((float(np.linalg.norm(difference, 2)), error))
    return made_of


# Looking rows up --------------------------------------------------------------------------------------------------------------


def test_rows_are_known_by_values_and_label_as_often_as_they_occurred() -> None:
    case = made("softmax")
    assert look_up(case.deposit, case.X[:3], case.y[:3]).missing == []
    assert look_up(case.deposit, case.X[:3], (case.y[:3] + 1) % 3).missing == [0, 1, 2]
    assert look_up(case.deposit, case.X[[4, 4]], case.y[[4, 4]]).missing == [1]
    assert look_up(case.deposit, case.X[:2] + 1e-3, case.y[:2]).missing == [0, 1]
    both = look_up(case.deposit, np.concatenate([case.X[:1], case.X[1:2].astype(np.float32)]), case.y[:2])
    assert both.matches.precision.tolist() == [0, 1]
    assert [both.count(level) for level in range(3)] == [1, 1, 0]
    assert look_up(case.deposit, np.round(case.X[:2], 6), case.y[:2]).matches.precision.tolist() == [2, 2]


def test_rows_that_were_never_there_are_refused_by_number() -> None:
    require_members(matches(0, 1, 2))
    with pytest.raises(DataError, match=r"1 of 3 rows \(row 2\) is not in what is left"):
        require_members(matches(0, -1, 0))
    with pytest.raises(DataError, match=r"7 of 7 rows \(row 1, 2, 3, 4, 5, \.\.\.\)"):
        require_members(matches(*[-1] * 7))
    with pytest.raises(DataError, match=r"\(row 1, 2, 3, 4, 5\)"):
        require_members(matches(*[-1] * 5))


def test_a_row_that_is_given_too_often_is_told_apart_from_one_that_was_never_there() -> None:
    case = made("softmax")
    twice = look_up(case.deposit, case.X[[4, 5, 4]], case.y[[4, 5, 4]])
    assert twice.again == (2,)
    with pytest.raises(
        DataError, match=r"1 of 3 rows \(row 3\) is given more often than .* has it; each row leaves once"
    ):
        require_members(twice)
    in_two_kinds = np.concatenate([case.X[[4, 4]], np.round(case.X[4:5], 6)])
    with pytest.raises(DataError, match=r"2 of 3 rows \(row 2, 3\) are given more often than .* has them"):
        require_members(look_up(case.deposit, in_two_kinds, case.y[[4, 4, 4]]))
    strange = look_up(case.deposit, np.concatenate([case.X[[4, 4]], case.X[:1] + 1.0]), case.y[[4, 4, 0]])
    assert strange.again == (1,)
    with pytest.raises(DataError, match=r"2 of 3 rows .* are not in what is left"):
        require_members(strange)


# Copies -----------------------------------------------------------------------------------------------------------------------


def test_the_distance_of_copies_by_hand() -> None:
    """Twice half a step: 2^-23 of the length in float32, a millionth a column in six decimals."""
    rows = Rows(np.array([[3.0, 4.0, 0.0, 0.0], [0.0, 0.0, 6.0, 8.0]], dtype=np.float64), np.array([0, 1]))
    assert distances(matches(0, 0), rows).sum() == 0.0
    assert distances(matches(1, 0), rows).sum() == pytest.approx(5.0 * 2.0**-23 * 1.001, rel=1e-12, abs=0.0)
    assert distances(matches(1, 1), rows).sum() == pytest.approx(15.0 * 2.0**-23 * 1.001, rel=1e-12, abs=0.0)
    assert distances(matches(2, 0), rows).sum() == pytest.approx(2e-6 * 1.001, rel=1e-12, abs=0.0)
    assert distances(matches(2, 1), rows).sum() == pytest.approx((2e-6 + 10.0 * 2.0**-23) * 1.001, rel=1e-12, abs=0.0)
    nothing = Rows(np.zeros((1, 4), dtype=np.float64), np.array([0]))
    assert distances(matches(1), nothing).sum() == pytest.approx(2.0 * 2.0**-149 * 1.001, rel=1e-12, abs=0.0)


@given(st.integers(0, 10_000), st.floats(-45.0, 4.0))
@REPRODUCIBLE
def test_copies_that_round_alike_are_no_farther_apart_than_is_charged(seed: int, exponent: float) -> None:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(5, 4)) * 10.0**exponent
    rows = Rows(X, np.zeros(5, dtype=np.int64))
    with np.errstate(under="ignore"):
        narrow = X.astype(np.float32).astype(np.float64)
        # as far away as a row can be that rounds to the same float32
        step = np.spacing(np.abs(X).astype(np.float32)).astype(np.float64)
    other = np.clip(2 * narrow - X, narrow - 0.49 * step, narrow + 0.49 * step)
    for copy in (narrow, other):
        assert np.linalg.norm(copy - X, axis=1).sum() <= distances(matches(*[1] * 5), rows).sum()
    if exponent > -3.0:
        decimals = np.round(X, 6)
        assert np.linalg.norm(decimals - X, axis=1).sum() <= distances(matches(*[2] * 5), rows).sum()
        far = decimals + (decimals - X) * 0.99
        assert np.linalg.norm(far - X, axis=1).sum() <= distances(matches(*[2] * 5), rows).sum()


@pytest.mark.parametrize("loss", KINDS)
def test_the_constants_of_smoothness_hold_and_are_attained(loss: str) -> None:
    """slope: of the link; curve: of C(p); bend: of C(p) with the outputs."""
    slope, curve, bend = SMOOTHNESS[loss]
    rng = np.random.default_rng(0)
    found_slope = found_curve = found_bend = 0.0
    for trial in range(4000):
        classes = 1 if loss == "logistic" else int(rng.integers(2, 5))
        z, d = rng.normal(size=(classes, 1)) * 2, rng.normal(size=(classes, 1))
        if trial % 2 and loss == "softmax":  # two classes of which one is the likelier by the right odds
            z[2:], d[2:] = -40.0, 0.0
            d[1] = -d[0]
        d *= 1e-4 / np.linalg.norm(d)
        one = np.ones((1, 1))
        C, moved = (slopes(at, one, loss)[0].astype(float) for at in (z - d / 2, z + d / 2))
        found_curve = max(found_curve, float(np.linalg.norm(C, 2)))
        found_bend = max(found_bend, float(np.linalg.norm(moved - C, 2)) / 1e-4)
        found_slope = max(found_slope, float(np.linalg.norm(C @ d)) / 1e-4)
    for measured, stated in ((found_slope, slope), (found_curve, curve), (found_bend, bend)):
        assert measured <= stated * (1 + 1e-6) + 1e-9
        assert measured >= 0.97 * stated


@pytest.mark.parametrize("loss", KINDS)
@pytest.mark.parametrize("precision", [1, 2])
def test_what_copies_change_of_the_sums_is_charged(loss: str, precision: int) -> None:
    case = made(loss, max_norm=3.0)  # some rows are scaled to it, before and after
    which = np.arange(10)
    copy = case.X[which].astype(np.float32).astype(float) if precision == 1 else np.round(case.X[which], 6)
    membership = look_up(case.deposit, copy, case.y[which])
    assert set(membership.matches.precision.tolist()) == {precision}
    rows = rows_of(case, copy, which)
    sums = charged_sums(case.deposit, rows, membership)
    plain = charged_sums(case.deposit, rows, Membership(replace(membership.matches, precision=np.zeros(10, np.int64))))
    charged = 0
    for (error, stated), (_, without) in zip(off(case, sums, which), off(case, plain, which), strict=True):
        assert error <= stated
        charged += error > without
    assert charged == len(case.deposit.gauges) + 2  # without the charge every one of them would be false


def test_copies_of_tiny_rows_may_lie_outside_the_gauge() -> None:
    """Six decimals of rows of a hundredth: what is charged grows with how far out a copy can be."""
    case = made("softmax", max_norm=0.05, n=60)
    scaled = replace(case, X=case.X * 0.004)
    deposit = made_again(scaled)
    which = np.arange(6)
    copy = np.round(scaled.X[which], 6)
    membership = look_up(deposit, copy, scaled.y[which])
    assert membership.matches.precision.tolist() == [2] * 6
    sums = charged_sums(deposit, rows_of(replace(scaled, deposit=deposit), copy, which), membership)
    for error, stated in off(replace(scaled, deposit=deposit), sums, which):
        assert error <= stated


def made_again(case: Made) -> Deposit:
    from expunge.unlearn import deposit

    record = replace(case.model.record, residual=0.0)  # type: ignore[type-var]
    return deposit(case.model.with_record(record), case.X, case.y, seed=0)


# What is left -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", KINDS)
def test_what_is_left_is_the_sums_of_the_retained_rows(loss: str) -> None:
    case = made(loss)
    which = np.array([0, 5, 7, 50])
    after = leave(case.deposit, case, which)
    kept = np.setdiff1d(np.arange(120), which)
    assert (after.numbers.n_rows, after.numbers.forgotten, after.numbers.generation) == (116, 4, 1)
    assert after.sums.count == 116
    assert after.numbers.class_counts == tuple(np.bincount(case.y[kept], minlength=len(after.numbers.class_counts)))
    for error, stated in off(case, after.sums, kept):
        assert error <= stated < 1e-8
    assert case.deposit.numbers.n_rows == 120  # the old one is not touched


def test_what_is_frozen_stays_as_it_was() -> None:
    """The trap: gauges that shrink with the rows. Anchor and bounds stay too; the noise's shape does not."""
    case = made("softmax")
    after = leave(case.deposit, case, np.arange(20))
    assert after.gauges is case.deposit.gauges
    assert equal(after.anchor, case.deposit.anchor)
    for name in ("key", "row_bound", "kappas", "anchor_noise", "created", "schema"):
        assert getattr(after.numbers, name) == getattr(case.deposit.numbers, name)
    assert not equal(after.shape, case.deposit.shape)
    assert (after.record.n_source, sum(after.record.class_counts or ())) == (100, 100)


def sparse(loss: str = "softmax") -> Made:
    """Rows of two ordinary features and one that only the first two of them have."""
    case = made(loss)
    X = np.round(case.X, 3)
    X[2:, 2] = 0.0
    X[:2, 2] = 3.0
    case = replace(case, X=X)
    return replace(case, deposit=made_again(case))


@pytest.mark.parametrize("loss", KINDS)
def test_a_feature_that_nobody_retained_has_leaves_with_its_rows(loss: str) -> None:
    """Its weights, its sums: all zero, to the last bit; and the region is that of weights that are zero there."""
    case = sparse(loss)
    one = leave(case.deposit, case, np.array([0]))
    assert float(abs(one.anchor[:, 2]).min()) > 0.0, "somebody has it still"
    after = leave(one, case, np.array([1]))
    assert after.gram.unseen.tolist() == [2]
    classes, width = after.anchor.shape
    unseen = np.arange(classes * width) % width == 2 if after.sums.curvature.joint else np.arange(width) == 2
    for matrix in (after.sums.curvature, *after.sums.weighted):
        assert float(abs(matrix.values[:, unseen]).max()) == float(abs(matrix.values[:, :, unseen]).max()) == 0.0
        assert float(abs(matrix.values[:, ~unseen][:, :, ~unseen]).min()) >= 0.0
    assert float(abs(after.anchor[:, 2]).max()) == float(abs(after.sums.gradient[:, 2]).max()) == 0.0
    others = np.arange(width) != 2
    assert equal(after.anchor[:, others], one.anchor[:, others])
    if after.sums.third is not None:
        touched = np.array([2 in each for each in zip(*(part.tolist() for part in threes(width)), strict=True)])
        assert float(abs(after.sums.third[:, touched]).max()) == 0.0
        assert float(abs(after.sums.third[:, ~touched]).max()) > 0.0
    problem, kept = problem_of(case), np.arange(2, 120)
    anew = replace(problem, anchor=to_numpy(after.anchor))
    assert np.abs(to_numpy(after.sums.gradient) - gradient(anew.anchor, anew.X[kept], anew.y[kept], loss)).max() < 1e-12
    result = smallest_region(after.problem)
    assert result is not None
    v = to_numpy(after.anchor + result.update)
    W, uncertain = problem.retrained(kept, v, after.shape)
    assert problem.length(W - v, after.shape) - uncertain <= deposit_bound(result.facts).radius
    assert np.abs(W[:, 2]).max() == np.abs(v[:, 2]).max() == 0.0


def test_the_update_goes_from_the_anchor_as_it_was_given() -> None:
    case = sparse()
    request = case.request(np.arange(2), force=True)
    taken = DepositEvidence.gather(request)
    updated = request.weights + taken.step().update
    assert equal(request.weights, case.deposit.anchor)
    assert taken.deposit is not None
    assert taken.solution is not None
    np.testing.assert_allclose(updated, taken.deposit.anchor + taken.solution.update, rtol=0, atol=1e-15)
    assert float(abs(updated[:, 2]).max()) == 0.0


@pytest.mark.parametrize(("tiny", "precision"), [(4e-7, 2), (-4e-7, 2), (1e-46, 1)])
def test_a_copy_that_has_a_little_where_its_original_has_nothing_is_refused(tiny: float, precision: int) -> None:
    """It would count as one of the rows that have the feature, and take it from those who do."""
    case = sparse()
    one = leave(case.deposit, case, np.array([0]))
    copy = case.X[5:6].copy()
    copy[0, 2] = tiny
    assert look_up(one, copy, case.y[5:6]).matches.precision.tolist() == [precision]
    with pytest.raises(DataError, match=r"row 1\) are rounded copies"):
        leave(one, case, np.array([5]), copy)
    assert leave(one, case, np.array([5])).gram.support.tolist() == [118.0, 118.0, 1.0, 118.0]


def test_a_copy_of_which_it_is_not_sure_how_its_original_was_rounded_is_refused() -> None:
    case = made("softmax", n=400)
    narrow = np.round(case.X, 6)
    ready = prepared(replace(case, X=narrow))
    doubtful = to_numpy(unsure(ready, np.full((400,), 1e-6 * math.sqrt(4.0) * 1.001, dtype=np.float64)))
    assert 0 < doubtful.sum() < 20
    for row in range(400):
        which = np.array([row])
        if doubtful[row]:
            with pytest.raises(DataError, match="Give them as they were trained on, with all digits"):
                leave(case.deposit, case, which, narrow[which])
        elif row < 20:
            after = leave(case.deposit, case, which, narrow[which])
            assert equal(after.shape, leave(case.deposit, case, which).shape), "to the last bit"


def test_rows_that_left_are_no_longer_known() -> None:
    case = made("softmax")
    after = leave(case.deposit, case, np.array([3, 9]))
    assert len(after.hashes) == 118
    assert look_up(after, case.X[[3, 9]], case.y[[3, 9]]).missing == [0, 1]
    others = np.setdiff1d(np.arange(120), [3, 9])
    assert look_up(after, case.X[others], case.y[others]).missing == []
    before = {row.tobytes() for digests in case.deposit.hashes.digests for row in digests}
    now = {row.tobytes() for digests in after.hashes.digests for row in digests}
    assert now < before
    assert len(before - now) == 6


def test_a_copy_takes_its_original_out_and_a_twin_stays() -> None:
    case = made("softmax")
    twins = replace(case, X=np.concatenate([case.X, case.X[:1]]), y=np.concatenate([case.y, case.y[:1]]))
    record = replace(case.model.record, n_source=121, class_counts=None)  # type: ignore[type-var]
    twins = replace(twins, model=case.model.with_record(record))
    deposit = made_again(twins)
    one = leave(deposit, twins, np.array([0]), copy=twins.X[:1].astype(np.float32).astype(float))
    assert look_up(one, twins.X[:1], twins.y[:1]).missing == []
    two = leave(one, twins, np.array([0]))
    assert look_up(two, twins.X[:1], twins.y[:1]).missing == [0]


@pytest.mark.parametrize("scale", [1e4, 1e12])
def test_rows_of_large_features_leave_as_they_were_given(scale: float) -> None:
    """They are the same to the last digit, and beyond the grid's range they are cut off alike."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 3)) * scale, np.arange(60) % 2
    model = train(X, y, l2=0.01 * scale**2, max_norm=6.0 * scale, bias=False)
    kept = deposit(model, X, y, seed=0)
    done = unlearn(model, (X[:20], y[:20]), epsilon=1.0, delta=1e-3, deposit=kept, force=True)
    assert done.deposit.gram.support.tolist() == [40.0] * 3


def test_a_ridge_head_on_categories_beside_a_constant_can_be_left() -> None:
    """Its Hessian does not bend, so that putting the anchor to rest charges it nothing."""
    rng = np.random.default_rng(0)
    X, y = np.eye(4)[rng.integers(0, 4, 300)], rng.integers(0, 2, 300)
    model = train(X, y, l2=0.01, max_norm=1.0, loss="ridge", bias=True)
    result = unlearn(model, (X[:2], y[:2]), deposit=deposit(model, X, y, seed=0), epsilon=1.0, delta=1e-3)
    assert result.certificate.status == "proven"
    assert result.deposit.sums.curvature_error < 1e-9


# Is this person in the model? Each case that the documents name


def test_a_row_a_copy_of_it_and_a_stranger() -> None:
    features, labels = rows(1, 2, 3, 4)
    features = np.array([features[0], features[1].astype(np.float32), np.round(features[2], 6), features[3] + 0.1])
    found = answers(kept().deposit, (features, labels))
    assert [answer.there for answer in found] == [True, True, True, False]
    assert [answer.to_json()["precision"] for answer in found] == ["float64", "float32", "six decimals", None]
    assert [answer.times for answer in found] == [1, 1, 1, 0]
    assert [answer.row for answer in found] == [1, 2, 3, 4]


def test_two_people_with_the_same_values_are_two_rows() -> None:
    found = answers(kept().deposit, rows(0, 0))
    assert [answer.there for answer in found] == [True, True]
    assert [answer.times for answer in found] == [2, 2]
    assert [answer.there for answer in answers(kept().deposit, rows(0, 0, 0))] == [True, True, False]


def test_another_label_is_another_row() -> None:
    features, labels = rows(1)
    (found,) = answers(kept().deposit, (features, (labels + 1) % 3))
    assert not found.there


def test_who_was_forgotten_is_gone() -> None:
    result = unlearn(trained(), rows(0, 1), epsilon=1.0, delta=1e-3, deposit=kept().deposit)
    found = answers(result.deposit, rows(0, 1, 2))
    assert [answer.there for answer in found] == [True, False, True], "the other person with row 0 stays"


def test_rows_that_cannot_be_looked_up_are_refused() -> None:
    features, labels = rows(1)
    with pytest.raises(DataError, match="no labels"):
        answers(kept().deposit, (features, None))
    with pytest.raises(DataError, match="classes are 0, 1, 2"):
        answers(kept().deposit, (features, labels.astype(str)))
    with pytest.raises(DataError, match="features"):
        answers(kept().deposit, (features[:, :3], labels))
