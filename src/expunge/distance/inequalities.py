"""From a distance between two distributions to a bound on a difference of means. Plain float64.

Throughout, rho is the source, nu the surrogate, f a vector-valued function; the result bounds `||E_rho f - E_nu f||`.
`deviation` is the square root of the largest eigenvalue of f's covariance under nu.
"""

from __future__ import annotations

import math


def shift_total_variation(tv: float, supremum: float) -> float:
    """`2 TV sup||f||`.

    >>> shift_total_variation(0.25, 2.0)
    1.0
    """
    return 2.0 * tv * supremum


def shift_chi_square(chi2: float, deviation: float) -> float:
    """`sqrt(chi2(rho, nu)) * deviation`: Cauchy-Schwarz on `(d rho/d nu - 1) v.(f - E_nu f)` for every unit v.

    >>> shift_chi_square(0.25, 2.0)
    1.0
    """
    return math.sqrt(chi2) * deviation


def shift_kullback_leibler(kl: float, deviation: float, centred_supremum: float) -> float:
    """`deviation sqrt(2 KL) + M KL/3`, KL = KL(rho || nu), `M = sup||f - E_nu f||`.

    Gibbs' variational principle with Bernstein's bound on the moment generating function of `v.(f - E_nu f)` under nu.

    >>> shift_kullback_leibler(0.5, 1.0, 3.0)
    1.5
    """
    return deviation * math.sqrt(2.0 * kl) + centred_supremum * kl / 3.0


def bretagnolle_huber(kl: float) -> float:
    """Upper bound on total variation: `sqrt(1 - exp(-KL))`.

    >>> bretagnolle_huber(0.0)
    0.0
    """
    return math.sqrt(-math.expm1(-kl))


def pinsker(kl: float) -> float:
    """Upper bound on total variation: `sqrt(KL/2)`.

    >>> pinsker(0.5)
    0.5
    """
    return math.sqrt(0.5 * kl)


def tv_upper_from_kl(kl: float) -> float:
    """The smaller of Pinsker's and Bretagnolle and Huber's bounds; KL in either direction.

    >>> tv_upper_from_kl(0.02), round(tv_upper_from_kl(4.0), 4)
    (0.1, 0.9908)
    """
    return min(pinsker(kl), bretagnolle_huber(kl))


def tv_upper_from_chi_square(chi2: float) -> float:
    """Upper bound on total variation: `sqrt(chi2)/2` (Cauchy-Schwarz), or by `KL <= ln(1 + chi2)`.

    >>> tv_upper_from_chi_square(0.04), tv_upper_from_chi_square(math.inf)
    (0.1, 1.0)
    """
    if math.isinf(chi2):
        return 1.0
    return min(0.5 * math.sqrt(chi2), math.sqrt(chi2 / (1.0 + chi2)))
