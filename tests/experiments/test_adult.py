"""The tutorial on Adult: it is what its steps printed, and its Python runs on people who are made up."""

from __future__ import annotations

import gzip
import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from examples import adult
from expunge.cli import main

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_tutorial_is_what_its_steps_printed() -> None:
    kept = json.loads(adult.KEPT.read_text())
    assert adult.page_text(kept) == adult.PAGE.read_text(), "run: python -m examples.adult text"
    assert set(kept["programs"]) == set(adult.PROGRAMS)
    statuses = {key: one["status"] for key, one in kept["commands"].items()}
    assert set(statuses) == set(adult.COMMANDS)
    assert {key: status for key, status in statuses.items() if status} == adult.FAILING
    assert "none failed" in kept["commands"]["verify"]["output"]
    assert "proven" in kept["programs"]["forget"]


def test_its_commands_are_commands() -> None:
    for command in adult.COMMANDS.values():
        words = shlex.split(command)
        if words[0] != "expunge":
            continue
        found = main.commands[words[1]]
        if words[1] == "desk":
            found = found.commands[words[2]]  # type: ignore[attr-defined]
        known = {name for option in found.params for name in option.opts}
        assert {word for word in words if word.startswith("--")} <= known


def test_a_long_list_of_checks_is_cut_short() -> None:
    assert adult._shortened("written: a\nwritten: b") == "written: a\nwritten: b"
    text = "\n".join([*(f"  ok  {number}" for number in range(20)), "verified: 20 checks"])
    assert adult._shortened(text).splitlines() == [
        *("  ok  0", "  ok  1", "  ok  2", "  [...]"),
        *("  ok  17", "  ok  18", "  ok  19", "verified: 20 checks"),
    ]


def made_up(count: int) -> bytes:
    """A table like Adult: fourteen columns, numbers and words, and the label."""
    generator = np.random.default_rng(3)
    lines = []
    for _ in range(count):
        age, hours, words = generator.integers(17, 90), generator.integers(1, 99), generator.integers(0, 3, 8)
        rich = generator.random() < 1.0 / (1.0 + np.exp(2.0 - 0.02 * age - 0.5 * words[3]))
        numbers = (age, generator.integers(1e4, 1e6), generator.integers(1, 16), 0, 0, hours)
        cells = [str(numbers[0]), f"W{words[0]}", str(numbers[1]), f"E{words[1]}", str(numbers[2])]
        cells += [f"M{words[2]}", f"O{words[3]}", f"R{words[4]}", f"C{words[5]}", f"S{words[6]}"]
        cells += [str(numbers[3]), str(numbers[4]), str(numbers[5]), f"N{words[7]}", ">50K" if rich else "<=50K"]
        lines.append(", ".join(cells))
    return gzip.compress("\n".join(lines).encode())


def test_its_python_runs(tmp_path: Path) -> None:
    (tmp_path / adult.DATA).write_bytes(made_up(4000))
    printed = adult.run_programs(tmp_path)
    assert printed["fit"].startswith("3,000 rows of")
    assert printed["forget"].startswith("proven epsilon 1.0")
    assert "all passed: True" in printed["verified"]
    assert (tmp_path / "model.deposit").stat().st_mode & 0o777 == 0o600
    assert adult.accuracy(tmp_path / "in-python" / "model.safetensors", tmp_path / "test.npz").endswith("of 1,000 rows")
