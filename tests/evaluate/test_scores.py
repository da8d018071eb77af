"""Scores beside scikit-learn's."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import accuracy_score, balanced_accuracy_score, recall_score

import expunge
from expunge.errors import DataError
from expunge.evaluate.metrics import score_model


@pytest.mark.parametrize("loss", ["softmax", "ridge"])
@pytest.mark.parametrize("classes", [2, 4])
def test_they_are_scikit_learn_s(loss: str, classes: int) -> None:
    rng = np.random.default_rng(classes)
    X = rng.normal(size=(300, 5))
    y = np.array(["a", "b", "c", "d"])[(X @ rng.normal(size=(5, classes)) + rng.gumbel(size=(300, classes))).argmax(1)]
    model = expunge.train(X, y, l2=0.01, max_norm=5.0, loss=loss)
    found, said = score_model(model, (X, y)), model.predict(X)
    assert found.accuracy == pytest.approx(accuracy_score(y, said)) == pytest.approx(model.score(X, y))
    assert found.balanced == pytest.approx(balanced_accuracy_score(y, said))
    assert [each.right for each in found.classes] == pytest.approx(recall_score(y, said, average=None))
    assert found.majority == max(np.mean(y == each) for each in set(y))
    assert sum(each.rows for each in found.classes) == found.rows == 300


def test_classes_that_do_not_occur_do_not_count_and_unknown_ones_are_refused() -> None:
    X = np.array([[1.0], [-1.0], [2.0], [-2.0]])
    model = expunge.train(X, [1, 0, 1, 0], l2=0.1, max_norm=3.0)
    alone = score_model(model, (X[:1], [1]))
    assert (alone.balanced, alone.majority, len(alone.classes)) == (1.0, 1.0, 1)
    with pytest.raises(DataError, match="is not a class of the model"):
        score_model(model, (X, [1, 0, 2, 0]))
    with pytest.raises(DataError, match="no labels"):
        score_model(model, pd.DataFrame({"a": [1.0]}))
