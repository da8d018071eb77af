"""Facts of a training that was done elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from asking import asked
from class_shift import shifted_problem
from expunge import unlearn, verify
from expunge.errors import ModelError, OptionError

pytestmark = pytest.mark.usefixtures("one_thread")


def test_class_counts_may_be_declared_for_a_model_without_a_record() -> None:
    model, X, y, gone, S = shifted_problem(1)
    assert model.record is not None
    bare = {"n_source": 600, "l2": 0.05, "loss": "softmax", "max_norm": 1.0, "training_residual": model.record.residual}
    given = {"epsilon": 1.0, "delta": 0.01, "distance": "same", "match_classes": True, "force": True}
    forget = (X[gone], y[gone])
    counts = model.record.class_counts
    request = asked(model.weight.numpy(), forget, S, class_counts=counts, **bare, **given)
    own = asked(model, forget, S, **given)
    assert own.surrogate.weights is not None
    torch.testing.assert_close(request.surrogate.weights, own.surrogate.weights)
    with pytest.raises(ModelError, match="no class counts"):
        asked(model.weight.numpy(), forget, S, **bare, **given)
    for wrong in ((300, 300), (599, 1, 1), (601, -1, 0)):
        with pytest.raises(OptionError, match="class_counts"):
            asked(model.weight.numpy(), forget, S, class_counts=wrong, **bare, **given)
    with pytest.raises(ModelError, match="record says"):
        asked(model, forget, S, class_counts=(200, 200, 200), **given)


def test_declared_class_counts_are_named_as_declared() -> None:
    model, X, y, gone, S = shifted_problem(1, n=3000, s=3000)
    assert model.record is not None
    bare = {
        "n_source": 3000,
        "l2": 0.05,
        "loss": "softmax",
        "max_norm": 1.0,
        "training_residual": model.record.residual,
    }
    made = unlearn(
        model.weight.numpy(), (X[gone[:1]], y[gone[:1]]), S, epsilon=2.0, delta=1e-3, distance="same", match_classes=True,
        class_counts=np.bincount(y), force=True, **bare,
    )  # fmt: skip
    verify(made.certificate)
    retained = np.bincount(y) - np.bincount(y[gone[:1]], minlength=3)
    assert made.certificate.content["data"]["class_counts"] == retained.tolist()
    assert any("weight_largest" in sentence for sentence in made.certificate.content["assumptions"])
