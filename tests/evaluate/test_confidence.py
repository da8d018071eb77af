"""Confidences against their literal form."""

from __future__ import annotations

import numpy as np
import torch

from evaluate import reference
from expunge.evaluate.confidence import confidences
from expunge.heads import Rows


def test_confidences_equal_the_literal_form() -> None:
    generator = np.random.default_rng(3)
    models = generator.standard_normal((130, 4, 6))
    features, labels = generator.standard_normal((9, 6)), generator.integers(0, 4, 9)
    found = confidences(torch.from_numpy(models), Rows(torch.from_numpy(features), torch.from_numpy(labels)))
    expected = [
        [reference.confidence(model, row, label) for row, label in zip(features, labels, strict=True)]
        for model in models
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
