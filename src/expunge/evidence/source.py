"""The source itself, for those who still have it: the paper's Unlearn (+). Its gradient is measured, not believed."""

from __future__ import annotations

from dataclasses import dataclass

from expunge.certificate.facts import Fact
from expunge.errors import DataError
from expunge.evidence.surrogate import SurrogateEvidence
from expunge.request.door import Request


@dataclass(frozen=True)
class SourceEvidence(SurrogateEvidence):
    """The rows given are the source's own: nothing stands in for anything, and the last term of the bound is 0."""

    @staticmethod
    def is_given(request: Request) -> bool:
        return request.distance.is_source

    def training_residual(self) -> Fact:
        """Upper bound on the gradient's norm on the rows given.

        Refuses rows on which it is not what it was at training.
        """
        request, record = self.request, self.request.record
        lost = request.head.rounding(request.weights, request.surrogate)
        measured = float(request.head.gradient(request.weights, request.surrogate).norm()) + lost
        known = record.provenance == "measured" and record.residual is not None
        if known and measured > (record.residual or 0.0) * (1 + 1e-6) + 2 * lost:
            raise DataError(
                f"on the rows given as the source the gradient has norm {measured:.3g}",
                f"at training it was {record.residual:.3g}",
                "These are not the rows the model was trained on; declare another distance.",
            )
        return Fact(measured, "measured")
