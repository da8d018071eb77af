"""A small case in files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import expunge
from experiments.datasets.splits import random_split
from experiments.shared.paper_task import paper_splits


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small synthetic case as a user would have it: model, parts, a certificate and the published model."""
    folder = tmp_path_factory.mktemp("files")
    splits, others = paper_splits(3, 1200), paper_splits(4, 1200)
    index, _ = random_split(len(others.retain[0]), 0.5, np.random.default_rng(0))
    parts = {
        "retain": splits.retain,
        "forget": splits.forget,
        "test": splits.test,
        "surrogate": (others.retain[0][index], others.retain[1][index]),
        "fresh": others.test,
    }
    for name, (features, labels) in parts.items():
        np.savez(folder / f"{name}.npz", X=features, y=labels)
    model = expunge.train(*splits.source, l2=0.1, max_norm=9.0)
    (folder / "model.safetensors").write_bytes(model.to_bytes())
    done = expunge.unlearn(
        model, splits.forget, parts["surrogate"], epsilon=5.0, delta=1e-2, distance="same", force=True
    )
    (folder / "published.safetensors").write_bytes(done.model.to_bytes())
    return folder
