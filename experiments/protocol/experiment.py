"""What an experiment is: a module with four functions, and a config `experiments/configs/<name>.toml`.

    cases(config, seeds)                          -> list[Case]        keys are unique together with the seed
    run(case, config, data, *, device, progress)  -> dict              JSON-able; a pure function of case, config, data
    tables(config, records)                       -> list[Table]       ours, with the paper's values beside them
    figures(config, records)                      -> dict[str, bytes]  file name -> PNG, axes as in the paper

A config has three parts. `[about]` says what it is: `title`, `paper` (which tables and figures), `order` (place in the
list), `needs` (data sets by name), `minutes` (on two cores, all seeds). `[run]` is all that decides numbers: results of
another `[run]` are never mixed in. One with more `[run.tasks]` is no other, so a case may depend on its own task and on
what is outside of `[run.tasks]`, never on another task. `[paper]` holds the paper's own values.

A result may hold `checks`, a list made by `experiments.shared.checks`: the true distance to retraining beside each
Delta of that run.
"""

from __future__ import annotations

import importlib
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypedDict, cast

from experiments.datasets.folder import DataFolder
from expunge.runtime.progress import Progress

Config = Mapping[str, Any]
SEEDS = 5  # where nobody asks for another number


@dataclass(frozen=True)
class Case:
    """One run: stored on its own, repeated never. `options` is what the module wants to know of it, JSON-able."""

    key: str
    seed: int
    options: Mapping[str, Any] = field(default_factory=dict)


class Record(TypedDict):
    """A case that was run. `run` is the number of the entry in the results' `runs` that says where and with what."""

    key: str
    seed: int
    options: dict[str, Any]
    result: dict[str, Any]
    seconds: float
    run: int


@dataclass(frozen=True)
class Table:
    """Cells are text, numbers already rounded; `notes` are sentences below, made from the records as well."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{self.title}: {len(row)} cells for {len(self.columns)} columns")

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "columns": list(self.columns),
            "rows": [list(row) for row in self.rows],
            "notes": list(self.notes),
        }

    def to_markdown(self) -> str:
        """The table with its title above and its notes below.

        >>> print(Table("T", ("a", "b"), (("x", "1"),), ("n.",)).to_markdown())
        **T**
        <BLANKLINE>
        | a | b |
        |---|---:|
        | x | 1 |
        <BLANKLINE>
        - n.
        <BLANKLINE>
        """
        lines = [f"**{self.title}**", "", _line(self.columns), "|---|" + "---:|" * (len(self.columns) - 1)]
        lines += [_line(row) for row in self.rows]
        if self.notes:
            lines += ["", *(f"- {note}" for note in self.notes)]
        return "\n".join([*lines, ""])


def table_from_json(content: Mapping[str, Any]) -> Table:
    """The inverse of `Table.to_json`."""
    return Table(
        content["title"],
        tuple(content["columns"]),
        tuple(tuple(row) for row in content["rows"]),
        tuple(content["notes"]),
    )


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


class Experiment(Protocol):
    """What a module offers."""

    def cases(self, config: Config, seeds: int) -> list[Case]:
        """What is to be run, each case once."""

    def run(self, case: Case, config: Config, data: DataFolder, *, device: str, progress: Progress) -> dict[str, Any]:
        """One case: the numbers that are kept of it, as JSON."""

    def tables(self, config: Config, records: Sequence[Record]) -> list[Table]:
        """What the records of all cases say, beside what the paper says."""

    def figures(self, config: Config, records: Sequence[Record]) -> dict[str, bytes]:
        """PNG files by name; none where a table says it all."""


def module_of(name: str) -> Experiment:
    """The module of an experiment: `mnist-usps` is `experiments.mnist_usps`."""
    return cast(Experiment, importlib.import_module(f"experiments.{name.replace('-', '_')}"))


def spread(values: Sequence[float | None], form: str = ".3g", factor: float = 1.0) -> str:
    """Mean and sample standard deviation; without the latter for one value, `--` for none.

    >>> spread([0.771, 0.773], ".1f", 100), spread([2.0]), spread([]), spread([1.0, None])
    ('77.2 ± 0.1', '2', '--', '1')
    """
    known = [factor * value for value in values if value is not None]
    if not known:
        return "--"
    mean = math.fsum(known) / len(known)
    return f"{mean:{form}} ± {statistics.stdev(known):{form}}" if len(known) > 1 else f"{mean:{form}}"


def percent(values: Sequence[float | None]) -> str:
    """Shares as percent with one decimal.

    >>> percent([0.5, 0.52])
    '51.0 ± 1.4'
    """
    return spread(values, ".1f", 100.0)


def grouped(records: Sequence[Record], *names: str) -> dict[tuple[Any, ...], list[Record]]:
    """Records by the values of these options, groups in order of appearance, seeds ascending."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in sorted(records, key=lambda one: one["seed"]):
        groups.setdefault(tuple(record["options"][name] for name in names), []).append(record)
    return groups
