"""JSON read strictly: no key twice, no NaN; and what a digest looks like."""

from __future__ import annotations

import re
from typing import Any


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
