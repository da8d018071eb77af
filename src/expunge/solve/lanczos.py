"""The largest eigenvalue from above, by Lanczos."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

EIGENVALUE_SLACK = 0.02
SAMPLING_SLACK = 0.1  # where the eigenvalue only enters the sampling term's excess, fewer steps are worth more


def lanczos_steps(n_parameters: int, failure: float, slack: float = EIGENVALUE_SLACK) -> int:
    """Steps k after which `lambda_max <= theta_k/(1-slack)` fails with probability at most `failure`.

    Kuczynski and Wozniakowski 1992, Gaussian start: `1.648 sqrt(p) exp(-sqrt(slack) (2k-1))`.

    >>> lanczos_steps(5120, 4e-12, slack=0.05)
    70
    """
    needed = math.log(1.648 * math.sqrt(n_parameters) / failure) / math.sqrt(slack)
    return max(1, math.ceil((needed + 1.0) / 2.0))


def largest_eigenvalue_upper(
    product: Callable[[Tensor], Tensor],
    start: Tensor,
    failure: float,
    advance: Callable[[int, int], None] | None = None,
    slack: float = EIGENVALUE_SLACK,
) -> float:
    """Upper bound on the largest eigenvalue of a positive semi-definite map, by Lanczos with full reorthogonalisation.

    `start` must be a standard Gaussian draw, independent of the map. The bound fails with probability at most
    `failure`, unless the Krylov space is exhausted, when it is exact.
    """
    parameters = start.numel()
    steps = lanczos_steps(parameters, failure, slack)
    if parameters <= 2 * steps:
        steps = parameters  # for a little more work the result is exact
    basis = torch.empty((steps, parameters), dtype=torch.float64, device=start.device)
    diagonal, off, largest = [], [], 0.0
    vector = start.reshape(-1) / start.norm()
    exhausted = steps == parameters
    for step in range(steps):
        basis[step] = vector
        image = product(vector.reshape(start.shape)).reshape(-1)
        diagonal.append(float(vector @ image))
        for _ in range(2):
            image = image - basis[: step + 1].T @ (basis[: step + 1] @ image)
        length = float(image.norm())
        if advance is not None:
            advance(step + 1, steps)
        largest = max(largest, abs(diagonal[-1]))
        if length <= 1e-13 * largest or step == steps - 1:
            exhausted = exhausted or step < steps - 1
            break
        off.append(length)
        vector = image / length
    size = len(diagonal)
    tridiagonal = np.diag(diagonal) + np.diag(off[: size - 1], 1) + np.diag(off[: size - 1], -1)
    ritz = max(0.0, float(np.linalg.eigvalsh(tridiagonal)[-1]))
    return ritz * (1.0 + 1e-9) if exhausted else ritz / (1.0 - slack)
