"""Sixty people through a deposit's desk, beside refits: never outside a region, and nothing of them is left.

The same as examples/deposit_desk.py on rows that are made up; its search is tried on what must be found.
"""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from examples import deposit_desk
from examples.deposit_desk import marks_of, searched, through
from expunge.deposit.file import Deposit, read_deposit
from expunge.desk import Desk, Policy, accept, create_desk, run, status, verify_desk
from expunge.sklearn import deposit

pytestmark = pytest.mark.usefixtures("one_thread")
N_SOURCE, BATCHES, PEOPLE = 4000, 6, 10
Rows = tuple[np.ndarray, np.ndarray]


@functools.cache
def world() -> tuple[Rows, Rows]:
    """Source and test rows: numbers with a long tail, and a few rare categories."""
    generator = np.random.default_rng(11)
    numbers = generator.standard_t(5, size=(2 * N_SOURCE, 5))
    rare = np.eye(6)[generator.choice(6, size=2 * N_SOURCE, p=[0.5, 0.3, 0.1, 0.06, 0.03, 0.01])]
    features = np.column_stack([numbers, rare])
    chances = 1.0 / (1.0 + np.exp(-features @ generator.normal(size=11)))
    labels = (generator.random(2 * N_SOURCE) < chances).astype(int)
    return (features[:N_SOURCE], labels[:N_SOURCE]), (features[N_SOURCE:], labels[N_SOURCE:])


@functools.cache
def kept() -> Deposit:
    source, _ = world()
    return deposit(LogisticRegression().fit(*source), *source, seed=1)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    policy = Policy(epsilon=1.0, delta=1e-4, distance="deposit", planned=BATCHES)
    return create_desk(tmp_path / "desk", None, None, policy, deposit=kept())


def timed(desk: Desk) -> dict[str, Any]:
    began = time.perf_counter()
    assert run(desk).refused is None
    return {"seconds": time.perf_counter() - began, "megabytes": 1.0}


def test_batch_after_batch_stays_inside_and_leaves_nothing(desk: Desk) -> None:
    source, test = world()
    people = np.arange(BATCHES * PEOPLE).reshape(BATCHES, PEOPLE)
    batches = list(through(desk, source, test, people, timed))
    assert [batch["forgotten"] for batch in batches] == [PEOPLE * (number + 1) for number in range(BATCHES)]
    for batch in batches:
        assert batch["status"] == "proven"
        assert batch["true"] <= batch["radius"] <= batch["noise_radius"]
        assert batch["found_while_pending"] >= 1
        assert batch["found_after"] == []
    assert abs(batches[-1]["accuracy"] - batches[-1]["refit"]) <= 0.01
    reached = [batch["reach"] for batch in batches]
    assert all(0.0 < reach < 1.0 for reach in reached)
    # the folder grows by a model with its papers, and by no more from batch to batch
    sizes = np.diff([batch["folder_bytes"] for batch in batches])
    assert max(sizes) < 2.0 * np.median(sizes)
    assert verify_desk(desk).models == BATCHES
    standing = status(desk)
    assert (standing.forgotten, standing.pending, standing.models_left) == (BATCHES * PEOPLE, 0, 0)
    page = deposit_desk.markdown(
        [{"epsilon": 1.0, "seed": 0, "noise": 0.1, "batches": batches, "ended": ""}],
        {"rows": N_SOURCE, "features": 11},
    )
    assert "| 1 |" in page
    assert "nothing, in no file" in page


def test_the_search_finds_what_is_there(desk: Desk) -> None:
    source, _ = world()
    key = read_deposit(desk.layout.state_of(0)).key
    marks = marks_of(source, [3], key, desk.key)
    before = searched(desk, marks)
    assert before == ["private/states/0000.safetensors: hash under the deposit's key"]
    accept(desk, source[0][[3]], source[1][[3]], "three")
    found = {place.split(": ")[1] for place in searched(desk, marks) if "rows/000001" in place}
    assert found == {"float64 values"}
    planted = desk.layout.private / "planted"
    for kind in set(marks.values()):
        mark = next(one for one in marks if marks[one] == kind)
        planted.write_bytes(b"12345" + mark + b"678")
        assert f"private/planted: {kind}" in searched(desk, marks)
    planted.unlink()
    run(desk)
    assert searched(desk, marks) == []
