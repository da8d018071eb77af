"""An auditor with the deposits: everything is worked out anew, and a changed number fails a check by name."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from expunge.bounds.calibration import mu_for
from expunge.bounds.region import ROUND_UP
from expunge.certificate.dossier import Certificate, digest_of
from expunge.deposit import verify
from expunge.deposit.file import Deposit, Numbers, parse_deposit
from expunge.deposit.matrices import Blocks
from expunge.deposit.region import smallest_region
from expunge.deposit.verify import succession_checks, verify_deposits
from expunge.errors import FileError, VerificationFailed
from expunge.mechanism import Unlearned
from expunge.model import LinearModel, from_matrix
from expunge.runtime.arrays import copy, norm, size
from expunge.train import train
from expunge.unlearn import deposit, unlearn
from small_deposit import kept, rows, source, trained

pytestmark = pytest.mark.usefixtures("one_thread")


@functools.cache
def result() -> Unlearned:
    return unlearn(trained(), rows(1, 2, 3), epsilon=1.0, delta=1e-3, deposit=kept().deposit)


@pytest.fixture
def published(tmp_path: Path) -> Path:
    (tmp_path / "model.safetensors").write_bytes(result().model.to_bytes())
    return tmp_path / "model.safetensors"


def test_an_honest_deletion_passes(published: Path) -> None:
    made = result()
    checks = verify_deposits(made.certificate, made.deposit, kept().deposit, rows(1, 2, 3), published)
    names = {check.name for check in checks}
    assert len(names) == len(checks) > 80
    assert "deposit: the published weights are where the noise puts them" in names
    assert "deposits: without the forgotten rows: the curvature" in names


def test_so_does_it_from_files_and_after_another(published: Path, tmp_path: Path) -> None:
    first = result()
    second = unlearn(trained(), rows(5), epsilon=0.5, delta=1e-4, deposit=first.deposit)
    read = [parse_deposit(each.to_bytes(), tmp_path) for each in (first.deposit, second.deposit)]
    verify_deposits(second.certificate, read[1], read[0], rows(5))


@pytest.mark.parametrize("seed", [27, 35])
def test_shapes_of_few_digits(seed: int) -> None:
    """Levels of a category beside an intercept, one column in the thousands, hardly regularised."""
    rng = np.random.default_rng(seed)
    X = np.c_[np.eye(8)[rng.integers(8, size=300)], np.exp(rng.normal(size=(300, 8)))]
    X[:, 8] *= 1e3
    y = np.argmax(X / np.abs(X).max() @ rng.normal(size=(16, 3)) + rng.gumbel(size=(300, 3)), axis=1)
    model = train(X, y, l2=7e-5, max_norm=1.01 * float(np.linalg.norm(X, axis=1).max()), loss="ridge", bias=True)
    before = deposit(model, X, y, seed=seed)
    assert before.ellipsoid.largest / before.ellipsoid.least > 1e9
    made = unlearn(model, (X[:1], y[:1]), epsilon=1.0, delta=1e-5, deposit=before, force=True, noise="exact")
    verify_deposits(made.certificate, made.deposit, before, (X[:1], y[:1]))


def test_what_a_step_left_cannot_be_left_out_of_the_region() -> None:
    """A smaller solver term is within what rounding may change of it; the region without it is not the region."""
    model = train(*source(), l2=0.05, max_norm=3.0, loss="ridge")
    before = deposit(model, *source(), seed=1)
    made = unlearn(model, rows(4, 7), epsilon=1.0, delta=1e-3, deposit=before)
    result = smallest_region(made.deposit.problem)
    assert result is not None
    larger = replace(result, facts=replace(result.facts, solver=result.facts.rounding))  # as a rough step would have it
    content = deepcopy(made.certificate.content)
    checks = verify.region_checks(content, made.deposit, larger, larger.region.radius)
    failed = [check.name for check in checks if not check.passed]
    assert failed == ["deposit: bound.total is no less than the region"]


def one_feature(rng: np.random.Generator) -> tuple[Any, Any, dict[str, Any], int]:
    """All gauges are one ellipsoid, so that several routes are as small as each other."""
    X = rng.standard_t(3, size=(200, 1))
    y = np.argmax(X @ rng.normal(size=(1, 5)) + rng.gumbel(size=(200, 5)), axis=1)
    y[:5] = np.arange(5)
    return X, y, {"loss": "one-vs-rest", "l2": 1e-4, "bias": False}, 20


def few_are_left(rng: np.random.Generator) -> tuple[Any, Any, dict[str, Any], int]:
    """The retained rows' own matrix has fewer digits than the source's."""
    X = rng.standard_t(3, size=(8, 6))
    X[0] *= 1e4
    return X, np.arange(8) % 2, {"loss": "ridge", "l2": 1e-2, "bias": True}, 2


def every_row_twice(rng: np.random.Generator) -> tuple[Any, Any, dict[str, Any], int]:
    """One copy of each leaves: the update is rounding, and so is the region."""
    X = rng.standard_t(4, size=(20, 5))
    y = np.argmax(X @ rng.normal(size=(5, 5)) + rng.gumbel(size=(20, 5)), axis=1)
    y[:5] = np.arange(5)
    return np.r_[X, X], np.r_[y, y], {"loss": "softmax", "l2": 2.8e-3, "bias": True}, 20


@pytest.mark.parametrize("problem", [one_feature, few_are_left, every_row_twice])
@pytest.mark.parametrize("seed", range(2))
def test_another_machine_s_last_digits_change_nothing(problem: Callable[..., Any], seed: int) -> None:
    rng, generator = np.random.default_rng(seed), np.random.default_rng([1, seed])
    X, y, options, m = problem(rng)
    model = train(X, y, max_norm=1.01 * float(np.linalg.norm(X, axis=1).max()), **options)
    before = deposit(model, X, y, seed=0)
    noise = "exact" if problem is one_feature else None  # it needs more than there are levels
    made = unlearn(model, (X[-m:], y[-m:]), epsilon=1.0, delta=1e-5, deposit=before, force=True, noise=noise)

    def nudged(values: np.ndarray) -> np.ndarray:
        return values * (1.0 + 2.0**-53 * generator.uniform(-1.0, 1.0, values.shape))

    def each(blocks: Blocks) -> Blocks:
        values = nudged(blocks.values)
        return replace(blocks, values=(values + values.mT) / 2)

    verify_deposits(made.certificate, made.deposit, before, (X[-m:], y[-m:]))
    sums = made.deposit.sums
    for _ in range(2):
        third = None if sums.third is None else nudged(sums.third)
        weighted, gradient = tuple(map(each, sums.weighted)), nudged(sums.gradient)
        other = replace(sums, curvature=each(sums.curvature), weighted=weighted, gradient=gradient, third=third)
        verify_deposits(made.certificate, replace(made.deposit, sums=other))


def test_a_region_that_is_next_to_nothing_beside_what_drawing_adds() -> None:
    content, after = deepcopy(result().certificate.content), result().deposit
    again = smallest_region(after.problem)
    assert again is not None
    radius, terms = again.region.radius, content["bound"]["terms"]
    terms["drawing"] = 1e5 * radius
    content["bound"]["total"] = math.fsum(terms.values()) * ROUND_UP
    checks = verify.region_checks(content, after, again, radius)
    assert not [check.name for check in checks if not check.passed]


def bumped(value: Any) -> Any:
    if isinstance(value, tuple):
        return (bumped(value[0]), *value[1:])
    if isinstance(value, str):
        return value[:-1] + ("0" if value[-1] != "0" else "1")
    return value + 1 if isinstance(value, int) else value * 1.01 + 1e-9


def changed(given: Deposit, name: str) -> Deposit:
    return replace(given, numbers=replace(given.numbers, **{name: bumped(getattr(given.numbers, name))}))


def nudged(tensor: np.ndarray) -> np.ndarray:
    moved = copy(tensor)
    moved.reshape(-1)[0] += 1e-4 * float(abs(moved).max())
    return moved


def stepped(tensor: np.ndarray) -> np.ndarray:
    """One whole number off by one."""
    moved = copy(tensor)
    moved.reshape(-1)[0] += 1.0
    return moved


def in_sums(given: Deposit, **changes: Callable[[Any], Any]) -> Deposit:
    made = {name: change(getattr(given.sums, name)) for name, change in changes.items()}
    return replace(given, sums=replace(given.sums, **made))


PARTS: dict[str, Callable[[Deposit], Deposit]] = {
    "gradient": lambda d: in_sums(d, gradient=nudged),
    "curvature": lambda d: in_sums(d, curvature=lambda m: replace(m, values=nudged(m.values))),
    "weighted": lambda d: in_sums(d, weighted=lambda all: (replace(all[0], values=nudged(all[0].values)), *all[1:])),
    "gradient error": lambda d: in_sums(d, gradient_error=lambda e: e / 2),
    "curvature error": lambda d: in_sums(d, curvature_error=lambda e: e / 2),
    "weighted errors": lambda d: in_sums(d, weighted_errors=lambda all: tuple(e / 2 for e in all)),
    "moments": lambda d: in_sums(d, gram=lambda g: replace(g, parts=stepped(g.parts))),
    "support": lambda d: in_sums(d, gram=lambda g: replace(g, support=stepped(g.support))),
    "gauge": lambda d: replace(d, gauges=(replace(d.gauges[0], factor=nudged(d.gauges[0].factor)), *d.gauges[1:])),
    "anchor": lambda d: replace(d, model=replace(d.model, weight=nudged(d.model.weight))),
    "record": lambda d: replace(d, model=replace(d.model, record=replace(d.record, l2=d.record.l2 * 1.01))),
    "hashes": lambda d: replace(d, hashes=replace(d.hashes, digests=flipped(d.hashes.digests))),
}


def flipped(digests: tuple[Any, ...]) -> tuple[Any, ...]:
    first = np.array(digests[0])
    first[3, 3] ^= 1
    return (first, *digests[1:])


PARTS |= {
    field.name: lambda d, name=field.name: changed(d, name)  # type: ignore[misc]
    for field in fields(Numbers)
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("which", ["before", "after"])
def test_a_changed_number_or_part_of_either_deposit_fails(part: str, which: str) -> None:
    before, after = kept().deposit, result().deposit
    before = PARTS[part](before) if which == "before" else before
    after = PARTS[part](after) if which == "after" else after
    with pytest.raises(VerificationFailed, match="deposit"):
        verify_deposits(result().certificate, after, before, rows(1, 2, 3))


@functools.cache
def of_sigmoids() -> tuple[Unlearned, Deposit]:
    model = train(*source(), l2=0.05, max_norm=3.0, loss="one-vs-rest")
    before = deposit(model, *source(), seed=1)
    return unlearn(model, rows(1, 2, 3), epsilon=1.0, delta=1e-3, deposit=before), before


THIRD: dict[str, Callable[[Deposit], Deposit]] = {
    "changed": lambda d: in_sums(d, third=nudged),
    "error": lambda d: in_sums(d, third_error=lambda e: e / 2),
    "gone": lambda d: in_sums(d, third=lambda _: None),
    "far away": lambda d: in_sums(d, third=lambda t: t + 10.0 * float(norm(t))),
}


@pytest.mark.parametrize("part", THIRD)
@pytest.mark.parametrize("which", ["before", "after"])
def test_third_derivatives_are_checked_where_they_are_kept(part: str, which: str) -> None:
    made, before = of_sigmoids()
    after, forget = made.deposit, rows(1, 2, 3)
    assert after.sums.third is not None
    assert made.certificate.content["bound"]["convention"].endswith("third order")
    verify_deposits(made.certificate, after, before, forget)
    before = THIRD[part](before) if which == "before" else before
    after = THIRD[part](after) if which == "after" else after
    with pytest.raises(VerificationFailed, match="deposit"):
        verify_deposits(made.certificate, after, before, forget)


@pytest.mark.parametrize("name", ["rounding", "shape_ratio", "reach", "update_curved", "weights_length"])
def test_a_changed_fact_of_the_dossier_fails(name: str) -> None:
    content = deepcopy(result().certificate.content)
    content["bound"]["inputs"][name]["value"] *= 1.01 if name == "rounding" else 1.0001
    with pytest.raises(VerificationFailed, match=f"deposit: {name}"):
        verify_deposits(Certificate(content), result().deposit)


def test_a_total_that_is_not_the_sum_of_its_terms_fails() -> None:
    content = deepcopy(result().certificate.content)
    content["bound"]["total"] *= 0.9
    with pytest.raises(VerificationFailed, match=r"deposit: bound\.total is the sum"):
        verify_deposits(Certificate(content), result().deposit)


def test_what_the_deposits_do_not_show_is_checked_too() -> None:
    """Terms that are none, and less noise for a larger delta, in a dossier whose digest is its own."""

    def negative(content: Any) -> None:
        content["bound"]["terms"]["drawing"] = -content["bound"]["total"]
        content["bound"]["total"] = math.fsum(content["bound"]["terms"].values()) * ROUND_UP
        content["sigma"] = result().deposit.levels[0]

    def renamed(content: Any) -> None:
        content["bound"]["terms"]["more"] = content["bound"]["terms"].pop("remainder")

    def spent(content: Any) -> None:
        target = mu_for(content["epsilon"], content["noise"]["delta_for_noise"])
        content["noise"]["delta_for_noise"] = 0.4
        content["sigma"] *= target / mu_for(content["epsilon"], 0.4)

    for forged in (negative, renamed, spent):
        content = deepcopy(result().certificate.content)
        forged(content)
        content["digest"] = digest_of(content)
        with pytest.raises(VerificationFailed):
            verify_deposits(Certificate(content), result().deposit)


def test_a_larger_level_than_is_needed_is_told() -> None:
    content, after = deepcopy(result().certificate.content), result().deposit
    again = smallest_region(after.problem)
    assert again is not None
    radius = again.region.radius
    assert not [check.name for check in verify.noise_checks(content, after, radius) if not check.passed]
    content["sigma"] *= 4.0
    failed = [check.name for check in verify.noise_checks(content, after, radius) if not check.passed]
    assert failed == ["deposit: no smaller level covers the region"]
    for sigma in (content["sigma"] * 1.5, after.levels[-1] * 4.0, after.levels[0] / 4.0):
        content["sigma"] = sigma
        failed = [check.name for check in verify.noise_checks(content, after, radius) if not check.passed]
        assert "deposit: sigma is one of the levels" in failed


def test_exact_noise_is_of_no_list_and_covers_the_region() -> None:
    made = unlearn(trained(), rows(1, 2, 3), epsilon=1.0, delta=1e-3, deposit=kept().deposit, noise="exact")
    verify_deposits(made.certificate, made.deposit, kept().deposit, rows(1, 2, 3))
    content = deepcopy(made.certificate.content)
    content["sigma"] *= 0.99
    with pytest.raises(VerificationFailed, match="the noise covers the region"):
        verify_deposits(Certificate(content), made.deposit)


def test_exact_noise_may_be_finer_than_the_finest_grid(published: Path) -> None:
    """Long rows make for small weights, and those are rounded to a grid that is never finer than a last one."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4)) * 1e3
    y = (X[:, 0] + 1e3 * rng.normal(size=300) > 0).astype(int)
    model = train(X, y, l2=1e4, max_norm=8e3, loss="ridge")
    before, gone = deposit(model, X, y, seed=0), (X[:3], y[:3])
    made = unlearn(model, gone, epsilon=1.0, delta=1e-4, deposit=before, noise="exact", force=True)
    published.write_bytes(made.model.to_bytes())
    verify_deposits(made.certificate, made.deposit, before, gone, published)


def test_other_rows_are_not_those_that_left() -> None:
    made = result()
    for others in (rows(1, 2), rows(1, 2, 3, 4)):
        with pytest.raises(VerificationFailed, match="as many rows are given as left"):
            verify_deposits(made.certificate, made.deposit, kept().deposit, others)
    with pytest.raises(VerificationFailed, match="without the forgotten rows"):
        verify_deposits(made.certificate, made.deposit, kept().deposit, rows(1, 2, 4))
    with pytest.raises(VerificationFailed, match="were in the deposit before"):
        verify_deposits(made.certificate, made.deposit, kept().deposit, (source()[0][:3] + 1.0, source()[1][:3]))
    narrow = rows(1, 2, 3)[0].astype(np.float32).astype(float), rows(1, 2, 3)[1]
    with pytest.raises(VerificationFailed, match="given as they were when they were forgotten"):
        verify_deposits(made.certificate, made.deposit, kept().deposit, narrow)


def test_weights_without_their_noise_or_with_more_are_seen(published: Path) -> None:
    made, left = result(), result().deposit
    step = smallest_region(left.problem)
    assert step is not None
    updated = from_matrix(left.anchor + step.update, bias=True, dtype=np.float64)
    for weights in (updated, LinearModel(3 * made.model.weight, made.model.bias)):
        published.write_bytes(weights.to_bytes())
        with pytest.raises(VerificationFailed, match="where the noise puts them"):
            verify_deposits(made.certificate, made.deposit, model=published)


def test_a_dossier_without_a_deposit_is_none_of_its(trained_elsewhere: Certificate) -> None:
    with pytest.raises(FileError, match="without a deposit"):
        verify_deposits(trained_elsewhere, result().deposit)


@pytest.fixture
def trained_elsewhere() -> Certificate:
    X, y = source()
    made = unlearn(trained(), rows(1), (X, y), epsilon=5.0, delta=1e-2, distance="same", force=True)
    return made.certificate


# One deposit after another: what shows that some rows left, and nothing else happened


@pytest.fixture(scope="module")
def after() -> Deposit:
    left: Deposit = unlearn(trained(), rows(1, 2), epsilon=1.0, delta=1e-3, deposit=kept().deposit).deposit
    return left


def failed(before: Deposit, after: Deposit) -> set[str]:
    return {check.name for check in succession_checks(before, after) if not check.passed}


def test_the_next_follows(after: Deposit) -> None:
    assert failed(kept().deposit, after) == set()


def test_nothing_follows_itself_or_what_came_before(after: Deposit) -> None:
    assert "deposits: rows left" in failed(after, after)
    assert "deposits: the generation is the next" in failed(after, kept().deposit)
    assert "deposits: row hashes are those of before, some gone" in failed(after, kept().deposit)


def test_a_long_column_hides_no_change_of_another() -> None:
    """A thousand-millionth of the whole curvature is more than an ordinary column has."""
    rng = np.random.default_rng(0)
    X, y = np.c_[rng.normal(size=(50, 4)), 2e4 * np.exp(0.3 * rng.normal(size=50))], np.arange(50) % 3
    model = train(X, y, l2=0.01, max_norm=1.01 * float(np.linalg.norm(X, axis=1).max()), loss="ridge", bias=True)
    before, forget = deposit(model, X, y, seed=0), (X[5:8], y[5:8])
    after = unlearn(model, forget, epsilon=1.0, delta=1e-5, deposit=before, force=True).deposit
    assert not [check.name for check in succession_checks(before, after, forget) if not check.passed]
    values = copy(after.sums.curvature.values)
    values[:, 0, 0] -= 5e-10 * float(norm(values))
    wrong = replace(after, sums=replace(after.sums, curvature=replace(after.sums.curvature, values=values)))
    names = {check.name for check in succession_checks(before, wrong, forget) if not check.passed}
    assert names == {"deposits: without the forgotten rows: the curvature"}


@pytest.mark.parametrize("loss", ["ridge", "softmax"])
def test_a_series_cannot_drift(loss: str) -> None:
    """What a deposit inherits, and what copies were charged, is no room for the next: only what taking rows out loses."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    y = (X[:, 0] + rng.normal(size=300) > 0).astype(int)
    model = train(X, y, l2=0.05, max_norm=10.0, loss=loss)
    after = deposit(model, X, y, seed=0)
    for forget in ((np.round(X[:1], 6), y[:1]), (X[1:2], y[1:2])):
        before = after
        after = unlearn(model, forget, epsilon=1.0, delta=1e-4, deposit=before, force=True).deposit
        assert not [check.name for check in succession_checks(before, after, forget) if not check.passed]
        sums = after.sums
        away = np.ones_like(sums.gradient) / size(sums.gradient) ** 0.5
        for share, refused in ((1e-4, True), (1e-12, False)):
            shifted = replace(sums, gradient=sums.gradient + share * sums.gradient_error * away)
            names = {
                one.name for one in succession_checks(before, replace(after, sums=shifted), forget) if not one.passed
            }
            assert names == ({"deposits: without the forgotten rows: the gradient"} if refused else set())


def test_another_source_s_deposit_is_another(after: Deposit) -> None:
    numbers = replace(after.numbers, key="00" * 32)
    assert failed(kept().deposit, replace(after, numbers=numbers)) == {"deposits: key is frozen"}
