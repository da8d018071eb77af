"""What a surrogate is charged for, and what it assumes."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import expunge
import reference
from asking import asked
from expunge import surrogate
from expunge.certificate.claim import Fact, due_failures
from expunge.certificate.derive import derive
from expunge.distance import Distance
from expunge.errors import VacuousClaim
from expunge.evaluate.demo import digits
from expunge.evidence import build_claim
from expunge.mechanism import certify, gather, measure
from expunge.request.promise import Series
from expunge.request.request import Request
from expunge.runtime.arrays import copy, norm, to_numpy, zeros
from expunge.solve.linear import Ending, Step
from expunge.solve.newton import RetainedEquation
from expunge.surrogate import Moments, SourceEvidence, change_moments
from expunge.train import train
from step_problems import Example

pytestmark = pytest.mark.usefixtures("one_thread")
LOSSES = ("softmax", "ridge")


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("loss", LOSSES)
def test_what_the_mechanism_charges_for_rounding_covers_the_measured_residual(loss: str, scale: float) -> None:
    """a'(u) as computed against 64-bit mantissas, at the mechanism's own update from weights of any size."""
    for seed in range(6):
        example = Example(loss, classes=4, width=8, n=400, m=100, weights=scale, seed=seed)
        measured = measure(example.request())
        U, n, m, W, l2 = to_numpy(measured.step.update), example.n, example.m, example.W, example.l2
        labels = np.zeros(len(example.S), dtype=int)
        after, before = (reference.exact_gradient(at, example.S, labels, l2, loss) for at in (W + U, W))
        exact = (n - m) * (after - before) - m * reference.exact_gradient(W, example.X[:m], example.y[:m], l2, loss)
        retained = gather(example.request()).retained_equation
        error = float(np.sqrt(((to_numpy(retained.residual(U)) - exact) ** 2).sum()))
        charged, left = measured.facts["rounding"].value, measured.facts["solver_residual"].value
        assert 0 < error <= charged
        assert float(np.sqrt((exact**2).sum())) <= left + charged


def one_hot_request(level: int, sampling: str):
    """One of 200 one-hot rows of five levels is to be forgotten; the surrogate has four of the levels."""
    levels = np.arange(200) % 5
    rows, labels = np.eye(5)[levels], levels % 2
    model = train(rows, labels, l2=0.1, max_norm=1.0, loss="ridge")
    row = int(np.flatnonzero(levels == level)[0])
    surrogate = np.eye(5)[np.arange(120) % 4]
    distance = Distance("same", 0.0, sampling=sampling)
    options = {"epsilon": 1.0, "delta": 1e-4, "distance": distance, "force": True}
    return asked(model, (rows[[row]], labels[[row]]), surrogate, **options)


def test_seen_is_refused_where_a_forget_row_shows_that_it_is_not_all() -> None:
    with pytest.raises(VacuousClaim, match="a forget row changes by") as refused:
        measure(one_hot_request(4, "seen"), seed=0)
    assert "--sampling strict" in str(refused.value)
    measure(one_hot_request(4, "strict"), seed=0)
    measure(one_hot_request(3, "seen"), seed=0)


def some_step(request: Request) -> Step:
    return Step((zeros(request.weights) + 1.0), 1.0, 2.0, 1, 1, "newton", 0.0, Ending.STOPPED, 0.0)


def noticed(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """What moments are asked with."""
    asked_with: list[dict] = []

    def spied(*given, **options):
        asked_with.append(options)
        return change_moments(*given, **options)

    monkeypatch.setattr(surrogate, "change_moments", spied)
    return asked_with


def test_a_step_that_left_next_to_nothing_is_charged_ten_millionths_of_what_was_to_go() -> None:
    """So that the charge does not vary with the sample; one that left more is charged what it left."""
    example = Example()
    request = example.request()
    evidence, step = gather(request, seed=0), measure(request, seed=0).step
    charged = 1e-7 * float(norm(request.forgotten))
    assert step.residual < charged
    found = evidence.facts(step)
    assert found["solver_residual"].value == pytest.approx(charged, rel=1e-12, abs=0.0)
    rough = replace(step, residual=3.0 * charged)
    assert evidence.facts(rough)["solver_residual"].value == 3.0 * charged


@pytest.mark.parametrize(("text", "slack"), [("chi2:0.1", 0.02), ("tv:0.1", 0.1), ("same", 0.1)])
def test_candidates_are_ranked_by_quick_moments(text: str, slack: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanczos may fail every other time there, nothing heavy is measured and nothing told."""
    told: list[tuple] = []
    request = Example().request(distance=text)
    evidence = gather(request, seed=0, progress=lambda *now: told.append(now))
    step = some_step(request)
    asked_with = noticed(monkeypatch)
    evidence.facts(step, quick=True)
    assert not told
    evidence.facts(step)
    assert told
    quick, whole = asked_with
    assert (quick["failure"], whole["failure"]) == (0.5, evidence.failures()["eigenvalue"])
    assert (quick["heavy"], whole["heavy"]) == (False, text != "same")
    assert quick["slack"] == whole["slack"] == slack


def test_where_no_eigenvalue_is_due_none_is_bounded_and_nothing_is_spent_on_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request = Example().request(distance=Distance("tv", 0.1, "samples"))
    evidence, asked_with = gather(request, seed=0), noticed(monkeypatch)
    step = some_step(request)
    for quick in (False, True):
        facts = evidence.facts(step, quick=quick)
        assert facts["sampling_failure"].value == 0.0
    assert [options["failure"] for options in asked_with] == [None, None]


PAPER = {"bound": "paper", "constants": "paper", "step": "newton", "distance": "tv:0.01"}


def test_the_paper_s_bound_is_for_an_undamped_step() -> None:
    request = Example().request(**PAPER)
    evidence = gather(request, seed=0)
    step = measure(request, seed=0).step
    assert step.positive_definite
    facts = evidence.facts(step)
    assert (facts["n_source"].value, facts["n_forget"].value, facts["n_surrogate"].value) == (150, 15, 150)
    assert facts["tv_upper"].value == 0.01
    with pytest.raises(VacuousClaim, match="not positive definite"):
        evidence.facts(replace(step, damping=1.0))


@pytest.mark.parametrize(("sizes", "weighted"), [("source", 150), ("surrogate", 120)])
def test_the_paper_s_appendix_weights_the_surrogate_by_its_own_size(sizes: str, weighted: int) -> None:
    example = Example(surrogate=lambda rng, X: X[:120])
    evidence = gather(example.request(**PAPER, sizes=sizes))
    assert evidence.equation.n_source == weighted
    residual = gather(example.request(step="newton")).equation
    assert residual.n_source == 150, "the paper's step under the other bound"


def test_which_equation_is_solved() -> None:
    example = Example()
    assert gather(example.request(**PAPER)).paper_step
    assert gather(example.request(step="newton")).paper_step
    plain = gather(example.request(step="converged"))
    assert not plain.paper_step
    assert isinstance(plain.equation, RetainedEquation)


def test_rounding_is_charged_for_all_that_were_forgotten_earlier_ones_too() -> None:
    """The change over the retained rows' number, before and after, and every forgotten row's gradient before.

    An update as long as the weights: after it they are twice as long, and nothing if it went the other way.
    """
    request = Example().request()
    step, head = replace(some_step(request), update=copy(request.weights)), request.head
    for past, gone in ((None, 15), (object(), 40)):
        known = SimpleNamespace(
            head=head, weights=request.weights, surrogate=request.surrogate, forget=request.forget, past=past,
            n_source=150, n_forget=gone,
        )  # fmt: skip
        charged = (150 - gone) * head.rounding(request.weights, request.surrogate)
        charged += (150 - gone) * head.rounding(2 * request.weights, request.surrogate)
        charged += gone * head.rounding(request.weights, range(gone))
        found = surrogate.SurrogateEvidence(known).rounding(step)
        assert (found.value, found.provenance) == (pytest.approx(charged, rel=1e-12, abs=0.0), "derived")


def test_an_estimate_is_made_unless_it_is_given_and_then_it_must_belong(monkeypatch: pytest.MonkeyPatch) -> None:
    made = SimpleNamespace(sampled="made")
    given = SimpleNamespace(belonging_to=lambda *of: SimpleNamespace(sampled=of))
    checked: list[object] = []
    monkeypatch.setattr(surrogate, "in_memory", lambda rows, why: rows)
    monkeypatch.setattr("expunge.estimate.source.estimate_source", lambda *_, progress: made)
    monkeypatch.setattr("expunge.estimate.source.require_mixed", checked.append)
    for estimate, due in ((None, "made"), (given, ("weights", "record", "rows", "wanted"))):
        request = SimpleNamespace(
            distance="wanted", surrogate="rows", weights="weights", record="record", head=None,
            promise=SimpleNamespace(estimate=estimate),
        )  # fmt: skip
        found = surrogate.SurrogateEvidence.gather(request, seed=0, progress=lambda *_: None)
        assert found.estimate.sampled == checked[-1] == due


@pytest.mark.parametrize("planned", [None, 1, 4])
def test_one_model_spends_what_is_due_and_one_of_a_series_its_share(planned: int | None) -> None:
    series = None if planned is None else Series(planned)
    evidence = gather(Example().request(series=series))
    distance = evidence.request.distance
    found = evidence.failures()
    due = due_failures(1e-5, distance, averaged=planned != 4)
    for name, value in due.items():
        assert found[name] == pytest.approx(value / (planned or 1), rel=1e-12, abs=0.0)
    assert ("sequence" in found) == (planned == 4)


def test_what_was_seen_may_be_exceeded_by_a_billionth_and_by_no_more_than_its_factor() -> None:
    below, above = 1.0 + 1e-9, math.nextafter(1.0 + 1e-9, 2.0)
    for factor, sampling in ((1.0, "seen"), (2.0, "within:2"), (1.5, "within:1.5")):
        distance, alike = Distance("same", 0.0, sampling=sampling), [1.0] * surrogate.ONE_HALF
        surrogate.require_seen(distance, factor * below, alike)
        with pytest.raises(VacuousClaim, match="a forget row changes by"):
            surrogate.require_seen(distance, factor * above, alike)
    apart = [2.0 * below, *[1.0] * (surrogate.ONE_HALF - 1)]
    surrogate.require_seen(Distance("same", 0.0, sampling="within:2"), 0.0, apart)
    surrogate.require_seen(
        Distance("same", 0.0, sampling="seen"), 0.0, apart
    )  # which takes the largest for all there is
    with pytest.raises(VacuousClaim, match="a surrogate row changes by 2, and but for a few none by more than 1"):
        surrogate.require_seen(Distance("same", 0.0, sampling="within:2"), 0.0, [2.0 * above, *apart[1:]])


def test_within_is_refused_where_the_rows_at_hand_speak_against_it() -> None:
    with pytest.raises(VacuousClaim, match="a forget row changes by"):
        measure(one_hot_request(4, "within:2"), seed=0)
    within, strict = (
        derive(build_claim(request, measure(request, seed=0)))
        for request in map(partial(one_hot_request, 3), ("within:2", "strict"))
    )
    assert within.required <= strict.required
    assert any("more than 2 times" in sentence for sentence in within.assumptions)


WEIGHTED = {"sampled_trace", "sampled_eigenvalue", "sampled_largest"}


@pytest.mark.parametrize("weight", [None, 3.0])
def test_what_weighted_rows_vary_by_is_a_fact_where_rows_have_weights(
    weight: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Known no better than the source's class counts, which the record has; everything else was measured."""
    request = Example().request()
    assert request.record.provenance == "declared"
    evidence, step = gather(request, seed=0), some_step(request)
    rows = SimpleNamespace(has_weights=weight is not None, largest_weight=weight)
    known = SimpleNamespace(**{**vars(request), "surrogate": rows})
    for name in ("n_source", "n_forget", "n_surrogate", "weights", "head", "forgotten", "record", "promise"):
        setattr(known, name, getattr(request, name))
    moments = Moments(*(float(number) for number in range(1, 13)))
    monkeypatch.setattr(surrogate.SurrogateEvidence, "rounding", lambda *_: Fact(0.0, "derived"))
    found = replace(evidence, request=known)._residual_facts(step, moments, 0.0)
    for name, value in asdict(moments).items():
        if name not in WEIGHTED:
            assert found[name] == Fact(value, "derived" if name == "change_supremum" else "measured")
        elif weight is None:
            assert name not in found
        else:
            assert found[name] == Fact(value, "declared")
    assert found.get("weight_largest") == (None if weight is None else Fact(3.0, "declared"))


def test_rows_that_are_not_the_source_are_not_taken_for_it(parts) -> None:
    model = train(*parts["source"], l2=0.05, max_norm=2.0)
    x, y = parts["source"]
    other = np.concatenate([x[:299], x[299:] + 0.5])
    with pytest.raises(expunge.DataError, match="not the rows"):
        expunge.unlearn(model, parts["forget"], (other, y), epsilon=1.0, delta=1e-3, distance="source", force=True)


def test_the_source_itself_gives_a_tiny_bound_that_rests_on_its_being_the_source(parts) -> None:
    model = train(*parts["source"], l2=0.05, max_norm=2.0)
    certificate = expunge.unlearn(
        model, parts["forget"], parts["source"], epsilon=1.0, delta=1e-3, distance="source"
    ).certificate
    assert certificate.status == "conditional"
    assert any("the source's own" in sentence for sentence in certificate.content["assumptions"])
    assert certificate.total < 1e-6


def evidence_of(parts, **options):
    model = train(*parts["source"], l2=0.05, max_norm=2.0)
    x, y = parts["source"]
    chosen = {"epsilon": 1.0, "delta": 1e-3, "distance": "source", "force": True, **options}
    return gather(asked(model, (x[:4], y[:4]), (x, y), **chosen))


def test_the_forget_rows_are_charged_at_the_weights_after(parts) -> None:
    """An update as long as the weights: before, after and the other way round are far apart."""
    evidence = evidence_of(parts)
    request = evidence.request
    step = SimpleNamespace(update=copy(request.weights))
    charged = sum(300 * request.head.rounding(at, request.surrogate) for at in (request.weights, 2 * request.weights))
    charged += 4 * request.head.rounding(2 * request.weights, request.forget)
    assert evidence.rounding(step).value == pytest.approx(charged, rel=1e-12, abs=0.0)


@pytest.mark.parametrize(
    ("residual", "gradient", "lost", "fine"),
    [
        (1.0, 1 + 1e-6, 0.0, True),
        (1.0, math.nextafter(1 + 1e-6, 2.0), 0.0, False),
        (1.0, 1.1 + 0.9e-6, 0.1, True),
        (1.0, 1.1 + 1.1e-6, 0.1, False),
        (0.0, 0.0, 0.0, True),
        (0.0, 1e-9, 0.0, False),
    ],
)
def test_the_gradient_at_training_and_a_millionth_more_is_the_limit(residual, gradient, lost, fine) -> None:
    """And what arithmetic loses of both; what was declared is measured, not compared."""
    head = SimpleNamespace(rounding=lambda *_: lost, gradient=lambda *_: np.array([gradient]))

    def found(provenance: str) -> Fact:
        record = SimpleNamespace(residual=residual, provenance=provenance)
        return SourceEvidence(
            SimpleNamespace(head=head, weights=None, surrogate=None, record=record)
        ).training_residual()

    assert found("declared") == Fact(gradient + lost, "measured")
    if fine:
        assert found("measured") == Fact(gradient + lost, "measured")
    else:
        with pytest.raises(expunge.DataError, match="not the rows the model was trained on"):
            found("measured")


L2 = 0.1


def test_two_deletions_are_one_of_all_their_rows() -> None:
    """Nothing is carried: the second certificate is that of forgetting both at once."""
    data = digits()
    X, y = data["source"]
    model = train(X, y, l2=L2, max_norm=1.0)
    options = {"epsilon": 1.0, "delta": 1e-4, "distance": "same", "force": True}
    first = asked(model, (X[:2], y[:2]), data["surrogate"], series=Series(4), **options)
    past = first.next_past()
    assert past.n_rows == 2
    np.testing.assert_allclose(
        to_numpy(past.gradients), to_numpy(2 * first.head.gradient(first.weights, first.forget)), rtol=1e-7, atol=1e-7
    )
    second = asked(model, (X[2:5], y[2:5]), data["surrogate"], series=Series(4, 2, past), **options)
    together = asked(model, (X[:5], y[:5]), data["surrogate"], series=Series(4), **options)
    assert second.n_forget == together.n_forget == 5
    np.testing.assert_allclose(to_numpy(second.forgotten), to_numpy(together.forgotten), rtol=1e-12, atol=1e-14)
    one, other = (measure(request, seed=1) for request in (second, together))
    np.testing.assert_allclose(to_numpy(one.step.update), to_numpy(other.step.update), rtol=1e-6, atol=1e-12)
    terms = [certify(request, each).certificate.terms for request, each in ((second, one), (together, other))]
    for name in ("training", "surrogate", "sampling"):
        assert terms[0][name] == pytest.approx(terms[1][name], rel=1e-5)
    after = second.next_past()
    assert after.n_rows == 5
    np.testing.assert_allclose(to_numpy(after.gradients), to_numpy(together.forgotten), rtol=1e-12, atol=1e-14)
    assert certify(second, one).model.record.n_source == 700, "one digit: how many left is nobody's business"
