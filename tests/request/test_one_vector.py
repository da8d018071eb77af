"""A two-class model of one weight vector, unlearned without a deposit: as softmax's two rows, the same objective."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import expunge
from expunge.certificate.verify import verify
from expunge.desk import Policy, accept, create_desk, models, open_desk, run, verify_desk
from expunge.errors import ModelError
from expunge.heads import Rows
from expunge.model import LinearModel, one_row_a_class
from expunge.request.door import ONE_VECTOR
from expunge.request.subject import head_of
from expunge.rows import bound_rows
from expunge.train import train


def table(seed: int = 3, rows: int = 900) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    features = generator.standard_normal((rows, 4))
    labels = np.where(features[:, 0] + generator.standard_normal(rows) > 0.3, "yes", "no")
    return features, labels


X, Y = table()
ONE = train(X[:400], Y[:400], l2=0.05, max_norm=5.0, loss="logistic", bias=True)
TWO = train(X[:400], Y[:400], l2=0.1, max_norm=5.0, loss="softmax", bias=True)


def rows_for(model: LinearModel) -> Rows:
    indices = torch.from_numpy((Y[:400] == "yes").astype(np.int64))
    features = torch.from_numpy(X[:400])
    kept = {"dtype": torch.float64, "device": torch.device("cpu"), "width": 4, "name": "rows"}
    return bound_rows(features, indices, max_norm=5.0, bias=True, **kept)


def test_the_objective_is_the_same_at_any_weights() -> None:
    rows, generator = rows_for(ONE), torch.Generator().manual_seed(7)
    for _ in range(5):
        drawn = torch.randn(1, 5, generator=generator, dtype=torch.float64)
        one = replace(ONE, weight=drawn[:, :4].contiguous(), bias=drawn[:, 4].contiguous())
        two = one_row_a_class(one)
        assert one.record is not None
        assert two.record is not None
        before, after = head_of(one, one.record), head_of(two, two.record)
        assert after.loss(two.matrix(), rows) == pytest.approx(before.loss(one.matrix(), rows), rel=1e-14)
        gradient = before.gradient(one.matrix(), rows)
        torch.testing.assert_close(after.gradient(two.matrix(), rows), torch.cat([-gradient, gradient]))
        assert np.array_equal(one.predict(X), two.predict(X))


def test_the_minimiser_is_the_same_and_the_residual_holds() -> None:
    two = one_row_a_class(ONE)
    assert two.record is not None
    assert ONE.record is not None
    assert ONE.record.residual is not None
    assert (two.record.loss, two.record.l2) == ("softmax", 0.1)
    torch.testing.assert_close(two.matrix(), TWO.matrix(), rtol=0.0, atol=1e-10)
    found = head_of(two, two.record).gradient(two.matrix(), rows_for(ONE)).norm()
    assert two.record.residual is not None
    assert float(found) <= two.record.residual
    assert two.record.residual == pytest.approx(math.sqrt(2.0) * ONE.record.residual, rel=1e-12)
    assert two.record.residual > math.sqrt(2.0) * ONE.record.residual


@pytest.mark.parametrize("store", ["float64", "float32"])
def test_it_is_unlearned_as_softmax_is_and_the_certificate_verifies(store: str, tmp_path: Path) -> None:
    made = []
    for loss, l2 in (("logistic", 0.05), ("softmax", 0.1)):
        model = train(X[:400], Y[:400], l2=l2, max_norm=5.0, loss=loss, bias=True, store=store)
        options = {"epsilon": 5.0, "delta": 1e-3, "distance": "same", "force": True, "insecure_test_seed": 5}
        made.append((model, expunge.unlearn(model, (X[:3], Y[:3]), (X[400:], Y[400:]), **options)))
    (one, result), (_, other) = made
    assert ONE_VECTOR in result.statement.content["notes"], "a public note: it says nothing of who left"
    assert ONE_VECTOR not in other.statement.content["notes"]
    assert result.certificate.content["model"]["before"]["sha256"] == one.sha256()
    limit = 1e-10 if store == "float64" else 1e-6
    assert result.certificate.total == pytest.approx(other.certificate.total, rel=1e-6)
    torch.testing.assert_close(result.model.matrix(), other.model.matrix(), rtol=0.0, atol=limit)
    secret = expunge.unlearn(one, (X[:3], Y[:3]), (X[400:], Y[400:]), **options | {"insecure_test_seed": None})
    secret.model.save(tmp_path / "model.safetensors")
    assert verify(secret.certificate, tmp_path / "model.safetensors"), "all of it passed"


def test_numbers_that_cannot_be_halved_become_float64() -> None:
    least = torch.finfo(torch.float32).smallest_normal / 2**23  # the least there is
    weight = torch.tensor([[1.0, 1.0, 1.0, least]], dtype=torch.float32)
    two = one_row_a_class(replace(ONE, weight=weight, bias=torch.zeros(1)))
    assert two.weight.dtype == torch.float64
    assert float(two.weight[1, 3]) == least / 2.0


def test_a_desk_takes_it_and_names_the_file_that_was_given(tmp_path: Path) -> None:
    told: list[str] = []
    policy = Policy(epsilon=5.0, delta=1e-3, distance="same", planned=2, force=True)
    create_desk(tmp_path / "desk", ONE, (X[400:], Y[400:]), policy, say=told.append)
    desk = open_desk(tmp_path / "desk")
    assert ONE_VECTOR in told
    accept(desk, X[:2], Y[:2], reference="one")
    (made,) = run(desk).published
    assert made.certificate.content["model"]["before"]["sha256"] == ONE.sha256()
    assert len(models(desk)) == 1
    verify_desk(desk)


def test_what_has_no_bound_without_a_deposit_is_still_refused() -> None:
    assert ONE.record is not None
    free = ONE.with_record(replace(ONE.record, free_bias=True))
    with pytest.raises(ModelError, match=r"intercept is free.*Give the deposit"):
        expunge.unlearn(free, (X[:1], Y[:1]), (X[400:], Y[400:]), epsilon=1.0, delta=1e-3, distance="same")
