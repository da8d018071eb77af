"""How the columns of a table become features: plain numbers and words, kept with the model and applied by name.

A number is `(x - mean) / scale`, the median standing in where there is none, pulled in where that is too far out and
the preparation is coarse; a category has a feature for each value that was frequent at training, one for all others
(of an exact one only if there were any), and a cell without a value is a value too.
Nothing of it is code: it travels as JSON in the model's record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.errors import DataError
from expunge.record import prepared_names
from expunge.rows.coarseness import Coarse
from expunge.rows.raw_tables import require_columns
from expunge.rows.values import MISSING, RawTable, as_labels_of
from expunge.runtime.memory import require_room

Array = NDArray[Any]


@dataclass(frozen=True)
class Number:
    """A column of numbers."""

    column: str
    median: float
    mean: float
    scale: float
    kind: str = "number"

    @property
    def width(self) -> int:
        return 1

    def fill(self, into: Array, raw: RawTable, most: float = np.inf) -> None:
        """Its feature, of every row; `most` is how large it may be."""
        values = raw.numbers(self.column)
        if values is None:
            raise DataError(
                f"{raw.name}: column {self.column!r} has {_not_a_number(raw, self.column)!r}",
                "it held numbers at training",
                "Write numbers, or leave the cell empty.",
            )
        into[:, 0] = (np.where(np.isnan(values), self.median, values) - self.mean) / self.scale
        np.clip(into, -most, most, out=into)


def _not_a_number(raw: RawTable, column: str) -> str:
    """A value of a column that keeps it from being one of numbers."""
    words = raw.words(column).different
    return next((str(word)[:60] for word in words.slice(0, 10_000).to_pylist() if _odd(word, raw)), "no numbers")


def _odd(word: str, raw: RawTable) -> bool:
    try:
        float(word.replace(",", ".") if raw.decimal_comma else word)
    except ValueError:
        return True
    return False


@dataclass(frozen=True)
class Category:
    """A column of words: `values` have a feature each; with `other` all that are none of them share one."""

    column: str
    values: tuple[str, ...]
    other: bool
    kind: str = "category"

    @property
    def width(self) -> int:
        return len(self.values) + int(self.other)

    def fill(self, into: Array, raw: RawTable, most: float = np.inf) -> None:
        """Its features, of every row: 1 for the value that it has, 0 for all others."""
        into[:] = 0.0
        places = raw.words(self.column).places(self.values)
        missing = self.values.index(MISSING) if MISSING in self.values else -2
        places = np.where(places == -1, missing, places)
        rows = np.flatnonzero(places >= 0)
        into[rows, places[rows]] = 1.0
        if self.other:
            into[places < 0, len(self.values)] = 1.0


@dataclass(frozen=True)
class Preparation:
    """A label column, columns that become features, and columns that were left out, with the reason.

    `names` are what the columns of a file without a header are called, in order; empty where it had one. `coarse`: how
    coarse it is; None where it is exact.
    """

    label: str
    text_labels: bool
    columns: tuple[Number | Category, ...]
    dropped: tuple[tuple[str, str], ...] = ()
    names: tuple[str, ...] = ()
    coarse: Coarse | None = None

    @property
    def feature_names(self) -> tuple[str, ...]:
        return prepared_names(self.to_json()["columns"])

    @property
    def width(self) -> int:
        return sum(column.width for column in self.columns)

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns of a table that become features."""
        return tuple(column.column for column in self.columns)

    def to_json(self) -> dict[str, Any]:
        """As it stands in a record."""
        columns = [asdict(column) for column in self.columns]
        return {
            "label": self.label,
            "text_labels": self.text_labels,
            "names": list(self.names),
            "columns": [each | ({"values": list(each["values"])} if "values" in each else {}) for each in columns],
            "dropped": [{"column": column, "reason": reason} for column, reason in self.dropped],
            "coarse": {} if self.coarse is None else asdict(self.coarse),
        }

    @staticmethod
    def of(content: dict[str, Any]) -> Preparation:
        """From a record, which has checked it."""
        columns: list[Number | Category] = []
        for each in content["columns"]:
            if each["kind"] == "number":
                columns.append(Number(**each))
            else:
                columns.append(Category(each["column"], tuple(each["values"]), each["other"]))
        dropped = tuple((each["column"], each["reason"]) for each in content["dropped"])
        return Preparation(
            content["label"],
            content["text_labels"],
            tuple(columns),
            dropped,
            tuple(content["names"]),
            Coarse(**content["coarse"]) if content["coarse"] else None,
        )

    def features(self, raw: RawTable) -> Array:
        """A table's features, in float64; its columns may be in any order, and others may be there too."""
        require_columns(raw, self.column_names, "the model was trained on a column of that name")
        require_room(3 * 8 * len(raw) * self.width, Path(raw.name), f"{len(raw):,} rows of {self.width:,} features")
        made = np.empty((len(raw), self.width), dtype=np.float64)
        place, most = 0, np.inf if self.coarse is None else self.coarse.most
        for column in self.columns:
            column.fill(made[:, place : place + column.width], raw, most)
            place += column.width
        return made

    def labels(self, raw: RawTable, label: str | None = None) -> Array:
        """Its labels, as they were at training: numbers or text."""
        require_columns(raw, [label or self.label], "the label column is needed", LABELLED)
        return as_labels_of(raw, label or self.label, self.text_labels)


LABELLED = (
    "Where it has another name here, give that with --label; where there is none, add it: rows are known, and scored, "
    "by their labels too (expunge predict needs none)."
)


def label_named(columns: Sequence[str], label: str | None) -> str | None:
    """The label column: the one that is named, or one that is called y or label."""
    return label if label is not None else next((name for name in ("y", "label") if name in columns), None)
