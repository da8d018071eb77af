"""What a certificate says of a request beside its facts."""

from __future__ import annotations

import datetime
import platform
from typing import Any

import numpy as np
import pytest
import torch

import expunge
from asking import asked
from expunge.request.description import (
    described_data,
    described_sizes,
    described_software,
    record_after,
    retained_counts,
    timestamp,
)
from expunge.request.past import Past
from expunge.request.series import Series

Parts = dict[str, tuple[np.ndarray, np.ndarray]]


def made(parts: Parts, **options: Any) -> Any:
    model = expunge.train(*parts["source"], l2=0.05, max_norm=2.0, bias=True, force=True)
    given = {"epsilon": 1.0, "delta": 1e-3, "distance": "same", "force": True} | options
    return asked(model, parts["forget"], parts["surrogate"], **given)


def test_the_record_afterwards_says_nothing_of_who_left(parts: Parts) -> None:
    request = made(parts)
    after = record_after(request)
    left = np.bincount(parts["source"][1], minlength=3) - np.bincount(parts["forget"][1], minlength=3)
    assert after.n_source == 200, "296 to one digit, rounded down"
    assert after.class_counts is None
    assert retained_counts(request) == list(left)
    assert after.noised
    assert after.residual is None
    assert (after.l2, after.max_norm, after.classes) == (0.05, 2.0, request.record.classes)
    assert not request.record.noised


def test_sizes_are_those_of_the_sets(parts: Parts) -> None:
    assert described_sizes(made(parts)) == {
        "n_source": 300,
        "n_forget": 4,
        "n_surrogate": 300,
        "n_retain": 296,
        "parameters": 3 * 7,
        "classes": 3,
        "features": 6,
    }


def test_rows_that_were_scaled_are_counted(parts: Parts) -> None:
    request = made(parts, dtype="float32")
    data = described_data(request, request.distance)
    for name in ("forget", "surrogate"):
        long = int((np.linalg.norm(parts[name][0], axis=1) > 2.0).sum())
        assert data["rows_scaled_to_max_norm"][name] == long
    assert data["surrogate_dtype"] == "float32"
    assert data["effective_surrogate_rows"] == 300
    assert "class_counts" not in data
    assert "sequence" not in data


def test_weights_and_a_place_in_a_series_are_told_where_there_are_any(parts: Parts) -> None:
    matched = made(parts, match_classes=True)
    data = described_data(matched, matched.distance)
    assert data["class_counts"] == retained_counts(matched)
    weights = matched.surrogate.weights.numpy()
    assert data["effective_surrogate_rows"] == pytest.approx(weights.sum() ** 2 / (weights**2).sum(), rel=1e-12)
    placed = made(parts, series=Series(5))
    assert described_data(placed, placed.distance)["sequence"] == Series(5).described() | {"forgotten_before": 0}
    later = made(parts, series=Series(5, 2, Past(torch.zeros(3, 7, dtype=torch.float64), (1, 0, 2))))
    assert described_data(later, later.distance)["sequence"]["forgotten_before"] == 3
    assert np.array(retained_counts(later)).tolist() == (np.array(retained_counts(placed)) - [1, 0, 2]).tolist()


def test_software_and_time_are_those_of_this_run() -> None:
    assert described_software() == {
        "expunge": expunge.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
    said = datetime.datetime.fromisoformat(timestamp())
    assert said.microsecond == 0
    assert abs((datetime.datetime.now(datetime.UTC) - said).total_seconds()) < 5
