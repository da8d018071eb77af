"""The source itself, for those who still have it: the paper's Unlearn (+). Its gradient is measured, not believed.

The forget rows are among the rows given and are taken out: the sums over what is left are those over all, less
theirs. So `a'(u)` with the retained rows themselves in the surrogate's place is `n (g_D(v) - g_D(w)) - m g_U(v)`, the
paper's `a(u)`.
"""

from __future__ import annotations

from dataclasses import dataclass

from expunge.certificate.claim import Fact
from expunge.errors import DataError
from expunge.request.door import Request
from expunge.solve.equation import SurrogateEquation
from expunge.solve.newton import Equation
from expunge.solve.outcome import Step
from expunge.surrogate.evidence import SurrogateEvidence


@dataclass(frozen=True)
class SourceEvidence(SurrogateEvidence):
    """The rows given are the source's own: nothing stands in for anything, and the last term of the bound is 0."""

    @staticmethod
    def is_given(request: Request) -> bool:
        return request.distance.is_source

    @property
    def retained(self) -> Equation:
        request = self.request
        return SurrogateEquation(request.head, request.weights, request.forget, request.surrogate, request.n_source)

    def _rounding(self, step: Step) -> Fact:
        """The whole source's change is evaluated at the weights before and after, the forget rows' gradient after."""
        return self._lost(step, self.request.n_source, self.request.weights + step.update)

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
