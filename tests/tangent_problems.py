"""Small networks to linearise, and the optimum of their tangent weights by a dense solve."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from expunge.heads.tangent import Tangent


def network(seed: int, width: int = 4, outputs: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Dropout(), nn.Linear(width, outputs))


def examples(count: int, seed: int, outputs: int = 3) -> tuple[Tensor, np.ndarray]:
    generator = torch.Generator().manual_seed(seed)
    labels = np.arange(count) % outputs
    centres = torch.tensor([[2.0, 0.0], [-1.0, 1.5], [-1.0, -1.5]])
    return centres[labels] + torch.randn(count, 2, generator=generator), labels


def exact(
    module: nn.Module, inputs: Tensor, labels: np.ndarray, l2: float, max_norm: float, names: tuple[str, ...]
) -> Tensor:
    """The optimum by a dense solve of the normal equations, Jacobians formed."""
    objective = Tangent(module, l2=l2, max_norm=max_norm, names=names)
    rows = objective.rows(inputs, torch.from_numpy(labels))
    basis = torch.eye(objective.n_parameters, dtype=torch.float64)
    jacobian = torch.stack([objective.features_times(direction, rows) for direction in basis], dim=2).flatten(0, 1)
    wanted = (objective.targets(rows, slice(None)) - rows.offsets).flatten()
    return torch.linalg.solve(jacobian.T @ jacobian / len(rows) + l2 * basis, jacobian.T @ wanted / len(rows))
