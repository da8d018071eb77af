"""What one deletion hands on to the next: the forgotten gradients, at the trained weights."""

from __future__ import annotations

import pytest
import torch

from asking import asked
from expunge.evaluate.demo import digits
from expunge.mechanism import certify, measure
from expunge.request.series import Series
from expunge.train import train

L2 = 0.1
pytestmark = pytest.mark.usefixtures("one_thread")


def test_two_deletions_are_one_of_all_their_rows() -> None:
    """Nothing is carried: the second certificate is that of forgetting both at once."""
    data = digits()
    X, y = data["source"]
    model = train(X, y, l2=L2, max_norm=1.0)
    options = {"epsilon": 1.0, "delta": 1e-4, "distance": "same", "force": True}
    first = asked(model, (X[:2], y[:2]), data["surrogate"], series=Series(4), **options)
    past = first.next_past()
    assert past.n_rows == 2
    torch.testing.assert_close(past.gradients, 2 * first.head.gradient(first.weights, first.forget))
    second = asked(model, (X[2:5], y[2:5]), data["surrogate"], series=Series(4, 2, past), **options)
    together = asked(model, (X[:5], y[:5]), data["surrogate"], series=Series(4), **options)
    assert second.n_forget == together.n_forget == 5
    torch.testing.assert_close(second.forgotten, together.forgotten, rtol=1e-12, atol=1e-14)
    one, other = (measure(request, seed=1) for request in (second, together))
    torch.testing.assert_close(one.step.update, other.step.update, rtol=1e-6, atol=1e-12)
    terms = [certify(request, each).certificate.terms for request, each in ((second, one), (together, other))]
    for name in ("training", "surrogate", "sampling"):
        assert terms[0][name] == pytest.approx(terms[1][name], rel=1e-5)
    after = second.next_past()
    assert after.n_rows == 5
    torch.testing.assert_close(after.gradients, together.forgotten, rtol=1e-12, atol=1e-14)
    assert certify(second, one).model.record.n_source == 700, "one digit: how many left is nobody's business"
