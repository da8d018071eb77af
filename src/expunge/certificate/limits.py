"""What issuing allows and spends; whoever checks a certificate asks for the same."""

from __future__ import annotations

from expunge.distance import Distance

STEPS = ("converged", "newton", "balanced")
SMALLEST_EPSILON, LARGEST_EPSILON = 1e-6, 1e6  # below the first the calibration loses its digits
SMALLEST_DELTA = 1e-300
MEANINGFUL_EPSILON = 10.0  # above it whoever guesses may be right more than 99.99 % of the time
MOST_PLANNED = 1_000_000
ARITHMETIC_SHARE = 1e-4  # of delta: for draws of noise with a shape that float64 makes worse than is counted
FORM = "retained rows"  # of the residual bound: what the surrogate stands for

SAMPLING_SHARE = 0.4  # of delta: the probability that source or surrogate is an unlucky sample
EVENTS_SHARE = 0.05  # the same where the deviation itself is averaged, and only what else may be unlucky is left
EIGENVALUE_SHARE = 1e-2  # of delta: the probability that Lanczos started in an unlucky direction
MOST_ROUTES = 6  # by which surrogate rows beside a deposit can be measured; the smallest region is taken of them all


def due_failures(
    delta: float,
    distance: Distance,
    *,
    averaged: bool,
    planned: int = 1,
    shares: tuple[float, float] = (SAMPLING_SHARE, EIGENVALUE_SHARE),
) -> dict[str, float]:
    """What the residual bound spends out of delta, by what it is spent on, for one model of `planned`.

    >>> due_failures(0.5, Distance("same", 0.0), averaged=True)
    {'sampling': 0.025, 'eigenvalue': 0.005}
    """
    failures = {}
    if distance.samples_rows:
        share = EVENTS_SHARE if averaged and distance.sampling == "strict" else shares[0]
        failures["sampling"] = share * delta
    if distance.needs_eigenvalue:
        failures["eigenvalue"] = shares[1] * delta
    return spread_failures(failures, planned)


def kept_failures(delta: float, distance: Distance) -> dict[str, float]:
    """What a deposit's bound spends: on the drawing of its noise, and where surrogate rows stand beside it, on theirs.

    >>> kept_failures(0.5, Distance("same", 0.0))
    {'arithmetic': 5e-05, 'sampling': 0.2}
    """
    failures = {"arithmetic": ARITHMETIC_SHARE * delta}
    return failures | ({"sampling": SAMPLING_SHARE * delta} if distance.samples_rows else {})


def route_failure(delta: float, distance: Distance) -> float:
    """Of what is spent on surrogate rows beside a deposit, the share of each route: they have a say in which is taken.

    >>> route_failure(0.5, Distance("same", 0.0)) * MOST_ROUTES
    0.2
    """
    return kept_failures(delta, distance).get("sampling", 0.0) / MOST_ROUTES


def spread_failures(failures: dict[str, float], planned: int) -> dict[str, float]:
    """The failure probabilities of one step of `planned`, with what the other steps spend under `sequence`.

    >>> spread_failures({"sampling": 0.4}, 4)
    {'sampling': 0.1, 'sequence': 0.30000000000000004}
    """
    if planned == 1 or not failures:
        return failures
    own = {name: value / planned for name, value in failures.items()}
    return {**own, "sequence": (planned - 1) * sum(own.values())}
