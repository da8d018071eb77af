"""The paper's task and its data set."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.shared.paper_task import paper_methods, paper_task, published_splits


def test_the_papers_task_has_its_seven_rows() -> None:
    names = [method.name for method in paper_methods(0, n_rows=20)]
    assert names[:3] == ["Original", "Retrain", "Unlearn (+)"]
    assert len(names) == 8
    rows = paper_task(0, (0.1,), n_rows=1000, n_models=0)
    assert [row.method for row in rows][-1] == "Unlearn (-) zeta 0.1"


def test_the_papers_own_data_set_is_a_partition_of_its_rows() -> None:
    splits = published_splits()
    assert [len(part[0]) for part in (splits.retain, splits.forget, splits.test)] == [12_150, 1350, 1500]
    rows = np.concatenate([splits.retain[0], splits.forget[0], splits.test[0]])
    assert len(np.unique(rows[:, 0])) > 14_900
    assert rows.mean() == pytest.approx(0.0, abs=0.01)
