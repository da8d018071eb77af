"""What an observer of a desk sees and can compute anew: for the games of who left."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from scipy.stats import beta

from expunge.desk import accept, open_desk, run
from expunge.desk.desk import Desk

CONFIDENCE = 0.999
# drawn anew, or digests of what is
RANDOM = ("digest", "dossier", "hash", "sha256", "before", "nonce", "created", "ledger_head")


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


def two_desks(opened: Desk, leaving: Callable[[int, int], Any], who: tuple[int, int], models: int, new: Any) -> Any:
    """Two desks that differ in nothing but who left first: copies of one that was just opened."""
    made: list[Desk] = []
    for candidate in who:
        folder = new.mktemp("game") / "desk"
        shutil.copytree(opened.layout.folder, folder)
        desk = open_desk(folder)
        for number in range(models):
            accept(desk, *leaving(candidate, number), f"case {number}")
            outcome = run(desk)
            assert outcome.refused is None, outcome.refused
        made.append(desk)
    return made[0], made[1]


def require_same_but_weights(first: list[Path], second: list[Path], models: int) -> None:
    """All files of two desks are the same but for weights and keyed digests, and of the same size."""
    assert [path.name for path in first] == [path.name for path in second]
    assert len(first) == 3 * models, "model, statement and page"
    for one, other in zip(first, second, strict=True):
        assert one.stat().st_size == other.stat().st_size, one
        if one.suffix == ".json":
            assert shown(json.loads(one.read_text())) == shown(json.loads(other.read_text())), one
        if one.suffix == ".html":
            assert without_digests(one) == without_digests(other), one
