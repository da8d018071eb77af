"""Opening a desk: everything is checked, then the folder appears whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from desk_use import Rows, ask
from expunge.desk import (
    Desk,
    Policy,
    accept,
    create_desk,
    open_desk,
    run,
)
from expunge.errors import DataError, FileError, ModelError
from expunge.model import LinearModel, read_model
from expunge.request.declared import Declared


def test_what_cannot_open_a_desk(
    trained: LinearModel, surrogate: Rows, policy: Policy, desk: Desk, source: Rows, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match="record"):
        create_desk(tmp_path / "a", LinearModel(trained.weight), surrogate, policy)
    ask(desk, source, 0, 1)
    run(desk)
    noised, _ = read_model(desk.layout.published_model(1) / "model.safetensors")
    with pytest.raises(ModelError, match="noised"):
        create_desk(tmp_path / "a", noised, surrogate, policy)
    with pytest.raises(DataError):
        create_desk(tmp_path / "a", trained, (surrogate[0][:20], surrogate[1][:20]), policy)
    with pytest.raises(FileError, match="exists"):
        create_desk(desk.layout.folder, trained, surrogate, policy)
    with pytest.raises(FileError, match="not a desk"):
        open_desk(tmp_path)
    assert not (tmp_path / "a").exists()


def test_a_model_without_a_record_and_labels_that_are_words(
    source: Rows, surrogate: Rows, trained: LinearModel, policy: Policy, tmp_path: Path
) -> None:
    bare = LinearModel(trained.weight)
    facts = {"n_source": 300, "l2": 0.1, "loss": "softmax", "max_norm": 1.0, "training_residual": 1e-9}
    desk = create_desk(tmp_path / "bare", bare, surrogate, policy, declared=Declared(**facts))
    ask(desk, source, 0, 1)
    (made,) = run(desk).published
    assert made.certificate.content["model"]["record"] == "declared"
    with pytest.raises(ModelError, match="agree"):
        create_desk(tmp_path / "other", trained, surrogate, policy, declared=Declared(n_source=299))
    from expunge.train import train

    words = np.array(["ash", "birch", "cedar"])
    model = train(source[0], words[source[1]], l2=0.1, max_norm=1.0)
    desk = create_desk(tmp_path / "words", model, (surrogate[0], words[surrogate[1]]), policy)
    accept(desk, source[0][:2], words[source[1][:2]], "case")
    assert len(run(desk).published) == 1
