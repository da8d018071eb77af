"""JSON read strictly: no key twice, no NaN, no number beyond what its type holds; and what a digest looks like."""

from __future__ import annotations

import json
import math
import re
from typing import Any

LARGEST_INT = 2**64


def read_json(content: str | bytes | bytearray) -> Any:
    """What a JSON file says, or ValueError (RecursionError where it is nested too deep).

    >>> read_json('{"rows": 3}')
    {'rows': 3}
    """
    return json.loads(content, **STRICTLY)


def _whole_number(text: str) -> int:
    if len(text) > 21 or abs(int(text)) > LARGEST_INT:
        raise ValueError(f"a whole number of {len(text)} characters, beyond 2^64")
    return int(text)


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"a number beyond what a float holds ({text[:20]})")
    return number


def is_digest(value: object) -> bool:
    """Whether this is a SHA-256 digest, in hexadecimal."""
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None


def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object in which no key occurs twice; Python would keep the last one."""
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("a key occurs twice")
    return dict(pairs)


def not_a_number(text: str) -> float:
    """JSON has no NaN and no infinity; Python's reader would take them."""
    raise ValueError(f"{text} is not a number")


STRICTLY: dict[str, Any] = {
    "object_pairs_hook": without_duplicates,
    "parse_constant": not_a_number,
    "parse_int": _whole_number,
    "parse_float": _number,
}
