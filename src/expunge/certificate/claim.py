"""A claim: every number a certificate follows from, where each comes from, and what issuing spends of delta."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any

from expunge.bounds import CurvatureFacts, DepositFacts, EllipsoidNumbers, RetainedFacts
from expunge.bounds.calibration import EXACTLY, Scale
from expunge.bounds.retained import WEIGHT_FACTS
from expunge.distance import Distance
from expunge.record import Constants

Json = dict[str, Any]

SCHEMA = "expunge/dossier/3"
STATEMENT_SCHEMA = "expunge/statement/3"
INSECURE = "INSECURE-TEST"
KEYED = "desk key"  # a pseudorandom function, under a desk's secret key, of everything that determines the model
SECRET = ("operating system", KEYED)  # whoever has only the model and its statement cannot tell the two apart
GENERATORS = (*SECRET, INSECURE)
SIZE_NAMES = ("n_source", "n_forget", "n_surrogate")
WHOLE = (*SIZE_NAMES, "directions")  # facts that are counts
STEPS = ("converged", "newton", "balanced")
FORM = "retained rows"  # of the residual bound: what the surrogate stands for
SMALLEST_EPSILON, LARGEST_EPSILON = 1e-6, 1e6  # below the first the calibration loses its digits
SMALLEST_DELTA = 1e-300
MEANINGFUL_EPSILON = 10.0  # above it whoever guesses may be right more than 99.99 % of the time
MOST_PLANNED = 1_000_000
WEAKEST_LAST = ("derived", "measured", "declared", "estimated")


class PublicNote(str):
    """A note that would be the same whoever had left; any other is for the dossier alone."""


def weakest(provenances: Sequence[str]) -> str:
    """The weakest of several provenances; an unknown one raises.

    >>> weakest(["declared", "derived"])
    'declared'
    """
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
    the source, in a word; None where nothing did. `preparation`: where that of the rows was learnt; None where nothing
    was. `weighted`: rows count by their class. `scale` is how the noise's scale was chosen. `others`: forgotten rows
    that equal others, and were declared another person's. `public`: its sentences are for everybody, so none may depend
    on who left.
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
    preparation: str | None = None
    weighted: bool = False
    scale: Scale = EXACTLY
    others: int = 0
    public: bool = False

    @property
    def curvature(self) -> float | None:
        """kappa, where it is declared of the retained rows."""
        fact = self.facts.get("curvature")
        return None if fact is None else fact.value

    @property
    def provenance(self) -> str:
        """The provenance of the weakest fact, the distance included."""
        return weakest([self.distance.provenance, *(fact.provenance for fact in self.facts.values())])


# Which facts a bound needs, and their numbers without provenance.

RETAINED_FACTS = tuple(field.name for field in fields(RetainedFacts) if field.default is MISSING)
SHAPE_FACTS = ("shape_largest", "shape_least", "shape_inverse_trace")  # of the noise's matrix
OUTPUT_FACTS = ("weights_length", "output_noise", "output_spread")  # what the noise is held against
OWN_FACTS = tuple(field.name for field in fields(DepositFacts) if field.name != "route")  # of a deposit's region
CURVATURE_FACTS = ("curvature", "curvature_seen", "curvature_least", "curvature_reach", "shape_ratio")
PAPER_FACTS = (*(*SIZE_NAMES, "alpha", "beta", "lipschitz", "gamma", "lipschitz_power", "gradient_norm", "tv_upper"),)


def needed_facts(bound: str, distance: Distance) -> set[str]:
    """The names of the facts that a bound follows from; an unknown one raises."""
    rows = {*RETAINED_FACTS, *(WEIGHT_FACTS if distance.matched else ())}
    return {
        "paper": {*PAPER_FACTS},
        "residual": rows,
        "curvature": {*rows, *CURVATURE_FACTS, *SHAPE_FACTS, *OUTPUT_FACTS},
        "deposit": {*OWN_FACTS, "n_source", "n_forget", "row_bound", *SHAPE_FACTS, *OUTPUT_FACTS},
    }[bound]


def retained_facts(facts: Mapping[str, Fact]) -> RetainedFacts:
    """The residual bound's numbers."""
    names = [name for name in (*RETAINED_FACTS, *WEIGHT_FACTS) if name in facts]
    values: Json = {name: int(facts[name].value) if name in WHOLE else facts[name].value for name in names}
    return RetainedFacts(**values)


def curvature_facts(facts: Mapping[str, Fact]) -> CurvatureFacts:
    """The numbers of a region that a surrogate's curvature gives."""
    named = ("curvature_least", "curvature_reach", "shape_ratio", "shape_largest", "weights_length")
    return CurvatureFacts(retained_facts(facts), *(facts[name].value for name in named))


def deposit_facts(facts: Mapping[str, Fact], route: str) -> DepositFacts:
    """The deposit bound's numbers."""
    return DepositFacts(route, **{name: facts[name].value for name in OWN_FACTS})


def ellipsoid_of(facts: Mapping[str, Fact], n_parameters: int) -> EllipsoidNumbers:
    """The shape of the noise, as far as plain numbers say it."""
    largest, least, inverse_trace = (facts[name].value for name in SHAPE_FACTS)
    return EllipsoidNumbers(n_parameters, largest, least, inverse_trace, facts["weights_length"].value)


def beyond_closed_form(facts: Mapping[str, Fact], closed: Constants) -> bool:
    """Whether the paper's constants, as given, promise more than this objective can keep."""
    return (
        facts["alpha"].value > closed.strong_convexity
        or facts["beta"].value < closed.smoothness
        or facts["lipschitz"].value < closed.lipschitz
        or facts["gamma"].value < closed.hessian_lipschitz
        or facts["lipschitz_power"].value < 2
    )


# What issuing spends of delta; whoever checks a certificate asks for the same.

SAMPLING_SHARE = 0.4  # of delta: the probability that source or surrogate is an unlucky sample
EVENTS_SHARE = 0.05  # the same where the deviation itself is averaged, and only what else may be unlucky is left
EIGENVALUE_SHARE = 1e-2  # of delta: the probability that Lanczos started in an unlucky direction
ARITHMETIC_SHARE = 1e-4  # of delta: for draws of noise with a shape that float64 makes worse than is counted


def due_failures(delta: float, distance: Distance, *, averaged: bool, planned: int = 1) -> dict[str, float]:
    """What the residual bound spends out of delta, by what it is spent on, for one model of `planned`.

    The other models spend as much each, under `sequence`.

    >>> due_failures(0.5, Distance("same", 0.0), averaged=True)
    {'sampling': 0.025, 'eigenvalue': 0.005}
    """
    failures = {}
    if distance.samples_rows:
        share = EVENTS_SHARE if averaged and distance.counts_unlike else SAMPLING_SHARE
        failures["sampling"] = share * delta
    if distance.needs_eigenvalue:
        failures["eigenvalue"] = EIGENVALUE_SHARE * delta
    if planned == 1 or not failures:
        return failures
    own = {name: value / planned for name, value in failures.items()}
    return {**own, "sequence": (planned - 1) * sum(own.values())}


def curvature_failures(delta: float, distance: Distance, *, averaged: bool, planned: int = 1) -> dict[str, float]:
    """What a surrogate's curvature spends: what the residual bound does, and on the drawing of noise with a shape."""
    return due_failures(delta, distance, averaged=averaged, planned=planned) | kept_failures(delta)


def kept_failures(delta: float) -> dict[str, float]:
    """What a deposit's bound spends: on the drawing of its noise.

    >>> kept_failures(0.5)
    {'arithmetic': 5e-05}
    """
    return {"arithmetic": ARITHMETIC_SHARE * delta}
