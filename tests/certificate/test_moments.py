"""Rules on moments: true of all data, and of nothing much else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expunge.certificate.claim import Claim, Fact
from expunge.certificate.rules import CHANGES, WEIGHTS, Stated
from expunge.distance import Distance


def stated(changes: np.ndarray, weights: np.ndarray | None) -> Stated:
    """The moments of these changes, by their definitions."""
    s, p = changes.shape
    w = np.ones(s) if weights is None else weights * s / weights.sum()
    mean = (w[:, None] * changes).mean(axis=0)
    off = changes - mean
    squares = (off**2).sum(axis=1)
    lengths = np.sqrt((changes**2).sum(axis=1))

    def eigenvalue(scale: np.ndarray) -> float:
        return float(np.linalg.eigvalsh((scale[:, None] * off).T @ off / s)[-1])

    values: dict[str, float] = {
        "n_source": 10 * s, "n_forget": 1, "n_surrogate": s, "rounding": 1e-12, "row_bound": 1.0, "longest_row": 1.0,
        "change_mean": float(np.linalg.norm(mean)), "change_trace": float((w * squares).mean()),
        "change_eigenvalue": eigenvalue(w), "change_fourth": float((w * squares**2).mean()),
        "change_fourth_eigenvalue": eigenvalue(w * squares), "change_largest": float(np.sqrt(squares.max())),
        "change_longest": float(lengths.max()), "change_supremum": float(lengths.max()),
    }  # fmt: skip
    if weights is not None:
        values |= {"weight_largest": float(w.max()), "sampled_trace": float((w**2 * squares).mean())}
        values |= {"sampled_eigenvalue": eigenvalue(w**2), "sampled_largest": float((w * np.sqrt(squares)).max())}
    distance = Distance("same", 0.0, matched=weights is not None)
    facts = {name: Fact(value, "measured") for name, value in values.items()}
    claim = Claim(1.0, 1e-3, "residual", facts, distance, {}, p, "operating system")
    content: dict[str, Any] = {
        "data": {"effective_surrogate_rows": s / float((w**2).mean())},
        "model": {"loss": "softmax"},
    }
    return Stated(content, claim)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    size=st.sampled_from([1e-12, 1.0, 1e9]),
    kind=st.sampled_from(["normal", "heavy", "one-hot", "far"]),
)
def test_no_rule_rejects_moments_of_data(seed: int, size: float, kind: str) -> None:
    rng = np.random.default_rng(seed)
    s, p = int(rng.integers(400, 600)), int(rng.integers(1, 8))
    changes = {
        "normal": lambda: rng.normal(size=(s, p)),
        "heavy": lambda: rng.standard_cauchy(size=(s, p)),
        "one-hot": lambda: np.eye(p)[rng.integers(0, p, s)],
        "far": lambda: 1.0 + 1e-4 * rng.normal(size=(s, p)),
    }[kind]()
    weights = rng.uniform(0.5, 1.5, s) if rng.integers(0, 2) else None
    given_moments = stated(size * changes, weights)
    found = [rule.check(given_moments) for rule in (*CHANGES, *WEIGHTS)]
    assert [check.words for check in found if check is not None and not check.passed] == []


@pytest.mark.parametrize("weighted", [False, True])
def test_every_moment_is_held_from_below(weighted: bool) -> None:
    """None can be made much smaller alone, but by as much as a bound from above may be larger than the truth."""
    rng = np.random.default_rng(0)
    honest = stated(rng.normal(size=(500, 4)) + 0.5, rng.uniform(0.5, 1.5, 500) if weighted else None)
    names = [name for name in honest.claim.facts if name.startswith(("change_", "sampled_")) and name != "change_mean"]
    for name in names:
        facts = {**honest.claim.facts, name: Fact(0.0, "measured")}
        forged = Stated(honest.content, Claim(**(vars(honest.claim) | {"facts": facts})))
        found = [rule.check(forged) for rule in (*CHANGES, *WEIGHTS)]
        assert any(check is not None and not check.passed for check in found), name
