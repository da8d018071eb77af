"""Estimates of what nobody knows: samples of the features a model implies, and a distance between samples.

What comes from here is `estimated`, never more.
"""

from __future__ import annotations

from expunge.estimate.donsker_varadhan import DonskerVaradhanLower, donsker_varadhan
from expunge.estimate.langevin import (
    BallSupport,
    BoxSupport,
    Diagnostics,
    LangevinSamples,
    LinearEnergy,
    Target,
    Whitened,
    langevin,
)

__all__ = [
    "BallSupport",
    "BoxSupport",
    "Diagnostics",
    "DonskerVaradhanLower",
    "LangevinSamples",
    "LinearEnergy",
    "Target",
    "Whitened",
    "donsker_varadhan",
    "langevin",
]
