"""Facts and where they come from."""

from __future__ import annotations

import pytest

from expunge.certificate.facts import weakest

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_weaker_provenance_wins() -> None:
    assert weakest(["derived", "estimated"]) == "estimated"
    assert weakest(["declared", "measured"]) == "declared"
