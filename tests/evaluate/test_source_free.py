"""The audit without the source: what it finds, what it cannot, and when it says so."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from expunge.evaluate.source_free import smaller_losses, source_free
from expunge.heads import Rows, head_for
from expunge.train import minimise


def rows(count: int, seed: int) -> Rows:
    generator = np.random.default_rng(seed)
    return Rows(
        torch.from_numpy(generator.standard_normal((count, 90))), torch.from_numpy(generator.integers(0, 2, count))
    )


HEAD = head_for("softmax", l2=1e-3, n_classes=2, n_features=90, row_bound=20.0)
FORGET, REST, FRESH = rows(60, 1), rows(60, 2), rows(200, 3)
WHOLE = Rows(torch.cat([FORGET.features, REST.features]), torch.cat([FORGET.labels, REST.labels]))


def test_forgetting_that_was_skipped_is_found() -> None:
    trained = minimise(HEAD, WHOLE)
    found = source_free(HEAD, trained, FORGET, FRESH, before=trained)
    assert found.after_p < 0.001
    assert "TRACE FOUND" in found.sentence
    assert found.outcome == "FAILED"


def test_retraining_leaves_no_trace() -> None:
    found = source_free(HEAD, minimise(HEAD, REST), FORGET, FRESH, before=minimise(HEAD, WHOLE))
    assert found.before_p < 0.001
    assert "no trace found, though" in found.sentence
    assert found.outcome == "PASSED"
    assert abs(found.after.value - 0.5) < 4 * found.after.error


def test_no_power_is_said_to_be_none() -> None:
    retrained = minimise(HEAD, REST)
    same, alone = (source_free(HEAD, retrained, FORGET, FRESH, before=before) for before in (retrained, None))
    assert "no power" in same.sentence
    assert "not known" in alone.sentence
    assert same.outcome == alone.outcome == "WARNED"


def test_the_area_is_the_share_of_pairs() -> None:
    generator = np.random.default_rng(0)
    forget, fresh = generator.integers(0, 5, 25).astype(float), generator.integers(0, 5, 30).astype(float)
    score, chance = smaller_losses(forget, fresh, 0)
    pairs = [1.0 if a < b else 0.5 if a == b else 0.0 for a in forget for b in fresh]
    assert score.value == pytest.approx(np.mean(pairs), rel=1e-12)
    assert 0 < chance <= 1


def test_meaningless_comparisons_are_refused() -> None:
    weights = torch.zeros(2, 90, dtype=torch.float64)
    assert "equal" in source_free(HEAD, weights, FORGET, FRESH).sentence
    assert source_free(HEAD, weights, FORGET, FRESH).outcome == "WARNED"
    few = Rows(FORGET.features[:19], FORGET.labels[:19])
    assert "at least 20" in source_free(HEAD, minimise(HEAD, REST), few, FRESH).sentence
    other = Rows(FORGET.features, torch.zeros_like(FORGET.labels))
    assert "other classes" in source_free(HEAD, minimise(HEAD, REST), other, FRESH).sentence
