"""Rows as they are given: what is refused, what is left out, what is remarked on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from asking import asked
from class_shift import shifted_problem
from expunge import train
from expunge.errors import DataError, OptionError
from expunge.heads import Rows
from expunge.request.rows import matched_rows

pytestmark = pytest.mark.usefixtures("one_thread")


def test_matching_needs_labels_and_a_surrogate_that_is_not_the_source() -> None:
    model, X, y, gone, S = shifted_problem(2)
    given = {"epsilon": 1.0, "delta": 0.01, "match_classes": True, "force": True}
    with pytest.raises(DataError, match="no labels"):
        asked(model, (X[gone], y[gone]), S[0], distance="same", **given)
    with pytest.raises(OptionError, match="source's classes are its own"):
        asked(model, (X[gone], y[gone]), (X, y), distance="source", **given)
    few = S[1] < 2
    with pytest.raises(DataError, match="no rows of class 2"):
        asked(model, (X[gone], y[gone]), (S[0][few], S[1][few]), distance="same", **given)


def test_a_class_with_too_few_surrogate_rows_is_refused() -> None:
    """One row that stands for a whole class has no spread: moments over it would say nothing."""
    rng = np.random.default_rng(5)
    X, y = rng.normal(size=(2000, 4)) / 3, (np.arange(2000) < 2).astype(int)
    model = train(X, y, l2=0.01, max_norm=1.0, force=True)
    S, sy = rng.normal(size=(401, 4)) / 3, (np.arange(401) > 0).astype(int)
    given = {"epsilon": 1.0, "delta": 1e-4, "match_classes": True, "force": True}
    with pytest.raises(DataError, match="count as few as 1"):
        asked(model, (X[5:9], y[5:9]), (S, sy), distance="same", **given)
    # 5 rows for 99.9 % of the source: 400 rows, of which 5 count
    with pytest.raises(DataError, match="count as few as 5"):
        asked(model, (X[5:9], y[5:9]), (S[:400], (np.arange(400) >= 5).astype(int)), distance="chi2:0.1", **given)


def test_rows_of_classes_that_do_not_count_are_left_out_and_noted() -> None:
    model, X, y, gone, S = shifted_problem(3)
    assert model.record is not None
    record = model.record
    bare = {"n_source": 600, "l2": 0.05, "loss": "softmax", "max_norm": 1.0, "training_residual": record.residual}
    options = {
        "epsilon": 1.0,
        "delta": 0.01,
        "distance": "same",
        "match_classes": True,
        "force": True,
        "class_counts": (300, 300, 0),
    }
    forget = gone[y[gone] < 2]
    request = asked(model.weight.numpy(), (X[forget], y[forget]), S, **bare, **options)
    assert len(request.surrogate) == int((S[1] < 2).sum())
    assert any("classes of which nothing is retained were left out" in note for note in request.notes)


def test_more_rows_of_a_class_than_there_were_leave_nothing_to_match_to() -> None:
    model, X, y, _, _ = shifted_problem(3)
    assert model.record is not None
    rows = Rows(torch.tensor(X), torch.tensor(y))
    with pytest.raises(DataError, match="than the source had"):
        matched_rows(rows, replace(model.record, class_counts=(301, 300, -1)), labelled=True)
    assert matched_rows(rows, replace(model.record, class_counts=(300, 300, 0)), labelled=True).largest_weight > 0.0
