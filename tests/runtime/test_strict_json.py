"""JSON read strictly."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge.runtime.strict_json import is_digest, read_as, read_json


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', '[{"b": {"a": 1, "a": 1}}]', "NaN", '{"a": -Infinity}'])
def test_what_python_would_let_through_is_refused(text: str) -> None:
    json.loads(text)
    with pytest.raises(ValueError, match=r"twice|not a number"):
        read_json(text)


def test_a_digest_is_64_hexadecimal_digits() -> None:
    digest = hashlib.sha256(b"").hexdigest()
    assert is_digest(digest)
    for odd in (digest[1:], digest + "0", digest.upper(), digest + "\n", "g" * 64, "\u0661" * 64, 64, None):
        assert not is_digest(odd)


@dataclass(frozen=True)
class Inner:
    name: str
    ready: bool


@dataclass(frozen=True)
class Outer:
    count: int
    size: float
    note: str | None
    parts: tuple[Inner, ...]
    shares: dict[str, float]
    later: int = 0


INNER = st.builds(Inner, st.text(), st.booleans())
OUTER = st.builds(
    Outer,
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.none() | st.text(),
    st.lists(INNER, max_size=3).map(tuple),
    st.dictionaries(st.text(), st.floats(0, 1), max_size=3),
    st.integers(),
)


@given(OUTER)
def test_what_is_written_comes_back(value: Outer) -> None:
    assert read_as(Outer, json.loads(json.dumps(asdict(value)))) == value


GOOD: dict[str, Any] = {"count": 1, "size": 2.5, "note": None, "parts": [{"name": "a", "ready": True}], "shares": {}}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"count": 1.0}, "count 1.0"),
        ({"size": None}, "size None"),
        ({"parts": [{"name": "a"}]}, "lacks or adds ready"),
        ({"parts": [{"name": "a", "ready": 1}]}, "ready 1"),
        ({"shares": {"a": "b"}}, "shares 'b'"),
        ({"more": 1}, "lacks or adds more"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_as(Outer, GOOD | change)


def test_only_what_was_added_later_may_be_missing() -> None:
    assert read_as(Outer, GOOD).later == 0
    assert type(read_as(Outer, GOOD | {"size": 2}).size) is int, "a whole number stays one where a float may be"
    for name in GOOD:
        with pytest.raises(ValueError, match=f"lacks or adds {name}"):
            read_as(Outer, {key: value for key, value in GOOD.items() if key != name})
    with pytest.raises(ValueError, match="not an object"):
        read_as(Outer, [GOOD])


def test_a_number_that_no_float_holds_is_not_one() -> None:
    for number in (10**400, -(10**400), float("inf"), float("nan")):
        with pytest.raises(ValueError, match="size is beyond what a float holds"):
            read_as(Outer, GOOD | {"size": number})
    assert read_as(Outer, GOOD | {"size": 2**64}).size == 2**64
