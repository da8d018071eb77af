"""How a model fits its own rows, beside guessing."""

from __future__ import annotations

import numpy as np
import pytest

from expunge.evaluate.metrics import describe_fit
from expunge.train import train


def test_training_says_how_it_fits_beside_guessing() -> None:
    labels = np.where(np.arange(600) < 420, 0, 1)
    rng = np.random.default_rng(1)
    rows = 0.1 * rng.normal(size=(600, 3))
    model = train(rows, labels, l2=10.0, max_norm=1.0)
    fit = describe_fit(model, (rows, labels))
    assert fit.scores.majority == 0.7
    assert fit.scores.accuracy == pytest.approx((model.predict(rows) == labels).mean())
    assert fit.scores.classes[1].right == pytest.approx((model.predict(rows) == labels)[labels == 1].mean())
    one_class = describe_fit(train(np.abs(rows), labels, l2=1e3, max_norm=1.0), (np.abs(rows), labels))
    assert [each.right for each in one_class.scores.classes] == [1.0, 0.0]
    assert one_class.warnings == (
        "the model is no better than always naming the most frequent class",
        "no row of class 1 is classified right",
    )
