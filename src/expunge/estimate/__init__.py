"""Estimates of what nobody knows: samples of the features a model implies, and a distance between samples.

What comes from here is `estimated`, never more.
"""

from __future__ import annotations

from expunge.estimate.donsker_varadhan import DonskerVaradhanLower, donsker_varadhan
from expunge.estimate.langevin import Diagnostics, LangevinSamples, LinearEnergy, Target, langevin

__all__ = [
    "Diagnostics",
    "DonskerVaradhanLower",
    "LangevinSamples",
    "LinearEnergy",
    "Target",
    "donsker_varadhan",
    "langevin",
]
