"""A claim: every number a certificate follows from, and where each comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from expunge.bounds import DepositFacts, EllipsoidNumbers, ResidualFacts, RetainedFacts
from expunge.bounds.scale import EXACTLY, Scale
from expunge.distance import Distance
from expunge.errors import OptionError
from expunge.record import Constants

SCHEMA = "expunge/dossier/3"
# 1 knew neither row weights nor estimates; 1 and 2 let the surrogate stand for the forgotten rows too
OLD_SCHEMAS = ("expunge/certificate/1", "expunge/certificate/2")
SCHEMAS = (*OLD_SCHEMAS, SCHEMA)
INSECURE = "INSECURE-TEST"
GENERATORS = ("operating system", INSECURE)
SIZE_NAMES = ("n_source", "n_forget", "n_surrogate")

Json = dict[str, Any]


class PublicNote(str):
    """A note that would be the same whoever had left; any other is for the dossier alone."""


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
    """Everything the certificate's numbers and sentences follow from.

    `averaged`: delta is a mean over the drawing of the sets. `encoder`: whether what made the features was trained on
    the source, in a word; None where nothing did. `scale` is how the noise's scale was chosen. `public`: its sentences
    are for everybody, so none may depend on who left.
    """

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
    averaged: bool = False
    encoder: str | None = None
    scale: Scale = EXACTLY
    public: bool = False
    schema: str = SCHEMA


def residual_facts(facts: Mapping[str, Fact]) -> ResidualFacts:
    """The numbers of the bound of schemas 1 and 2, without their provenance."""
    return ResidualFacts(**_values(facts))


def retained_facts(facts: Mapping[str, Fact]) -> RetainedFacts:
    """The residual bound's numbers without their provenance."""
    return RetainedFacts(**_values(facts))


SHAPE_FACTS = ("shape_largest", "shape_least", "shape_inverse_trace")  # of the noise's matrix
OUTPUT_FACTS = ("weights_length", "output_noise", "output_spread")  # what the noise is held against


def deposit_facts(facts: Mapping[str, Fact], route: str) -> DepositFacts:
    """The deposit bound's numbers without their provenance."""
    others = ("n_source", "n_forget", "row_bound", *SHAPE_FACTS, *OUTPUT_FACTS)
    return DepositFacts(route, **{name: fact.value for name, fact in facts.items() if name not in others})


def ellipsoid_of(facts: Mapping[str, Fact], n_parameters: int) -> EllipsoidNumbers:
    """The shape of the noise, as far as plain numbers say it."""
    largest, least, inverse_trace = (facts[name].value for name in SHAPE_FACTS)
    return EllipsoidNumbers(n_parameters, largest, least, inverse_trace)


def _values(facts: Mapping[str, Fact]) -> dict[str, Any]:
    whole = (*SIZE_NAMES, "directions")
    return {name: int(fact.value) if name in whole else fact.value for name, fact in facts.items()}


def beyond_closed_form(facts: Mapping[str, Fact], closed: Constants) -> bool:
    """Whether the paper's constants, as given, promise more than this objective can keep."""
    return (
        facts["alpha"].value > closed.strong_convexity
        or facts["beta"].value < closed.smoothness
        or facts["lipschitz"].value < closed.lipschitz
        or facts["gamma"].value < closed.hessian_lipschitz
        or facts["lipschitz_power"].value < 2
    )
