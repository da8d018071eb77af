"""What issuing allows and spends; whoever checks a certificate asks for the same."""

from __future__ import annotations

from expunge.distance import Distance

STEPS = ("converged", "newton", "balanced")
SMALLEST_EPSILON, LARGEST_EPSILON = 1e-6, 1e6  # below the first the calibration loses its digits
SMALLEST_DELTA = 1e-300
MOST_PLANNED = 1_000_000
ARITHMETIC_SHARE = 1e-2  # of delta: what float64 may make of noise with a shape
FORM = "retained rows"  # of the residual bound: what the surrogate stands for

SAMPLING_SHARE = 0.4  # of delta: the probability that source or surrogate is an unlucky sample
EVENTS_SHARE = 0.05  # the same where the deviation itself is averaged, and only what else may be unlucky is left
EIGENVALUE_SHARE = 1e-2  # of delta: the probability that Lanczos started in an unlucky direction


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


def spread_failures(failures: dict[str, float], planned: int) -> dict[str, float]:
    """The failure probabilities of one step of `planned`, with what the other steps spend under `sequence`.

    >>> spread_failures({"sampling": 0.4}, 4)
    {'sampling': 0.1, 'sequence': 0.30000000000000004}
    """
    if planned == 1 or not failures:
        return failures
    own = {name: value / planned for name, value in failures.items()}
    return {**own, "sequence": (planned - 1) * sum(own.values())}
