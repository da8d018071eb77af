"""What is known of a source that is gone.

Each kind answers the same questions; a new one is one file and its line here.
"""

from __future__ import annotations

from expunge.evidence.deposit.evidence import DepositEvidence
from expunge.evidence.source import SourceEvidence
from expunge.evidence.surrogate import SurrogateEvidence
from expunge.request.door import Request
from expunge.runtime.progress import Progress, silent

KINDS_OF_EVIDENCE: list[type[SurrogateEvidence]] = [DepositEvidence, SourceEvidence, SurrogateEvidence]


def gather(request: Request, *, seed: int | None = None, progress: Progress = silent) -> SurrogateEvidence:
    """What the request gives to go by. `seed` fixes Lanczos' start."""
    kind = next(kind for kind in KINDS_OF_EVIDENCE if kind.is_given(request))
    return kind.gathered(request, seed=seed, progress=progress)


__all__ = ["KINDS_OF_EVIDENCE", "DepositEvidence", "SourceEvidence", "SurrogateEvidence", "gather"]
