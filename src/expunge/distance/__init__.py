"""How far the surrogate is from the source: what a user declares, and what follows from it for a difference of means."""

from __future__ import annotations

from expunge.distance.declared import DISTANCE_KINDS, Distance, parse_distance
from expunge.distance.estimation import Estimation, parse_route

__all__ = ["DISTANCE_KINDS", "Distance", "Estimation", "parse_distance", "parse_route"]
