"""The page that the site makes of the committed results: every number on it is in a results file."""

from __future__ import annotations

import json
import re
import statistics
import tomllib
from pathlib import Path
from typing import Any

import pytest

import experiments
from experiments.__main__ import main as command
from experiments.protocol.config import configs
from experiments.protocol.experiment import SEEDS, module_of
from experiments.protocol.page import reproduction_page
from experiments.protocol.store import read_results
from experiments.shared.checks import Tally, check, tally

ROOT = Path(__file__).parents[2]
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


@pytest.mark.parametrize("template", sorted(TEMPLATES.glob("*.md")), ids=lambda path: path.name)
def test_templates_hold_no_numbers(template: Path) -> None:
    for line in template.read_text().splitlines():
        assert not NUMBER.findall(NAMES.sub("", line)), line


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


def test_what_would_be_refused_is_marked() -> None:
    for table in stored("frontier")["tables"]:
        marked = any(cell.endswith("*") for row in table["rows"] for cell in row)
        assert any(note.startswith("* marks") for note in table["notes"]) == marked


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
