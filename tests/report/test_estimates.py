"""Sampled features against the surrogate's, along the surrogate's own principal components."""

from types import SimpleNamespace

import numpy as np
import torch
from sklearn.decomposition import PCA

from expunge.heads import Rows
from expunge.report.figures import SHOWN, _components, _project, principal_components


def rows(count: int, width: int, seed: int) -> Rows:
    drawn = np.random.default_rng(seed).normal(size=(count, width)) * (1.0 + np.arange(width))
    return Rows(torch.tensor(drawn), torch.zeros(count, dtype=torch.int64))


def test_places_are_those_of_scikit_learn_up_to_sign() -> None:
    given = rows(300, 5, 0)
    centre, axes = _components(given, 4)
    found = _project(given, 4, centre, axes)
    expected = PCA(2).fit_transform(given.features[:, :4].numpy())
    np.testing.assert_allclose(np.abs(found), np.abs(expected), rtol=1e-8, atol=1e-10)


def test_of_many_rows_some_are_shown_evenly_and_the_bias_column_is_not() -> None:
    given = rows(3 * SHOWN, 3, 1)
    centre, axes = _components(given, 2)
    found = _project(given, 2, centre, axes)
    assert found.shape == (SHOWN, 2)
    whole = ((given.features[:, :2] - centre) @ axes).numpy()
    assert np.array_equal(found[[0, -1]], whole[[0, -1]])


def test_a_picture_with_or_without_a_reference_and_of_one_feature_too() -> None:
    for width, reference in ((3, None), (3, rows(20, 3, 3)), (1, None)):
        sampled = SimpleNamespace(n_features=width, rows=rows(30, width, 2))
        found = SimpleNamespace(sampled=sampled, surrogate=rows(40, width, 1), reference=reference)
        assert principal_components(found).startswith(b"\x89PNG")
