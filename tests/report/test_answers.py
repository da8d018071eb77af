"""What a page says first: the decision, a reading of epsilon in closed form, and names as they were given."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge.errors import OptionError
from expunge.report.page import decision, percent, run_page, tell_right


def content(status: str, *, gone: int = 3, generator: str = "operating system") -> dict[str, Any]:
    sizes = {"n_forget": gone, "n_source": 1800}
    return {"status": status, "epsilon": 1.0, "delta": 1e-5, "noise": {"generator": generator}, "sizes": sizes}


@pytest.mark.parametrize(
    ("status", "words", "never"),
    [
        ("proven", "it is proven that whoever tries", "assumed"),
        ("conditional", "if what is assumed is true, whoever tries", "proven"),
        ("estimated", "no guarantee", "proven"),
    ],
)
def test_one_sentence_says_what_was_decided(status: str, words: str, never: str) -> None:
    for public in (False, True):
        said = decision(content(status), public=public)
        assert words in said
        assert never not in said
        assert said.endswith(".")
        assert said.count(". ") == 0, "one sentence"
        assert ("3 of 1,800 rows were" in said) == (not public)
        assert "at most 73.2 % of the time, where guessing is right 50 % (epsilon 1, delta 1e-05)" in said


def test_a_public_decision_counts_nobody() -> None:
    public = [decision(content("proven", gone=gone), public=True) for gone in (1, 2)]
    assert public[0] == public[1]
    assert "without them is right" in public[0]
    private = [decision(content("proven", gone=gone), public=False) for gone in (1, 2)]
    assert "1 of 1,800 rows was" in private[0]
    assert "without it is right" in private[0]
    assert "without them is right" in private[1]


@pytest.mark.parametrize("status", ["proven", "conditional", "estimated"])
def test_a_test_is_called_one(status: str) -> None:
    said = decision(content(status, generator="INSECURE-TEST"), public=True)
    assert "protects nobody" in said
    assert "proven" not in said


def test_an_unknown_status_is_never_shown() -> None:
    with pytest.raises(OptionError, match="Do not rely"):
        decision(content("certain"), public=True)


@pytest.mark.parametrize(
    ("epsilon", "delta", "said"),
    [
        (1.0, 0.0, "73.2 %"),  # e/(1 + e) is 73.106 %
        (math.log(3.0), 0.0, "75 %"),
        (math.log(3.0), 0.2, "80 %"),  # 0.2 + 0.8 * 0.75
        (0.0, 0.0, "50 %"),
        (0.0, 0.1, "55 %"),
        (5.0, 1e-5, "99.4 %"),
        (20.0, 1e-5, "100 %"),
        (1.0, 7.0, "100 %"),
    ],
)
def test_epsilon_in_words(epsilon: float, delta: float, said: str) -> None:
    assert tell_right(epsilon, delta) == said


@given(st.floats(0.5, 1.0))
def test_a_promise_is_never_rounded_down(share: float) -> None:
    shown = float(percent(share).removesuffix(" %"))
    assert shown >= 100.0 * share - 1e-9
    assert shown <= 100.0 * share + 0.1 + 1e-9


@pytest.mark.parametrize(("epsilon", "said"), [(1.0, False), (5.0, True)])
def test_a_page_says_where_a_promise_is_weak_and_what_delta_is_one_in(epsilon: float, said: bool) -> None:
    stored = json.loads((Path(__file__).parents[1] / "stored" / "dossier-3-same.json").read_text())
    page = run_page(stored | {"epsilon": epsilon, "delta": 1e-5})
    assert ("this promise, by itself, protects little" in page) is said
    assert "fails, 1 in 100,000" in page
