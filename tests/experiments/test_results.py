"""Runs, their records, and the page that is made of them."""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import experiments
from experiments.__main__ import main
from experiments.__main__ import main as command
from experiments.datasets.folder import DataFolder
from experiments.protocol.config import configs
from experiments.protocol.experiment import SEEDS, module_of
from experiments.protocol.page import reproduction_page
from experiments.protocol.runner import run_experiment
from experiments.protocol.store import Results, open_results, read_results, write_results
from experiments.shared.checks import Tally, check, tally
from expunge.errors import FileError
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


def run(*line: object) -> Result:
    return CliRunner().invoke(main, [*map(str, line)])


def test_the_list_names_every_experiment_and_what_it_needs(tmp_path: Path) -> None:
    result = run("--list", "--data", tmp_path)
    assert result.exit_code == 0, result.stderr
    assert all(name in result.stdout for name in configs())
    assert "MISSING" in result.stdout
    assert "NOT the paper's own" in result.stdout
    arrays = {"X": np.zeros((2, 3)), "y": np.array([0, 1]), "X_test": np.zeros((1, 3)), "y_test": np.array([0])}
    np.savez(tmp_path / "usps.npz", **arrays)
    found = {one["name"]: one for one in json.loads(run("--list", "--data", tmp_path, "--json").stdout)["experiments"]}
    assert found["mnist-usps"]["needs"] == {"mnist": False, "usps": True}


def test_all_of_it_ends_with_a_page_and_says_what_was_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configs_folder, data = make_folder(tmp_path)
    (configs_folder / "heuristic.toml").write_text(
        CONFIG.replace("order = 1", "order = 2").replace('["mnist", "usps"]', '["adult"]')
    )
    monkeypatch.setattr("experiments.protocol.config.config_folder", lambda: configs_folder)
    line = ("all", "--data", data, "--seeds", 1, "--jobs", 1, "--out", tmp_path / "out", "--json")
    result = run(*line)
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["written"]["mnist-usps"]["cases"] == 6
    assert "left out: heuristic, whose data is not there (adult" in result.stderr
    page = (tmp_path / "out" / "reproduction.md").read_text()
    assert "| mnist-usps | 8 | 0 |" in page  # two cases with two checks each, four with one; none above
    assert "contents differ from the mnist known here" in page
    before = (tmp_path / "out" / "mnist-usps.json").read_bytes()
    assert run(*line).exit_code == 0
    assert (tmp_path / "out" / "mnist-usps.json").read_bytes() == before
    assert (tmp_path / "out" / "reproduction.md").read_text() == page


def test_what_cannot_be_run_is_said(tmp_path: Path) -> None:
    for line, message in (
        ((), "no NAME"),
        (("table1",), "must be one of synthetic"),
        (("mnist-usps",), "no --data folder"),
        (("mnist-usps", "--data", tmp_path), "does not hold mnist"),
        (("--page", tmp_path / "page.md", "--out", tmp_path), "no results in"),
    ):
        result = run(*line)
        assert result.exit_code == 2
        assert message in result.stderr
    assert not list(tmp_path.iterdir())


RESULTS = ROOT / "experiments" / "results"


PAGE = reproduction_page(RESULTS, ROOT / "docs" / "reproduction.md")


TEMPLATES = Path(experiments.__file__).parent / "templates"


DONE = [name for name in configs() if (RESULTS / f"{name}.json").exists()]


NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")


# Names with digits in them, which are no numbers: what templates may hold
NAMES = re.compile(
    r"(Tables?|Figures?|Theorem|Corollary|Algorithm|Proposition|Lemma) [\d.]+( and [\d.]+)?|CIFAR-10|Caltech-\d+|"
    r"ResNet-\d+|\d v \d|\[[^\]]*\]\([^)]*\)|\{[{%].*?[}%]\}|`[^`]*`|[Ll]2|Unlearn \([+-]\)"
)


def stored(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


@pytest.mark.parametrize("name", DONE)
def test_tables_are_what_the_records_say(name: str) -> None:
    results, config = read_results(RESULTS, name), configs()[name]
    assert results is not None
    assert [table.to_json() for table in module_of(name).tables(config, results.records)] == list(results.tables)
    assert results.setting["run"] == config["run"], "the results are of another config"
    assert all((RESULTS / figure).exists() for figure in results.figures)


def test_a_table_on_the_page_is_the_mean_of_raw_records() -> None:
    """Table 1 once more, from the file by hand."""
    lines = PAGE.splitlines()
    start = lines.index("**Table 1, on the paper's own data set**") + 4
    raw = [r["result"]["scores"] for r in stored("synthetic")["records"] if r["options"]["kind"] == "published"]
    assert len(raw) == 5
    for line in lines[start : start + 7]:
        method, *cells = [cell.strip() for cell in line.strip("| ").split("|")]
        for metric, cell in zip(("train", "test", "retain", "forget", "mia"), cells[::2], strict=False):
            values = [100.0 * scores[method][metric] for scores in raw]
            assert cell == f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}", (method, metric)


def test_every_cell_of_the_page_is_in_a_results_file() -> None:
    """Rows of tables are rows of results files, but for summaries, which are counts and sums of the records."""
    rows = {tuple(row) for name in DONE for table in stored(name)["tables"] for row in table["rows"]}
    known = {str(value) for name in DONE for value in summary(name)} | {str(value) for value in summary(*DONE)}
    cells = 0
    for line in PAGE.splitlines():
        if not line.startswith("| "):
            continue
        row = tuple(cell.strip() for cell in line.strip("|").split(" | "))
        if row in rows:
            cells += len(row)
        elif any(NUMBER.fullmatch(cell) for cell in row):
            for cell in row[2:] if row[0].startswith("[") else row[1:]:
                assert not NUMBER.fullmatch(cell) or cell in known, f"{cell} in {line}"
    assert cells > 100


def test_every_number_in_the_text_is_in_a_results_file_or_a_config() -> None:
    values: set[str] = set()
    for name in DONE:
        content = stored(name)
        kept = {key: content[key] for key in ("setting", "runs")}
        values |= set(NUMBER.findall(json.dumps(kept))) | set(
            NUMBER.findall(json.dumps(dict(configs()[name]), default=dict))
        )
        for table in content["tables"]:
            values |= {number for note in (*table["notes"], table["title"]) for number in NUMBER.findall(note)}
        values |= {str(value) for value in summary(name)}
    values |= {str(value) for value in summary(*DONE)}
    for line in PAGE.splitlines():
        if line.startswith(("|", "!")):
            continue
        for number in NUMBER.findall(NAMES.sub("", line)):
            assert number in values, f"{number} in: {line}"


def summary(*names: str) -> list[Any]:
    """What the page counts and adds up: cases, seeds, minutes, checks."""
    records = [record for name in names for record in stored(name)["records"]]
    total = sum((tally(stored(name)["records"]) for name in names), Tally(0, 0, 0, 0, None))
    minutes = sum(record["seconds"] for record in records) / 60.0
    ratio = "--" if total.smallest_ratio is None else f"{total.smallest_ratio:.2f}"
    counts = [total.runs, total.violations, total.paper_runs, total.paper_exceeded]
    return [
        len(records),
        len({record["seed"] for record in records}),
        f"{minutes:.1f}",
        f"{minutes:.0f}",
        ratio,
        *counts,
    ]


def test_no_committed_run_is_above_its_residual_delta() -> None:
    total = sum((tally(stored(name)["records"]) for name in DONE), Tally(0, 0, 0, 0, None))
    assert total.violations == 0
    assert total.runs > 0


def test_cases_that_were_not_run_are_told() -> None:
    """A table of fewer seeds than the command runs must not look like a finished one."""
    lines = {line.split("]")[0]: line for line in PAGE.splitlines() if line.startswith("| [")}
    for name in DONE:
        planned, there = len(module_of(name).cases(configs()[name], SEEDS)), len(stored(name)["records"])
        told = f"{there} of {planned}" if there < planned else f"all {there}"
        assert f"| {told} |" in lines[f"| [{name}"]
    asked = next(option for option in command.params if option.name == "seeds")
    assert asked.default == SEEDS


def test_a_distance_above_delta_is_counted() -> None:
    entries = [
        check("a", 1.0, 2.0, 0.5),
        check("b", 3.0, 2.0, 4.0),
        check("c", 1.5, 2.0, None, known=1.4),
        check("d", 0.0, None, 0.0),
    ]
    record: Any = {"result": {"checks": entries}}
    assert tally([record]) == Tally(3, 2, 3, 1, 2.0 / 3.0)
    assert tally([record, {"result": {}}]) == tally([record])  # type: ignore[list-item]


def test_nothing_of_it_is_in_the_wheel() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert build == {"packages": ["src/expunge"]}
    imported = re.compile(r"^\s*(from|import) experiments\b", flags=re.MULTILINE)
    for file in (ROOT / "src").rglob("*.py"):
        assert not imported.search(file.read_text()), f"{file} is installed where there are no experiments"
