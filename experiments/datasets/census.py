"""The census employment data as rows of length 1: one column a code, ages in bands of five years.

Left out: the label, the year, and `prediction` and `predicted_probability`, the output of somebody else's model of the
same label. Codes and bands are those of the later years, so that the encoding tells nothing about 2015. Code 0 stands
for people a question is not put to (children, mostly).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.datasets.formats import Parts
from expunge.errors import DataError

LABEL, YEAR, AGE = "employed", "year", "AGEP"
OUTPUTS = ("prediction", "predicted_probability")
BAND = 5.0
BANDS = 20
HELD_OUT = 5
FILES = ("employment_MA_reference.pq", "employment_MA_analysis.pq", "employment_MA_analysis_target.pq")

Rows = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class People:
    """Encoded rows, labels and the year of each."""

    X: Rows
    y: Labels
    year: Labels


@dataclass(frozen=True)
class Census:
    """2015 and the later years under one encoding, and the names of its columns."""

    source: People
    later: People
    columns: tuple[str, ...]


def read_census(paths: dict[str, Path]) -> Census:
    """The three files; labels of the later years are in a file of their own, row by row."""
    from pyarrow import parquet  # here: whoever has the arrays needs no parquet

    reference, analysis, target = (parquet.read_table(paths[name]) for name in FILES)
    if len(analysis) != len(target):
        raise DataError(
            f"{len(analysis):,} rows and {len(target):,} labels of the later years",
            "one label a row is needed",
            "Get both files from the same place.",
        )
    later = analysis.append_column(LABEL, target[LABEL])
    return encode_census(reference, later)


def census_parts(folder: Path, names: tuple[str, ...]) -> Parts:
    """The people of 2015 alone: every fifth to test on, the others to train on."""
    people = read_census({name: folder / name for name in names}).source
    test = np.arange(len(people.y)) % HELD_OUT == 0
    return people.X[~test], people.y[~test], people.X[test], people.y[test]


def encode_census(reference: Any, later: Any) -> Census:
    """Both tables under the codes of the later one; a code of 2015 that is not among them has no column."""
    for table in (reference, later):
        missing = [name for name in table.column_names if table[name].null_count]
        if missing:
            raise DataError(f"missing values in {', '.join(missing)}", "every row must be whole", "Check the files.")
    names = [name for name in later.column_names if name not in (LABEL, YEAR, AGE, *OUTPUTS)]
    codes = {name: sorted(set(_text(later, name).tolist()), key=_order) for name in names}
    columns = [f"age {number * BAND:g}+" for number in range(BANDS)]
    columns += [f"{name}={code}" for name in names for code in codes[name]]
    people = [_people(table, codes) for table in (reference, later)]
    return Census(people[0], people[1], tuple(columns))


def _text(table: Any, name: str) -> NDArray[Any]:
    return np.asarray(table[name].combine_chunks().cast("string").to_pylist(), dtype=object)


def _order(code: str) -> tuple[int, str]:
    return (int(code), code) if code.isdigit() else (10**6, code)


def _people(table: Any, codes: dict[str, list[str]]) -> People:
    age = np.asarray(table[AGE].to_numpy(), dtype=np.float64)
    band = np.minimum((age // BAND).astype(np.int64), BANDS - 1)
    parts = [np.eye(BANDS)[band]]
    for name, known in codes.items():
        values = _text(table, name)
        parts.append((values[:, None] == np.asarray(known, dtype=object)[None, :]).astype(np.float64))
    rows = np.concatenate(parts, axis=1) / math.sqrt(len(parts))  # one 1 a question: every row has length 1
    return People(rows, table[LABEL].to_numpy().astype(np.int64), table[YEAR].to_numpy().astype(np.int64))
