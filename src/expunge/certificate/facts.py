"""A claim: every number a certificate follows from, and where each comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from expunge.bounds import ResidualFacts
from expunge.distance import Distance
from expunge.errors import OptionError

SCHEMA = "expunge/certificate/2"
SCHEMAS = ("expunge/certificate/1", SCHEMA)  # 1 knew neither row weights nor estimates
INSECURE = "INSECURE-TEST"
GENERATORS = ("operating system", INSECURE)
SIZE_NAMES = ("n_source", "n_forget", "n_surrogate")

Json = dict[str, Any]


WEAKEST_LAST = ("derived", "measured", "declared", "estimated")


def weakest(provenances: Sequence[str]) -> str:
    """The weakest of several provenances; an unknown one raises.

    >>> weakest(["declared", "derived"])
    'declared'
    """
    odd = [name for name in provenances if name not in WEAKEST_LAST]
    if odd:
        raise OptionError(
            f"provenance {odd[0]!r}", f"it is one of {', '.join(WEAKEST_LAST)}", "Say where it comes from."
        )
    return max(provenances, key=WEAKEST_LAST.index)


@dataclass(frozen=True)
class Fact:
    """A number and where it comes from: `derived`, `measured`, `declared` or `estimated`."""

    value: float
    provenance: str


@dataclass(frozen=True)
class Claim:
    """Everything the certificate's numbers follow from."""

    epsilon: float
    delta: float
    bound: str
    facts: Mapping[str, Fact]
    distance: Distance
    failures: Mapping[str, float]
    n_parameters: int
    generator: str
    convention: str = "source"
    tuned: bool = False
    schema: str = SCHEMA


def residual_facts(facts: Mapping[str, Fact]) -> ResidualFacts:
    """The residual bound's numbers without their provenance."""
    values: dict[str, Any] = {
        name: int(fact.value) if name in SIZE_NAMES else fact.value for name, fact in facts.items()
    }
    return ResidualFacts(**values)
