"""Logit-scaled confidence of forgotten rows under many models at once."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from expunge.heads import Rows

MODELS_AT_ONCE = 64


def confidences(models: Tensor, rows: Rows) -> NDArray[np.float64]:
    """`ln p_y - ln(1 - p_y) = z_y - logsumexp of the other outputs`, models x rows.

    One matrix product for a block of models: rows x d by d x (models K). One weight vector is that of the second of
    two classes; the first one's output is then zero.
    """
    labels = rows.labels[:, None, None]
    parts = []
    for block in torch.split(models, MODELS_AT_ONCE):
        outputs = (rows.features @ block.reshape(-1, block.shape[2]).T).reshape(len(rows), *block.shape[:2])
        if block.shape[1] == 1:
            outputs = torch.cat([torch.zeros_like(outputs), outputs], dim=2)
        own = outputs.gather(2, labels.expand(-1, block.shape[0], 1)).squeeze(2)
        others = outputs.scatter(2, labels.expand(-1, block.shape[0], 1), -torch.inf).logsumexp(dim=2)
        parts.append((own - others).T)
    return np.ascontiguousarray(torch.cat(parts).numpy())
