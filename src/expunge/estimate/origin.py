"""What an estimate was made of. It says nothing of another model, and its KL nothing of another surrogate."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from expunge.heads import Rows
from expunge.record import TrainingRecord


@dataclass(frozen=True)
class Origin:
    """Digests of the weights (bias column included) and of the surrogate as used, and the features' own facts."""

    weights: str
    surrogate: str
    encoder: str | None
    max_norm: float
    bias: bool


def origin_of(weights: Tensor, record: TrainingRecord, surrogate: Rows) -> Origin:
    """The origin of an estimate made of these."""
    rows = [surrogate.features, surrogate.labels]
    if surrogate.weights is not None:
        rows.append(surrogate.weights)
    return Origin(_digest(weights), _digest(*rows), record.encoder, record.max_norm, record.bias)


def _digest(*tensors: Tensor) -> str:
    """SHA-256 over dtype, shape and bytes of each."""
    digest = hashlib.sha256()
    for tensor in tensors:
        plain = tensor.detach().cpu().contiguous()
        digest.update(f"{plain.dtype} {list(plain.shape)}\n".encode())
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
