"""Certified removal: its constants by hand, its residual beside true gradients, and training anew where it is too large."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.other_methods import certified_removal
from experiments.other_methods.certified_removal import (
    AtOptimum,
    CertifiedRemoval,
    hidden_by,
    perturbation_for,
    perturbed_optimum,
    rehearsed,
    remove,
    residual_upper,
)
from expunge.evaluate.case import Case
from expunge.heads import Rows


def test_closed_form() -> None:
    """At delta = 1.5/e^2 the constant c is 2."""
    delta = 1.5 * math.exp(-2.0)
    assert perturbation_for(3.0, 0.5, delta) == pytest.approx(12.0)
    assert hidden_by(12.0, 0.5, delta) == pytest.approx(3.0)
    assert residual_upper(0.25, 1.0, 2.0, 3.0, 4.0) == pytest.approx(6.0)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.floats(1e-6, 1e6), st.floats(0.01, 10.0), st.floats(1e-9, 0.5))
def test_a_perturbation_hides_what_it_was_made_for(residual: float, epsilon: float, delta: float) -> None:
    sigma = perturbation_for(residual, epsilon, delta)
    assert hidden_by(sigma, epsilon, delta) == pytest.approx(residual)
    assert perturbation_for(residual, 2.0 * epsilon, delta) < sigma < perturbation_for(residual, epsilon, delta / 2.0)


@pytest.mark.parametrize("scale", [0.0, 5.0])
def test_the_gradient_that_is_left_is_within_the_bound(unit: Case, scale: float) -> None:
    """In sums over rows, perturbation included, at the exact optimum of the perturbed objective."""
    perturbation = scale * torch.from_numpy(np.random.default_rng(0).standard_normal(unit.weights.shape))
    weights = perturbed_optimum(unit.objective, unit.rows["train"], perturbation, unit.weights)
    at_rest = 300 * unit.objective.gradient(weights, unit.rows["train"]) + perturbation
    assert float(at_rest.norm()) < 1e-7
    removed = remove(unit.objective, weights, unit.rows["retain"], unit.rows["forget"])
    left = 294 * unit.objective.gradient(weights + removed.step, unit.rows["retain"]) + perturbation
    before = 294 * unit.objective.gradient(weights, unit.rows["retain"]) + perturbation
    assert 0.0 < float(left.norm()) <= removed.residual
    assert float(left.norm()) < 0.2 * float(before.norm())


@pytest.mark.parametrize("scale", [0.1, 30.0])
def test_a_factor_at_hand_changes_how_an_optimum_is_found_not_where(unit: Case, scale: float) -> None:
    perturbation = scale * torch.from_numpy(np.random.default_rng(1).standard_normal(unit.weights.shape))
    train = unit.rows["train"]
    near = AtOptimum(unit.objective, unit.weights, train)
    dense = unit.objective.curvature(unit.weights, train).dense()
    once = near.solve(perturbation)
    assert torch.allclose(dense @ once.reshape(-1), perturbation.reshape(-1), rtol=0.0, atol=1e-9 * scale)
    plain = perturbed_optimum(unit.objective, train, perturbation, unit.weights)
    assert float((perturbed_optimum(unit.objective, train, perturbation, unit.weights, near) - plain).norm()) < 1e-8
    assert float((plain - unit.weights).norm()) > 1e-3 * scale


def test_a_rehearsal_is_a_removal_of_as_many_random_rows(unit: Case) -> None:
    """The largest of removals done one by one, each with the Hessian of its own retained rows."""
    train, generator, found = unit.rows["train"], np.random.default_rng(3), []
    for _ in range(3):
        order = torch.from_numpy(generator.permutation(300))
        parts = [Rows(train.features[part], train.labels[part]) for part in (order[6:], order[:6])]
        found.append(remove(unit.objective, unit.weights, *parts).residual)
    assert rehearsed(unit, 3, np.random.default_rng(3)) == pytest.approx(max(found))
    assert len(set(found)) == 3


def test_it_removes_or_trains_anew(unit: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    method = CertifiedRemoval(1.0, 1e-3, rehearsals=2, draws=2)
    found = method.run(unit)
    assert found.models is not None
    assert 0 <= found.redrawn <= 2
    assert (found.steps, found.needs) == (1, "retained rows")
    own = remove(unit.objective, unit.weights, unit.rows["retain"], unit.rows["forget"]).residual
    for factor, redrawn in ((4.0, 0), (0.01, 2)):
        monkeypatch.setattr(certified_removal, "rehearsed", lambda *_, factor=factor: factor * own)
        outcome = method.run(unit)
        assert outcome.redrawn == redrawn
        assert outcome.models is not None
    assert float((outcome.models - unit.retrained).norm(dim=(1, 2)).max()) < 1.0
    sigma_free = replace(method, epsilon=1e9).run(unit)
    assert sigma_free.models is not None
    torch.testing.assert_close(sigma_free.models, unit.retrained.expand_as(sigma_free.models), rtol=0.0, atol=1e-5)


def test_in_a_sequence_what_each_step_leaves_adds_up(unit: Case) -> None:
    """Six rows leave one after the other: the gradient that is left is within the sum of the six bounds."""
    train, weights, total = unit.rows["train"], unit.weights, 0.0
    for stay in range(299, 293, -1):
        parts = [Rows(train.features[part], train.labels[part]) for part in (slice(stay), slice(stay, stay + 1))]
        removed = remove(unit.objective, weights, *parts)
        weights, total = weights + removed.step, total + removed.residual
    left = 294 * unit.objective.gradient(weights, unit.rows["retain"])
    assert 0.0 < float(left.norm()) <= total + 1e-8
    method = CertifiedRemoval(1.0, 1e-3, draws=1, sequence=True, expected=4.0 * total)
    nothing = CertifiedRemoval(1.0, 1e-3, draws=1, sequence=True, expected=1e-12).run(unit)
    assert method.run(unit).redrawn == 0
    assert nothing.redrawn == 6
    assert nothing.models is not None
    assert float((nothing.models[0] - unit.retrained).norm()) < 1e-6


def test_the_rehearsal_of_a_sequence_is_the_sum_over_its_rows(unit: Case) -> None:
    train, order = unit.rows["train"], np.random.default_rng(3).permutation(300)
    total = 0.0
    for row in range(6):
        stay = np.delete(np.arange(300), order[row])
        parts = [Rows(train.features[part], train.labels[part]) for part in (stay, order[row : row + 1])]
        total += remove(unit.objective, unit.weights, *parts).residual
    assert rehearsed(unit, 1, np.random.default_rng(3), sequence=True) == pytest.approx(total)


def test_norms_that_runs_share_change_nothing(unit: Case) -> None:
    first = CertifiedRemoval(1.0, 1e-3, draws=1, sequence=True, expected=1.0)
    other = replace(first, norms={})
    assert torch.equal(first.run(unit).models, other.run(unit).models)
    train = unit.rows["train"].features.numpy()
    assert first.norms == pytest.approx({stay: np.linalg.norm(train[:stay], 2) for stay in range(294, 300)})
    assert torch.equal(replace(first, norms=other.norms).run(unit).models, other.run(unit).models)
