"""One thing that was looked at, and what to say if it is not so."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from expunge.errors import VerificationFailed

TOLERANCE = 1e-12  # what another machine's mathematical library may change
LARGEST_NUMBER = 1e300
MOST_SHOWN = 5

FOLLOWS, POSSIBLE, MODEL, DEPOSIT = "follows", "possible", "model", "deposit"  # what a check is about
REQUIRED = {
    POSSIBLE: (
        "what it states must be possible, and no run of Expunge gives this",
        "Do not rely on this certificate: somebody wrote or changed it.",
    ),
    FOLLOWS: ("the file must say what follows from its own numbers", "Do not rely on this certificate."),
    MODEL: (
        "the model must be the one that the certificate was issued for",
        "Give the published model's file as it was written; if it is that one, rely on neither.",
    ),
    DEPOSIT: (
        "the deposits must be the one the rows were taken out of and the one that was left, and the dossier must say "
        "what follows from them",
        "Give the deposits of this deletion, as they were written; if they are, rely on none of these files.",
    ),
}


@dataclass(frozen=True)
class Check:
    """What a certificate claims beside what it should; `why` is the sentence to print where they differ."""

    name: str
    claimed: Any
    recomputed: Any
    why: str = ""
    about: str = FOLLOWS

    @property
    def passed(self) -> bool:
        return equal(self.claimed, self.recomputed)

    @property
    def words(self) -> str:
        """What is wrong, where something is."""
        if self.why:
            return f"it is not so that {self.name} ({self.why})"
        return f"{self.name} is stated as {_short(self.claimed)}, but {_short(self.recomputed)} follows"


def equal(claimed: Any, recomputed: Any) -> bool:
    """Whether they are the same, floats up to what another machine may change."""
    if isinstance(recomputed, dict):
        return (
            isinstance(claimed, dict)
            and claimed.keys() == recomputed.keys()
            and all(equal(claimed[k], v) for k, v in recomputed.items())
        )
    if isinstance(recomputed, (list, tuple)):
        return isinstance(claimed, list) and len(claimed) == len(recomputed) and all(map(equal, claimed, recomputed))
    if isinstance(recomputed, float):
        number = isinstance(claimed, (int, float)) and not isinstance(claimed, bool) and abs(claimed) <= LARGEST_NUMBER
        return number and math.isclose(claimed, recomputed, rel_tol=TOLERANCE, abs_tol=0.0)
    return type(claimed) is type(recomputed) and bool(claimed == recomputed)


def require_passed(compared: Sequence[Check]) -> None:
    """Raise, with what is wrong in words, unless every check passed; what is impossible is said first."""
    failed = [check for check in compared if not check.passed]
    said = {about: [check.words for check in failed if check.about == about] for about in REQUIRED}
    for about, (required, remedy) in REQUIRED.items():
        wrong = said[about]
        if wrong:
            more = f"; and {len(wrong) - MOST_SHOWN} more" if len(wrong) > MOST_SHOWN else ""
            everything = tuple(words for part in said.values() for words in part)
            raise VerificationFailed("; ".join(wrong[:MOST_SHOWN]) + more, required, remedy, everything)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."
