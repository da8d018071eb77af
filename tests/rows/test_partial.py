"""Units of a long run: kept, read back, never mixed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from expunge.errors import FileError, OptionError
from expunge.rows.partial import Partial, open_partial
from expunge.runtime.durable import TEMPORARY


def test_units_are_kept_and_read_back(tmp_path: Path) -> None:
    setting = {"task": "x", "models": 3}
    first = open_partial(tmp_path / "run", setting)
    assert first.load("seed-1") is None
    first.save("seed-1", [{"value": 0.1}])
    again = open_partial(tmp_path / "run", setting)
    assert again.load("seed-1") == [{"value": 0.1}]
    assert again.finished() == ["seed-1"]
    again.remove()
    assert not (tmp_path / "run").exists()


def test_another_setting_is_refused(tmp_path: Path) -> None:
    open_partial(tmp_path / "run", {"models": 3})
    with pytest.raises(FileError, match="another setting"):
        open_partial(tmp_path / "run", {"models": 4})


@pytest.mark.parametrize("content", [b"", b"{", b'{"a": 1, "a": 2}', b"NaN"])
def test_a_damaged_unit_is_named(tmp_path: Path, content: bytes) -> None:
    run = open_partial(tmp_path / "run", {})
    run.save("seed-1", 1)
    (tmp_path / "run" / "seed-1.json").write_bytes(content)
    with pytest.raises(FileError, match="seed-1"):
        run.load("seed-1")


def test_names_stay_inside_the_folder(tmp_path: Path) -> None:
    run = open_partial(tmp_path / "run", {})
    run.save("../out side", 1)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert run.load("../out side") == 1


def test_a_run_that_is_refused_leaves_its_finished_units_or_nothing(tmp_path: Path) -> None:
    for unit in (None, "json", "npy"):
        run = open_partial(tmp_path / "run", {})
        if unit == "json":
            run.save("seed-1", 1)
        elif unit == "npy":
            run.save_array("rows-1", np.ones(3))
        with pytest.raises(OptionError), run.gone_if_refused():
            raise OptionError("a", "b", "c")
        assert run.folder.exists() == (unit is not None)
        if unit is not None:
            run.remove()
    with pytest.raises(OptionError), Partial(tmp_path / "never opened").gone_if_refused():
        raise OptionError("a", "b", "c")


def test_a_folder_that_no_run_made_is_refused_and_stays(tmp_path: Path) -> None:
    mine = tmp_path / "out.partial" / "seed-1.json"
    mine.parent.mkdir()
    mine.write_text("1")
    with pytest.raises(FileError, match="not of an unfinished run"):
        open_partial(mine.parent, {})
    assert [path.name for path in mine.parent.iterdir()] == ["seed-1.json"]


def test_what_a_killed_run_left_of_its_setting_is_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    left = tmp_path / "run" / f"{TEMPORARY}{'0' * 16}-{'1' * 16}"
    left.write_text("{")
    run = open_partial(tmp_path / "run", {})
    run.remove()
    assert not run.folder.exists()


@pytest.mark.parametrize("linked", [False, True])
def test_files_of_others_are_never_removed(tmp_path: Path, linked: bool) -> None:
    folder = tmp_path / "run"
    if linked:
        (tmp_path / "real").mkdir()
        folder.symlink_to(tmp_path / "real")
    run = open_partial(folder, {})
    (folder / "thesis.txt").write_text("mine")
    (folder / "photos").mkdir()
    (folder / "photos" / "one.json").write_text("mine")
    with pytest.raises(OptionError), run.gone_if_refused():
        raise OptionError("a", "b", "c")
    run.save("seed-1", 1)
    run.remove()
    assert sorted(path.name for path in folder.iterdir()) == ["photos", "thesis.txt"]
    assert (folder / "photos" / "one.json").read_text() == "mine"
