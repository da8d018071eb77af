"""Evidence from a surrogate's curvature: every number against a naive form, what is refused, and what nothing shows."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.linalg import block_diag, eigh

import expunge
import reference
from asking import asked
from expunge.bounds.curvature import STEP
from expunge.certificate.statement import statement_of
from expunge.certificate.verify import statement_checks, verify, verify_statement
from expunge.curvature import CurvedEvidence, CurvedNorm, CurvedRows, closed_norm, reach_of, require_curved
from expunge.distance import Distance
from expunge.errors import DataError, OptionError, VacuousClaim, VerificationFailed
from expunge.heads import Rows, head_for
from expunge.mechanism import certify, gather, measure
from expunge.request.promise import Promise, Series

pytestmark = pytest.mark.usefixtures("one_thread")
LOSSES = ("softmax", "one-vs-rest", "ridge")
Array = Any


def rows_for(loss: str, *, weighted: bool = False, classes: int = 3, s: int = 60, l2: float = 0.01) -> CurvedRows:
    rng = np.random.default_rng([len(loss), weighted])
    X, y = reference.random_rows(rng, s, 4, classes)
    weights = rng.uniform(0.3, 2.0, s)
    W, U = (scale * rng.normal(size=(classes, 4)) for scale in (2.0, 0.3))
    if loss == "softmax":
        W, U = W - W.mean(axis=0), U - U.mean(axis=0)
    head = head_for(loss, l2=l2, n_classes=classes, n_features=4, row_bound=1.0)
    return CurvedRows(head, W, U, Rows(X, y, weights / weights.mean() if weighted else None))


def hessians(rows: CurvedRows) -> Array:
    """Each row's own Hessian at the updated weights, s x p x p, without the regulariser."""
    made = []
    for x, p in zip(rows.features, rows.predicted, strict=True):
        curve = {
            "softmax": np.diag(p) - np.outer(p, p),
            "one-vs-rest": np.diag(p * (1 - p)),
            "ridge": np.eye(len(p)),
        }[rows.head.name]
        made.append(np.kron(curve, np.outer(x, x)))
    return np.array(made)


def whole(found: CurvedNorm | Any, rows: CurvedRows) -> Array:
    """M as one matrix."""
    values = found.matrix.values
    if rows.head.name == "ridge":
        return np.kron(np.eye(rows.head.n_classes), values[0])
    return values[0] if len(values) == 1 else block_diag(*values)


def without_common(matrix: Array, rows: CurvedRows) -> Array:
    """A matrix among weights whose classes sum to zero, where they compete."""
    if rows.head.name != "softmax":
        return matrix
    classes, width = rows.head.n_classes, rows.head.n_features
    basis = np.linalg.svd(np.eye(classes) - 1.0 / classes)[0][:, : classes - 1]
    wide = np.kron(basis, np.eye(width))
    return np.asarray(wide.T @ matrix @ wide)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_norm_is_below_kappa_times_the_damped_hessian_and_hardly(loss: str, weighted: bool) -> None:
    rows = rows_for(loss, weighted=weighted)
    exponents = np.random.default_rng(1).uniform(0.0, 2.0, len(rows.features))
    found = rows.norm(0.3, exponents)
    assert found is not None
    shares = rows.shares * np.exp(-exponents)
    naive = 0.3 * (
        (shares[:, None, None] * hessians(rows)).mean(axis=0) + rows.head.l2 * np.eye(rows.head.n_parameters)
    )
    ratios = eigh(without_common(whole(found, rows), rows), without_common(naive, rows), eigvals_only=True)
    assert ratios.max() <= 1.0, "rounded down"
    assert ratios.min() >= 1.0 - 1e-5


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_lengths_of_rows_are_those_of_the_matrices_formed(loss: str, weighted: bool) -> None:
    """c_i as the largest range over outputs for an e of length 1, the change of gradient in M^-1, and by the M of the others."""
    rows, kappa = rows_for(loss, weighted=weighted), 0.4
    exponents = np.random.default_rng(2).uniform(0.0, 1.0, len(rows.features))
    found = rows.norm(kappa, exponents)
    assert found is not None
    lengths = rows.lengths(found, kappa, exponents)
    assert lengths is not None
    matrix, classes = whole(found, rows), rows.head.n_classes
    inverse, each = np.linalg.inv(matrix), hessians(rows)
    for index, x in enumerate(rows.features):
        pairs = [np.eye(classes)[k] for k in range(classes)]
        if loss == "softmax":
            pairs = [one - other for one in pairs for other in pairs]
        widest = max(math.sqrt(max(0.0, np.kron(a, x) @ inverse @ np.kron(a, x))) for a in pairs)
        assert widest * (1.0 - 1e-12) <= lengths.concordance[index] <= widest * (1.0 + 1e-5)
        change = np.kron(rows.changes[index], x)
        plain = math.sqrt(change @ inverse @ change)
        assert plain * (1.0 - 1e-12) <= lengths.lengths[index] <= plain * (1.0 + 1e-5)
        own = kappa * rows.shares[index] * math.exp(-exponents[index]) / len(rows.features)
        others = math.sqrt(change @ np.linalg.solve(matrix - own * each[index], change))
        assert lengths.longer[index] == pytest.approx(others / plain, rel=1e-6)
        assert lengths.longer[index] > 1.0


@pytest.mark.parametrize("loss", LOSSES)
def test_no_row_flattens_faster_than_its_exponent_and_some_nearly_as_fast(loss: str) -> None:
    """Within `||e||_M <= x` every row's Hessian is at least `e^(-c_i x)` times what it was; with less it would not be."""
    rows, rng = rows_for(loss), np.random.default_rng(5)
    found = rows.norm(0.4)
    assert found is not None
    lengths = rows.lengths(found, 0.4, np.zeros(len(rows.features)))
    assert lengths is not None
    factor, before, closest = np.linalg.cholesky(whole(found, rows)), hessians(rows), 1.0
    for _ in range(40):
        index = int(rng.integers(len(rows.features)))
        x, size = rows.features[index], rng.choice([0.1, 0.3, 1.0])
        pair = rng.normal(size=rows.head.n_classes)
        if rng.random() < 0.7:  # towards what moves this row's outputs most
            pair = np.eye(rows.head.n_classes)[0]
            pair = pair - np.eye(rows.head.n_classes)[1] if loss == "softmax" else pair
        inward = np.linalg.solve(factor, np.kron(pair, x))
        away = np.linalg.solve(factor.T, inward / np.linalg.norm(inward)) * size * rng.choice([-1.0, 1.0])
        moved = replace(rows, update=rows.update + away.reshape(rows.update.shape))
        after = hessians(moved)[index]
        if loss == "ridge":
            np.testing.assert_array_equal(after, before[index])
            continue
        least = math.exp(-lengths.concordance[index] * size)
        gap = after - least * before[index]
        assert np.linalg.eigvalsh(gap)[0] >= -1e-12 * np.linalg.norm(before[index])
        seen = before[index].trace() > 0 and float(np.linalg.eigvalsh(after - least**0.5 * before[index])[0])
        closest = min(closest, seen / np.linalg.norm(before[index]))
    assert loss == "ridge" or closest < -1e-4, "the root of it would be too much to ask"


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_moments_are_those_of_the_changes_as_the_others_measure_them(loss: str, weighted: bool) -> None:
    rows, kappa = rows_for(loss, weighted=weighted), 0.4
    exponents = np.zeros(len(rows.features))
    found = rows.norm(kappa, exponents)
    assert found is not None
    lengths = rows.lengths(found, kappa, exponents)
    assert lengths is not None
    moments = rows.moments(found, lengths, 1e-6, 0.02, np.random.default_rng(0))
    changes = np.array([np.kron(c, x) for c, x in zip(rows.changes, rows.features, strict=True)])
    factor = np.linalg.cholesky(whole(found, rows))
    white = np.linalg.solve(factor, changes.T).T * lengths.longer[:, None]
    mean = np.linalg.solve(factor, (rows.shares[:, None] * changes).mean(axis=0))
    sizes, square = np.linalg.norm(white, axis=1), float(mean @ mean)
    second = (rows.shares[:, None, None] * white[:, :, None] * white[:, None, :]).mean(axis=0)
    eigenvalue = float(np.linalg.eigvalsh(second - np.outer(mean, mean))[-1])
    for name, naive, above in (
        ("change_mean", math.sqrt(square), 1e-5),
        ("change_trace", float((rows.shares * sizes**2).mean()) - square, 1e-4),
        ("change_longest", float(sizes.max()), 1e-5),
        ("change_largest", float(sizes.max()) + math.sqrt(square), 1e-5),
        ("change_eigenvalue", eigenvalue, 0.03),
        ("sampled_trace", float((rows.shares**2 * sizes**2).mean()), 1e-4),
        ("longest_row", float(np.linalg.norm(rows.features, axis=1).max()), 1e-12),
    ):
        assert naive * (1.0 - 1e-9) <= getattr(moments, name) <= naive * (1.0 + above), name
    least = np.linalg.eigvalsh(without_common(whole(found, rows), rows))[0]
    sup = rows.head.change_sup(rows.update) / math.sqrt(least)
    assert sup * (1.0 - 1e-9) <= moments.change_supremum <= sup * 1.02
    weight = float(rows.shares.max())
    assert moments.sampled_largest == pytest.approx(weight * moments.change_largest)
    assert moments.sampled_eigenvalue <= weight * (moments.change_eigenvalue + moments.change_mean**2) * (1 + 1e-12)
    assert moments.change_fourth >= float((rows.shares * ((white - mean) ** 2).sum(axis=1) ** 2).mean())
    assert rows.moments(found, lengths, None, 0.02, np.random.default_rng(0)).change_eigenvalue == moments.change_trace


@pytest.mark.parametrize("loss", LOSSES)
def test_the_reach_is_what_the_exponents_allow_every_row(loss: str) -> None:
    rows, asked_for = rows_for(loss, l2=0.1), []

    def radius(found: CurvedNorm) -> float:
        asked_for.append(found.reach)
        return 0.05

    found = closed_norm(rows, 0.5, radius)
    assert found is not None
    assert found.reach == asked_for[-1] >= 0.05
    if loss == "ridge":
        assert len(asked_for) == 1, "squares do not flatten"
        return
    assert asked_for[0] == 0.0
    assert closed_norm(rows, 0.5, lambda _: 1e6) is None
    assert closed_norm(rows, 0.5, lambda _: math.inf) is None
    concordance = np.array([2.0, 4.0, 0.0])
    assert reach_of(rows.head, np.array([1.0, 1.0, 0.0]), concordance) == pytest.approx(0.25, rel=1e-5)
    assert reach_of(rows.head, np.array([1.0, 1.0, 0.0]), concordance) < 0.25


@pytest.mark.parametrize("loss", LOSSES)
def test_the_ratio_of_halves_is_about_the_smallest_that_halves_have(loss: str) -> None:
    """Against the matrices of as many splits formed; other splits, and the symmetric form, differ a little."""
    rows = rows_for(loss, s=400)
    found = rows.ratio_of_halves(np.random.default_rng(3))
    each, rng, smallest = hessians(rows), np.random.default_rng(4), 1.0
    ridge = rows.head.l2 * np.eye(rows.head.n_parameters)
    for _ in range(20):
        order = rng.permutation(len(each))
        one, other = (without_common(each[part].mean(axis=0) + ridge, rows) for part in (order[:200], order[200:]))
        smallest = min(smallest, *(float(eigh(a, b, eigvals_only=True)[0]) for a, b in ((one, other), (other, one))))
    assert found == pytest.approx(smallest, rel=0.2)


# The whole way -------------------------------------------------------------------------------------------------------


def drawn(loss: str = "softmax", *, n: int = 600, seed: int = 0, l2: float = 0.005) -> dict[str, Any]:
    rng = np.random.default_rng([seed, len(loss)])
    classes = 2 if loss == "logistic" else 3
    X = rng.normal(size=(2 * n, 4))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = (3.0 * X @ rng.normal(size=(4, classes)) + rng.gumbel(size=(2 * n, classes))).argmax(axis=1)
    model = expunge.train(X[:n], y[:n], l2=l2, max_norm=1.0, loss=loss)
    return {"model": model, "forget": (X[:3], y[:3]), "surrogate": (X[n:], y[n:])}


def request_for(given: dict[str, Any], **options: Any) -> Any:
    usual = {"epsilon": 1.0, "delta": 1e-4, "distance": Distance("same", 0.0), "curvature": "auto", "force": True}
    return asked(given["model"], given["forget"], given["surrogate"], **(usual | options))


@pytest.mark.parametrize("loss", [*LOSSES, "logistic"])
def test_a_certificate_names_the_curvature_first_and_verifies(loss: str) -> None:
    request = request_for(drawn(loss))
    result = certify(request, measure(request, seed=0))
    content, statement = result.certificate.content, result.statement.content
    verify(result.certificate)
    verify_statement(result.statement, None, result.certificate)
    kappa, seen = (content["bound"]["inputs"][name]["value"] for name in ("curvature", "curvature_seen"))
    assert 0.0 < kappa <= 0.5 * seen
    assert f"at least {kappa:g} times as much as the surrogate rows" in content["assumptions"][0]
    assert f"{seen:.2g} times)" in content["assumptions"][0]
    assert statement["assumptions"][0].startswith(content["assumptions"][0][:60])
    assert f"{seen:.2g} times)" not in statement["assumptions"][0]
    assert statement["status"] == "conditional"
    assert "made from the surrogate rows alone" in statement["guarantee"]
    assert statement["bound"] == {"kind": "curvature", "declared": ["curvature"], "curvature": kappa}
    assert not {"curvature_seen", "curvature_least", "curvature_reach", "shape_ratio"} & set(str(statement).split("'"))


def test_less_noise_than_by_l2_alone_and_more_with_less_declared() -> None:
    given = drawn(n=3000, l2=1.0 / 3000)
    on_outputs = []
    for curvature in (None, 0.1, "auto"):
        request = request_for(given, curvature=curvature, noise="exact")
        measured = measure(request, seed=0)
        sigma = certify(request, measured, insecure_test_seed=0).certificate.sigma
        on_outputs.append(sigma * (measured.facts["output_noise"].value if curvature else 1.0))  # rows have length 1
    assert on_outputs[0] > 4.0 * on_outputs[2]
    assert on_outputs[1] > 2.0 * on_outputs[2]


def test_the_shape_of_the_noise_knows_nobody_who_left() -> None:
    """Not the model, not the rows to forget: the surrogate alone, and public numbers."""
    one, other = drawn(seed=1), drawn(seed=2)
    measured = [
        measure(request_for({**given, "surrogate": one["surrogate"]}, distance=Distance("same", 0.0)), seed=seed)
        for seed, given in ((0, one), (1, other))
    ]
    first, second = (each.retained.shape for each in measured)
    assert first is not None
    assert second is not None
    np.testing.assert_array_equal(first.factors, second.factors)
    assert [first.largest, first.least, first.inverse_trace] == [second.largest, second.least, second.inverse_trace]
    kappas = {each.facts["curvature"].value for each in measured}
    assert all(kappa / STEP == pytest.approx(round(kappa / STEP)) for kappa in kappas), "to a hundredth"


def test_a_declared_curvature_is_refused_above_half_of_what_halves_show() -> None:
    given = drawn()
    seen = CurvedEvidence.gather(request_for(given), seed=0)._ratio
    with pytest.raises(VacuousClaim, match="half of that is the most"):
        measure(request_for(given, curvature=min(0.5, 0.51 * seen)), seed=0)
    assert measure(request_for(given, curvature=0.3 * seen), seed=0).facts["curvature"].value == 0.3 * seen
    rare = np.zeros((300, 8))
    rare[np.arange(300), np.arange(300) % 2] = 1.0
    rare[:4, 2:6] = np.eye(4)  # categories of one row each
    labels = np.arange(300) // 2 % 2
    model = expunge.train(rare, labels, l2=1e-6, max_norm=2.0, loss="ridge")
    few = {"model": model, "forget": (rare[-1:], labels[-1:]), "surrogate": (rare, labels)}
    with pytest.raises(VacuousClaim, match="a larger surrogate, a larger l2"):
        measure(request_for(few, distance=Distance("tv", 0.9)), seed=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"curvature": 0.6}, "none, auto, or a number"),
        ({"curvature": 0.0}, "none, auto, or a number"),
        ({"curvature": "much"}, "none, auto, or a number"),
        ({"curvature": True}, "none, auto, or a number"),
        ({"curvature": math.nan}, "none, auto, or a number"),
        ({"step": "balanced"}, "does not hang on the bound"),
        ({"bound": "paper", "step": "newton"}, "it goes with the residual bound"),
        ({"distance": Distance("source", 0.0)}, "a declared distance"),
        ({"distance": Distance("means", 0.1)}, "a declared distance"),
        ({"curvature": None, "bound": "curvature"}, "it takes a curvature"),
    ],
)
def test_what_does_not_go_with_a_curvature_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        request_for(drawn(), **options)


def test_rows_without_labels_and_heads_too_large_are_refused() -> None:
    given = drawn()
    with pytest.raises(OptionError, match="no labels"):
        request_for({**given, "surrogate": given["surrogate"][0]})
    head = head_for("softmax", l2=0.1, n_classes=20, n_features=400, row_bound=1.0)
    with pytest.raises(OptionError, match="8,000 weights that hang together"):
        require_curved(head, None, True)
    with pytest.raises(DataError, match="in the memory of one process"):
        require_curved(replace(head, n_features=4), object(), True)
    with pytest.raises(OptionError, match="with a deposit"):
        Promise(1.0, 1e-5, curvature="auto").complete(deposit=True, surrogate=False)


def test_none_is_the_bound_by_l2() -> None:
    given = drawn()
    usual, none = (measure(request_for(given, curvature=each), seed=0) for each in (None, "none"))
    assert usual.facts == none.facts
    assert "curvature" not in usual.facts
    assert usual.retained.shape is None


def test_sampling_is_judged_in_the_norm_that_lengths_are_measured_in() -> None:
    given = drawn()
    for sampling in ("seen", "within:1"):
        request = request_for(given, distance=Distance("same", 0.0, sampling=sampling))
        evidence = CurvedEvidence.gather(request, seed=0)
        gone = CurvedRows(request.head, request.weights, evidence.step().update, request.forget)
        found, _, _ = evidence._closed
        lengths = gone.lengths(found.by, 0.0, np.zeros(3))
        assert lengths is not None
        most = float((found.lengths.lengths * found.lengths.longer).max())
        breaks = float(lengths.lengths.max()) > most
        if breaks or sampling == "within:1":  # whose halves never are as long as one another
            with pytest.raises(VacuousClaim, match="changes by"):
                evidence.facts(evidence.step())
        else:
            assert evidence.facts(evidence.step())["change_longest"].value >= most


def test_forged_numbers_are_found() -> None:
    request = request_for(drawn())
    result = certify(request, measure(request, seed=0))
    for name, value in (
        ("sampling_failure", 1e-5),
        ("curvature", 0.5),
        ("curvature_least", 1.0),
        ("curvature_reach", 1e-9),
        ("curvature_seen", 1.5),
    ):
        content = result.certificate.content
        inputs = {**content["bound"]["inputs"], name: {**content["bound"]["inputs"][name], "value": value}}
        forged = replace(result.certificate, content={**content, "bound": {**content["bound"], "inputs": inputs}})
        with pytest.raises(VerificationFailed):
            verify(forged)
    statement = result.statement.content
    told = replace(result.statement, content={**statement, "bound": {**statement["bound"], "curvature": 0.45}})
    assert any(not check.passed for check in statement_checks(told))
    assert all(check.passed for check in statement_checks(statement_of(result.certificate)))


def test_a_series_and_noise_that_was_set_go_the_same_way() -> None:
    given = drawn()
    one, many = (gather(request_for(given, series=series), seed=0) for series in (None, Series(3)))
    assert set(one.failures()) == {"sampling", "eigenvalue", "arithmetic"}
    assert set(many.failures()) == {"sampling", "eigenvalue", "arithmetic", "sequence"}
    assert many.request.promise.averaged is False
    result = certify(request := request_for(given, noise=64.0), measure(request, seed=0))
    assert result.statement.sigma == 64.0
    verify(result.certificate)
