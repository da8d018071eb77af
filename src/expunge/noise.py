"""From (epsilon, delta, Delta) to sigma, and the secret noise itself. Plain float64 and integers; no torch.

Calibration is the analytic Gaussian mechanism (Balle and Wang 2018), exact for every epsilon > 0: with
`mu = Delta/sigma`

    delta(epsilon, mu) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu).

Every rounding goes toward more noise. The sampler returns integers: Gaussian noise of standard deviation sigma,
rounded to the nearest point of a power-of-two grid, exactly (not up to the error of a float64 logarithm). Rounding is
post-processing, so the analytic sigma stays valid, and adding on the grid leaves no low-order bits to read.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx, log_ndtr

from expunge.bounds.region import GRID, ROUND_UP, Region, Shape
from expunge.bounds.sampling import Tail
from expunge.bounds.scale import EXACT, POLICY, Scale, rung_above
from expunge.errors import ModelError

if TYPE_CHECKING:
    import mpmath

SAFETY = 1.0 + 1e-9  # root finding ends within this of the root; sigma is moved past it
AVERAGED_POINTS = 768  # of the upper sums; more would make sigma smaller by less than a thousandth
SMALLEST_TAIL = 1e-306  # where the sums end at the latest: below a hundred-thousandth of every delta allowed
SMALLEST_SIGMA = 1e-300
GRID_BITS = 20  # the grid is at most sigma / 2^GRID_BITS ...
FINEST_EXPONENT = -40  # ... but not below this power of two
GRID_COST = 2.0**-10  # of the scale: the most that rounding to a published grid may cost, where the grid can be finer

RandomBytes = Callable[[int], bytes]
Calibration = Callable[[float, float, float], float]  # of a radius, epsilon and delta


def log_delta(epsilon: float, mu: float) -> float:
    """Natural logarithm of the delta of a Gaussian mechanism with `mu = Delta/sigma`, at this epsilon.

    With `a = epsilon/mu - mu/2`, `b = epsilon/mu + mu/2` it is `-a^2/2 - ln 2 + ln(erfcx(a/sqrt 2) - erfcx(b/sqrt 2))`;
    far in the other tail (a < -5) the difference of probabilities itself is accurate.

    >>> round(math.exp(log_delta(1.0, 1.0)), 6)
    0.126937
    """
    if mu == 0.0:
        return -math.inf
    if math.isinf(mu):
        return 0.0
    a = epsilon / mu - mu / 2.0
    b = epsilon / mu + mu / 2.0
    if a < -5.0:
        first = float(log_ndtr(-a))
        second = epsilon + float(log_ndtr(-b))
        return first + math.log1p(-math.exp(second - first))
    root = math.sqrt(2.0)
    difference = float(erfcx(a / root)) - float(erfcx(b / root))
    if difference <= 0.0:
        return -math.inf
    return -a * a / 2.0 - math.log(2.0) + math.log(difference)


def delta_of(epsilon: float, mu: float) -> float:
    """The smallest delta for which a Gaussian mechanism with `mu = Delta/sigma` is (epsilon, delta)."""
    return math.exp(log_delta(epsilon, mu))


def mu_for(epsilon: float, delta: float) -> float:
    """The largest `mu = Delta/sigma` that is (epsilon, delta), rounded down."""
    if not (0.0 <= epsilon < math.inf and 0.0 < delta < 1.0):
        raise ValueError(f"epsilon {epsilon} must be finite and at least 0, delta {delta} strictly between 0 and 1")
    target = math.log(delta)
    low = high = 1.0
    while log_delta(epsilon, high) <= target:
        low, high = high, high * 2.0
    while log_delta(epsilon, low) > target:
        low, high = low / 2.0, low
    while high - low > 1e-13 * high:
        middle = 0.5 * (low + high)
        if log_delta(epsilon, middle) <= target:
            low = middle
        else:
            high = middle
    return low / SAFETY


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


def log_deltas(epsilon: float, mus: NDArray[np.float64]) -> NDArray[np.float64]:
    """`log_delta` of many at once."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        a, b = epsilon / mus - mus / 2.0, epsilon / mus + mus / 2.0
        root = math.sqrt(2.0)
        near = -a * a / 2.0 - math.log(2.0) + np.log(np.maximum(erfcx(a / root) - erfcx(b / root), 0.0))
        first, second = log_ndtr(-a), epsilon + log_ndtr(-b)
        far = first + np.log1p(-np.exp(second - first))
    logs = np.where(a < -5.0, far, near)
    return np.where(mus <= 0.0, -math.inf, np.where(np.isinf(mus), 0.0, logs))


@dataclass(frozen=True)
class AveragedDelta:
    """The mean of the Gaussian's delta at `mu = (radius + deviation)/sigma` over the deviation's law, from above.

    The delta rises with the deviation and its tail falls, so sums over a grid bound the integral from above:
    `d(s_0) + sum P(S > s_i) (d(s_{i+1}) - d(s_i)) + P(S > s_N) (1 - d(s_N))`. The grid depends on the tail and on the
    delta
    that is aimed at, not on sigma.
    """

    radius: float
    points: NDArray[np.float64]
    above: NDArray[np.float64]

    @staticmethod
    def of(radius: float, tail: Tail, delta: float) -> AveragedDelta:
        """For noise that aims at this delta."""
        end = tail.quantile(max(1e-5 * delta, SMALLEST_TAIL))
        points = np.concatenate([[0.0], np.linspace(min(tail.expected, end), end, AVERAGED_POINTS)])
        return AveragedDelta(radius, points, tail.above(points))

    def at(self, epsilon: float, sigma: float) -> float:
        """The upper sum."""
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
    high = max((radius + tail.expected) / mu_for(epsilon, delta), SMALLEST_SIGMA)
    low = 0.5 * high
    while averaged.at(epsilon, high) > delta:
        low, high = high, 2.0 * high
    while low > SMALLEST_SIGMA and averaged.at(epsilon, low) <= delta:
        low, high = low / 2.0, low
    while high - low > 1e-11 * high:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if averaged.at(epsilon, middle) <= delta else (middle, high)
    return high * SAFETY


def epsilon_for(delta: float, mu: float) -> float:
    """The smallest epsilon at which `mu = Delta/sigma` reaches `delta`, rounded up; 0 if it does without."""
    if not (0.0 <= mu < math.inf and 0.0 < delta < 1.0):
        raise ValueError(f"mu {mu} must be finite and at least 0, delta {delta} strictly between 0 and 1")
    target = math.log(delta)
    return _smallest(lambda epsilon: log_delta(epsilon, mu) <= target)


def epsilon_hiding(region: Region, delta: float, scale: float) -> float:
    """The smallest epsilon at which noise of this scale hides where in the region the retrained weights are."""
    if region.tail is None:
        return epsilon_for(delta, region.radius / scale)
    averaged = AveragedDelta.of(region.radius, region.tail, delta)
    return _smallest(lambda epsilon: averaged.at(epsilon, scale) <= delta)


def _smallest(enough: Callable[[float], bool]) -> float:
    """The smallest epsilon that is enough, rounded up; 0 if none is needed, infinite if none would do."""
    if enough(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while not enough(high):
        low, high = high, high * 2.0
        if not math.isfinite(high):
            return math.inf
    while high - low > 1e-13 * high:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high * SAFETY


def grid_exponent(sigma: float) -> int:
    """Exponent k of the grid 2^k that goes with sigma: the largest power of two not above sigma / 2^GRID_BITS.

    It is never finer than 2^FINEST_EXPONENT, so that weights stay integers of 64 bits; the bound charges the grid.

    >>> grid_exponent(1.0), grid_exponent(1e-15)
    (-20, -40)
    """
    return max(math.frexp(sigma)[1] - 1 - GRID_BITS, FINEST_EXPONENT)


def to_grid(values: NDArray[np.float64], exponent: int) -> NDArray[np.int64]:
    """Nearest multiples of 2^exponent, as integers."""
    scaled: NDArray[np.float64] = np.rint(np.ldexp(values, -exponent))
    if np.any(np.abs(scaled) >= 2.0**62):
        raise ModelError(
            f"a weight of {np.abs(values).max():.3g} is more than 2^62 grid steps of 2^{exponent} from zero",
            "weights and noise are added as 64-bit integers",
            "Rescale the features so that the weights are of ordinary size.",
        )
    return scaled.astype(np.int64)


def delta_at(region: Region, epsilon: float, delta: float, scale: float) -> float:
    """The delta that noise of this scale reaches for the region, averaged over its tail where it has one."""
    if region.tail is None:
        return delta_of(epsilon, region.radius / scale)
    return AveragedDelta.of(region.radius, region.tail, delta).at(epsilon, scale)


def effective(region: Region, epsilon: float, delta: float, scale: float) -> Region:
    """The region without its tail, as large as noise of this scale could hide at this delta: what the tail amounts to.

    What the average allows is added to the sampling term, so that the terms add up to the distance the noise stands
    for.
    """
    if region.tail is None:
        return region
    more = max(0.0, scale * mu_for(epsilon, delta) / ROUND_UP - math.fsum(region.terms.values()))
    return replace(region.with_term("sampling", region.terms["sampling"] + more), tail=None)


@dataclass(frozen=True)
class Noise:
    """Gaussian noise with a region's shape, on a grid of `2^grid_exponent`.

    `scale` is what the shape is multiplied by: for a ball, sigma, the standard deviation of every weight's noise.
    """

    scale: float
    grid_exponent: int
    shape: Shape

    @property
    def length(self) -> float:
        """Root of the mean square of its plain length."""
        return self.shape.length(self.scale)

    def added_to(self, values: NDArray[np.float64], random_bytes: RandomBytes = os.urandom) -> NDArray[np.float64]:
        """The values with a fresh draw, rounded to the grid once, at the end."""
        rest = self.shape.rest(self.scale, random_bytes)
        shifted = values if rest is None else values + rest.reshape(values.shape)
        return add_noise(shifted, self.shape.smallest(self.scale), self.grid_exponent, random_bytes)


def calibrated(
    region: Region, epsilon: float, delta: float, calibrate: Calibration | None = None
) -> tuple[Region, Noise]:
    """Noise that hides where in the region the retrained weights are, and the region with the grid's term.

    `calibrate` gives the scale for a radius; by default the analytic Gaussian's.
    """
    assert region.shape is not None
    exponent = grid_exponent(needed(region, epsilon, delta, calibrate))
    rounded = _on_grid(region, exponent)
    return rounded, Noise(needed(rounded, epsilon, delta, calibrate), exponent, region.shape)


def needed(region: Region, epsilon: float, delta: float, calibrate: Calibration | None = None) -> float:
    """The smallest scale that hides where in the region the retrained weights are."""
    if region.tail is not None:
        return averaged_sigma(region.radius, region.tail, epsilon, delta)
    return (calibrate or sigma_for)(region.radius, epsilon, delta)


def published(
    region: Region, epsilon: float, delta: float, calibrate: Calibration | None, choice: Scale
) -> tuple[Region, Noise, float]:
    """The noise that is handed out: as long as was chosen, on a grid that follows from its length alone.

    The last is the scale that the region needs. Gaussian noise that is longer hides more, so what is proved for that
    scale holds for every larger one; under a policy the needed one may be the larger, and then nothing is handed out.
    """
    assert region.shape is not None
    if choice.kind == EXACT:
        rounded, noise = calibrated(region, epsilon, delta, calibrate)
        return rounded, noise, noise.scale
    mu = mu_for(epsilon, delta)
    scale = choice.value if choice.kind == POLICY else rung_above(needed(region, epsilon, delta, calibrate))
    assert scale is not None
    while True:
        exponent = public_grid(scale, region.shape, mu) if math.isfinite(scale) else FINEST_EXPONENT
        rounded = _on_grid(region, exponent)
        required = needed(rounded, epsilon, delta, calibrate)
        if required <= scale or choice.kind == POLICY or not math.isfinite(scale):
            return rounded, Noise(scale, exponent, region.shape), required
        scale *= 2.0


def public_grid(scale: float, shape: Shape, mu: float) -> int:
    """Exponent of the grid that goes with a published scale: fine enough that rounding costs little at this mu.

    Of public numbers only, so that anybody can check it.
    """
    exponent = grid_exponent(scale)
    while exponent > FINEST_EXPONENT and shape.grid_term(math.ldexp(1.0, exponent)) > mu * scale * GRID_COST:
        exponent -= 1
    return exponent


def _on_grid(region: Region, exponent: int) -> Region:
    assert region.shape is not None
    return region.with_term(GRID.name, region.shape.grid_term(math.ldexp(1.0, exponent)))


def add_noise(
    values: NDArray[np.float64], sigma: float, exponent: int, random_bytes: RandomBytes = os.urandom
) -> NDArray[np.float64]:
    """`values` rounded to the grid 2^exponent, plus grid-rounded Gaussian noise of standard deviation sigma."""
    noise = rounded_gaussian(values.size, sigma, exponent, random_bytes)
    total: NDArray[np.int64] = to_grid(values.reshape(-1), exponent) + noise
    shifted: NDArray[np.float64] = np.ldexp(total.astype(np.float64), exponent)
    return shifted.reshape(values.shape)


def rounded_gaussian(
    count: int, sigma: float, exponent: int, random_bytes: RandomBytes = os.urandom
) -> NDArray[np.int64]:
    """`count` independent draws of `round(N(0, sigma^2) / 2^exponent)`, exactly distributed.

    Box and Muller's transform of two 64-bit uniforms, in float64. A draw that lies closer to a rounding boundary than
    the error of that arithmetic and of the 64 bits together is decided with further random bits and longer numbers.
    """
    draws = np.frombuffer(random_bytes(16 * count), dtype="<u8").reshape(2, count)
    ratio = math.ldexp(sigma, -exponent)
    first = (draws[0].astype(np.float64) + 0.5) * 2.0**-64
    angle = (draws[1].astype(np.float64) + 0.5) * (2.0**-64 * 2.0 * math.pi)
    radius = np.sqrt(-2.0 * np.log(np.minimum(first, 1.0 - 2.0**-53)))
    scaled = radius * np.cos(angle) * ratio
    nearest = np.rint(scaled)
    # |d radius| <= (relative error of the uniform) / radius; |d cos| <= 2^-48 after a rounded multiplication by 2 pi
    error = ratio * (radius * 2.0**-48 + (2.0**-51 + 2.0**-64 / first) / np.maximum(radius, 2.0**-30))
    doubtful = np.flatnonzero(np.abs(np.abs(scaled - nearest) - 0.5) <= error)
    result: NDArray[np.int64] = nearest.astype(np.int64)
    for index in doubtful:
        result[index] = _settle(int(draws[0, index]), int(draws[1, index]), sigma, exponent, random_bytes)
    return result


def _settle(first: int, second: int, sigma: float, exponent: int, random_bytes: RandomBytes) -> int:
    """The rounded draw whose uniforms begin with these 64 bits, extended until rounding is certain."""
    import mpmath  # for one draw in millions; whoever checks a certificate draws none

    bits = 64
    while True:
        more = int.from_bytes(random_bytes(32), "little")
        first, second = (first << 128) | (more >> 128), (second << 128) | (more & ((1 << 128) - 1))
        bits += 128
        with mpmath.workprec(2 * bits):
            ratio = mpmath.ldexp(mpmath.mpf(sigma), -exponent)
            corners = [
                mpmath.nint(ratio * mpmath.sqrt(-2 * mpmath.log(u)) * mpmath.cos(2 * mpmath.pi * v))
                for u in _ends(first, bits)
                for v in _ends(second, bits)
            ]
            if all(corner == corners[0] for corner in corners):
                return int(corners[0])


def _ends(value: int, bits: int) -> tuple[mpmath.mpf, mpmath.mpf]:
    """Ends of the interval of uniforms that begin with these bits, kept off 0, where the logarithm has none."""
    import mpmath

    low = mpmath.ldexp(mpmath.mpf(value), -bits) if value else mpmath.ldexp(mpmath.mpf(1), -2 * bits)
    return low, mpmath.ldexp(mpmath.mpf(value + 1), -bits)


def seeded_bytes(seed: int) -> RandomBytes:
    """A reproducible stand-in for the operating system's generator. For tests only: it protects nobody."""
    return np.random.Generator(np.random.PCG64(seed)).bytes
