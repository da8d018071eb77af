"""Regions that hold the retrained weights, term by term. Plain float64, no torch."""

from __future__ import annotations

from expunge.bounds import deposit, paper, retained
from expunge.bounds.curvature import CurvatureFacts, curvature_bound
from expunge.bounds.deposit import DepositFacts, deposit_bound
from expunge.bounds.ellipsoid import EllipsoidNumbers
from expunge.bounds.paper import PaperConstants, paper_bound
from expunge.bounds.region import DRAWING, GRID, Ball, Region
from expunge.bounds.retained import RetainedFacts, retained_bound

TERMS = {term.name: term for term in (*retained.TERMS, *paper.TERMS, *deposit.TERMS, GRID, DRAWING)}

__all__ = [
    "TERMS",
    "Ball",
    "CurvatureFacts",
    "DepositFacts",
    "EllipsoidNumbers",
    "PaperConstants",
    "Region",
    "RetainedFacts",
    "curvature_bound",
    "deposit_bound",
    "paper_bound",
    "retained_bound",
]
