"""Every name that a certificate can hold has words."""

import json
from dataclasses import fields
from pathlib import Path

import pytest

from expunge.bounds import TERMS, DepositFacts, RetainedFacts
from expunge.bounds.deposit import TERMS as DEPOSIT_TERMS
from expunge.certificate.claim import OUTPUT_FACTS, SHAPE_FACTS, WEAKEST_LAST
from expunge.errors import OptionError
from expunge.report.page import FACTS, FAILURES, PROVENANCE, STATUS, plain, status_words

KEPT = {field.name for field in fields(DepositFacts)} - {"route"} | {*SHAPE_FACTS, *OUTPUT_FACTS}
STORED = sorted((Path(__file__).parents[1] / "stored").glob("dossier-3-*.json"))


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
    assert set(content["bound"]["inputs"]) <= set(FACTS)
    assert set(content["noise"]["failures"]) <= set(FAILURES)


def test_every_fact_has_words_and_no_words_are_for_a_fact_that_there_is_not() -> None:
    retained = {field.name for field in fields(RetainedFacts)}
    paper = {"alpha", "beta", "gamma", "lipschitz", "lipschitz_power", "gradient_norm", "tv_upper"}
    assert set(FACTS) == KEPT | retained | paper
    assert all(FACTS.values())
    assert len(set(FACTS.values())) == len(FACTS)


def test_sentences_have_words_in_place_of_names() -> None:
    said = plain("training_residual is the bound carried from 1 earlier deletion; not_a_fact stays")
    assert said == f"“{FACTS['training_residual']}” is the bound carried from 1 earlier deletion; not_a_fact stays"
    listed = plain("These facts were declared, not checked: l2, n_source, odd.")
    assert listed == f"These facts were declared, not checked: {FACTS['l2']}; {FACTS['n_source']}; odd."


def test_every_term_of_a_deposit_has_words() -> None:
    assert {term.name for term in DEPOSIT_TERMS} <= set(TERMS)
