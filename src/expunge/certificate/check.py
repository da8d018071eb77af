"""A check: one thing that was looked at, and what to say if it is not so; and the verdict on all of them.

What should have been there is compared and dropped: nobody who asks what is wrong with a forgery is told what to paste.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import InitVar, dataclass, field, replace
from typing import Any

from expunge.errors import VerificationFailed

TOLERANCE = 1e-12  # what another machine's mathematical library may change
LARGEST_NUMBER = 1e300
MOST_SHOWN = 5
MOST_BITS = 256  # of a whole number that is shown; Python refuses to write very long ones

CONSISTENT, AUTHENTICATED, FAILED = "consistent", "authenticated", "failed"  # what checking can come to
UNSIGNED = "nobody has signed this"
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
    """What a certificate claims, and whether it is as `recomputed`, which is not kept; `why` is what to say if not."""

    name: str
    claimed: Any = field(repr=False)
    recomputed: InitVar[Any]
    why: str = ""
    about: str = FOLLOWS
    passed: bool = field(init=False)

    def __post_init__(self, recomputed: Any) -> None:
        object.__setattr__(self, "passed", equal(self.claimed, recomputed))

    def named(self, name: str) -> Check:
        """The same under another name."""
        other = replace(self, name=name, recomputed=self.claimed)
        object.__setattr__(other, "passed", self.passed)
        return other

    @property
    def words(self) -> str:
        """What is wrong, where something is; never what would be right."""
        if self.why:
            return f"it is not so that {self.name} ({self.why})"
        if self.claimed is False and " " in self.name:
            return f"it is not so that {self.name}"
        return f"{self.name} is stated as {shown(self.claimed)}, which does not follow from the rest"


class Verdict(list[Check]):
    """What checking came to: every check, all of them passed; a check that does not pass raises.

    `status` is the certificate's own word for its claim (proven, conditional, estimated), and says nothing of whether
    the certificate is genuine: that is `word`, authenticated only where a signature was checked, by the key whose id is
    `signed_by`. `found_since` says what is known by now of certificates of this schema.
    """

    def __init__(
        self,
        checks: Iterable[Check],
        status: str,
        signed_by: str | None = None,
        found_since: tuple[str, ...] = (),
    ) -> None:
        super().__init__(checks)
        self.status, self.signed_by, self.found_since = status, signed_by, found_since

    @property
    def word(self) -> str:
        return CONSISTENT if self.signed_by is None else AUTHENTICATED

    @property
    def sentence(self) -> str:
        """The verdict as every command and page says it."""
        return verdict_sentence(self.signed_by)

    def __repr__(self) -> str:
        return f"Verdict({self.sentence!r}, status {self.status!r}, {len(self)} checks)"


def verdict_sentence(signed_by: str | None) -> str:
    """What is to be said of a certificate whose checks all passed.

    >>> verdict_sentence(None)
    'consistent, not authenticated: nobody has signed this'
    """
    return (
        f"{CONSISTENT}, not authenticated: {UNSIGNED}"
        if signed_by is None
        else f"{AUTHENTICATED}: signed by {signed_by}"
    )


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


def shown(value: Any) -> str:
    """A claimed value for a message, whatever it is."""
    try:
        text = "a number of very many digits" if type(value) is int and value.bit_length() > MOST_BITS else str(value)
    except (ValueError, RecursionError):  # a very long number somewhere in it, or lists in lists in lists
        text = f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= 80 else text[:77] + "..."
