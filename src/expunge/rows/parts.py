"""Rows with a column that says which part each belongs to: a year, a site, a device. That column is no feature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from expunge.errors import DataError, ExpungeError, FileError, OptionError
from expunge.record import TrainingRecord
from expunge.rows.files import DAMAGE, not_whole, read_npz, unknown_type
from expunge.rows.learning import learn
from expunge.rows.preparation import Preparation, label_named
from expunge.rows.raw_tables import is_table, missing_column, read_raw, require_columns
from expunge.rows.values import RawTable, as_words
from expunge.runtime.paths import readable

MOST_PARTS = 50
LEARNT_FROM = 20_000  # rows: what becomes of a column shows in so many
PART_OF = "--by names the column that says which part a row belongs to"

Array = NDArray[Any]


@dataclass(frozen=True)
class PartRows:
    """Features of every row, the place of its part among `parts`, and what was decided on the way."""

    features: Array
    codes: NDArray[np.int64]
    parts: tuple[str, ...]
    names: tuple[str, ...]
    told: tuple[str, ...] = ()


def read_parts(
    path: Path,
    by: str,
    label: str | None = None,
    *,
    columns: Sequence[str] | None = None,
    record: TrainingRecord | None = None,
    n_features: int | None = None,
) -> PartRows:
    """Rows of a table, or of an .npz file with X and an array of the name `by`, and which part each belongs to.

    With a model's `record` columns become features as they did at training, and rows longer than its norm bound are
    scaled to it; without one a table is prepared by what is in it. `n_features` are those a model takes. The label is
    no feature.
    """
    readable(path)
    if by == label:
        raise OptionError(
            f"--by and --label {by!r}",
            "parts are told apart by something else than the classes",
            "Give the column with the year, the site or the device of each row, or leave --label out.",
        )
    if is_table(path):
        rows = _of_table(path, by, label, columns, record)
    elif path.suffix.lower() == ".npz":
        rows = _of_arrays(path, by)
        if n_features is not None and rows.features.shape[1] != n_features:
            raise DataError(
                f"{path} has {rows.features.shape[1]:,} features",
                f"the model takes {n_features:,}",
                "Give rows as they were at training, or leave --model out.",
            )
    else:
        raise unknown_type(path)
    return rows if record is None else _bounded(rows, record)


def _of_table(
    path: Path, by: str, label: str | None, columns: Sequence[str] | None, record: TrainingRecord | None
) -> PartRows:
    made = None if record is None or record.table is None else Preparation.of(dict(record.table))
    raw = read_raw(path, known=None if made is None else made.names or None)
    if by not in raw.columns:
        raise missing_column(raw, [by], PART_OF)
    if label is not None:
        require_columns(raw, [label], "--label names a column, which is no feature")
    parts, codes, told = _parts(raw.table[by], path, by)
    there = codes >= 0
    table = raw.table.filter(pa.array(there)) if not there.all() else raw.table
    raw, codes = replace(raw, table=table), codes[there]
    if made is not None:
        kept = replace(made, columns=tuple(each for each in made.columns if each.column != by))
        if len(kept.columns) < len(made.columns):
            told.append(f"{by} was a feature at training; here it says the part, and is none")
        return PartRows(kept.features(raw), codes, parts, kept.feature_names, tuple(told))
    target = label if label is not None else label_named(raw.columns, None)
    known = None if record is None else record.features
    if known is not None and columns is None:
        return _plain(raw, [name for name in known if name != by], codes, parts, told)
    dropped = [name for name in {by, target} if name is not None and name in raw.columns]
    table = raw.table.drop_columns(dropped).append_column(by, pa.array([parts[code] for code in codes]))
    learnt = learn(replace(raw, table=_some(table)), by, columns)
    told += [f"label, no feature: {target}"] * (target in raw.columns and target != by) + list(learnt.told[1:])
    prepared = learnt.preparation
    return PartRows(prepared.features(raw), codes, parts, prepared.feature_names, tuple(told))


def _some(table: Any) -> Any:
    """Rows to learn a preparation from, taken evenly: all of few."""
    if table.num_rows <= LEARNT_FROM:
        return table
    return table.take(pa.array(np.linspace(0, table.num_rows - 1, LEARNT_FROM).astype(np.int64)))


def _plain(raw: RawTable, names: list[str], codes: Array, parts: tuple[str, ...], told: list[str]) -> PartRows:
    """The columns a model was trained on, as the numbers they are."""
    require_columns(raw, names, "the model was trained on a column of that name")
    found = [raw.numbers(name) for name in names]
    odd = [name for name, values in zip(names, found, strict=True) if values is None or np.isnan(values).any()]
    if odd:
        raise DataError(
            f"{raw.name}: column {odd[0]!r} without numbers, or with empty cells",
            "it held numbers at training",
            "Fill them in as it was done for training, or remove those rows.",
        )
    return PartRows(
        np.column_stack([values for values in found if values is not None]), codes, parts, tuple(names), tuple(told)
    )


def _of_arrays(path: Path, by: str) -> PartRows:
    try:
        arrays = read_npz(path, ("X", by), ("feature_names",))
        features, column = arrays["X"], arrays[by]
        if features.ndim != 2 or column.shape != features.shape[:1] or features.dtype.kind not in "fiub":
            raise FileError(
                f"{path}: X of shape {features.shape} and {by} of shape {column.shape}",
                "X is rows x features in numbers, and one value a row says its part",
                f"Save with numpy.savez(path, X=..., y=..., {by}=...).",
            )
        parts, codes, told = _parts(pa.chunked_array([pa.array(column)]), path, by)
    except ExpungeError:
        raise
    except DAMAGE as error:
        raise not_whole(path, error) from error
    named = arrays.get("feature_names")
    names = [f"column {place}" for place in range(features.shape[1])]
    if named is not None and named.shape == (features.shape[1],):
        names = [str(name) for name in named.tolist()]
    there = codes >= 0
    values = features[there].astype(np.float64)
    if not np.isfinite(values).all():
        raise DataError(f"{path}: X has values that are not finite", "every one must be", "Fill or remove those rows.")
    return PartRows(values, codes[there], parts, tuple(names), tuple(told))


def _parts(column: Any, path: Path, by: str) -> tuple[tuple[str, ...], NDArray[np.int64], list[str]]:
    """The different parts in order, the place of each row's (-1 for none), and a sentence on rows without one."""
    words = as_words(column)
    n_parts, n_rows = len(words.different), len(words.codes)
    if n_parts > MOST_PARTS:
        raise DataError(
            f"{path}: column {by!r} has {n_parts:,} different values in {n_rows:,} rows",
            f"it must group the rows into a few parts, at most {MOST_PARTS}",
            "Use a coarser column: years and not days, sites and not persons.",
        )
    if n_parts < 2:
        one = f"one value, {words.listed()[0]!r}" if n_parts else "no value"
        raise DataError(
            f"{path}: column {by!r} has {one} in all {n_rows:,} rows",
            "two parts or more can be compared",
            "Give a column that tells the rows' years, sites or devices, or join the files of several.",
        )
    listed = words.listed()
    order = sorted(range(n_parts), key=lambda place: _order(listed[place]))
    place = np.empty(n_parts + 1, dtype=np.int64)
    place[order], place[-1] = np.arange(n_parts), -1
    told = [f"{words.missing:,} rows without a value in {by} were left out"] if words.missing else []
    return tuple(listed[each][:60] for each in order), place[words.codes], told


def _order(word: str) -> tuple[int, float, str]:
    """Numbers by size, then words."""
    try:
        return 0, float(word), word
    except ValueError:
        return 1, 0.0, word


def _bounded(rows: PartRows, record: TrainingRecord) -> PartRows:
    """Rows as the model takes them: no longer than its norm bound."""
    norms = np.sqrt((rows.features**2).sum(axis=1))
    longer = norms > record.max_norm
    if not longer.any():
        return rows
    scale = np.where(longer, record.max_norm / np.maximum(norms, 1e-300), 1.0)
    told = f"{int(longer.sum()):,} of {len(norms):,} rows were longer than {record.max_norm:g} and scaled to it"
    return replace(rows, features=rows.features * scale[:, None], told=(*rows.told, told))
