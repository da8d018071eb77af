"""The geometry of the page's two figures; the templates draw them as inline SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from expunge.bounds import TERMS
from expunge.bounds.calibration import sigma_for

# dark enough for 3:1 against white, and told apart without colour by their hatching in the legend's order and labels
COLOURS = ("#1b5e8c", "#b4480f", "#3d7a2a", "#7a3e9d", "#6b5b00", "#a3195b", "#4a4a4a")
POINTS = 60
SMALLEST_SHARE = 0.004  # thinner parts are drawn this wide, else nobody sees them


@dataclass(frozen=True)
class Part:
    """One part of the stacked bar, in percent of its width."""

    name: str
    label: str
    meaning: str
    value: float
    share: float
    start: float
    width: float
    colour: str


@dataclass(frozen=True)
class Curve:
    """Noise against epsilon on logarithmic axes, in the figure's own units (600 x 260)."""

    path: str
    x: float
    y: float
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]


def stacked(terms: Mapping[str, float]) -> list[Part]:
    """The terms of a bound as parts of one bar, each at least visible."""
    total = math.fsum(terms.values())
    shown = {name: max(value / total if total else 0.0, SMALLEST_SHARE) for name, value in terms.items() if value > 0}
    scale = 100.0 / math.fsum(shown.values()) if shown else 0.0
    parts, start = [], 0.0
    for index, (name, value) in enumerate(terms.items()):
        width = shown.get(name, 0.0) * scale
        label, meaning = (TERMS[name].title, TERMS[name].words) if name in TERMS else (name, "")
        colour = COLOURS[index % len(COLOURS)]
        parts.append(Part(name, label, meaning, value, 100.0 * value / total if total else 0.0, start, width, colour))
        start += width
    return parts


def noise_curve(total: float, epsilon: float, delta: float) -> Curve:
    """sigma for the same bound at other epsilons, from a tenth to ten times this one."""
    low, high = math.log10(epsilon) - 1.0, math.log10(epsilon) + 1.0
    exponents = [low + (high - low) * index / (POINTS - 1) for index in range(POINTS)]
    noise = [math.log10(sigma_for(total, 10.0**exponent, delta)) for exponent in exponents]
    bottom, top = min(noise), max(noise)
    left, right, lowest, highest = 70.0, 580.0, 215.0, 20.0

    def x_of(exponent: float) -> float:
        return left + (right - left) * (exponent - low) / (high - low)

    def y_of(level: float) -> float:
        return lowest - (lowest - highest) * (level - bottom) / (top - bottom)

    path = "M" + " L".join(f"{x_of(e):.1f},{y_of(s):.1f}" for e, s in zip(exponents, noise, strict=True))
    x_ticks = tuple((x_of(low + step), f"{10.0 ** (low + step):.3g}") for step in (0.0, 0.5, 1.0, 1.5, 2.0))
    y_ticks = tuple(
        (y_of(bottom + (top - bottom) * share), f"{10.0 ** (bottom + (top - bottom) * share):.2g}")
        for share in (0.0, 0.25, 0.5, 0.75, 1.0)
    )
    return Curve(path, x_of(math.log10(epsilon)), y_of(math.log10(sigma_for(total, epsilon, delta))), x_ticks, y_ticks)
