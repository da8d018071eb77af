"""Rules on budget and failures; tests/certificate/test_forgeries.py forges against each."""

import math

import pytest

from expunge.certificate.claim import OLD_SCHEMAS
from expunge.certificate.dossier import claim_of
from expunge.certificate.rules import BUDGET, EARLY_SHARES, possible
from forging import changed

SHARES = "failures are the shares that issuing spends"


def wrong(content: dict) -> set[str]:
    return {check.name for check in possible(content, claim_of(content)) if not check.passed}


@pytest.mark.parametrize("off", [1.0 - 1e-6, 1.0 + 1e-6])
def test_shares_are_held_from_both_sides(result, off: float) -> None:
    content = result.certificate.content
    failures = {name: value * off for name, value in content["noise"]["failures"].items()}
    forged = changed(content, {"noise.failures": failures, "sampling_failure": failures["sampling"]})
    assert wrong(forged) == {SHARES}


def test_schema_1_knew_two_pairs_of_shares(result) -> None:
    from pathlib import Path

    from expunge import read_certificate

    content = read_certificate(Path(__file__).parents[1] / "stored" / "certificate-1-chi2.json").content
    assert content["schema"] == OLD_SCHEMAS[0]
    shares = [value / content["delta"] for value in content["noise"]["failures"].values()]
    assert all(map(math.isclose, shares, EARLY_SHARES))
    later = {"sampling": 0.4 * content["delta"], "eigenvalue": 0.01 * content["delta"]}
    assert wrong(changed(content, {"noise.failures": later, "sampling_failure": later["sampling"]})) == set()
    second = changed(content, {"schema": OLD_SCHEMAS[1], "distance.matched": False})
    assert wrong(second) == {SHARES}


def test_rules_have_names_of_their_own() -> None:
    assert len({rule.name for rule in BUDGET}) == len(BUDGET)
