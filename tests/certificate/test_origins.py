"""Rules on training, step and provenance; tests/certificate/test_forgeries.py forges against each."""

from pathlib import Path

import pytest

import honest
from expunge import read_certificate
from expunge.certificate.claim import OLD_SCHEMAS
from expunge.certificate.dossier import claim_of
from expunge.certificate.rules import possible
from forging import changed

pytestmark = pytest.mark.usefixtures("one_thread")

STORED = Path(__file__).parents[1] / "stored"


def wrong(content: dict) -> set[str]:
    return {check.name for check in possible(content, claim_of(content)) if not check.passed}


@pytest.mark.parametrize("provenance", ["derived", "declared", "estimated"])
def test_a_series_of_schema_2_carried_its_residual(provenance: str) -> None:
    content = read_certificate(STORED / "certificate-1-chi2.json").content
    second = {"schema": OLD_SCHEMAS[1], "distance.matched": False, "data.sequence": {"planned": 1, "position": 1}}
    due = {"noise.failures": {"sampling": 4e-4, "eigenvalue": 1e-5}, "sampling_failure": 4e-4}
    carried = {"bound.inputs.training_residual.provenance": provenance}
    first = changed(content, second | due | carried)
    assert wrong(first) == {"the training residual comes from where the record does"}
    spread = {"sampling": 2e-4, "eigenvalue": 5e-6, "sequence": 2.05e-4}
    place = {"data.sequence": {"planned": 2, "position": 2}, "noise.failures": spread, "sampling_failure": 2e-4}
    assert wrong(changed(first, place)) == set()


def test_a_newton_step_is_charged_by_another_equation() -> None:
    """Its own residual is the paper's equation's, and may be larger than what is charged or smaller."""
    content = honest.linear(1, distance="chi2:0.05", step="newton").certificate.content
    assert wrong(changed(content, {"step.residual": 10.0})) == set()


def test_an_update_that_was_not_made_passes() -> None:
    content = honest.linear(2, distance="tv:0.5", step="balanced").certificate.content
    assert content["step"]["pull"] is None
    assert wrong(content) == set()
