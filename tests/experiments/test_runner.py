"""A whole experiment, small: stored case by case, killed and continued, the same numbers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from experiments.__main__ import main
from experiments.datasets.folder import DataFolder
from experiments.protocol.runner import listed, run_experiment
from experiments.protocol.store import Results, open_results, read_results, write_results
from expunge.errors import FileError, OptionError
from small_experiment import CONFIG, make_folder

pytestmark = pytest.mark.usefixtures("one_thread")
NAME = "mnist-usps"
ROOT = Path(__file__).parents[2]
DRIVER = """
import sys
from pathlib import Path
from experiments.datasets.folder import DataFolder
from experiments.protocol.runner import run_experiment
if __name__ == "__main__":
    configs, data, out = sys.argv[1:]
    run_experiment("mnist-usps", DataFolder(Path(data)), Path(out), seeds=3, jobs=2, folder=Path(configs))
"""


def numbers(out: Path) -> list[Any]:
    """All that must not depend on when or where a case was run."""
    content = json.loads((out / f"{NAME}.json").read_text())
    return [
        content["setting"],
        content["tables"],
        [{k: v for k, v in r.items() if k not in ("seconds", "run")} for r in content["records"]],
    ]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_folder(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def whole(folders: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole")
    run_experiment(NAME, DataFolder(folders[1]), out, seeds=3, folder=folders[0])
    return out


def test_results_hold_what_is_needed_to_trust_them(whole: Path) -> None:
    content = json.loads((whole / f"{NAME}.json").read_text())
    assert len(content["records"]) == 18
    assert {record["seed"] for record in content["records"]} == {0, 1, 2}
    assert {"versions", "machine", "device", "seconds"} <= set(content["runs"][0])
    assert set(content["setting"]["data"]) == {"mnist", "usps"}
    assert all(
        check["true"] <= check.get("known", check["residual"]) <= check["residual"]
        for r in content["records"]
        for check in r["result"]["checks"]
    )
    text = (whole / f"{NAME}.md").read_text()
    assert "contents differ" in text
    assert "| M -> U | Retrain |" in text


def test_a_rerun_computes_nothing_and_more_seeds_add_only_theirs(folders: tuple[Path, Path], tmp_path: Path) -> None:
    data = DataFolder(folders[1])
    run_experiment(NAME, data, tmp_path, seeds=1, folder=folders[0])
    first = numbers(tmp_path)
    run_experiment(NAME, data, tmp_path, seeds=1, folder=folders[0])
    assert numbers(tmp_path) == first
    found = run_experiment(NAME, data, tmp_path, seeds=2, folder=folders[0])
    assert len(found.runs) == 2
    assert [record["run"] for record in found.records] == [record["seed"] for record in found.records]


def test_results_of_another_setting_are_refused(folders: tuple[Path, Path], tmp_path: Path) -> None:
    data = DataFolder(folders[1])
    run_experiment(NAME, data, tmp_path / "out", seeds=1, folder=folders[0])
    other = tmp_path / "configs"
    other.mkdir()
    (other / f"{NAME}.toml").write_text(CONFIG.replace("l2 = 0.1", "l2 = 0.2"))
    with pytest.raises(FileError, match="another setting \\(run\\)"):
        run_experiment(NAME, data, tmp_path / "out", seeds=1, folder=other)
    (other / f"{NAME}.toml").write_text(CONFIG.replace("94.2", "94.3"))
    run_experiment(NAME, data, tmp_path / "out", seeds=1, folder=other)  # the paper's values decide no number of ours


def test_a_task_more_is_no_other_setting(tmp_path: Path) -> None:
    """Records stay where tasks and data sets are added; a task that changed or left is another setting."""
    first = {"run": {"tasks": {"a": {"l2": 1.0}}, "draws": 3}, "data": {"mnist": "m"}}
    write_results(tmp_path, Results("tasks", first, runs=({"jobs": 1},)))
    more = {"run": {"tasks": {"b": {"l2": 2.0}, "a": {"l2": 1.0}}, "draws": 3}, "data": {"mnist": "m", "usps": "u"}}
    opened = open_results(tmp_path, "tasks", more)
    assert (opened.runs, opened.setting) == (({"jobs": 1},), more)
    others: list[tuple[str, dict[str, Any]]] = [
        ("run", {**more, "run": {"tasks": {"b": {"l2": 2.0}}, "draws": 3}}),
        ("run", {**more, "run": {"tasks": {"a": {"l2": 1.5}, "b": {"l2": 2.0}}, "draws": 3}}),
        ("run", {**more, "run": {**more["run"], "draws": 4}}),
        ("run", {**more, "run": {**more["run"], "seeds": 4}}),
        ("data", {**first, "data": {"mnist": "other"}}),
        ("data", {**first, "data": {"usps": "u"}}),
    ]
    for part, other in others:
        with pytest.raises(FileError, match=f"another setting .*{part}"):
            open_results(tmp_path, "tasks", other)
    write_results(tmp_path, Results("none", {"run": {}, "data": {"mnist": "m"}}))
    with pytest.raises(FileError, match=r"another setting .*data"):
        open_results(tmp_path, "none", {"run": {}, "data": more["data"]})


@pytest.mark.slow
def test_a_run_that_was_killed_continues_with_the_same_numbers(
    folders: tuple[Path, Path], whole: Path, tmp_path: Path
) -> None:
    (tmp_path / "driver.py").write_text(DRIVER)
    out = tmp_path / "out"
    command = [sys.executable, str(tmp_path / "driver.py"), *map(str, folders), str(out)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    deadline = time.monotonic() + 120
    while not (out / f"{NAME}.json").exists():
        assert time.monotonic() < deadline
        assert running.poll() is None, running.stderr.read() if running.stderr else ""
        time.sleep(0.01)
    children = workers(running.pid)
    running.send_signal(signal.SIGKILL)
    running.wait()
    while any(Path(f"/proc/{child}").exists() and "Z" not in state(child) for child in children):
        assert time.monotonic() < deadline, "workers outlive their parent"
        time.sleep(0.05)
    kept = read_results(out, NAME)
    assert kept is not None
    assert 1 <= len(kept.records) < 18
    subprocess.run(command, check=True, timeout=120, env=environment)
    assert numbers(out) == numbers(whole)


def workers(pid: int) -> list[str]:
    listing = Path(f"/proc/{pid}/task/{pid}/children")
    return listing.read_text().split() if listing.exists() else []


def state(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "Z"


def test_a_damaged_file_is_named(folders: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.json").write_text('{"layout": 1, "name": ')
    with pytest.raises(FileError, match=f"{NAME}.json cannot be read"):
        run_experiment(NAME, DataFolder(folders[1]), tmp_path, seeds=1, folder=folders[0])


def test_a_folder_that_cannot_be_written_is_named_before_any_work(folders: tuple[Path, Path], tmp_path: Path) -> None:
    configs, data = folders
    (tmp_path / "file").write_text("")

    def fail(stage: str, done: int, total: int | None) -> None:
        raise AssertionError("work was begun")

    for out in (tmp_path / "file", tmp_path / "file" / "inside"):
        with pytest.raises(FileError, match=r"nothing can be written to .*Choose another --out"):
            run_experiment(NAME, DataFolder(data), out, seeds=1, folder=configs, progress=fail)
    done = CliRunner().invoke(main, ["--page", str(tmp_path / "file" / "page.md")])
    assert done.exit_code == 2
    assert "Choose another --page" in done.stderr


def test_the_list_says_what_is_there(folders: tuple[Path, Path]) -> None:
    (with_data,), (without,) = (listed(DataFolder(data), folders[0]) for data in (folders[1], None))
    assert with_data["needs"] == {"mnist": True, "usps": True}
    assert without["needs"] == {"mnist": False, "usps": False}


def test_some_cases_alone(folders: tuple[Path, Path], tmp_path: Path) -> None:
    """Those whose name has it; what is there already stays, and a name of none is refused with all of them."""
    configs, data = folders
    names = sorted(
        {record["key"] for record in run_experiment(NAME, DataFolder(data), tmp_path, seeds=1, folder=configs).records}
    )
    alone = tmp_path / "alone"
    alone.mkdir()
    first = run_experiment(NAME, DataFolder(data), alone, seeds=1, only=names[0], folder=configs)
    assert {record["key"] for record in first.records} == {name for name in names if names[0] in name}
    last = run_experiment(NAME, DataFolder(data), alone, seeds=1, only=names[-1], folder=configs)
    assert {record["key"] for record in last.records} >= {names[0], names[-1]}
    with pytest.raises(OptionError, match=f"names no case.*Cases: .*{names[0]}"):
        run_experiment(NAME, DataFolder(data), alone, seeds=1, only="nothing", folder=configs)
