"""What a desk's noise costs is told when it is opened, and where it would be of no use, with what would help."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from desk_use import Rows
from expunge.bounds.calibration import mu_for
from expunge.certificate.limits import ARITHMETIC_SHARE
from expunge.desk import Policy, create_desk
from expunge.desk.cost import cost_with_deposit, moved_outputs
from expunge.model import LinearModel
from small_deposit import kept

KEPT = Policy(epsilon=0.5, delta=1e-3, distance="deposit", planned=10)


def told(folder: Path, model: LinearModel, surrogate: Rows, policy: Policy, noise: float | str) -> list[str]:
    said: list[str] = []
    create_desk(folder, model, surrogate, policy, say=said.append, noise=noise)
    return said


def test_accuracy_on_the_surrogate_without_noise_and_with_it(
    tmp_path: Path, trained: LinearModel, surrogate: Rows, policy: Policy
) -> None:
    right = 100 * float((trained.predict(surrogate[0]) == surrogate[1]).mean())
    quiet = told(tmp_path / "quiet", trained, surrogate, policy, 1e-6)[-1]
    assert quiet == f"of the surrogate's rows {right:.1f} % are right before, and with this noise {right:.1f} %"
    loud = told(tmp_path / "loud", trained, surrogate, policy, 1e6)[-1]
    assert f"{right:.1f} % are right before" in loud
    assert "always naming the most frequent class is right in 33.5 %" in loud
    assert "raise epsilon" in loud
    ladder = told(tmp_path / "ladder", trained, surrogate, policy, "request")[-1]
    assert "not known yet (expunge plan" in ladder


@pytest.mark.usefixtures("one_thread")
def test_outputs_with_a_deposit(tmp_path: Path) -> None:
    deposit, said = kept().deposit, []
    create_desk(tmp_path / "desk", None, None, KEPT, deposit=deposit, say=said.append)
    numbers, mu = deposit.numbers, mu_for(0.5, 1e-3 * (1.0 - ARITHMETIC_SHARE))
    moved = moved_outputs(deposit, KEPT)
    assert moved == pytest.approx([radius * numbers.output_noise / mu for radius in numbers.radii], rel=1e-12)
    assert f"by {moved[0]:.3g} (for requests that change little) to {moved[-1]:.3g} " in said[-1]
    assert f"about {numbers.output_spread:.3g}" in said[-1]


@pytest.mark.usefixtures("one_thread")
def test_sizes_of_noise_that_would_be_refused_are_counted() -> None:
    deposit = kept().deposit
    moved = moved_outputs(deposit, KEPT)
    between = replace(deposit, numbers=replace(deposit.numbers, output_spread=(moved[-2] + moved[-1]) / 2.0))
    assert f"the larger 1 of {len(moved)} sizes" in cost_with_deposit(between, KEPT)
    assert "raise epsilon, or retrain" in cost_with_deposit(between, KEPT)
    assert "refused" not in cost_with_deposit(between, replace(KEPT, force=True))
    assert "refused" not in cost_with_deposit(deposit, replace(KEPT, epsilon=5.0))
