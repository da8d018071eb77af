"""The source itself: measured, not believed."""

import numpy as np
import pytest

import expunge
from asking import asked
from expunge.mechanism import measure
from expunge.train import train


def test_rows_that_are_not_the_source_are_not_taken_for_it(parts) -> None:
    model = train(*parts["source"], l2=0.05, max_norm=2.0)
    x, y = parts["source"]
    other = np.concatenate([x[:299], x[299:] + 0.5])
    with pytest.raises(expunge.DataError, match="not the rows"):
        expunge.unlearn(model, parts["forget"], (other, y), epsilon=1.0, delta=1e-3, distance="source", force=True)


def test_the_source_itself_gives_a_tiny_bound_that_rests_on_its_being_the_source(parts) -> None:
    model = train(*parts["source"], l2=0.05, max_norm=2.0)
    certificate = expunge.unlearn(
        model, parts["forget"], parts["source"], epsilon=1.0, delta=1e-3, distance="source"
    ).certificate
    assert certificate.status == "conditional"
    assert any("the source's own" in sentence for sentence in certificate.content["assumptions"])
    assert certificate.total < 1e-6


def test_what_is_charged_for_rounding_is_of_the_sums_that_were_made(parts) -> None:
    """The change over the WHOLE source, before and after, and the forget rows' gradient after."""
    model = train(*parts["source"], l2=0.05, max_norm=2.0)
    x, y = parts["source"]
    request = asked(model, (x[:140], y[:140]), (x, y), epsilon=1.0, delta=1e-3, distance="source", force=True)
    measured = measure(request)
    head, before, after = request.head, request.weights, request.weights + measured.step.update
    charged = sum(300 * head.rounding(at, request.surrogate) for at in (before, after))
    charged += 140 * head.rounding(after, request.forget)
    assert measured.facts["rounding"].value == pytest.approx(charged, rel=1e-12)
