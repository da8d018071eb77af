"""What one deletion hands on to the next."""

from __future__ import annotations

import pytest

from asking import asked
from expunge.evaluate.demo import digits
from expunge.evidence.measured import handed_on
from expunge.mechanism import certify, measure
from expunge.request.series import Series
from expunge.train import train

L2 = 0.1
pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_carried_bound_is_the_sum_of_its_parts() -> None:
    """`G' = l2 Delta'`, and Delta' holds `n/(n-m) G / l2` as its training term."""
    data = digits()
    X, y = data["source"]
    model = train(X, y, l2=L2, max_norm=1.0)
    options = {"epsilon": 1.0, "delta": 1e-4, "distance": "same", "force": True}
    first = asked(model, (X[:2], y[:2]), data["surrogate"], series=Series(4), **options)
    step = measure(first, seed=1)
    carried = handed_on(first, step)
    terms = {name: value for name, value in certify(first, step).certificate.terms.items() if name != "grid"}
    assert carried.record.residual == pytest.approx(L2 * sum(terms.values()), rel=1e-7)
    assert carried.record.residual >= L2 * sum(terms.values())
    assert not carried.record.noised
    second = asked(carried, (X[2:5], y[2:5]), data["surrogate"], series=Series(4, 2, "declared"), **options)
    bound = certify(second, measure(second, seed=1)).certificate.terms
    n = len(X) - 2
    assert bound["training"] == pytest.approx(n / (n - 3) * carried.record.residual / L2, rel=1e-12)
    assert second.weights.equal(first.weights + step.step.update), "exactly where the last one stopped"
