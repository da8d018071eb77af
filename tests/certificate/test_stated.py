"""Rules, and what they look at."""

from expunge.certificate.check import POSSIBLE
from expunge.certificate.dossier import claim_of
from expunge.certificate.rules import Rule, Stated, at_most


def test_at_most_allows_for_rounding_alone() -> None:
    assert at_most(1.0 + 5e-7, 1.0)
    assert not at_most(1.0 + 5e-6, 1.0)
    assert at_most(1e-301, 0.0)
    assert at_most(2.0, 1.0, 1.0)


def test_a_rule_that_cannot_be_read_does_not_hold(result) -> None:
    stated = Stated(result.certificate.content, claim_of(result.certificate.content))
    broken = Rule("it can be read", "it cannot", lambda given: given["no such fact"] > 0).check(stated)
    assert broken is not None
    assert not broken.passed
    assert broken.about == POSSIBLE
    assert "not there to be read" in broken.words
    unsuited = Rule("it applies", "it does not", lambda given: False, lambda given: False)
    assert unsuited.check(stated) is None


def test_what_is_stated(result) -> None:
    content = result.certificate.content
    stated = Stated(content, claim_of(content))
    assert (stated.residual, stated.paper, stated.linear, stated.old) == (True, False, True, False)
    assert stated.n_retain == content["sizes"]["n_retain"]
    assert stated.longest == stated["change_longest"]
    assert (stated.sequence, stated.planned) == (None, 1)


def test_what_a_sentence_names_is_shown_with_its_value(result) -> None:
    stated = Stated(result.certificate.content, claim_of(result.certificate.content))
    failed = Rule("so", "delta is not n_forget", lambda given: False).check(stated)
    assert failed is not None
    assert failed.why == "delta is not n_forget; stated: delta 0.001, n_forget 3"
