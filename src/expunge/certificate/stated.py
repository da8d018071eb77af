"""What a certificate states, as the rules of `possible.py` look at it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from expunge.certificate.check import POSSIBLE, Check
from expunge.certificate.facts import OLD_SCHEMAS, Claim, Json
from expunge.errors import ExpungeError
from expunge.record import Loss, loss_named

SLACK = 1e-6  # relative: what float64, and float32 rows, may change of a moment
SMALL = 1e-300  # absolute: where squares leave float64
LOST = 1e-8  # of the square of the mean: what cancellation adds to second moments that are far below it


@dataclass(frozen=True)
class Stated:
    """A certificate's content and its claim."""

    content: Json
    claim: Claim

    def __getitem__(self, name: str) -> float:
        """A fact's value."""
        return self.claim.facts[name].value

    def has(self, name: str) -> bool:
        return name in self.claim.facts

    @property
    def old(self) -> bool:
        """Whether it is of schema 1 or 2."""
        return self.claim.schema in OLD_SCHEMAS

    @property
    def residual(self) -> bool:
        return self.claim.bound == "residual"

    @property
    def paper(self) -> bool:
        return self.claim.bound == "paper"

    @property
    def kept(self) -> bool:
        """Whether a deposit was kept of the source."""
        return self.claim.bound == "deposit"

    @property
    def beside(self) -> bool:
        """Whether surrogate rows stand beside a deposit."""
        return self.kept and self.claim.distance.law.stands_in

    @property
    def linear(self) -> bool:
        """Whether weights are a matrix, one row a class."""
        return not self.loss.one_vector

    @cached_property
    def loss(self) -> Loss:
        return loss_named(self.content["model"]["loss"])

    @property
    def sequence(self) -> Json | None:
        """The place in a series, where there is one."""
        place: Json | None = self.content["data"].get("sequence")
        return place

    @property
    def planned(self) -> int:
        return 1 if self.sequence is None else int(self.sequence["planned"])

    @property
    def n_retain(self) -> float:
        return self["n_source"] - self["n_forget"]

    @property
    def row_rounding(self) -> float:
        """What float64 may have changed of one row's change: the bound's own rounding, for each retained row.

        A deposit's is of the mean already.
        """
        return 2.0 * self["rounding"] / (1.0 if self.kept else self.n_retain)

    @property
    def longest(self) -> float:
        """The largest change seen; schemas 1 and 2 state only how far from the mean it can be."""
        return self["change_longest"] if self.has("change_longest") else self["change_largest"] + self["change_mean"]


def at_most(smaller: float, larger: float, more: float = 0.0) -> bool:
    """`smaller <= larger`, up to rounding and `more`."""
    return smaller <= larger * (1.0 + SLACK) + more + SMALL


@dataclass(frozen=True)
class Rule:
    """Something that every certificate of this library satisfies. Its name says what, `why` what is wrong if not."""

    name: str
    why: str
    holds: Callable[[Stated], bool]
    applies: Callable[[Stated], bool] | None = None

    def check(self, stated: Stated) -> Check | None:
        """None where it says nothing of such a certificate; what cannot be read does not hold."""
        try:
            if self.applies is not None and not self.applies(stated):
                return None
            holds = bool(self.holds(stated))
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, ExpungeError):
            return Check(self.name, "unreadable", True, f"{self.why}, or it is not there to be read", POSSIBLE)
        return Check(self.name, holds, True, self.why if holds else self.why + _stated(self.why, stated), POSSIBLE)


def _stated(why: str, stated: Stated) -> str:
    """The values of what a sentence names, to go with it."""
    named = {"epsilon": stated.claim.epsilon, "delta": stated.claim.delta}
    named |= {name: fact.value for name, fact in stated.claim.facts.items()}
    values = [f"{word} {named[word]:.6g}" for word in dict.fromkeys(re.findall(r"\w+", why)) if word in named]
    return f"; stated: {', '.join(values)}" if values else ""
