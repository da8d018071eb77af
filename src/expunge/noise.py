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
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx, log_ndtr

from expunge.bounds.region import GRID, Region, Shape
from expunge.errors import ModelError

if TYPE_CHECKING:
    import mpmath

SAFETY = 1.0 + 1e-9  # root finding ends within this of the root; sigma is moved past it
GRID_BITS = 20  # the grid is at most sigma / 2^GRID_BITS ...
FINEST_EXPONENT = -40  # ... but not below this power of two

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


def epsilon_for(delta: float, mu: float) -> float:
    """The smallest epsilon at which `mu = Delta/sigma` reaches `delta`, rounded up; 0 if it does without."""
    if not (0.0 <= mu < math.inf and 0.0 < delta < 1.0):
        raise ValueError(f"mu {mu} must be finite and at least 0, delta {delta} strictly between 0 and 1")
    target = math.log(delta)
    if log_delta(0.0, mu) <= target:
        return 0.0
    low, high = 0.0, 1.0
    while log_delta(high, mu) > target:
        low, high = high, high * 2.0
    while high - low > 1e-13 * high:
        middle = 0.5 * (low + high)
        if log_delta(middle, mu) > target:
            low = middle
        else:
            high = middle
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
    scale_for = calibrate or sigma_for
    exponent = grid_exponent(scale_for(region.radius, epsilon, delta))
    rounded = region.with_term(GRID.name, region.shape.grid_term(math.ldexp(1.0, exponent)))
    return rounded, Noise(scale_for(rounded.radius, epsilon, delta), exponent, region.shape)


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
