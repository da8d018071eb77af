"""Confidences against their literal form."""

from __future__ import annotations

import numpy as np
import torch

from evaluate import reference
from expunge.evaluate.metrics import confidences
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


def test_one_weight_vector_has_the_confidences_of_two_rows() -> None:
    generator = np.random.default_rng(4)
    one = torch.from_numpy(generator.standard_normal((70, 1, 6)))
    rows = Rows(torch.from_numpy(generator.standard_normal((5, 6))), torch.tensor([0, 1, 1, 0, 1]))
    two = torch.cat([-one / 2, one / 2], dim=1)
    np.testing.assert_allclose(confidences(one, rows), confidences(two, rows), rtol=1e-12, atol=1e-12)
