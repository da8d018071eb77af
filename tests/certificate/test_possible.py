"""The rules together; tests/certificate/test_forgeries.py forges against each."""

from pathlib import Path

from expunge.certificate.dossier import claim_of
from expunge.certificate.rules import RULES, WORDS, possible
from forging import changed

PAGE = Path(__file__).parents[2] / "docs" / "certificate.md"


def test_every_rule_has_a_name_of_its_own_and_says_what_is_wrong() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert all(rule.why and rule.why != rule.name for rule in RULES)


def test_every_rule_is_on_the_page() -> None:
    page = " ".join(PAGE.read_text().split())
    assert [rule.name for rule in RULES if rule.name not in page] == []


def test_words_come_first(result) -> None:
    """Of a certificate whose words are unknown nothing else is said, since the rest could not be judged."""
    content = changed(result.certificate.content, {"model.loss": "hinge", "change_trace": 0.0})
    found = possible(content, claim_of(content))
    assert len(found) == len(WORDS)
    assert [check.name for check in found if not check.passed] == [
        "the loss is known",
        "there is a bias or there is none",
    ]
