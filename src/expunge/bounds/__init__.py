"""Delta: upper bounds on the distance from the updated weights to the retrained ones. Plain float64, no torch."""

from __future__ import annotations

from expunge.bounds.error_bound import ErrorBound
from expunge.bounds.paper import PaperConstants, paper_bound
from expunge.bounds.residual import ResidualFacts, residual_bound

__all__ = ["ErrorBound", "PaperConstants", "ResidualFacts", "paper_bound", "residual_bound"]
