"""A small case that every metric can run on."""

from __future__ import annotations

import pytest
import torch

from experiments.shared.paper_task import paper_splits
from expunge.evaluate.case import Case, make_case


@pytest.fixture(autouse=True)
def _one_thread() -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="package")
def case() -> Case:
    """The paper's synthetic task, 1,000 rows: 100 to test, 90 to forget."""
    return make_case(paper_splits(7, 1000), l2=0.02, max_norm=20.0)
