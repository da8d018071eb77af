"""The source itself: measured, not believed."""

import numpy as np
import pytest

import expunge
from expunge.train import train


def test_rows_that_are_not_the_source_are_not_taken_for_it(parts) -> None:
    model = train(*parts["source"], l2=0.05, max_norm=2.0)
    x, y = parts["source"]
    other = np.concatenate([x[:299], x[299:] + 0.5])
    with pytest.raises(expunge.DataError, match="not the rows"):
        expunge.unlearn(model, parts["forget"], (other, y), epsilon=1.0, delta=1e-3, distance="source", force=True)


def test_the_source_itself_gives_a_tiny_proven_bound(parts) -> None:
    model = train(*parts["source"], l2=0.05, max_norm=2.0)
    certificate = expunge.unlearn(
        model, parts["forget"], parts["source"], epsilon=1.0, delta=1e-3, distance="source"
    ).certificate
    assert certificate.status == "proven"
    assert certificate.total < 1e-6
