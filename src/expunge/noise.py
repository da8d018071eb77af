"""From (epsilon, delta, region) to noise with the region's shape, and the secret noise itself. No torch.

How much is enough is calibrated in `bounds/calibration.py`. The sampler returns integers: Gaussian noise of standard
deviation sigma, rounded to the nearest point of a power-of-two grid, exactly (not up to the error of a float64
logarithm). Rounding is post-processing, so the analytic sigma stays valid, and adding on the grid leaves no low-order
bits to read.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from expunge.bounds.calibration import (
    EXACT,
    SET,
    AveragedDelta,
    Calibration,
    Scale,
    averaged_sigma,
    delta_of,
    level_above,
    mu_for,
    sigma_for,
)
from expunge.bounds.region import DRAWING, GRID, ROUND_UP, Region, Shape
from expunge.errors import ModelError

if TYPE_CHECKING:
    import mpmath

GRID_BITS = 20  # the grid is at most sigma / 2^GRID_BITS ...
FINEST_EXPONENT = -40  # ... but not below this power of two
MOST_TRIES = 20  # times that what drawing adds to the scale is counted anew before there is no scale
GRID_COST = 2.0**-10  # of the scale: the most that rounding to a published grid may cost, where the grid can be finer

RandomBytes = Callable[[int], bytes]
KeyedSource = Callable[[bytes], RandomBytes]  # the random bytes that belong to what they are added to


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


def effective_region(region: Region, epsilon: float, delta: float, scale: float) -> Region:
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
        """Root of the mean square of the noise's plain length."""
        return self.shape.length(self.scale)

    def centre(self, values: NDArray[np.float64]) -> bytes:
        """What the draw is added to, as the grid sees it, with scale and grid: what noise under a key belongs to."""
        size = np.array([self.scale]).astype("<f8").tobytes() + np.array([self.grid_exponent]).astype("<i8").tobytes()
        return size + to_grid(values.reshape(-1), self.grid_exponent).astype("<i8").tobytes()

    def added_to(self, values: NDArray[np.float64], random_bytes: RandomBytes = os.urandom) -> NDArray[np.float64]:
        """The values with a fresh draw, on the grid.

        Where the shape has a part that is drawn in float64, sum and rounding are one exact draw: that part rounded
        first would show through the grid.
        """
        rest, smallest = self.shape.rest(self.scale, random_bytes), self.shape.smallest(self.scale)
        if rest is None:
            return add_noise(values, smallest, self.grid_exponent, random_bytes)
        centres = (values.reshape(-1) + rest.reshape(-1)).astype(np.float64)
        return rounded_sum(centres, smallest, self.grid_exponent, random_bytes).reshape(values.shape)


def calibrate_noise(
    region: Region, epsilon: float, delta: float, calibrate: Calibration | None = None
) -> tuple[Region, Noise]:
    """Noise that hides where in the region the retrained weights are, and the region with the grid's term.

    `calibrate` gives the scale for a radius; by default the analytic Gaussian's.
    """
    assert region.shape is not None
    counted = needed_scale(region, epsilon, delta, calibrate)
    exponent = grid_exponent(region.shape.smallest(counted))
    for _ in range(MOST_TRIES):
        rounded = _on_grid(region, exponent, counted)
        scale = needed_scale(rounded, epsilon, delta, calibrate)
        if region.shape.drawing(scale) <= region.shape.drawing(counted):
            return rounded, Noise(scale, exponent, region.shape)
        counted = scale * (1.0 + 2.0**-20)
    return region.with_term(DRAWING.name, math.inf), Noise(math.inf, exponent, region.shape)


def needed_scale(region: Region, epsilon: float, delta: float, calibrate: Calibration | None = None) -> float:
    """The smallest scale that hides where in the region the retrained weights are."""
    if region.tail is not None:
        return averaged_sigma(region.radius, region.tail, epsilon, delta)
    return (calibrate or sigma_for)(region.radius, epsilon, delta)


def choose_noise(
    region: Region, epsilon: float, delta: float, calibrate: Calibration | None, choice: Scale
) -> tuple[Region, Noise, float]:
    """The noise that is handed out: as long as was chosen, on a grid that follows from its length alone.

    The last is the scale that the region needs. Gaussian noise that is longer hides more, so what is proved for that
    scale holds for every larger one; under a policy the needed one may be the larger, and then nothing is handed out.
    """
    assert region.shape is not None
    if choice.kind == EXACT:
        rounded, noise = calibrate_noise(region, epsilon, delta, calibrate)
        return rounded, noise, noise.scale
    mu = mu_for(epsilon, delta)
    scale = choice.value if choice.kind in SET else level_above(needed_scale(region, epsilon, delta, calibrate))
    assert scale is not None
    while True:
        exponent = public_grid(scale, region.shape, mu) if math.isfinite(scale) else FINEST_EXPONENT
        rounded = _on_grid(region, exponent, scale)
        required = needed_scale(rounded, epsilon, delta, calibrate)
        if required <= scale or choice.kind in SET or not math.isfinite(scale):
            return rounded, Noise(scale, exponent, region.shape), required
        scale *= 2.0


def public_grid(scale: float, shape: Shape, mu: float) -> int:
    """Exponent of the grid that goes with a published scale: fine enough that rounding costs little at this mu.

    Of public numbers only, so that anybody can check it.
    """
    exponent = grid_exponent(shape.smallest(scale))
    while exponent > FINEST_EXPONENT and shape.grid_term(math.ldexp(1.0, exponent)) > mu * scale * GRID_COST:
        exponent -= 1
    return exponent


def _on_grid(region: Region, exponent: int, scale: float) -> Region:
    """The region with what rounding, and drawing noise of this scale, add to it."""
    assert region.shape is not None
    rounded = region.with_term(GRID.name, region.shape.grid_term(math.ldexp(1.0, exponent)))
    drawn = region.shape.drawing(scale)
    return rounded.with_term(DRAWING.name, drawn) if drawn else rounded


def add_noise(
    values: NDArray[np.float64], sigma: float, exponent: int, random_bytes: RandomBytes = os.urandom
) -> NDArray[np.float64]:
    """`values` rounded to the grid 2^exponent, plus grid-rounded Gaussian noise of standard deviation sigma."""
    noise = rounded_gaussian(values.size, sigma, exponent, random_bytes)
    total: NDArray[np.int64] = to_grid(values.reshape(-1), exponent) + noise
    shifted: NDArray[np.float64] = np.ldexp(total.astype(np.float64), exponent)
    return shifted.reshape(values.shape)


def rounded_sum(
    values: NDArray[np.float64], sigma: float, exponent: int, random_bytes: RandomBytes = os.urandom
) -> NDArray[np.float64]:
    """`values + N(0, sigma^2)` rounded to the grid 2^exponent in one go, exactly distributed."""
    scaled = np.ldexp(values, -exponent)
    if np.any(np.abs(scaled) >= 2.0**52):
        raise ModelError(
            f"a weight of {np.abs(values).max():.3g} is more than 2^52 grid steps of 2^{exponent} from zero",
            "weights and noise are added exactly",
            "Rescale the features so that the weights are of ordinary size.",
        )
    whole = np.rint(scaled)  # to the nearest, so that the difference is exact
    drawn = rounded_gaussian(values.size, sigma, exponent, random_bytes, scaled - whole)
    total: NDArray[np.int64] = whole.astype(np.int64) + drawn
    return np.ldexp(total.astype(np.float64), exponent)


def rounded_gaussian(
    count: int,
    sigma: float,
    exponent: int,
    random_bytes: RandomBytes = os.urandom,
    offsets: NDArray[np.float64] | None = None,
) -> NDArray[np.int64]:
    """`count` independent draws of `round(N(0, sigma^2) / 2^exponent)`, exactly distributed.

    Box and Muller's transform of two 64-bit uniforms, in float64. A draw that lies closer to a rounding boundary than
    the error of that arithmetic and of the 64 bits together is decided with further random bits and longer numbers.
    `offsets` of at most 1 are added to the draws, in grid steps, before they are rounded.
    """
    draws = np.frombuffer(random_bytes(16 * count), dtype="<u8").reshape(2, count)
    ratio = math.ldexp(sigma, -exponent)
    first = (draws[0].astype(np.float64) + 0.5) * 2.0**-64
    angle = (draws[1].astype(np.float64) + 0.5) * (2.0**-64 * 2.0 * math.pi)
    radius = np.sqrt(-2.0 * np.log(np.minimum(first, 1.0 - 2.0**-53)))
    scaled = radius * np.cos(angle) * ratio
    if offsets is not None:
        scaled = scaled + offsets
    nearest = np.rint(scaled)
    # |d radius| <= (relative error of the uniform) / radius; |d cos| <= 2^-48 after a rounded multiplication by 2 pi
    error = ratio * (radius * 2.0**-48 + (2.0**-51 + 2.0**-64 / first) / np.maximum(radius, 2.0**-30))
    error = error if offsets is None else error + 2.0**-52 * (np.abs(scaled) + 1.0)
    doubtful = np.flatnonzero(np.abs(np.abs(scaled - nearest) - 0.5) <= error)
    result: NDArray[np.int64] = nearest.astype(np.int64)
    for index in doubtful:
        offset = 0.0 if offsets is None else float(offsets[index])
        result[index] = _settle(int(draws[0, index]), int(draws[1, index]), sigma, exponent, random_bytes, offset)
    return result


def _settle(
    first: int, second: int, sigma: float, exponent: int, random_bytes: RandomBytes, offset: float = 0.0
) -> int:
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
                mpmath.nint(offset + ratio * mpmath.sqrt(-2 * mpmath.log(u)) * mpmath.cos(2 * mpmath.pi * v))
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


def bits_for(centre: bytes, keyed: KeyedSource | None, insecure_test_seed: int | None) -> RandomBytes:
    """Where the bits of one model's noise come from: the operating system, a desk's key, or the seed of a test."""
    if insecure_test_seed is not None:
        return seeded_bytes(insecure_test_seed)
    return os.urandom if keyed is None else keyed(centre)


def seeded_bytes(seed: int) -> RandomBytes:
    """A reproducible stand-in for the operating system's generator. For tests only: it protects nobody."""
    return np.random.Generator(np.random.PCG64(seed)).bytes
