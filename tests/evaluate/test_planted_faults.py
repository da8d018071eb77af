"""Faults planted in the mechanism, each caught by the audit or by a named check. docs/audits.md has the same table.

Every fault is a small, believable mistake. The audits here take 2,000 runs a side (4,000 at epsilon 20) on tasks whose bound is tight or whose terms are
all needed; without a fault they find none, which the first test shows for each task and budget used.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import expunge.bounds.residual as residual
import expunge.certificate.derive as certificate
import expunge.mechanism as mechanism
import expunge.noise as noise_module
from expunge.bounds import Ball
from expunge.errors import VacuousClaim
from expunge.evaluate.audit import audit
from expunge.evaluate.tasks import make_task
from expunge.noise import add_noise, rounded_gaussian, seeded_bytes, sigma_classical, sigma_for, to_grid

RUNS = 2_000
DOCS = Path(__file__).parents[2] / "docs" / "audits.md"
Patch = pytest.MonkeyPatch


def contradicted(task: str, epsilon: float, delta: float, seed: int = 1) -> bool:
    made = make_task(task, epsilon, delta)
    return audit(
        made.request, made.measured, made.retrained, runs=RUNS if epsilon < 20 else 2 * RUNS, seed=seed
    ).contradicted


def without_term(monkeypatch: Patch, name: str) -> None:
    monkeypatch.setattr(residual, name, lambda *anything: 0.0)


def calibrate(monkeypatch: Patch, scale: Callable[[float, float, float], float]) -> None:
    changed = replace(certificate.BOUNDS["residual"], scale=scale)
    monkeypatch.setitem(certificate.BOUNDS, "residual", changed)


# The faults, by the name they have in docs/audits.md ---------------------------------------------------------------


def sigma_halved(monkeypatch: Patch) -> None:
    calibrate(monkeypatch, lambda *given: sigma_for(*given) / 2)


def variance_for_deviation(monkeypatch: Patch) -> None:
    monkeypatch.setattr(noise_module, "add_noise", lambda values, sigma, *rest: add_noise(values, sigma**2, *rest))


def regulariser_missing(monkeypatch: Patch) -> None:
    monkeypatch.setattr(residual, "amplification", lambda facts: facts.n_source / (facts.n_source - facts.n_forget))


def n_for_n_minus_m(monkeypatch: Patch) -> None:
    monkeypatch.setattr(residual, "amplification", lambda facts: 1.0 / facts.l2)


def classical_formula(monkeypatch: Patch) -> None:
    calibrate(monkeypatch, sigma_classical)


def delta_ignored(monkeypatch: Patch) -> None:
    calibrate(monkeypatch, lambda error, epsilon, delta: sigma_for(error, epsilon, 0.5))


def fixed_seed(monkeypatch: Patch) -> None:
    monkeypatch.setattr(mechanism, "seeded_bytes", lambda seed: seeded_bytes(7))


def noise_on_one_row(monkeypatch: Patch) -> None:
    def first_row(
        values: np.ndarray, sigma: float, exponent: int, random_bytes: Callable[[int], bytes] = os.urandom
    ) -> np.ndarray:
        noised = np.ldexp(to_grid(values, exponent).astype(float), exponent)
        noised[0] = add_noise(values[0], sigma, exponent, random_bytes)
        return noised

    monkeypatch.setattr(noise_module, "add_noise", first_row)


def one_draw_for_all_weights(monkeypatch: Patch) -> None:
    def same(
        values: np.ndarray, sigma: float, exponent: int, random_bytes: Callable[[int], bytes] = os.urandom
    ) -> np.ndarray:
        draw = rounded_gaussian(1, sigma, exponent, random_bytes)
        return np.ldexp((to_grid(values, exponent) + draw).astype(float), exponent)

    monkeypatch.setattr(noise_module, "add_noise", same)


def change_update(monkeypatch: Patch, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    step = mechanism.newton_step

    def changed(*given: Any, **options: Any) -> Any:
        done = step(*given, **options)
        return replace(done, update=change(done.update))

    monkeypatch.setattr(mechanism, "newton_step", changed)


def forgetting_skipped(monkeypatch: Patch) -> None:
    change_update(monkeypatch, torch.zeros_like)


def wrong_sign(monkeypatch: Patch) -> None:
    change_update(monkeypatch, torch.neg)


def training_term_dropped(monkeypatch: Patch) -> None:
    without_term(monkeypatch, "training_term")


def solver_term_dropped(monkeypatch: Patch) -> None:
    without_term(monkeypatch, "solver_term")


def sampling_term_dropped(monkeypatch: Patch) -> None:
    without_term(monkeypatch, "sampling_term")


CALIBRATION = (sigma_halved, classical_formula, delta_ignored)
AUDITED = [
    (sigma_halved, "tight", 5.0, 1e-2),
    (variance_for_deviation, "tight", 5.0, 1e-2),
    (regulariser_missing, "tight", 5.0, 1e-2),
    (n_for_n_minus_m, "tight", 5.0, 1e-2),
    (classical_formula, "tight", 20.0, 1e-3),
    (delta_ignored, "tight", 5.0, 1e-2),
    (fixed_seed, "tight", 1.0, 1e-3),
    (noise_on_one_row, "tight", 1.0, 1e-3),
    (one_draw_for_all_weights, "tight", 1.0, 1e-3),
    (forgetting_skipped, "single-step", 5.0, 1e-2),
    (wrong_sign, "single-step", 5.0, 1e-2),
    (training_term_dropped, "tight", 5.0, 1e-2),
    (solver_term_dropped, "single-step", 5.0, 1e-2),
    (sampling_term_dropped, "sampled", 5.0, 1e-2),
]


@pytest.mark.parametrize(("task", "epsilon", "delta"), sorted({entry[1:] for entry in AUDITED}))
def test_without_a_fault_none_is_found(task: str, epsilon: float, delta: float) -> None:
    assert not contradicted(task, epsilon, delta)


@pytest.mark.parametrize(
    ("plant", "task", "epsilon", "delta"), AUDITED, ids=lambda value: getattr(value, "__name__", "")
)
def test_the_audit_finds(
    plant: Callable[[Patch], None], task: str, epsilon: float, delta: float, monkeypatch: Patch
) -> None:
    plant(monkeypatch)
    if plant in CALIBRATION:  # the mechanism's own check would stop it first: see below
        monkeypatch.setattr(certificate, "delta_of", lambda *anything: 0.0)
    assert contradicted(task, epsilon, delta)
    assert f"| `{plant.__name__}` |" in DOCS.read_text()


@pytest.mark.parametrize("plant", CALIBRATION, ids=lambda plant: plant.__name__)
def test_the_mechanism_itself_refuses_a_sigma_below_its_delta(
    plant: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    plant(monkeypatch)
    task = make_task("tight", 20.0, 1e-3)
    with pytest.raises(VacuousClaim, match="the true delta is"):
        mechanism.certify(task.request, task.measured)


# Faults too fine for an audit: named checks find them ----------------------------------------------------------------


def test_a_grid_without_its_term_is_found_on_the_grid_itself(monkeypatch: Patch) -> None:
    """Weights an instant on either side of a grid cell's edge are published a whole cell apart: the term covers that."""

    def covered() -> bool:
        task = make_task("tight", 1.0, 1e-3)
        content = mechanism.certify(task.request, task.measured, insecure_test_seed=1).certificate.content
        exponent = content["noise"]["grid_exponent"]
        edges = np.ldexp(np.arange(12) + 0.5, exponent)
        cells = to_grid(edges * (1 + 1e-9), exponent) - to_grid(edges * (1 - 1e-9), exponent)
        return bool(
            np.linalg.norm(np.ldexp(cells.astype(float), exponent)) <= content["bound"]["terms"]["grid"] * (1 + 1e-9)
        )

    assert covered()
    monkeypatch.setattr(Ball, "grid_term", lambda *anything: 0.0)
    assert not covered()


def test_noise_off_the_grid_is_found_by_its_low_bits() -> None:
    """Plain floating-point addition leaves weights that are no multiples of the grid; the mechanism's own never are."""
    task = make_task("tight", 1.0, 1e-3)
    issued = mechanism.certify(task.request, task.measured, insecure_test_seed=1)
    exponent = issued.certificate.content["noise"]["grid_exponent"]

    def on_grid(values: np.ndarray) -> bool:
        return bool(np.all(np.ldexp(values, -exponent) == np.rint(np.ldexp(values, -exponent))))

    assert on_grid(issued.model.matrix().numpy())
    assert not on_grid(task.request.weights.numpy() + np.random.default_rng(0).normal(size=(2, 6)))


def test_failures_not_taken_from_delta_are_found_by_adding_up(monkeypatch: Patch) -> None:
    def adds_up() -> bool:
        task = make_task("sampled", 1.0, 1e-3)
        noise = mechanism.certify(task.request, task.measured, insecure_test_seed=1).certificate.content["noise"]
        return bool(noise["delta_for_noise"] + sum(noise["failures"].values()) <= 1e-3 * (1 + 1e-12))

    assert adds_up()
    fsum = math.fsum
    monkeypatch.setattr(certificate.math, "fsum", lambda values: 0.0 if len(list(values)) == 2 else fsum(values))
    assert not adds_up()


def test_a_false_certificate_is_found_by_verification() -> None:
    from expunge.certificate.content import Certificate, digest_of
    from expunge.certificate.verify import verify
    from expunge.errors import VerificationFailed

    task = make_task("tight", 1.0, 1e-3)
    content = mechanism.certify(task.request, task.measured).certificate.content
    verify(Certificate(content))
    altered = {**content, "sigma": content["sigma"] / 2}
    altered["digest"] = digest_of(altered)
    with pytest.raises(VerificationFailed):
        verify(Certificate(altered))


def test_every_fault_of_the_page_is_planted_here() -> None:
    _, _, after = DOCS.read_text().partition("## Planted faults")
    page = [line.split("`")[1] for line in after.splitlines() if line.startswith("| `")]
    named = [plant.__name__ for plant, *_ in AUDITED]
    checks = [name for name in globals() if name.startswith("test_")]
    assert len(named) >= 10
    for name in page:
        assert name in named or name in checks, name
