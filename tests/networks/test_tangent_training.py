"""Tangent weights are trained to the optimum that a dense solve finds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from expunge.errors import DataError, OptionError
from expunge.heads.tangent import Tangent, last_parameters
from expunge.networks.tangent import train_tangent
from tangent_problems import exact, examples, network

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("max_norm", [0.7, 50.0])
@pytest.mark.parametrize("l2", [1e-3, 0.5])
def test_the_optimum_is_that_of_the_normal_equations(l2: float, max_norm: float) -> None:
    module, (inputs, labels) = network(3), examples(40, 4)
    names = last_parameters(module, 4)
    model = train_tangent(module, inputs, labels, l2=l2, max_norm=max_norm, names=names)
    best = exact(module, inputs, labels, l2, max_norm, names)
    torch.testing.assert_close(model.weights, best, rtol=1e-7, atol=1e-9)
    objective = Tangent(module, l2=l2, max_norm=max_norm, names=names)
    gradient = objective.gradient(model.weights, objective.rows(inputs, torch.from_numpy(labels)))
    assert model.record.residual is not None
    assert float(gradient.norm()) <= model.record.residual, "the record bounds what is left from above"


def test_the_record_says_what_the_source_was() -> None:
    names = np.array(["ash", "birch", "cedar"])
    inputs, labels = examples(31, 5)
    record = train_tangent(network(1), inputs, names[labels], l2=0.1, max_norm=2.0).record
    assert record.classes == ("ash", "birch", "cedar")
    assert record.class_counts == (11, 10, 10)
    assert (record.n_source, record.l2, record.max_norm, record.loss) == (31, 0.1, 2.0, "tangent")
    assert record.provenance == "measured"


def test_what_cannot_be_trained_is_refused() -> None:
    inputs, labels = examples(12, 1)
    with pytest.raises(DataError, match="3 outputs and the source 2 classes"):
        train_tangent(network(0), inputs, labels % 2, l2=0.1, max_norm=1.0)
    for changed in ({"l2": 0.0}, {"max_norm": -1.0}, {"device": "abacus"}):
        with pytest.raises(OptionError):
            train_tangent(network(0), inputs, labels, **({"l2": 0.1, "max_norm": 1.0} | changed))
