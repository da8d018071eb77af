"""Surrogate rows weighted to the source's class counts: weights are repeats, moments are weighted, the bound holds and is smaller."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import reference
from asking import asked
from expunge import Distance, LinearModel, train, unlearn, verify
from expunge.bounds import residual_bound
from expunge.bounds.residual import ResidualFacts, klein_rio_excess, sampling_term, strict_moments, unseen_rows
from expunge.certificate.content import Certificate, digest_of
from expunge.certificate.facts import residual_facts
from expunge.data import class_matched
from expunge.errors import DataError, ModelError, OptionError, VerificationFailed
from expunge.evidence.moments import change_moments
from expunge.heads import Curvature, Rows, head_for
from expunge.mechanism import measure

pytestmark = pytest.mark.usefixtures("one_thread")
Array = Any
LOSSES = ("softmax", "ridge")


def example(loss: str, seed: int = 0, n: int = 60, width: int = 4, classes: int = 3) -> dict[str, Any]:
    """Rows with whole-number weights, and the same rows repeated as often."""
    rng = np.random.default_rng([seed, n])
    X, y = reference.random_rows(rng, n, width, classes)
    times = rng.integers(0, 4, n)
    times[0] = 5
    weights = torch.tensor(times / times.mean())
    once = Rows(torch.tensor(X), torch.tensor(y), weights)
    repeated = Rows(torch.tensor(np.repeat(X, times, axis=0)), torch.tensor(np.repeat(y, times)))
    head = head_for(loss, l2=0.1, n_classes=classes, n_features=width, row_bound=1.0)
    W, U = (torch.tensor(rng.normal(size=(classes, width))) for _ in range(2))
    return {"once": once, "repeated": repeated, "head": head, "W": W, "U": U, "X": X, "times": times}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_weight_is_a_number_of_repeats(loss: str) -> None:
    made = example(loss)
    head, W, U, once, repeated = (made[name] for name in ("head", "W", "U", "once", "repeated"))
    assert head.loss(W, once) == pytest.approx(head.loss(W, repeated), rel=1e-13)
    for left, right in (
        (head.gradient(W, once), head.gradient(W, repeated)),
        (head.change_mean(W, U, once), head.change_mean(W, U, repeated)),
        (Curvature(head, W, once).product(U), Curvature(head, W, repeated).product(U)),
        (Curvature(head, W, once).dense(), Curvature(head, W, repeated).dense()),
        (Curvature(head, W, once).class_factor(), Curvature(head, W, repeated).class_factor()),
        (Curvature(head, W, once).feature_factor(), Curvature(head, W, repeated).feature_factor()),
    ):
        torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("loss", LOSSES)
def test_weighted_moments_are_those_of_repeated_rows(loss: str) -> None:
    made = example(loss)
    found, plain = (
        change_moments(made["head"], made["W"], made["U"], made[name], failure=1e-9, heavy=True, seed=0)
        for name in ("once", "repeated")
    )
    for name in (
        "change_mean",
        "change_trace",
        "change_fourth",
        "change_supremum",
        "change_eigenvalue",
        "change_fourth_eigenvalue",
    ):
        assert getattr(found, name) == pytest.approx(getattr(plain, name), rel=1e-9), name
    assert plain.sampled_trace == plain.change_trace
    assert plain.sampled_eigenvalue == plain.change_eigenvalue
    assert plain.sampled_largest == plain.change_largest


@pytest.mark.parametrize("loss", LOSSES)
def test_what_a_weighted_mean_varies_by_is_that_of_the_table(loss: str) -> None:
    made = example(loss, n=80)
    weights = made["once"].weights.numpy()
    phi = reference.change_table(made["W"].numpy(), made["U"].numpy(), made["X"], loss)
    centred = phi - (weights[:, None] * phi).mean(axis=0)
    scaled = weights[:, None] * centred
    found = change_moments(made["head"], made["W"], made["U"], made["once"], failure=1e-9, heavy=False, seed=0)
    assert found.sampled_trace == pytest.approx((scaled**2).sum() / len(phi), rel=1e-9)
    assert found.sampled_largest == pytest.approx(np.linalg.norm(scaled, axis=1).max(), rel=1e-9)
    eigenvalue = np.linalg.eigvalsh(scaled.T @ scaled / len(phi))[-1]
    assert eigenvalue * (1 - 1e-9) <= found.sampled_eigenvalue <= eigenvalue * 1.05


def test_weights_are_ratios_of_proportions() -> None:
    rows = Rows(torch.zeros(10, 1, dtype=torch.float64), torch.tensor([0] * 5 + [1] * 4 + [2]))
    matched = class_matched(rows, (20, 80, 0), ("a", "b", "c"))
    assert matched.weights is not None
    torch.testing.assert_close(matched.weights, torch.tensor([0.36] * 5 + [1.8] * 4, dtype=torch.float64))
    assert len(matched) == 9  # the row of a class that the source had none of does not count
    assert matched.largest_weight == pytest.approx(1.8)
    assert matched.effective == pytest.approx(81 / (5 * 0.36**2 + 4 * 1.8**2))
    assert rows.effective == 10
    assert rows.largest_weight == 1.0


def test_a_class_of_the_source_that_is_absent_is_an_error() -> None:
    rows = Rows(torch.zeros(3, 1, dtype=torch.float64), torch.tensor([0, 0, 2]))
    with pytest.raises(DataError, match="no rows of class 'b'"):
        class_matched(rows, (1, 5, 1), ("a", "b", "c"))


def test_a_pure_shift_of_class_proportions_is_removed_altogether() -> None:
    made = example("softmax", n=90)
    rng = np.random.default_rng(3)
    X, y = made["X"], rng.permutation(np.arange(90) % 3)
    source = Rows(torch.tensor(X), torch.tensor(y))
    times = np.array([1, 4, 9])[y]  # the surrogate: the source's rows, each class repeated another number of times
    surrogate = Rows(torch.tensor(np.repeat(X, times, axis=0)), torch.tensor(np.repeat(y, times)))
    matched = class_matched(surrogate, (30, 30, 30), (0, 1, 2))
    head, W, U = made["head"], made["W"], made["U"]
    truth = head.change_mean(W, U, source)
    assert float((truth - head.change_mean(W, U, surrogate)).norm()) > 1e-3
    assert float((truth - head.change_mean(W, U, matched)).norm()) < 1e-14


# The bound ------------------------------------------------------------------------------------------------------

FACTS = ResidualFacts(
    n_source=100,
    n_forget=20,
    n_surrogate=25,
    l2=0.5,
    training_residual=0.04,
    solver_residual=8.0,
    rounding=2.0,
    change_mean=0.5,
    change_eigenvalue=0.64,
    change_trace=1.0,
    change_fourth=5.0,
    change_fourth_eigenvalue=2.25,
    change_largest=2.5,
    change_supremum=7.0,
    longest_row=1.0,
    row_bound=1.0,
    sampling_failure=math.exp(-2.0),
    weight_largest=4.0,
    sampled_trace=2.25,
    sampled_eigenvalue=1.5,
    sampled_largest=5.0,
)
MATCHED = Distance("same", 0.0, matched=True)


def test_the_sampling_term_with_weights_in_closed_form() -> None:
    expected = math.sqrt(1.0 / 100 + 2.25 / 25)
    excess = klein_rio_excess(expected, 0.64 / 100 + 1.5 / 25, 2.0 * 5.0 / 25, math.exp(-2.0))
    assert sampling_term(FACTS, MATCHED) == pytest.approx(2.5 * (expected + excess), rel=1e-14)
    # where the source is the smaller set, its own rows are the longest step
    few = replace(FACTS, n_source=30, sampled_largest=0.1)
    expected = math.sqrt(1.0 / 30 + 2.25 / 25)
    excess = klein_rio_excess(expected, 0.64 / 30 + 1.5 / 25, 2.0 * 2.5 / 30, math.exp(-2.0))
    assert sampling_term(few, MATCHED) == pytest.approx(3.0 / 0.5 * (expected + excess), rel=1e-14)


def test_unseen_rows_and_strict_moments_count_the_largest_weight() -> None:
    short = replace(FACTS, longest_row=0.5, n_surrogate=1000, sampling_failure=3.0 * math.exp(-2.0))
    mass = 2.0 * 4.0 / 1000
    count = 100 * mass + math.sqrt(400.0 * mass) + 2.0 / 3.0
    assert unseen_rows(short, MATCHED) == pytest.approx(count, rel=1e-14)
    raised = strict_moments(FACTS, 2.0)
    slack = 3.0 * math.sqrt(2.0 * 4.0 / 50.0)
    trace = (math.sqrt(1.25 + slack**2) + slack) ** 2
    assert raised.change_trace == pytest.approx(trace, rel=1e-14)
    assert raised.sampled_trace == pytest.approx(4.0 * trace, rel=1e-14)
    assert raised.sampled_largest == pytest.approx(10.0)
    assert raised.sampled_eigenvalue == pytest.approx(4.0 * min(trace, (math.sqrt(0.89 + slack**2) + slack) ** 2))


@pytest.mark.parametrize("name", ["weight_largest", "sampled_trace", "sampled_eigenvalue", "sampled_largest"])
@pytest.mark.parametrize("sampling", ["seen", "strict"])
def test_a_larger_weight_never_lowers_the_term(name: str, sampling: str) -> None:
    distance = replace(MATCHED, sampling=sampling)
    facts = replace(FACTS, longest_row=0.9)
    larger = replace(facts, **{name: 1.5 * getattr(facts, name)})
    assert sampling_term(larger, distance) >= sampling_term(facts, distance)


# Whole runs -----------------------------------------------------------------------------------------------------


def shifted_problem(
    seed: int, n: int = 600, s: int = 500
) -> tuple[LinearModel, Array, Array, Array, tuple[Array, Array]]:
    """Three classes of Gaussian rows; source and surrogate differ in class proportions alone. Also source and its labels."""
    rng = np.random.default_rng([77, seed])
    centres = rng.normal(size=(3, 6))

    def draw(count: int, shares: Array) -> tuple[Array, Array]:
        y = np.concatenate([np.arange(3), rng.choice(3, size=count - 3, p=shares)])
        X = centres[y] + rng.normal(size=(count, 6))
        return X / np.linalg.norm(X, axis=1, keepdims=True), y

    X, y = draw(n, rng.dirichlet(np.ones(3)) * 0.5 + 0.5 / 3)
    S = draw(s, rng.dirichlet(np.ones(3)) * 0.5 + 0.5 / 3)
    model = train(X, y, l2=0.05, max_norm=1.0)
    return model, X, y, rng.permutation(n)[: int(rng.integers(1, 60))], S


def deltas(seed: int, **options: Any) -> tuple[float, float]:
    """Delta and the true distance to retraining."""
    model, X, y, gone, S = shifted_problem(seed)
    request = asked(model, (X[gone], y[gone]), S, epsilon=1.0, delta=0.01, force=True, **options)
    measured = measure(request, seed=1)
    assert isinstance(request.distance, Distance)
    total = residual_bound(residual_facts(measured.facts), request.distance).radius
    kept = np.setdiff1d(np.arange(len(X)), gone)
    target = reference.retrain(X[kept], y[kept], 3, 0.05, "softmax").weights
    return total, float(np.linalg.norm(target - (request.weights + measured.step.update).numpy()))


@pytest.mark.parametrize("sampling", ["seen", "strict"])
def test_the_bound_holds_under_a_shift_of_class_proportions(sampling: str) -> None:
    distance = Distance("same", 0.0, sampling=sampling)
    ratios = []
    for seed in range(40):
        total, truth = deltas(seed, distance=distance, match_classes=True)
        assert truth <= total, seed
        ratios.append(total / truth)
    assert np.median(ratios) < (60.0 if sampling == "strict" else 30.0)


def test_matching_brings_the_updated_weights_nearer_to_retraining() -> None:
    plain = np.array([deltas(seed, distance="same")[1] for seed in range(20)])
    matched = np.array([deltas(seed, distance="same", match_classes=True)[1] for seed in range(20)])
    assert np.median(matched / plain) < 0.75


def certificate(**options: Any) -> Certificate:
    model, X, y, gone, S = shifted_problem(0, n=3000, s=3000)
    made = unlearn(
        model, (X[gone[:1]], y[gone[:1]]), S, epsilon=2.0, delta=1e-3, distance="same", match_classes=True, **options
    )
    return made.certificate


def test_a_certificate_with_matched_classes_says_so_and_verifies() -> None:
    found = certificate()
    verify(found)
    assert found.status == "conditional"
    assert found.content["distance"]["matched"] is True
    assert "weighted so that its classes have the source's proportions" in found.content["distance"]["meaning"]
    assert any("weighted by class" in sentence for sentence in found.content["assumptions"])
    assert 1 < found.content["data"]["effective_surrogate_rows"] < 3000


@pytest.mark.parametrize(
    ("name", "value"),
    [("weight_largest", 0.5), ("sampled_trace", 1e3), ("sampled_trace", None), ("weight_largest", None)],
)
def test_weights_that_cannot_be_are_found_out(name: str, value: float | None) -> None:
    content = certificate().content
    inputs = {key: dict(entry) for key, entry in content["bound"]["inputs"].items()}
    if value is None:
        del inputs[name]
    else:
        inputs[name]["value"] = value
    content = content | {"bound": content["bound"] | {"inputs": inputs}}
    content["digest"] = digest_of(content)
    with pytest.raises(VerificationFailed):
        verify(Certificate(content))


def test_class_counts_may_be_declared_for_a_model_without_a_record() -> None:
    model, X, y, gone, S = shifted_problem(1)
    assert model.record is not None
    bare = {"n_source": 600, "l2": 0.05, "loss": "softmax", "max_norm": 1.0, "training_residual": model.record.residual}
    given = {"epsilon": 1.0, "delta": 0.01, "distance": "same", "match_classes": True, "force": True}
    forget = (X[gone], y[gone])
    counts = model.record.class_counts
    request = asked(model.weight.numpy(), forget, S, class_counts=counts, **bare, **given)
    own = asked(model, forget, S, **given)
    assert own.surrogate.weights is not None
    torch.testing.assert_close(request.surrogate.weights, own.surrogate.weights)
    with pytest.raises(ModelError, match="no class counts"):
        asked(model.weight.numpy(), forget, S, **bare, **given)
    for wrong in ((300, 300), (599, 1, 1), (601, -1, 0)):
        with pytest.raises(OptionError, match="class_counts"):
            asked(model.weight.numpy(), forget, S, class_counts=wrong, **bare, **given)
    with pytest.raises(ModelError, match="record says"):
        asked(model, forget, S, class_counts=(200, 200, 200), **given)


def test_matching_needs_labels_and_a_surrogate_that_is_not_the_source() -> None:
    model, X, y, gone, S = shifted_problem(2)
    given = {"epsilon": 1.0, "delta": 0.01, "match_classes": True, "force": True}
    with pytest.raises(DataError, match="no labels"):
        asked(model, (X[gone], y[gone]), S[0], distance="same", **given)
    with pytest.raises(OptionError, match="source's classes are its own"):
        asked(model, (X[gone], y[gone]), (X, y), distance="source", **given)
    few = S[1] < 2
    with pytest.raises(DataError, match="no rows of class 2"):
        asked(model, (X[gone], y[gone]), (S[0][few], S[1][few]), distance="same", **given)


def test_a_class_with_too_few_surrogate_rows_is_refused() -> None:
    """One row that stands for a whole class has no spread: moments over it would say nothing."""
    rng = np.random.default_rng(5)
    X, y = rng.normal(size=(2000, 4)) / 3, (np.arange(2000) < 2).astype(int)
    model = train(X, y, l2=0.01, max_norm=1.0)
    S, sy = rng.normal(size=(401, 4)) / 3, (np.arange(401) > 0).astype(int)
    given = {"epsilon": 1.0, "delta": 1e-4, "match_classes": True, "force": True}
    with pytest.raises(DataError, match="count as few as 1"):
        asked(model, (X[5:9], y[5:9]), (S, sy), distance="same", **given)
    # 5 rows for 99.9 % of the source: 400 rows, of which 5 count
    with pytest.raises(DataError, match="count as few as 5"):
        asked(model, (X[5:9], y[5:9]), (S[:400], (np.arange(400) >= 5).astype(int)), distance="chi2:0.1", **given)


def test_rows_of_classes_that_do_not_count_are_left_out_and_noted() -> None:
    model, X, y, gone, S = shifted_problem(3)
    assert model.record is not None
    record = model.record
    bare = {"n_source": 600, "l2": 0.05, "loss": "softmax", "max_norm": 1.0, "training_residual": record.residual}
    options = {
        "epsilon": 1.0,
        "delta": 0.01,
        "distance": "same",
        "match_classes": True,
        "force": True,
        "class_counts": (300, 300, 0),
    }
    forget = gone[y[gone] < 2]
    request = asked(model.weight.numpy(), (X[forget], y[forget]), S, **bare, **options)
    assert len(request.surrogate) == int((S[1] < 2).sum())
    assert any("classes the source had none of were left out" in note for note in request.notes)


FORGERIES = {
    "smaller moments": {"sampled_trace": 0.0, "sampled_eigenvalue": 0.0, "sampled_largest": 0.0},
    "a weight above the number of rows": {"weight_largest": 1e9},
    "too few rows count": {"weight_largest": 40.0},
    "an eigenvalue above the trace": {"sampled_eigenvalue": 1.0},
}


@pytest.mark.parametrize("name", FORGERIES)
def test_facts_that_contradict_each_other_are_found_out_even_if_all_that_follows_is_redone(name: str) -> None:
    content = certificate().content
    inputs = {key: dict(entry) for key, entry in content["bound"]["inputs"].items()}
    for fact, value in FORGERIES[name].items():
        inputs[fact]["value"] = value
    with pytest.raises(VerificationFailed, match="possible"):
        verify(redone(content | {"bound": content["bound"] | {"inputs": inputs}}))


def test_a_matched_certificate_is_not_turned_into_another() -> None:
    content = certificate().content
    inputs = {k: v for k, v in content["bound"]["inputs"].items() if k != "weight_largest" and "sampled" not in k}
    plain = {"bound": content["bound"] | {"inputs": inputs}, "distance": content["distance"] | {"matched": False}}
    with pytest.raises(VerificationFailed, match="effective_surrogate_rows"):
        verify(redone(content | plain))
    with pytest.raises(VerificationFailed, match="schema 1"):
        verify(redone(content | {"schema": "expunge/certificate/1"}, derived=False))
    with pytest.raises(VerificationFailed, match="True or False"):
        verify(redone(content | {"distance": content["distance"] | {"matched": 1}}, derived=False))


def redone(content: dict[str, Any], derived: bool = True) -> Certificate:
    """The forged content with everything that follows from its facts computed anew."""
    from expunge.certificate.derive import derive
    from expunge.certificate.verify import claim_of

    if derived:
        claim = claim_of(content)
        found = derive(claim)
        content = content | {
            "sigma": found.sigma, "status": found.status, "guarantee": found.guarantee, "assumptions": list(found.assumptions),
            "limits": list(found.limits), "distance": content["distance"] | {"meaning": claim.distance.meaning},
            "bound": content["bound"] | {"terms": dict(found.region.terms), "total": found.region.radius},
            "noise": content["noise"] | {"mu": found.mu, "delta_for_noise": found.delta_for_noise, "delta_at_sigma": found.delta_at_sigma, "grid_exponent": found.noise.grid_exponent},
        }  # fmt: skip
    return Certificate(content | {"digest": digest_of(content)})


def test_the_paper_s_total_variation_follows_from_the_distance() -> None:
    model, X, y, gone, S = shifted_problem(0, n=3000, s=3000)
    made = unlearn(
        model, (X[gone[:1]], y[gone[:1]]), S, epsilon=0.9, delta=1e-3, distance="tv:0.7", bound="paper", force=True
    )
    verify(made.certificate)
    content = made.certificate.content
    inputs = content["bound"]["inputs"] | {"tv_upper": {"value": 0.0, "provenance": "derived"}}
    with pytest.raises(VerificationFailed, match="tv_upper"):
        verify(redone(content | {"bound": content["bound"] | {"inputs": inputs}}))


def test_declared_class_counts_are_named_as_declared() -> None:
    model, X, y, gone, S = shifted_problem(1, n=3000, s=3000)
    assert model.record is not None
    bare = {
        "n_source": 3000,
        "l2": 0.05,
        "loss": "softmax",
        "max_norm": 1.0,
        "training_residual": model.record.residual,
    }
    made = unlearn(
        model.weight.numpy(), (X[gone[:1]], y[gone[:1]]), S, epsilon=2.0, delta=1e-3, distance="same", match_classes=True,
        class_counts=np.bincount(y), force=True, **bare,
    )  # fmt: skip
    verify(made.certificate)
    assert made.certificate.content["data"]["class_counts"] == np.bincount(y).tolist()
    assert any("weight_largest" in sentence for sentence in made.certificate.content["assumptions"])
