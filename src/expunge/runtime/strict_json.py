"""JSON read strictly: no key twice, no NaN, no number beyond what its type holds; into dataclasses too."""

from __future__ import annotations

import functools
import json
import math
import re
import sys
from collections.abc import Hashable
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

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


# Dataclasses from JSON, read strictly: every key, no other key, every value of its type ----------------------------

Read = TypeVar("Read")
LARGEST_FLOAT = sys.float_info.max


def read_as(kind: type[Read], content: object) -> Read:
    """An instance of a dataclass from a JSON object; ValueError says what does not fit.

    A field with a default may be missing, since it was added later; no other may, and no unknown key is let through.
    Fields are int, float (where JSON wrote a whole number it stays one), str, bool, `X | None`, `tuple[X, ...]` (an
    array), `dict[str, X]`, or dataclasses again.
    """
    if not isinstance(content, dict):
        raise ValueError(f"{content!r} is not an object")
    types, needed = _layout(cast(Hashable, kind))
    odd = (needed - content.keys()) | (content.keys() - types.keys())
    if odd:
        raise ValueError(f"lacks or adds {', '.join(sorted(odd))}")
    return kind(**{name: _value(types[name], value, name) for name, value in content.items()})


@functools.cache
def _layout(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """The type of each field, and the fields that must be there."""
    hints = get_type_hints(kind)
    types = {field.name: hints[field.name] for field in fields(kind)}
    return types, frozenset(field.name for field in fields(kind) if field.default is MISSING)


@functools.cache
def _dissected(wanted: Any) -> tuple[bool, Any, Any, tuple[Any, ...], bool]:
    """Whether None will do, what is wanted otherwise, of which kind, of what it consists, and if it is a dataclass."""
    optional = get_origin(wanted) is UnionType and NoneType in get_args(wanted)
    if get_origin(wanted) is UnionType:
        (wanted,) = (option for option in get_args(wanted) if option is not NoneType)
    return optional, wanted, get_origin(wanted), get_args(wanted), isinstance(wanted, type) and is_dataclass(wanted)


def _value(wanted: Any, content: Any, name: str) -> Any:
    optional, wanted, origin, inside, again = _dissected(wanted)
    if content is None and optional:
        return None
    if again:
        return read_as(wanted, content)
    if origin is tuple and isinstance(content, list):
        return tuple(_value(inside[0], item, name) for item in content)
    if origin is dict and isinstance(content, dict):
        return {key: _value(inside[1], item, name) for key, item in content.items()}
    if type(content) is wanted or (wanted is float and type(content) is int):
        if wanted is float and not abs(content) <= LARGEST_FLOAT:
            raise ValueError(f"{name} is beyond what a float holds")
        return content
    raise ValueError(f"{name} {content!r}")
