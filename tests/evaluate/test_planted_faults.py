"""Faults planted in the mechanism, each caught by the audit or by a named check. docs/evaluate.md says what an audit is.

Every fault is a small, believable mistake. The audits here take 2,000 runs a side (4,000 at epsilon 20) on tasks whose bound is tight or whose terms are
all needed, with noise that is not rounded up to a power of two; without a fault they find none, which the first test shows for each task and budget used.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import expunge.bounds.retained as retained
import expunge.certificate.derive as certificate
import expunge.mechanism as mechanism
import expunge.noise as noise_module
import expunge.surrogate as surrogate_evidence
from expunge.bounds import Ball, RetainedFacts, retained_bound
from expunge.bounds.calibration import ON_LADDER, level_above, sigma_classical, sigma_for
from expunge.bounds.sampling import Tail
from expunge.errors import BeyondPolicy, VacuousClaim
from expunge.evaluate.audit import Audit, AuditTask, audit, make_task
from expunge.evidence import Measurement
from expunge.noise import add_noise, rounded_gaussian, seeded_bytes, to_grid
from expunge.request.request import Request
from expunge.runtime.arrays import Array, to_numpy, zeros

RUNS = 2_000
Patch = pytest.MonkeyPatch


def audited(task: AuditTask, seed: int = 1) -> Audit:
    runs = RUNS if task.request.promise.epsilon < 20 else 2 * RUNS
    return audit(task, runs=runs, seed=seed)


def contradicted(task: str, epsilon: float, delta: float) -> bool:
    return audited(make_task(task, epsilon, delta)).contradicted


def with_noise(task: AuditTask, noise: Any) -> AuditTask:
    """The task with its noise chosen otherwise."""
    promise = replace(task.request.promise, noise=noise)
    return replace(task, request=replace(task.request, promise=promise))


def calibrate(monkeypatch: Patch, scale: Callable[[float, float, float], float]) -> None:
    changed = replace(certificate.BOUNDS["residual"], calibrate=scale)
    monkeypatch.setitem(certificate.BOUNDS, "residual", changed)


# The faults ------------------------------------------------------------------------------------------


def sigma_halved(monkeypatch: Patch) -> None:
    calibrate(monkeypatch, lambda *given: sigma_for(*given) / 2)


def variance_for_deviation(monkeypatch: Patch) -> None:
    monkeypatch.setattr(noise_module, "add_noise", lambda values, sigma, *rest: add_noise(values, sigma**2, *rest))


def regulariser_missing(monkeypatch: Patch) -> None:
    monkeypatch.setattr(
        certificate,
        "retained_bound",
        lambda facts, *rest, **options: retained_bound(replace(facts, l2=1.0), *rest, **options),
    )


def n_for_n_minus_m(monkeypatch: Patch) -> None:
    monkeypatch.setattr(RetainedFacts, "n_retain", property(lambda facts: facts.n_source))


def classical_formula(monkeypatch: Patch) -> None:
    calibrate(monkeypatch, sigma_classical)


def delta_ignored(monkeypatch: Patch) -> None:
    calibrate(monkeypatch, lambda error, epsilon, delta: sigma_for(error, epsilon, 0.5))


def tail_left_out(monkeypatch: Patch) -> None:
    monkeypatch.setattr(
        noise_module, "averaged_sigma", lambda radius, tail, epsilon, delta: sigma_for(radius, epsilon, delta)
    )


def fixed_seed(monkeypatch: Patch) -> None:
    monkeypatch.setattr(noise_module, "seeded_bytes", lambda seed: seeded_bytes(7))


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


def negative(update: Array) -> Array:
    return -update


def change_update(monkeypatch: Patch, change: Callable[[Array], Array]) -> None:
    """What is handed over is not the update whose bound was measured."""

    def changed(step: Any, *rest: Any) -> Measurement:
        return Measurement(replace(step, update=change(step.update)), *rest)

    monkeypatch.setattr(mechanism, "Measurement", changed)


def forgetting_skipped(monkeypatch: Patch) -> None:
    change_update(monkeypatch, zeros)


def wrong_sign(monkeypatch: Patch) -> None:
    change_update(monkeypatch, negative)


def forget_rows_not_charged(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Request, "forgotten", property(lambda request: zeros(request.weights)))


def training_term_dropped(monkeypatch: Patch) -> None:
    monkeypatch.setattr(retained, "training_term", lambda *anything: 0.0)


def solver_term_dropped(monkeypatch: Patch) -> None:
    monkeypatch.setattr(retained, "solver_term", lambda *anything: 0.0)


def sampling_term_dropped(monkeypatch: Patch) -> None:
    monkeypatch.setattr(retained, "set_apart", lambda *anything: 0.0)
    monkeypatch.setattr(retained, "deviation", lambda *anything: Tail(0.0, 0.0, 0.0))


CALIBRATION = (sigma_halved, classical_formula, delta_ignored, tail_left_out)
AUDITED = [
    (sigma_halved, "tight", 5.0, 1e-2),
    (variance_for_deviation, "tight", 5.0, 1e-2),
    (regulariser_missing, "tight", 5.0, 1e-2),
    (n_for_n_minus_m, "tight", 5.0, 1e-2),
    (classical_formula, "tight", 20.0, 1e-3),
    (delta_ignored, "tight", 5.0, 1e-2),
    (tail_left_out, "sampled", 5.0, 1e-2),
    (fixed_seed, "tight", 1.0, 1e-3),
    (noise_on_one_row, "tight", 1.0, 1e-3),
    (one_draw_for_all_weights, "tight", 1.0, 1e-3),
    (forgetting_skipped, "single-step", 5.0, 1e-2),
    (wrong_sign, "single-step", 5.0, 1e-2),
    (forget_rows_not_charged, "sampled", 5.0, 1e-2),
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
        monkeypatch.setattr(certificate, "delta_at", lambda *anything: 0.0)
    assert contradicted(task, epsilon, delta)


@pytest.mark.parametrize("plant", CALIBRATION, ids=lambda plant: plant.__name__)
def test_the_mechanism_itself_refuses_a_sigma_below_its_delta(
    plant: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    plant(monkeypatch)
    task = make_task("sampled" if plant is tail_left_out else "tight", 20.0, 1e-3)
    with pytest.raises(VacuousClaim, match="the true delta is"):
        mechanism.certify(task.request, task.measured)


def test_noise_set_too_low_beforehand_is_refused_twice_and_found_by_an_audit(monkeypatch: Patch) -> None:
    """Half of what the request needs: the policy's own check, that of delta, and with both silenced the audit."""
    task = make_task("tight", 5.0, 1e-2)
    low = with_noise(task, mechanism.certify(task.request, task.measured).certificate.sigma / 2)
    with pytest.raises(BeyondPolicy):
        mechanism.certify(low.request, low.measured)
    monkeypatch.setattr(certificate.Conclusion, "enough", True)
    with pytest.raises(VacuousClaim, match="the true delta is"):
        mechanism.certify(low.request, low.measured)
    monkeypatch.setattr(certificate, "delta_at", lambda *anything: 0.0)
    assert audited(low).contradicted


def test_a_rung_below_what_is_needed_is_climbed_from(monkeypatch: Patch) -> None:
    """A ladder that begins too low: the noise is compared with what is needed, and is doubled until it is enough."""
    task = make_task("tight", 5.0, 1e-2)
    needed = mechanism.certify(task.request, task.measured).certificate.sigma
    ladder = with_noise(task, ON_LADDER)
    usual = mechanism.certify(ladder.request, ladder.measured).certificate.sigma
    assert needed <= usual == level_above(needed) < 2 * needed
    monkeypatch.setattr(noise_module, "level_above", lambda scale: level_above(scale) / 8)
    assert mechanism.certify(ladder.request, ladder.measured).certificate.sigma == usual


@pytest.mark.parametrize("change", [zeros, negative], ids=["none", "wrong sign"])
def test_an_update_that_is_wrong_when_it_is_measured_is_charged(
    change: Callable[[Array], Array], monkeypatch: Patch
) -> None:
    """The bound holds for any update: one that the solver got wrong costs noise, and makes no claim false."""
    solved, step = make_task("single-step", 5.0, 1e-2), surrogate_evidence.newton_step

    def changed(*given: Any, **options: Any) -> Any:
        done = step(*given, **options)
        return replace(done, update=change(done.update))

    monkeypatch.setattr(surrogate_evidence, "newton_step", changed)
    wrong = make_task("single-step", 5.0, 1e-2)
    found, usual = audited(wrong), audited(solved)
    assert found.true_distance > 10 * usual.true_distance
    assert found.true_distance <= found.bound
    assert found.sigma > 10 * usual.sigma
    assert not found.contradicted


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

    assert on_grid(to_numpy(issued.model.matrix()))
    assert not on_grid(to_numpy(task.request.weights) + np.random.default_rng(0).normal(size=(2, 6)))


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
    from expunge.certificate.dossier import Certificate, digest_of
    from expunge.certificate.verify import verify
    from expunge.errors import VerificationFailed

    task = make_task("tight", 1.0, 1e-3)
    content = mechanism.certify(task.request, task.measured).certificate.content
    verify(Certificate(content))
    altered = {**content, "sigma": content["sigma"] / 2}
    altered["digest"] = digest_of(altered)
    with pytest.raises(VerificationFailed):
        verify(Certificate(altered))
