"""Estimates of what nobody knows: samples of the features a model implies. What comes from here is `estimated`, never more."""

from __future__ import annotations

from expunge.estimate.langevin import Ball, Box, Diagnostics, LangevinSamples, LinearEnergy, Target, Whitened, langevin

__all__ = ["Ball", "Box", "Diagnostics", "LangevinSamples", "LinearEnergy", "Target", "Whitened", "langevin"]
