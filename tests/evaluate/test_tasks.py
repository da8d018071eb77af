"""Tasks to audit on: the truth is known, and the bound covers it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from expunge.errors import DataError, ModelError
from expunge.evaluate.tasks import TASKS, certificate_task, make_task
from expunge.mechanism import certify


@pytest.mark.parametrize("name", TASKS)
def test_tasks_are_sound_and_their_bound_covers_the_truth(name: str) -> None:
    task = make_task(name, 1.0, 1e-3)
    true = float((task.request.weights + task.measured.step.update - task.retrained).norm())
    total = certify(task.request, task.measured, insecure_test_seed=0).certificate.total
    assert 0 < true <= total
    if name == "tight":
        assert total < true * (1 + 1e-4)


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
    assert again.request.guarantee.epsilon == task.request.guarantee.epsilon
    assert again.request.guarantee.delta == task.request.guarantee.delta
    assert again.request.distance == task.request.distance
    assert torch.equal(again.retrained, task.retrained)
    with pytest.raises(ModelError, match="digests"):
        certificate_task(issued, model, "0" * 64, *rows, surrogate)
    with pytest.raises(DataError, match="source of 300"):
        certificate_task(issued, model, digest, rows[1], rows[1], surrogate)
    with pytest.raises(DataError, match="no surrogate"):
        certificate_task(issued, model, digest, *rows, None)
