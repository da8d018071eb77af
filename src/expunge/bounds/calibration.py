"""From (epsilon, delta) and a radius to sigma, as plain numbers.

The analytic Gaussian mechanism (Balle and Wang 2018) is exact for every epsilon > 0: with `mu = Delta/sigma`

    delta(epsilon, mu) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu).

Every rounding goes toward more noise."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx, log_ndtr

from expunge.bounds.sampling import Tail, bracket
from expunge.errors import OptionError

# How the noise's scale is chosen. It is seen in every published model, so it must not say who left ------------------
# policy    a number set before anybody asked, or rehearsed on rows that are nobody's who asks; a request that needs
#           more is refused
# ladder    the request chooses a noise level, a power of two; which one says something of who left, so a statement says
#           how many there were
# levels    with a deposit the smallest of a few noise levels, powers of four, that covers the request, from what
#           changes no output to what drowns them; a request beyond the last is refused, and a statement says how many
#           there were
# exact     what the request needs, to the last digit. It tells who left: for audits and experiments, never published

POLICY, LADDER, EXACT, REHEARSAL, LEVELS = "policy", "ladder", "exact", "rows", "levels"
CHOICES = (POLICY, LADDER, EXACT, LEVELS)  # what a scale can have been chosen by; a rehearsal becomes a policy
SET = (POLICY, LEVELS)  # whose scale is a number that somebody set
LOWEST_LEVEL, HIGHEST_LEVEL = 2.0**-20, 2.0**1000  # below the first noise is finer than the finest grid (noise.py)
LARGEST_SCALE = 1e6
LARGEST_POWER = 2.0**1022  # of two and of four
MOST_REHEARSED = 2**53
REMEDY = "Write a standard deviation such as 0.01, rows:10 (as for ten rows), or request."


@dataclass(frozen=True)
class Scale:
    """How the scale is chosen; `value` is a policy's or a deposit's.

    `rows` is how many rows it was rehearsed with, or is to be; for levels how many levels there were.
    """

    kind: str
    value: float | None = None
    rows: int | None = None

    def __post_init__(self) -> None:
        if (self.kind not in (*CHOICES, REHEARSAL)) or (self.kind in SET) != (self.value is not None):
            raise OptionError(f"noise {self.kind!r} of {self.value}", "only a policy has a value", REMEDY)
        if self.value is not None and not (
            isinstance(self.value, float) and LOWEST_LEVEL <= self.value <= LARGEST_SCALE
        ):
            raise OptionError(
                f"noise {self.value}",
                f"a standard deviation from 2^-20 to {LARGEST_SCALE:g} is needed",
                REMEDY,
            )
        if self.rows is not None and not (type(self.rows) is int and 1 <= self.rows <= MOST_REHEARSED):
            raise OptionError(f"noise as for {self.rows} rows", "at least one row is needed", REMEDY)


ON_LADDER, EXACTLY = Scale(LADDER), Scale(EXACT)


def asked_scale(noise: Any) -> Scale:
    """How it is asked for: None or `request`, a number, `rows:10`; `exact` for audits.

    >>> asked_scale("rows:10")
    Scale(kind='rows', value=None, rows=10)
    >>> asked_scale("0.25").value
    0.25
    """
    if isinstance(noise, Scale):
        return noise
    if noise is None or noise == "request":
        return ON_LADDER
    if noise == EXACT:
        return EXACTLY
    if isinstance(noise, (int, float)) and not isinstance(noise, bool):
        return Scale(POLICY, float(noise))
    text = str(noise).strip()
    try:
        if text.startswith(f"{REHEARSAL}:"):
            return Scale(REHEARSAL, rows=int(text.partition(":")[2]))
        return Scale(POLICY, float(text))
    except ValueError as error:
        raise OptionError(f"noise {text!r}", "a number, rows:NUMBER or request is needed", REMEDY) from error


def publishable(noise: Any) -> Scale:
    """The scale that is asked for; refused where it must not be published."""
    scale = asked_scale(noise)
    if scale.kind == EXACT:
        raise OptionError("noise exact", "it would tell who left", REMEDY)
    return scale


def power_of_two(value: float) -> float:
    """The smallest power of two that is not below, and 0 of 0; infinite where there is none, or none that is known.

    >>> power_of_two(5.0), power_of_two(4.0), power_of_two(0.0)
    (8.0, 4.0, 0.0)
    """
    if value == 0.0:
        return 0.0
    if not value <= LARGEST_POWER:
        return math.inf
    mantissa, exponent = math.frexp(value)
    return math.ldexp(1.0, exponent - 1 if mantissa == 0.5 else exponent)


def power_of_four(value: float) -> float:
    """The smallest power of four that is not below; infinite where there is none, or none that is known.

    >>> power_of_four(5.0), power_of_four(4.0), power_of_four(0.2)
    (16.0, 4.0, 0.25)
    """
    power = power_of_two(value)
    return power if is_power_of_four(power) else 2.0 * power


def is_power_of_four(value: float) -> bool:
    """Whether a number is a power of four.

    >>> is_power_of_four(0.25), is_power_of_four(0.5), is_power_of_four(0.3)
    (True, False, False)
    """
    return math.isfinite(value) and value > 0.0 and math.frexp(value)[0] == 0.5 and math.frexp(value)[1] % 2 == 1


def level_above(scale: float) -> float:
    """The lowest level of the ladder, a power of two, that is not below this.

    >>> level_above(0.3), level_above(0.25), level_above(0.0) == 2.0**-20
    (0.5, 0.25, True)
    """
    return max(power_of_two(scale), LOWEST_LEVEL) if scale <= HIGHEST_LEVEL else math.inf


def is_level(scale: float) -> bool:
    """Whether this is a level of the ladder."""
    return math.isfinite(scale) and scale > 0.0 and level_above(scale) == scale


def count_levels(l2: float, classes: int, parameters: int, scale: float, unit: float = 1.0) -> int:
    """How many levels of the ladder there were to choose from, from public numbers alone.

    From the lowest to the first at which noise is as long as trained weights can be: an objective that is at most
    `0.7 K` at zero, as that of each loss is, allows `sqrt(1.4 K / l2)`. A scale above that, which somebody insisted
    on, adds the levels up to it. `unit` is the deviation that noise of scale 1 has in every direction at least.

    >>> count_levels(0.01, 10, 640, 0.25), count_levels(0.01, 10, 640, 4.0)
    (22, 23)
    """
    longest = math.sqrt(1.4 * max(classes, 2) / l2)
    highest = max(level_above(longest / math.sqrt(parameters) / unit), scale)
    return max(1, math.frexp(highest)[1] - math.frexp(LOWEST_LEVEL)[1] + 1)


SAFETY = 1.0 + 1e-9  # root finding ends within this of the root; sigma is moved past it
AVERAGED_POINTS = 768  # of the upper sums; more would make sigma smaller by a thousandth or so
SMALLEST_TAIL = 1e-306  # where the sums end at the latest: below a hundred-thousandth of every delta allowed
SMALLEST_SIGMA = 1e-300

Calibration = Callable[[float, float, float], float]  # of a radius, epsilon and delta


def log_deltas(epsilon: float, mus: NDArray[np.float64]) -> NDArray[np.float64]:
    """Natural logarithms of the deltas of Gaussian mechanisms with `mu = Delta/sigma`, at this epsilon.

    With `a = epsilon/mu - mu/2`, `b = epsilon/mu + mu/2` it is `-a^2/2 - ln 2 + ln(erfcx(a/sqrt 2) - erfcx(b/sqrt 2))`;
    far in the other tail (a < -5) the difference of probabilities itself is accurate.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        a, b = epsilon / mus - mus / 2.0, epsilon / mus + mus / 2.0
        root = math.sqrt(2.0)
        near = -a * a / 2.0 - math.log(2.0) + np.log(np.maximum(erfcx(a / root) - erfcx(b / root), 0.0))
        first, second = log_ndtr(-a), epsilon + log_ndtr(-b)
        far = first + np.log1p(-np.exp(second - first))
    logs = np.where(a < -5.0, far, near)
    return np.where(mus <= 0.0, -math.inf, np.where(np.isinf(mus), 0.0, logs))


def log_delta(epsilon: float, mu: float) -> float:
    """The logarithm of `delta(epsilon, mu)`, for a single mu.

    >>> round(math.exp(log_delta(1.0, 1.0)), 6)
    0.126937
    """
    return float(log_deltas(epsilon, np.array([mu]))[0])


def delta_of(epsilon: float, mu: float) -> float:
    """The smallest delta for which a Gaussian mechanism with `mu = Delta/sigma` is (epsilon, delta)."""
    return math.exp(log_delta(epsilon, mu))


def mu_for(epsilon: float, delta: float) -> float:
    """The largest `mu = Delta/sigma` that is (epsilon, delta), rounded down."""
    if not (0.0 <= epsilon < math.inf and 0.0 < delta < 1.0):
        raise ValueError(f"epsilon {epsilon} must be finite and at least 0, delta {delta} strictly between 0 and 1")
    target = math.log(delta)

    def too_large(mu: float) -> bool:
        return log_delta(epsilon, mu) > target

    low = 1.0
    while too_large(low):
        low /= 2.0
    return bracket(too_large, low, 2.0 * low, 1e-13)[0] / SAFETY


def sigma_for(error: float, epsilon: float, delta: float) -> float:
    """The smallest sigma that makes a distance of at most `error` (epsilon, delta)-indistinguishable, rounded up.

    >>> round(sigma_for(1.0, 1.0, 1e-5), 4)
    3.7306
    """
    return math.nextafter(error / mu_for(epsilon, delta), math.inf)


def sigma_classical(error: float, epsilon: float, delta: float) -> float:
    """`error sqrt(2 ln(1.25/delta)) / epsilon`, the paper's formula; proved for epsilon < 1 only.

    >>> round(sigma_classical(1.0, 1.0, 1e-5), 4)
    4.8448
    """
    return error * math.sqrt(2.0 * math.log(1.25 / delta)) / epsilon


@dataclass(frozen=True)
class AveragedDelta:
    """The mean of the Gaussian's delta at `mu = (radius + deviation)/sigma` over the deviation's law, from above.

    The delta rises with the deviation and its tail falls, so sums over a grid bound the integral from above:
    `d(s_0) + sum P(S > s_i) (d(s_{i+1}) - d(s_i)) + P(S > s_N) (1 - d(s_N))`. The grid depends on the tail and on the
    delta that is aimed at, not on sigma.
    """

    radius: float
    points: NDArray[np.float64]
    above: NDArray[np.float64]

    @staticmethod
    def of(radius: float, tail: Tail, delta: float) -> AveragedDelta:
        """The mean for a region with this radius and tail, on a grid for noise that aims at this delta."""
        end = min(tail.quantile(max(1e-5 * delta, SMALLEST_TAIL)), tail.limit)
        points = np.concatenate([[0.0], np.linspace(min(tail.expected, end), end, AVERAGED_POINTS)])
        return AveragedDelta(radius, points, tail.above(points))

    def at(self, epsilon: float, sigma: float) -> float:
        """The averaged delta of noise of this sigma, from above: the upper sum over the grid."""
        if not math.isfinite(self.radius) or not math.isfinite(float(self.points[-1])):
            return 1.0
        deltas = np.exp(log_deltas(epsilon, (self.radius + self.points) / sigma))
        inner = math.fsum((self.above[:-1] * np.maximum(np.diff(deltas), 0.0)).tolist())
        return min(1.0, (float(deltas[0]) + inner + float(self.above[-1]) * (1.0 - float(deltas[-1]))) * SAFETY)


def averaged_sigma(radius: float, tail: Tail, epsilon: float, delta: float) -> float:
    """The smallest sigma found whose averaged delta is at most `delta`, rounded up; infinite where none is."""
    averaged = AveragedDelta.of(radius, tail, delta)
    if averaged.at(epsilon, 1e300) > delta:
        return math.inf

    def enough(sigma: float) -> bool:
        return averaged.at(epsilon, sigma) <= delta

    low = 0.5 * max((radius + tail.expected) / mu_for(epsilon, delta), SMALLEST_SIGMA)
    while low > SMALLEST_SIGMA and enough(low):
        low /= 2.0
    return bracket(enough, low, 2.0 * low, 1e-11)[1] * SAFETY


def epsilon_for(delta: float, mu: float) -> float:
    """The smallest epsilon at which `mu = Delta/sigma` reaches `delta`, rounded up; 0 if it does without."""
    if not (0.0 <= mu < math.inf and 0.0 < delta < 1.0):
        raise ValueError(f"mu {mu} must be finite and at least 0, delta {delta} strictly between 0 and 1")
    target = math.log(delta)
    return smallest_epsilon(lambda epsilon: log_delta(epsilon, mu) <= target)


def smallest_epsilon(enough: Callable[[float], bool]) -> float:
    """The smallest epsilon that is enough, rounded up; 0 if none is needed, infinite if none would do."""
    return 0.0 if enough(0.0) else bracket(enough, 0.0, 1.0, 1e-13)[1] * SAFETY


# What (epsilon, delta) means for somebody who guesses: how often anybody can be right.


def right_at_most(epsilon: float, delta: float) -> float:
    """The most often that anybody can tell two (epsilon, delta)-indistinguishable results apart.

    Who would have said 50 % for each beforehand errs with probability (a + b)/2, where a and b are the two kinds of
    error, `a + e^epsilon b >= 1 - delta` and `b + e^epsilon a >= 1 - delta`. Their sum is least where both are equal:

        right = 1 - (1 - delta)/(1 + e^epsilon) = (e^epsilon + delta)/(e^epsilon + 1).

    >>> round(right_at_most(1.0, 0.0), 4), right_at_most(0.0, 0.0), right_at_most(3.0, 1.0)
    (0.7311, 0.5, 1.0)
    """
    if not (0.0 <= epsilon < math.inf and 0.0 <= delta <= 1.0):
        raise ValueError(f"epsilon {epsilon} must be finite and at least 0, delta {delta} between 0 and 1")
    other = math.exp(-epsilon)
    return 1.0 - (1.0 - delta) * other / (1.0 + other)


# What all published models say together.


MOST_MODELS = 10_000_000
SUM_UP = 1.0 + 1e-12  # covers the float64 arithmetic of the sum

Mus = Sequence[float] | Mapping[float, int]


@dataclass(frozen=True)
class Composition:
    """(epsilon, delta) of `models` published models together; `failures` of delta is for bounds, the rest for noise."""

    models: int
    epsilon: float
    delta: float
    failures: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def compose(mus: Mus, delta: float, failures: float) -> Composition:
    """All of these Gaussian mechanisms together, each given by its mu, or mus with how often each occurs.

    Gaussians compose in closed form, adaptively chosen ones too: together they are one with `mu^2 = sum mu_i^2`. That
    takes as long for a thousand models as for one; tests hold it against dp-accounting's answer.
    """
    counted = Counter(mus)
    if not counted:
        return Composition(0, 0.0, delta, failures)
    remaining = delta - failures
    epsilon = math.inf if remaining <= 0.0 else closed_form(counted, remaining)
    return Composition(counted.total(), epsilon, delta, failures)


def closed_form(mus: Mus, delta: float) -> float:
    """Epsilon of Gaussians with `mu^2 = sum mu_i^2`, rounded up."""
    squares = math.fsum(count * mu * mu for mu, count in Counter(mus).items())
    return epsilon_for(delta, math.sqrt(squares) * SUM_UP)


def models_left(squares: float, mu: float, delta: float, limit: float) -> int:
    """How many more models with this mu fit under the limit, where `squares` is the sum of `mu_i^2` so far."""
    if delta <= 0.0 or mu <= 0.0:
        return 0

    def fits(count: int) -> bool:
        return epsilon_for(delta, math.sqrt(squares + count * mu * mu)) <= limit

    low, high = 0, 1
    while high <= MOST_MODELS and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def deletions_left(total: float, carried: float, noise_share: float) -> int | None:
    """How often `total - carried` can be added to the bound before the noise reaches the weights' norm.

    >>> deletions_left(total=0.25, carried=0.125, noise_share=0.25)
    6
    """
    added = total - carried
    if added <= 0.0 or noise_share <= 0.0:
        return None
    return max(0, math.floor((total / noise_share - total) / added))
