"""Gaussian rows whose relative entropy is known."""

import math

import numpy as np
import torch
from torch import Tensor

from experiments.shared.closed_forms import gaussian_kl

QUICK = {"learning_rate": 1e-3, "width": 32, "batch": 200, "patience": 3}  # for a d of a few: seconds, not minutes


def normal(n: int, d: int, seed: int) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def family(d: int, zeta: float, n: int, seed: int) -> tuple[Tensor, Tensor, float]:
    """nu = N(0, (1 - zeta) I + zeta 1 1^T), rho = N(0, I), and KL(nu || rho)."""
    rho, own, common = normal(n, d, 3 * seed), normal(n, d, 3 * seed + 1), normal(n, 1, 3 * seed + 2)
    covariance = (1 - zeta) * np.eye(d) + zeta
    nu = math.sqrt(1 - zeta) * own + math.sqrt(zeta) * common
    return nu, rho, gaussian_kl(np.zeros(d), covariance, np.zeros(d), np.eye(d))
