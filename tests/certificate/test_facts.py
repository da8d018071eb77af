"""Facts and where they come from."""

from __future__ import annotations

import pytest

import expunge
from expunge.certificate.claim import SIZE_NAMES, WEAKEST_LAST, retained_facts, weakest
from expunge.certificate.verify import claim_of
from expunge.errors import OptionError

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_weaker_provenance_wins() -> None:
    assert weakest(["derived", "estimated"]) == "estimated"
    assert weakest(["declared", "measured"]) == "declared"


@pytest.mark.parametrize("first", WEAKEST_LAST)
@pytest.mark.parametrize("second", WEAKEST_LAST)
def test_of_two_the_later_in_the_order_is_the_weaker(first: str, second: str) -> None:
    expected = WEAKEST_LAST[max(WEAKEST_LAST.index(first), WEAKEST_LAST.index(second))]
    assert weakest([first, second]) == weakest([second, first]) == weakest([first, second, first]) == expected


@pytest.mark.parametrize("odd", ["proven", "", "Declared", None])
def test_a_provenance_nobody_knows_raises_wherever_it_stands(odd: str) -> None:
    for provenances in ([odd], ["estimated", odd], [odd, "derived"]):
        with pytest.raises(OptionError, match="Say where it comes from"):
            weakest(provenances)


def test_the_bound_s_numbers_are_the_facts_without_where_they_come_from(result: expunge.Unlearned) -> None:
    claim = claim_of(result.certificate.content)
    found = retained_facts(claim.facts)
    for name, fact in claim.facts.items():
        assert getattr(found, name) == fact.value
    assert all(type(getattr(found, name)) is int for name in SIZE_NAMES)
