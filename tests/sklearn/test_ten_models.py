"""Ten models as people write them: each ends in a certificate, predicts, and the refit lies inside the region."""

from __future__ import annotations

import numpy as np
import pytest

from expunge.certificate.verify import verify_statement
from expunge.certificate.wording import PREPARATIONS, WEIGHTED
from expunge.record import LEARNT_FROM_SOURCE
from expunge.sklearn import unlearn
from expunge.sklearn.pipelines import split_pipeline
from sklearn_models import CASES, GONE, N, away, fitted, refit_matrix, some


def test_there_are_ten() -> None:
    assert len(CASES) == 10


@pytest.mark.parametrize("name", CASES)
def test_each_ends_in_a_certificate_and_the_refit_is_inside(name: str) -> None:
    model, kept = fitted(name)
    X, y = CASES[name].rows()
    before = model.predict(X)
    gone = (some(X, slice(GONE)), some(y, slice(GONE)))
    result = unlearn(model, forget=gone, deposit=kept, epsilon=1.0, delta=1e-3)
    assert result.certificate.status == "proven"
    assert verify_statement(result.statement, None, result.certificate)
    assert result.deposit.numbers.n_rows == N - GONE
    # the Pipeline works, is of the same kind, and the one that was given is as it was
    assert type(result.estimator) is type(model)
    found = result.estimator.predict(X)
    assert set(found) <= set(np.asarray(y))
    assert np.array_equal(model.predict(X), before)
    # the refit, by scikit-learn, with what was frozen at training
    radius, distance = result.certificate.total, away(name)
    assert distance <= radius, f"{distance:.3g} of {radius:.3g}"
    refit = refit_matrix(name)[1].predict(split_pipeline(model).transform(X, "the source"))
    assert np.mean(found == refit) > 0.95
    # what is outside the guarantee is said
    limits = result.statement.content["limits"]
    learnt = len(getattr(model, "steps", "x")) > 1 or name in ("ridge", "balanced")
    assert (PREPARATIONS[LEARNT_FROM_SOURCE] in limits) == learnt
    assert (WEIGHTED in limits) == (name in ("balanced", "three classes, balanced", "descent", "columns"))


@pytest.mark.parametrize("name", ["three classes, balanced", "columns", "text"])
def test_a_second_deletion_goes_on_from_the_first(name: str) -> None:
    model, kept = fitted(name)
    X, y = CASES[name].rows()
    first = unlearn(model, (some(X, slice(3)), some(y, slice(3))), kept, epsilon=1.0, delta=1e-3)
    second = unlearn(
        first.estimator, (some(X, slice(3, 6)), some(y, slice(3, 6))), first.deposit, epsilon=1.0, delta=1e-3
    )
    assert (second.deposit.numbers.forgotten, second.certificate.status) == (6, "proven")
    assert len(second.estimator.predict(X)) == N
