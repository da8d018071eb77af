"""Tasks to audit on: the truth is known, and the bound covers it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from expunge.errors import DataError, ModelError
from expunge.evaluate.audit import TASKS, certificate_task, make_task, whiten
from expunge.mechanism import certify


@pytest.mark.parametrize("name", TASKS)
def test_tasks_are_sound_and_their_bound_covers_the_truth(name: str) -> None:
    task = make_task(name, 1.0, 1e-3)
    shape = None if task.request.deposit is None else task.request.deposit.ellipsoid
    away = (task.request.weights + task.measured.step.update - task.retrained).numpy()
    true = float(np.linalg.norm(whiten(shape, away[None])))
    total = certify(task.request, task.measured, insecure_test_seed=0).certificate.total
    assert 0 < true <= total
    if name == "tight":
        assert total < true * (1 + 1e-4)
    if name == "deposit":
        assert total < true * 1.45


def test_a_certificate_can_be_audited_in_its_own_setting() -> None:
    task = make_task("sampled", 1.0, 1e-3)
    issued = certify(task.request, task.measured, insecure_test_seed=1).certificate
    model, digest = task.request.subject.model, task.request.subject.sha256
    generator = np.random.default_rng(0)  # the task's own rows
    labels = np.arange(500) % 3
    features = np.eye(3, 5)[labels] + 0.7 * generator.standard_normal((500, 5))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    surrogate = (task.request.surrogate.features.numpy(), task.request.surrogate.labels.numpy())
    rows = (features[30:300], labels[30:300]), (features[:30], labels[:30])
    again = certificate_task(issued, model, digest, *rows, surrogate)
    assert again.request.promise.epsilon == task.request.promise.epsilon
    assert again.request.promise.delta == task.request.promise.delta
    assert again.request.distance == task.request.distance
    assert torch.equal(again.retrained, task.retrained)
    with pytest.raises(ModelError, match="digests"):
        certificate_task(issued, model, "0" * 64, *rows, surrogate)
    with pytest.raises(DataError, match="source of 300"):
        certificate_task(issued, model, digest, rows[1], rows[1], surrogate)
    with pytest.raises(DataError, match="no surrogate"):
        certificate_task(issued, model, digest, *rows, None)


def test_a_certificate_of_a_deposit_can_be_audited_in_its_own_setting() -> None:
    from expunge.unlearn import unlearn
    from small_deposit import N_SOURCE, kept, rows, trained

    before, digest = kept().deposit, trained().sha256()
    issued = unlearn(trained(), rows(1, 2), epsilon=1.0, delta=1e-3, deposit=before)
    stays = rows(0, *range(3, N_SOURCE))
    task = certificate_task(issued.certificate, trained(), digest, stays, rows(1, 2), None, before)
    assert certify(task.request, task.measured, insecure_test_seed=0).certificate.sigma == issued.certificate.sigma
    for deposit in (None, issued.deposit):
        with pytest.raises(DataError, match="from before"):
            certificate_task(issued.certificate, trained(), digest, stays, rows(1, 2), None, deposit)
    with pytest.raises(DataError, match="398"):
        certificate_task(issued.certificate, trained(), digest, rows(3), rows(1, 2), None, before)
