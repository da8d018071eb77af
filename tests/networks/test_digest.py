"""Which encoder made these features."""

from __future__ import annotations

import torch
from torch import nn

from expunge.networks import module_digest, split_head
from small_networks import Small


def test_the_digest_is_of_the_encoder_alone(small: Small) -> None:
    digest = split_head(small).digest
    with torch.no_grad():
        small.fc.weight.add_(1)
    assert split_head(small).digest == digest
    with torch.no_grad():
        small.norm.running_mean.add_(1e-3)
    assert split_head(small).digest != digest
    assert module_digest(nn.Linear(2, 2)) != module_digest(nn.Linear(2, 2))
    relu, gelu = nn.Sequential(nn.ReLU()), nn.Sequential(nn.GELU())
    assert module_digest(relu) != module_digest(gelu)
