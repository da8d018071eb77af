"""A classifier to be taken apart."""

from __future__ import annotations

import pytest
import torch

from small_networks import Small, images


@pytest.fixture
def small() -> Small:
    torch.manual_seed(0)
    model = Small()
    model(images(50))  # running statistics that are not the first ones
    return model
