"""Opening a desk: everything is checked, then the folder appears whole."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from desk_use import Rows, ask
from expunge.desk import Desk, Policy, accept, create_desk, open_desk, run, verify_desk
from expunge.desk.layout import Layout
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


# Several at once, and what lies there already ---------------------------------------------------------------------------

OPENING = """
import sys, time, numpy as np
from pathlib import Path
from expunge.desk import Policy, create_desk
from expunge.errors import FileError
from expunge.model import read_model
model, rows = read_model(sys.argv[1])[0], np.load(sys.argv[2])
Path(sys.argv[4]).touch()
while not Path(sys.argv[5]).exists():
    time.sleep(0.005)
try:
    policy = Policy(epsilon=0.5, delta=1e-3, distance="same", planned=10, noise=1.0, force=True)
    create_desk(sys.argv[3], model, (rows["X"], rows["y"]), policy)
except FileError as error:
    print(error)
    sys.exit(2)
"""


def test_of_several_that_open_a_desk_at_once_one_does(
    trained: LinearModel, surrogate: Rows, source: Rows, tmp_path: Path
) -> None:
    """The others are told that it is there; nothing of theirs is left, and the desk is whole."""
    (tmp_path / "model.safetensors").write_bytes(trained.to_bytes())
    np.savez(tmp_path / "rows.npz", X=surrogate[0], y=surrogate[1])
    place, go = tmp_path / "place" / "desk", tmp_path / "go"
    place.parent.mkdir()
    ready = [tmp_path / f"ready-{number}" for number in range(3)]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", OPENING, tmp_path / "model.safetensors", tmp_path / "rows.npz", place, each, go],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for each in ready
    ]  # fmt: skip
    until = time.monotonic() + 120
    while not all(each.exists() for each in ready) and time.monotonic() < until:
        time.sleep(0.01)
    go.touch()
    ended = [(process.communicate(timeout=400), process.returncode) for process in started]
    assert sorted(code for _, code in ended) == [0, 2, 2], ended
    assert all("exists already" in out for (out, _), code in ended if code == 2), ended
    assert [path.name for path in place.parent.iterdir()] == ["desk"]
    desk = open_desk(place)
    ask(desk, source, 0, 1)
    assert len(run(desk).published) == 1
    verify_desk(desk)


def test_a_folder_of_somebody_elses_is_not_removed(
    trained: LinearModel, surrogate: Rows, policy: Policy, tmp_path: Path
) -> None:
    """Earlier versions worked under this name, and removed what lay there."""
    for name in (".expunge-desk", ".expunge-notes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "notes.txt").write_text("mine")
    create_desk(tmp_path / "desk", trained, surrogate, policy)
    assert (tmp_path / ".expunge-desk" / "notes.txt").read_text() == "mine"
    assert (tmp_path / ".expunge-notes" / "notes.txt").read_text() == "mine"


def test_what_a_killed_opening_left_is_removed_by_the_next(
    trained: LinearModel, surrogate: Rows, policy: Policy, tmp_path: Path
) -> None:
    made: list[Path] = []

    def killed(layout: Layout, *_: object) -> None:
        layout.private.mkdir()
        layout.key.write_bytes(b"a key")
        made.append(layout.folder)
        shutil.copytree(layout.folder, tmp_path / "aside")  # as a kill would leave it
        raise OSError(errno.EIO, "broken")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("expunge.desk.create._fill", killed)
        with pytest.raises(FileError, match="could not be written"):
            create_desk(tmp_path / "desk", trained, surrogate, policy)
    assert not made[0].exists()
    (tmp_path / "aside").rename(made[0])
    create_desk(tmp_path / "desk", trained, surrogate, policy)
    assert [path.name for path in tmp_path.iterdir()] == ["desk"]


def test_somebody_who_was_faster_keeps_the_place(
    trained: LinearModel, surrogate: Rows, policy: Policy, tmp_path: Path
) -> None:
    """A desk that appeared meanwhile stays, also where our own attempt fails for another reason."""

    def late(*_: object) -> None:
        (tmp_path / "desk").mkdir()
        (tmp_path / "desk" / "theirs").write_text("theirs")
        raise OSError(errno.ENOSPC, "full")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("expunge.desk.create._fill", late)
        with pytest.raises(FileError, match="could not be written"):
            create_desk(tmp_path / "desk", trained, surrogate, policy)
    assert (tmp_path / "desk" / "theirs").read_text() == "theirs"
