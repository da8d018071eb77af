"""Every name that a certificate can hold has words."""

import json
from dataclasses import fields
from pathlib import Path

import pytest

from expunge.bounds import TERMS, DepositFacts
from expunge.bounds.deposit import TERMS as DEPOSIT_TERMS
from expunge.certificate.facts import OUTPUT_FACTS, SHAPE_FACTS, WEAKEST_LAST
from expunge.errors import OptionError
from expunge.report.words import FACTS, PROVENANCE, STATUS, status_words

KEPT = {field.name for field in fields(DepositFacts)} - {"route"} | {*SHAPE_FACTS, *OUTPUT_FACTS}
STORED = sorted((Path(__file__).parents[1] / "stored").glob("certificate-*.json"))


def test_every_provenance_and_every_status_has_words() -> None:
    assert set(PROVENANCE) == set(WEAKEST_LAST)
    assert set(STATUS) == {"proven", "conditional", "estimated"}
    assert [status_words(status) for status in STATUS] == list(STATUS.values())
    for odd in ("none", "", "Proven", None, 1):
        with pytest.raises(OptionError, match="Do not rely"):
            status_words(odd)


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_every_term_of_every_certificate_has_words(path: Path) -> None:
    content = json.loads(path.read_text())
    assert set(content["bound"]["terms"]) <= set(TERMS)
    assert content["status"] in STATUS
    if content["bound"]["kind"] == "residual":
        assert set(FACTS) <= set(content["bound"]["inputs"]) | KEPT, "no words for a fact that there is not"


def test_every_fact_of_a_deposit_has_words() -> None:
    assert set(FACTS) >= KEPT
    assert {term.name for term in DEPOSIT_TERMS} <= set(TERMS)
