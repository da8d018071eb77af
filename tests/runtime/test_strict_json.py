"""JSON read strictly."""

import hashlib
import json

import pytest

from expunge.runtime.strict_json import is_digest, not_a_number, without_duplicates


def read(text: str) -> object:
    return json.loads(text, object_pairs_hook=without_duplicates, parse_constant=not_a_number)


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', '[{"b": {"a": 1, "a": 1}}]', "NaN", '{"a": -Infinity}'])
def test_what_python_would_let_through_is_refused(text: str) -> None:
    json.loads(text)
    with pytest.raises(ValueError, match=r"twice|not a number"):
        read(text)


def test_everything_else_is_read_as_it_stands() -> None:
    text = '{"a": {"a": [1, 2.5, "x", null, true]}, "b": {}}'
    assert read(text) == json.loads(text)


def test_a_digest_is_64_hexadecimal_digits() -> None:
    digest = hashlib.sha256(b"").hexdigest()
    assert is_digest(digest)
    for odd in (digest[1:], digest + "0", digest.upper(), digest + "\n", "g" * 64, "\u0661" * 64, 64, None):
        assert not is_digest(odd)
