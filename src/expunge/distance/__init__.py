"""How far the surrogate is from the source.

What a user declares, and what follows from it for a difference of means.
"""

from __future__ import annotations

from expunge.distance.declared import Distance, Estimation, parse_distance, parse_route
from expunge.distance.kinds import KINDS, Kind, kind_named, register_kind

__all__ = [
    "KINDS",
    "Distance",
    "Estimation",
    "Kind",
    "kind_named",
    "parse_distance",
    "parse_route",
    "register_kind",
]
