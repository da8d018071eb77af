"""What is changed, and that a change is the one that was announced."""

from __future__ import annotations

import ast
import tomllib

import pytest

from mutation.changes import changed, mutants_of
from mutation.forking import PACKAGE, ROOT
from mutation.modules import TARGETS, files_of

SOURCE = '''
"""Words 1."""
from __future__ import annotations
SLACK: float = 0.5

@dataclass(frozen=True)
class Thing:
    def bound(self, x: int | None, y: float = 0.0) -> float:
        """Words 2."""
        if x is None or not y < 3:
            raise ValueError(f"{x + 1} is wrong")
        total = min(-x, 2.0**y) / 7
        total += 1
        return total
'''


def announced(source: str) -> list[str]:
    return [mutant.change for mutant in mutants_of("a.py", source)]


def test_everything_that_counts_is_changed_and_nothing_else() -> None:
    assert announced(SOURCE) == [
        "0.5 -> 0.55",
        "0.0 -> 1.0",
        "x is None or not y < 3 -> x is None and (not y < 3)",
        "x is None -> x is not None",
        "not y < 3 -> y < 3",
        "y < 3 -> y <= 3",
        "y < 3 -> y >= 3",
        "3 -> 4",
        "min(-x, 2.0 ** y) / 7 -> min(-x, 2.0 ** y) * 7",
        "min(-x, 2.0 ** y) -> max(-x, 2.0 ** y)",
        "-x -> x",
        "2.0 ** y -> 2.0 * y",
        "2.0 -> 2.2",
        "7 -> 8",
        "total += 1 -> total -= 1",
        "1 -> 2",
        "1 -> 0",
    ]


@pytest.mark.parametrize(
    ("source", "change", "value"),
    [
        ("f = 2 + 3", "2 + 3 -> 2 - 3", -1),
        ("f = 2 + 3", "3 -> 4", 6),
        ("f = max(2, 3)", "max(2, 3) -> min(2, 3)", 2),
        ("f = 1 < 2 < 2", "1 < 2 < 2 -> 1 < 2 <= 2", True),
        ("f = not False", "False -> True", False),
        ("f = 0\nf -= 4", "f -= 4 -> f += 4", 4),
        ("f = [5, 6][-1]", "-1 -> 1", 6),
    ],
)
def test_the_change_is_made(source: str, change: str, value: object) -> None:
    mutant = next(mutant for mutant in mutants_of("a.py", source) if mutant.change == change)
    names: dict[str, object] = {}
    exec(changed(source, mutant, "a.py"), names)
    assert names["f"] == value


def test_one_change_leaves_the_others() -> None:
    source = "f = 1.5 + 1.5"
    values = []
    for mutant in mutants_of("a.py", source):
        names: dict[str, float] = {}
        exec(changed(source, mutant, "a.py"), names)
        values.append(names["f"])
    assert values == pytest.approx([0.0, 3.15, 3.15])


def test_only_what_is_named() -> None:
    source = "A = 1.5\ndef f():\n    return 2.5\ndef g():\n    return 3.5\n"
    assert [mutant.change for mutant in mutants_of("a.py", source, ("", "g"))] == ["1.5 -> 1.65", "3.5 -> 3.85"]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.pattern)
def test_every_target_has_files_and_tests(target) -> None:
    files = files_of(target, PACKAGE)
    assert files
    for test in target.tests:
        file, _, name = test.partition("::")
        found = sorted(ROOT.glob(file))
        assert found, test
        assert f"def {name.partition('[')[0]}(" in found[0].read_text() or not name, test
    there = {node.name for file in files for node in ast.parse(file.read_text()).body if hasattr(node, "name")}
    assert set(target.only) <= there | {""}, "what is named is there"


def test_what_is_listed_as_changing_nothing_is_still_there() -> None:
    listed = tomllib.loads((ROOT / "tests" / "equivalent_mutants.toml").read_text())["same"]
    lines = {file: (PACKAGE / file).read_text() for file in {each["file"] for each in listed}}
    gone = [each for each in listed if each.get("line", "") not in map(str.strip, lines[each["file"]].splitlines())]
    assert not [each for each in gone if "line" in each]
