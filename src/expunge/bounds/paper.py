"""The paper's bound: Theorem 4.2 with total variation, Corollary 4.4 with Kullback-Leibler. Never reported as proven.

It needs constants of the loss that hold for every example, assumes that training reached its optimum exactly and that
empirical Hessians equal their population values; docs/sharp-edges.md says where it fails as written.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from expunge.bounds.region import Region, Term
from expunge.distance import bretagnolle_huber

SIZE_CONVENTIONS = ("source", "surrogate")
TERMS = (
    Term("newton", "One step only", "what a single Newton step leaves out"),
    Term("surrogate", "Surrogate differs", "the stand-in data is not distributed like the source"),
)


@dataclass(frozen=True)
class PaperConstants:
    """alpha (strong convexity), beta (smoothness), L (Lipschitz), gamma (Lipschitz Hessian).

    `lipschitz_power` is 2 in Sekhari's lemma and in the paper's corollary, 1 in its theorem.
    """

    strong_convexity: float
    smoothness: float
    lipschitz: float
    hessian_lipschitz: float
    lipschitz_power: int = 2

    @staticmethod
    def of_the_experiments(l2: float) -> PaperConstants:
        """What the paper's experiments set: alpha = 1 + l2, beta = L = gamma = 1. No function has alpha > beta."""
        return PaperConstants(1.0 + l2, 1.0, 1.0, 1.0)


def newton_remainder(constants: PaperConstants, n_source: int, n_forget: int) -> float:
    """`2 gamma L^2 m^2 / (alpha^3 n^2)`: what one Newton step on the true retain Hessian leaves out (Sekhari, Lemma 3).

    >>> round(newton_remainder(PaperConstants.of_the_experiments(0.01), 1000, 100), 4)
    0.0194
    """
    ratio = n_forget / n_source
    lipschitz = constants.lipschitz**constants.lipschitz_power
    return 2.0 * constants.hessian_lipschitz * lipschitz * ratio**2 / constants.strong_convexity**3


def hessian_mismatch(
    constants: PaperConstants,
    n_source: int,
    n_forget: int,
    n_surrogate: int,
    gradient_norm: float,
    tv: float,
    sizes: str,
) -> float:
    """`||g_U|| m (|n-s| beta + 2 min(n,s) beta TV) / ((n alpha - m beta)(s alpha - m beta))`.

    Infinite if a factor is not positive.

    `sizes="surrogate"` is the appendix, which weights H_S by its own size s; `sizes="source"` is the main text's
    Algorithm 1, which weights it by n, so that s drops out.
    """
    n, m, alpha, beta = n_source, n_forget, constants.strong_convexity, constants.smoothness
    s = n if sizes == "source" else n_surrogate
    first, second = n * alpha - m * beta, s * alpha - m * beta
    if first <= 0.0 or second <= 0.0:
        return math.inf
    return gradient_norm * m * beta * (abs(n - s) + 2.0 * min(n, s) * tv) / (first * second)


def paper_bound(
    constants: PaperConstants,
    *,
    n_source: int,
    n_forget: int,
    n_surrogate: int,
    gradient_norm: float,
    tv: float | None = None,
    kl: float | None = None,
    sizes: str = "source",
) -> Region:
    """Theorem 4.2 (give `tv`) or Corollary 4.4 (give `kl`, of the SURROGATE relative to the source)."""
    if (tv is None) == (kl is None):
        raise ValueError("give exactly one of tv and kl")
    variation = tv if tv is not None else bretagnolle_huber(float(kl or 0.0))
    return Region(
        "paper",
        {
            "newton": newton_remainder(constants, n_source, n_forget),
            "surrogate": hessian_mismatch(constants, n_source, n_forget, n_surrogate, gradient_norm, variation, sizes),
        },
    )
