"""What is done with a desk, in one call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from expunge.desk import Desk, Policy, accept, create_desk, requests, run, status, verify_desk
from expunge.errors import RetrainNow
from expunge.model import LinearModel

Rows = tuple[np.ndarray, np.ndarray]


def ask(desk: Desk, source: Rows, start: int, stop: int, reference: str | None = None) -> int:
    X, y = source
    return accept(desk, X[start:stop], y[start:stop], reference or f"rows {start} to {stop}").request.id


def exhausted(desk: Desk, source: Rows, count: int, start: int = 0) -> RetrainNow:
    for number in range(start, start + count):
        ask(desk, source, number, number + 1)
    outcome = run(desk, each=True)
    assert isinstance(outcome.refused, RetrainNow)
    assert "retrain now" in str(outcome.refused)
    assert outcome.pending + outcome.aside == count - len(outcome.published)
    assert str(status(desk).retrain).startswith("retrain now"), "why the last one was refused"
    assert {request.state for request in requests(desk)} <= {"done", "pending", "aside"}
    verify_desk(desk)
    return outcome.refused


def opened(source: Rows, surrogate: Rows, trained: LinearModel, folder: Path, **changes: Any) -> Desk:
    options = {"epsilon": 0.5, "delta": 1e-3, "distance": "same", "planned": 10, "force": True} | changes
    noise = options.pop("noise", "rows:1")
    return create_desk(folder / "d", trained, surrogate, Policy(**options), noise=noise)
