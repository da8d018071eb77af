"""What a desk's noise costs is told when it is opened, and where it would be of no use, with what would help."""

from __future__ import annotations

from pathlib import Path

import pytest

from desk_use import Rows
from expunge.bounds.calibration import mu_for
from expunge.certificate.claim import ARITHMETIC_SHARE
from expunge.desk import Policy, create_desk
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
    assert "train with a larger l2, or raise an epsilon that is small" in loud
    ladder = told(tmp_path / "ladder", trained, surrogate, policy, "request")[-1]
    assert "not known yet (expunge plan" in ladder


@pytest.mark.usefixtures("one_thread")
def test_outputs_with_a_deposit(tmp_path: Path) -> None:
    deposit, said = kept().deposit, []
    desk = create_desk(tmp_path / "desk", None, None, KEPT, deposit=deposit, say=said.append)
    assert desk.policy.noise is not None
    assert 0.002 < desk.policy.noise * deposit.output_noise <= 0.01
    assert f"by {desk.policy.noise * deposit.output_noise:.3g}; the outputs themselves" in said[-1]
    assert f"about {deposit.output_spread:.3g}" in said[-1]
    hidden = desk.policy.noise * mu_for(0.5, 1e-3 * (1.0 - ARITHMETIC_SHARE))
    assert f"by more than {hidden:.3g}" in said[-1]
