"""What every certificate is made of, whatever the model was: facts of the residual bound, refusals, noise, how things are described."""

from __future__ import annotations

import datetime
import math
import os
import platform
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from expunge import __version__
from expunge.certificate.derive import Derived
from expunge.certificate.facts import INSECURE, Claim, Fact, Json
from expunge.distance import Distance
from expunge.errors import UselessModel, VacuousClaim
from expunge.evidence.moments import Moments
from expunge.noise import add_noise, epsilon_for, seeded_bytes
from expunge.record import TrainingRecord
from expunge.solve.outcome import Step

SAMPLING_SHARE = 0.4  # of delta: the probability that source or surrogate is an unlucky sample
EIGENVALUE_SHARE = 1e-2  # of delta: the probability that Lanczos started in an unlucky direction


def failures_for(distance: Distance, delta: float) -> dict[str, float]:
    """Probabilities spent out of delta, by what they are spent on."""
    failures = {}
    if distance.samples_rows:
        failures["sampling"] = SAMPLING_SHARE * delta
    if distance.samples_rows or distance.kind in ("chi2", "kl"):
        failures["eigenvalue"] = EIGENVALUE_SHARE * delta
    return failures


def facts_of_step(
    record: TrainingRecord,
    *,
    n_source: int,
    n_forget: int,
    n_surrogate: int,
    training: Fact,
    rounding: Fact,
    step: Step,
    moments: Moments,
    sampling: float,
) -> dict[str, Fact]:
    """Every number the residual bound needs, each with where it comes from."""
    known = record.provenance
    return {
        "n_source": Fact(n_source, known),
        "n_forget": Fact(n_forget, "measured"),
        "n_surrogate": Fact(n_surrogate, "measured"),
        "l2": Fact(record.l2, known),
        "training_residual": training,
        "solver_residual": Fact(step.residual, "measured"),
        "rounding": rounding,
        "change_mean": Fact(moments.mean_norm, "measured"),
        "change_eigenvalue": Fact(moments.eigenvalue_upper, "measured"),
        "change_trace": Fact(moments.trace, "measured"),
        "change_fourth": Fact(moments.fourth, "measured"),
        "change_fourth_eigenvalue": Fact(moments.fourth_eigenvalue_upper, "measured"),
        "change_largest": Fact(moments.largest, "measured"),
        "change_supremum": Fact(moments.supremum, "derived"),
        "longest_row": Fact(moments.longest_row, "measured"),
        "row_bound": Fact(record.row_bound, known),
        "sampling_failure": Fact(sampling, "derived"),
    }


def refuse_unsound(claim: Claim, derived: Derived, weights: torch.Tensor, force: bool) -> None:
    """Refuse a claim that says nothing and, unless forced, noise that swamps the weights."""
    if not np.isfinite(derived.bound.total) or not np.isfinite(derived.sigma):
        terms = ", ".join(name for name, value in derived.bound.terms.items() if not np.isfinite(value))
        raise VacuousClaim(
            f"the bound is infinite ({terms})",
            "a certificate needs a finite one",
            "For the paper's bound n alpha must exceed m beta; use --bound residual, a smaller forget set or a larger l2.",
        )
    if derived.delta_at_sigma > claim.delta:
        raise VacuousClaim(
            f"at the classical formula's sigma the true delta is {derived.delta_at_sigma:.3g}",
            f"{claim.delta:g} is to be certified",
            "The formula is proved for epsilon < 1 only; use --bound residual, which calibrates exactly.",
        )
    size = float(weights.norm())
    noise = derived.sigma * claim.n_parameters**0.5
    if noise > size and not force:
        usable = size / claim.n_parameters**0.5
        would_do = (
            f"epsilon {epsilon_for(derived.delta_for_noise, derived.bound.total / usable):.3g} or more"
            if usable
            else "no epsilon"
        )
        largest = max(derived.bound.terms, key=lambda name: derived.bound.terms[name])
        raise UselessModel(
            f"the noise (norm {noise:.3g}) would swamp the weights (norm {size:.3g})",
            f"{would_do} would do at this delta; the largest term of the bound is {largest}",
            "Raise epsilon, try --step balanced, use a closer or larger surrogate, forget fewer rows at once, train with a larger l2, or insist with --force (force=True).",
        )


def generator_named(insecure_test_seed: int | None) -> str:
    """What the certificate says the noise was drawn from."""
    return "operating system" if insecure_test_seed is None else INSECURE


def with_noise(weights: Tensor, derived: Derived, insecure_test_seed: int | None) -> Tensor:
    """The weights on the grid with noise, on the cpu; from the operating system unless a test asks for a seed."""
    random_bytes = os.urandom if insecure_test_seed is None else seeded_bytes(insecure_test_seed)
    return torch.from_numpy(add_noise(weights.cpu().numpy(), derived.sigma, derived.grid_exponent, random_bytes))


def record_after(record: TrainingRecord, forgotten: Tensor) -> TrainingRecord:
    """The record of the published model: rows of these classes gone, marked as noised, no residual, no digest yet."""
    counts = record.class_counts
    if counts is not None:
        gone = Counter(forgotten.tolist())
        counts = tuple(count - gone[index] for index, count in enumerate(counts))
    return replace(
        record,
        n_source=record.n_source - len(forgotten),
        class_counts=counts,
        residual=None,
        noised=True,
        weights_sha256="",
    )


def described_sizes(
    *, n_source: int, n_forget: int, n_surrogate: int, parameters: int, classes: int, features: int
) -> Json:
    return {
        "n_source": n_source,
        "n_forget": n_forget,
        "n_surrogate": n_surrogate,
        "n_retain": n_source - n_forget,
        "parameters": parameters,
        "classes": classes,
        "features": features,
    }


def described_step(step: Step, kind: str) -> Json:
    return {
        "kind": kind,
        "method": step.method,
        "iterations": step.iterations,
        "inner_iterations": step.inner_iterations,
        "residual": step.residual,
        "positive_definite": step.positive_definite,
        "damping": step.damping if math.isfinite(step.damping) else None,
        "converged": step.converged,
        "pull": step.pull if math.isfinite(step.pull) else None,
    }


def issued_with() -> dict[str, Any]:
    """Software and time."""
    return {
        "software": {
            "expunge": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
