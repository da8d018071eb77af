"""What an observer of a desk sees and can compute anew: for the games of who left."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scipy.stats import beta

from expunge.desk.desk import Desk

CONFIDENCE = 0.999
RANDOM = ("digest", "dossier", "root", "sha256", "before", "nonce", "created")  # drawn anew, or digests of what is


def published(desk: Desk) -> list[Path]:
    """Every file that was handed out."""
    return sorted(path for path in desk.layout.published.rglob("*") if path.is_file())


def fields(content: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a document with the path to it."""
    if isinstance(content, dict):
        for key, value in content.items():
            yield from fields(value, f"{name}.{key}")
    elif isinstance(content, list):
        for index, value in enumerate(content):
            yield from fields(value, f"{name}.{index}")
    else:
        yield name, content


def shown(content: Any) -> dict[str, Any]:
    """What of a document can be computed anew for a candidate: all but what is drawn at random for each."""
    return {name: value for name, value in fields(content) if name.rsplit(".", 1)[-1] not in RANDOM}


def without_digests(page: Path) -> str:
    """The text of a page, digests left out."""
    return re.sub(r"[0-9a-f]{64}", "digest", page.read_text())


def digests_of(content: Any) -> set[str]:
    """Everything in a document that looks like a digest."""
    return {value for _, value in fields(content) if isinstance(value, str) and len(value) == 64}


def at_least(won: int, games: int) -> float:
    """Exact lower confidence bound on the probability to win."""
    return float(beta.ppf(1.0 - CONFIDENCE, won, games - won + 1))
