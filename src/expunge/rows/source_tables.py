"""The table a model is to be trained on: taken as it is, or prepared, with every decision told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from expunge.errors import DataError, FileError, OptionError
from expunge.record import LEARNT_COARSE, LEARNT_ELSEWHERE, LEARNT_FROM_SOURCE
from expunge.rows.coarseness import RARE
from expunge.rows.files import LabelledArrays, read_data, unknown_type
from expunge.rows.learning import Learnt, learn
from expunge.rows.names import is_frame
from expunge.rows.preparation import Preparation, label_named
from expunge.rows.prepare import as_labels
from expunge.rows.raw_tables import is_table, raw_frame, read_raw
from expunge.rows.tables import is_list, no_label
from expunge.rows.text_tables import is_text_table, open_text
from expunge.rows.values import RawTable, as_labels_of
from expunge.rows.wide_csv import is_wide
from expunge.runtime.checks import choice
from expunge.runtime.paths import readable

PREPARE = ("auto", "table", "none")
COARSE, EXACT = PRECISION = ("coarse", "exact")


@dataclass(frozen=True)
class Source:
    """Rows ready to be trained on, the preparation that made them, if any, and what was decided, in sentences."""

    rows: LabelledArrays
    preparation: Preparation | None = None
    learnt: str | None = None  # where
    told: tuple[str, ...] = ()


def read_source(
    path: Path,
    label: str | None = None,
    *,
    columns: Sequence[str] | None = None,
    header: bool = True,
    names: Sequence[str] | None = None,
    prepare: str = "auto",
    prepare_from: Path | None = None,
    preparation: str = COARSE,
    rare: int = RARE,
    bounded: bool = False,
) -> Source:
    """The source's rows from its file.

    `prepare` is `table` (numbers standardised, categories a feature each value), `none` (features as they are), or
    `auto`: a table is prepared where it has anything but numbers in every cell, or where nobody has given a norm bound
    (`bounded`), since only standardised columns have one by themselves. `preparation` is `coarse` or `exact`;
    values that fewer than `rare` rows have are one.
    """
    choice(prepare, PREPARE, "prepare")
    choice(preparation, PRECISION, "preparation")
    if prepare_from is not None and prepare == "none":
        raise OptionError(
            "--prepare-from with --prepare none", "there is nothing to learn then", "Leave one of them out."
        )
    readable(path)
    if not is_table(path):
        if prepare == "table" or prepare_from is not None:
            raise _no_table(path)
        return Source(read_data(path, label, columns=columns, header=header, names=names))
    plain = prepare == "none" or (prepare == "auto" and bounded and prepare_from is None and _has_lists(path))
    raw = None if plain else read_raw(path, header=header, names=names)
    if raw is None or (prepare == "auto" and bounded and prepare_from is None and is_ready(raw, label, columns)):
        return Source(read_data(path, label, columns=columns, header=header, names=names))
    elsewhere = None if prepare_from is None else read_raw(prepare_from)
    return prepared(raw, label, columns, elsewhere, coarse=preparation == COARSE, rare=rare)


def prepared(
    raw: RawTable,
    label: str | None,
    columns: Sequence[str] | None,
    elsewhere: RawTable | None = None,
    *,
    coarse: bool = True,
    rare: int = RARE,
) -> Source:
    """A table's rows, with the preparation learnt from it or elsewhere."""
    if elsewhere is not None and _same_rows(elsewhere.table, raw.table):
        raise OptionError(
            f"--prepare-from (prepare_from): {elsewhere.name} is the source itself",
            "it has no row of the source in it, for certificates will say so",
            "Give another table, or leave it out: certificates then say that it was learnt from the source.",
        )
    learnt: Learnt = learn(raw, label, columns, elsewhere=elsewhere, coarse=coarse, rare=rare)
    made = learnt.preparation
    features, labels = made.features(raw), made.labels(raw)
    where = LEARNT_ELSEWHERE if elsewhere is not None else LEARNT_COARSE if coarse else LEARNT_FROM_SOURCE
    return Source(LabelledArrays(features, labels, raw.name, None, made.feature_names), made, where, learnt.told)


def _same_rows(one: pa.Table, other: pa.Table) -> bool:
    """Whether two tables hold the same rows, in whatever order rows and columns are."""
    names = sorted(one.column_names)
    if one.num_rows != other.num_rows or names != sorted(other.column_names):
        return False

    def rows(table: pa.Table) -> Counter[str]:
        return Counter(map(repr, zip(*(table[name].to_pylist() for name in names), strict=True)))

    return one.equals(other) or rows(one) == rows(other)


def is_ready(raw: RawTable, label: str | None, columns: Sequence[str] | None) -> bool:
    """Whether every cell of the features is a number."""
    target = label or next((name for name in ("y", "label") if name in raw.columns), None)
    for name in columns or [each for each in raw.columns if each != target]:
        values = raw.numbers(name) if name in raw.columns and (not raw.typed or _is_number(raw, name)) else None
        if values is None or np.isnan(values).any():
            return False
    return True


def _is_number(raw: RawTable, name: str) -> bool:
    kind = str(raw.table[name].type)
    return not kind.startswith("dictionary") and not kind.endswith("string")


def _has_lists(path: Path) -> bool:
    """Whether a table has so many columns, or columns of lists, that it is made of features already."""
    if is_text_table(path):
        return is_wide(open_text(path).extent)
    from pyarrow.parquet import read_schema

    from expunge.rows.parquet_pages import opened

    try:
        opened(path)
        return any(is_list(field.type) for field in read_schema(path))
    except (ValueError, OSError, KeyError):
        return False  # reading it says what is wrong


@dataclass(frozen=True)
class Given:
    """Rows as somebody gave them in Python, prepared where that was to be done."""

    rows: tuple[Any, Any]
    names: tuple[str, ...] | None = None
    preparation: Preparation | None = None
    learnt: str | None = None
    told: tuple[str, ...] = ()


def as_source(
    features: Any,
    labels: Any,
    label: str | None,
    prepare: str | Preparation = "auto",
    prepare_from: Any = None,
    *,
    preparation: str = COARSE,
    rare: int = RARE,
    bounded: bool = False,
) -> Given:
    """Features and labels from arrays or a data frame; see `read_source` for when a frame is prepared."""
    if isinstance(prepare, Preparation) and is_frame(features):
        raise DataError(
            "a frame with a preparation that was made before",
            "that is for rows that it was applied to already",
            "Give the preparation's features as an array, or leave prepare out.",
        )
    choice(preparation, PRECISION, "preparation")
    how = "none" if isinstance(prepare, Preparation) else choice(prepare, PREPARE, "prepare")
    if not is_frame(features):
        if label is not None or how == "table" or prepare_from is not None:
            raise DataError(
                f"{type(features).__name__} with label, prepare or prepare_from",
                "only data frames have columns that can be named and prepared",
                "Give a frame of pandas, polars or Arrow, a dict of columns, or leave these out.",
            )
        return Given((features, require_labels(labels)))
    raw = raw_frame(features, "the source")
    raw, target = _with_labels(raw, labels, label)
    if how == "none" or (how == "auto" and bounded and prepare_from is None and is_ready(raw, target, None)):
        chosen = [name for name in raw.columns if name != target]
        plain = features if labels is not None else raw.table.select(chosen)
        return Given((plain, labels if labels is not None else as_labels_of(raw, target)))
    made = prepared(raw, target, None, _elsewhere(prepare_from), coarse=preparation == COARSE, rare=rare)
    return Given(tuple(made.rows.rows), made.rows.feature_names, made.preparation, made.learnt, made.told)


def require_labels(labels: Any) -> Any:
    """Refuse rows that nobody gave labels for."""
    if labels is None:
        raise DataError("no labels", "one a row is needed", "Give them, or a frame and the name of its label column.")
    return labels


def _with_labels(raw: RawTable, labels: Any, label: str | None) -> tuple[RawTable, str]:
    """The table with its label column, and what that is called."""
    if labels is None:
        target = label_named(raw.columns, label)
        if target is None or target not in raw.columns:
            raise no_label(raw.name, label, raw.columns)
        return raw, target
    name = label or getattr(labels, "name", None)
    target = str(name) if name is not None and str(name) not in raw.columns else "label"
    while target in raw.columns:
        target += "_"
    values = as_labels(labels, len(raw), raw.name)
    return replace(raw, table=raw.table.append_column(target, pa.array(values))), target


def _elsewhere(given: Any) -> RawTable | None:
    """The table that a preparation is to be learnt from: a frame, or the path of a file."""
    if given is None:
        return None
    return read_raw(Path(given)) if isinstance(given, (str, Path)) else raw_frame(given, "prepare_from")


def _no_table(path: Path) -> FileError:
    if path.suffix.lower() in (".npz", ".safetensors"):
        return FileError(
            f"{path}: preparation of arrays",
            "only tables (.csv, .tsv, .parquet) have columns that can be prepared",
            "Leave --prepare out; standardise the features before they are saved.",
        )
    return unknown_type(path)
