"""A preparation learnt from a table: what each column is, decided and told, and the numbers that make features of it.

Coarse (coarseness.py) or, where that is asked for, exact: as scikit-learn's imputer, scaler and encoder have them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from expunge.errors import DataError
from expunge.rows.coarseness import RARE, Coarse, require_rare
from expunge.rows.names import INDEX
from expunge.rows.preparation import Category, Number, Preparation, label_named
from expunge.rows.raw_tables import require_columns
from expunge.rows.tables import columns_shown, is_text, no_label
from expunge.rows.text_tables import looks_like_data
from expunge.rows.values import MISSING, RawTable, Words, as_labels_of, is_dates

Array = NDArray[Any]
MOST_VALUES = 100  # of one category that have a feature of their own
LONGEST_VALUE = 150  # characters of a category's value
MANY = 0.5  # of the rows: a column of words with more different ones names rows, it does not group them
FEW_ROWS = 20  # below which nothing is concluded from all values being different
FILLED = 20  # parts of a scale that what stands in for empty cells is rounded to: features show it
SAME, ALMOST_SAME = "the same value in every row", "the same value in every row, or in all but a few"
NUMBERED = re.compile(r"(.*[_ .-])?(id|index|idx|key|uuid|guid|no|nr|number|row|rowid)", re.IGNORECASE)


@dataclass(frozen=True)
class Learnt:
    """A preparation, and what was decided for it, in sentences."""

    preparation: Preparation
    told: tuple[str, ...]


def learn(
    raw: RawTable,
    label: str | None = None,
    columns: Sequence[str] | None = None,
    *,
    elsewhere: RawTable | None = None,
    coarse: bool = True,
    rare: int = RARE,
) -> Learnt:
    """What becomes of each column of this table, or of those that are named; the label's is left out.

    With another table `elsewhere` everything but the label is learnt there. Values that fewer than `rare` rows have are
    one; what is not `coarse` is exact, and then tells of everybody whom it was learnt from.
    """
    coarseness = Coarse(rare=require_rare(rare, 2)) if coarse else None
    require_rare(rare)
    target = label_named(raw.columns, label)
    if target is None or target not in raw.columns:
        bare = not raw.typed and raw.named and looks_like_data(raw.columns)
        raise no_label(raw.name, label, raw.columns, bare)
    chosen = [name for name in raw.columns if name != target] if columns is None else list(columns)
    require_columns(raw, chosen, "every column that is named with --columns is needed")
    if target in chosen:
        raise DataError(
            f"--columns has the label column {target!r}", "features are other columns", "Leave it out of --columns."
        )
    labels = as_labels_of(raw, target)
    _require_classes(labels, target, raw)
    kinds = _Kinds(raw if elsewhere is None else elsewhere, coarseness)
    if elsewhere is not None:
        require_columns(elsewhere, chosen, "the table of --prepare-from needs the feature columns of the source")
    for name in chosen:
        kinds.decide(name, asked=columns is not None)
    others = [(name, "not among --columns") for name in raw.columns if name not in chosen and name != target]
    if not kinds.numbers and not kinds.words:
        raise DataError(
            f"{raw.name}: none of the columns {columns_shown(chosen)} can be used",
            "at least one column of numbers or categories is needed",
            "; ".join(f"{name}: {reason}" for name, reason in kinds.dropped[:5]) + ".",
        )
    numbers = _exact_numbers(kinds.numbers) if coarseness is None else _coarse_numbers(kinds, coarseness)
    made: list[Number | Category] = [*numbers, *_categories(kinds, rare)]
    fitted = {each.column: each for each in made}
    preparation = Preparation(
        target,
        labels.dtype.kind == "U",
        tuple(fitted[name] for name in chosen if name in fitted),
        (*kinds.dropped, *others),
        () if raw.named else tuple(raw.columns),
        coarseness,
    )
    return Learnt(preparation, _told(preparation, kinds))


def _require_classes(labels: Array, target: str, raw: RawTable) -> None:
    """Refuse a label column that is no list of classes: measured numbers, or another one in most rows."""
    different = len(np.unique(labels))
    measured = labels.dtype.kind == "f" and bool((labels != np.rint(labels)).any())
    if measured or (len(raw) >= FEW_ROWS and different > MANY * len(raw)):
        others = columns_shown([name for name in raw.columns if name != target])
        raise DataError(
            f"{raw.name}: label column {target!r} has {different:,} different values in {len(raw):,} rows",
            "a label is one of a few classes",
            f"Name the column with the classes with --label; the others are {others}.",
        )
    if different < 2:
        raise DataError(
            f"{raw.name}: label column {target!r} has one class, {labels[0].item()!r}",
            "a classifier needs two or more",
            "Check the label column.",
        )


class _Kinds:
    """What each column is: numbers, words, or left out for a reason, which is kept: where it is coarse, a few rows
    decide neither."""

    def __init__(self, raw: RawTable, coarse: Coarse | None) -> None:
        self.raw, self.coarse = raw, coarse
        self.numbers: dict[str, Array] = {}
        self.moments: dict[str, tuple[float, float]] = {}  # centre and scale of each of them, where it is coarse
        self.words: dict[str, Words] = {}
        self.dropped: list[tuple[str, str]] = []

    def few(self) -> int:
        """How many rows decide nothing; another number each time."""
        return 0 if self.coarse is None else self.coarse.few(len(self.raw))

    def decide(self, name: str, asked: bool) -> None:
        """Put a column where it belongs; one that was `asked` for is left out only if nothing can be made of it."""
        column, raw = self.raw.table[name], self.raw
        if is_dates(column, raw.typed):
            self.dropped.append((name, "dates"))
            return
        worded = raw.typed and (is_text(column.type) or pa.types.is_dictionary(column.type))
        values = None if worded else raw.numbers(name)
        if raw.typed and pa.types.is_null(column.type):
            self.dropped.append((name, "no values, or values that are neither numbers nor words"))
        elif values is not None:
            self._number(name, values, asked)
        else:
            self._word(name, raw.words(name), asked)

    def _number(self, name: str, values: Array, asked: bool) -> None:
        there, moments = values[~np.isnan(values)], (0.0, 0.0)
        if len(there) <= self.few():
            self.dropped.append((name, "no values" if self.coarse is None else ALMOST_SAME))
        elif not asked and is_row_number(name, values, self.few()):
            self.dropped.append((name, "row numbers, or the number of a person"))
        elif self.coarse is None and there.min() == there.max():
            self.dropped.append((name, SAME))
        elif self.coarse is not None and (moments := self.coarse.moments(there))[1] == 0.0:
            self.dropped.append((name, ALMOST_SAME))
        else:
            self.numbers[name], self.moments[name] = values, moments

    def _word(self, name: str, words: Words, asked: bool) -> None:
        n_rows, different = len(self.raw), len(words.different)
        if self.coarse is not None and n_rows - words.most_frequent <= self.few():
            self.dropped.append((name, ALMOST_SAME))
        elif different == 0:
            self.dropped.append((name, "no values"))
        elif different == 1 and not words.missing:
            self.dropped.append((name, SAME))
        elif not asked and n_rows >= FEW_ROWS and different - self.few() > MANY * n_rows:
            self.dropped.append((name, "a different text in most rows"))
        elif words.longer_than(LONGEST_VALUE) > self.few() or different > n_rows // 2 + MOST_VALUES * RARE:
            self.dropped.append((name, "free text"))
        else:
            self.words[name] = words


def is_row_number(name: str, values: Array, few: int = 0) -> bool:
    """Whether a column numbers the rows, or is called like a number of somebody and differs in every row, `few` apart.

    >>> is_row_number("age", np.array([40.0, 31.0, 31.0])), is_row_number("Unnamed: 0", np.array([0.0, 1.0, 2.0]))
    (False, True)
    """
    if INDEX.fullmatch(name):
        return True
    whole = values[values == np.rint(values)]
    if len(values) < FEW_ROWS or len(values) - len(whole) > few:
        return False
    different = len(whole) - len(np.unique(whole)) <= few
    counts_up = bool((np.diff(whole) != 1).sum() <= 2 * few)
    named = NUMBERED.fullmatch(name) is not None or re.search(r"[a-z](Id|ID|Nr|No)$", name) is not None
    return different and (counts_up or named)


def _exact_numbers(columns: dict[str, Array]) -> list[Number]:
    if not columns:
        return []
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import StandardScaler

    table = np.column_stack(list(columns.values()))
    imputer = SimpleImputer(strategy="median").fit(table)
    scaler = StandardScaler().fit(imputer.transform(table))
    numbers = zip(columns, imputer.statistics_, scaler.mean_, scaler.scale_, strict=True)
    return [Number(name, float(median), float(mean), float(scale)) for name, median, mean, scale in numbers]


def _coarse_numbers(kinds: _Kinds, coarse: Coarse) -> list[Number]:
    made = []
    for name, values in kinds.numbers.items():
        centre, scale = kinds.moments[name]
        median = coarse.quantile(values[~np.isnan(values)], 0.5)
        made.append(Number(name, coarse.centre(median, scale, FILLED), centre, scale))
    return made


def _categories(kinds: _Kinds, rare: int) -> list[Category]:
    """Of each column of words the values that have a feature: those of `rare` rows, and no more than can be many."""
    made = []
    for name, words in kinds.words.items():
        listed = [*words.listed(), MISSING]
        values, places = np.unique(np.array(listed, dtype=object), return_inverse=True)
        counts = np.bincount(places[words.codes], minlength=len(values))
        blurred = counts if kinds.coarse is None else kinds.coarse.blurred(counts)
        frequent = np.flatnonzero(blurred >= rare)
        pooled = kinds.coarse is not None or len(frequent) < np.count_nonzero(counts)
        if len(frequent) + pooled > MOST_VALUES:
            pooled, kept = True, np.argsort(-blurred[frequent], kind="stable")[: MOST_VALUES - 1]
            frequent = np.sort(frequent[kept])
        if not len(frequent):
            kinds.dropped.append((name, f"no value that {rare} rows have"))
        else:  # that there were rare ones would itself tell of somebody
            made.append(Category(name, tuple(values[frequent].tolist()), bool(pooled)))
    return made


def _told(made: Preparation, kinds: _Kinds) -> tuple[str, ...]:
    """What was decided, a sentence a kind of decision."""
    numbers = [each for each in made.columns if isinstance(each, Number)]
    categories = [each for each in made.columns if isinstance(each, Category)]
    empty = {each.column: int(np.isnan(kinds.numbers[each.column]).sum()) for each in numbers}
    filled = [f"{name} ({count:,} cells: {_median(numbers, name):g})" for name, count in empty.items() if count]
    told = [f"label: {made.label} ({'text' if made.text_labels else 'numbers'})"]
    if numbers:
        told.append(f"numbers, standardised: {columns_shown([each.column for each in numbers])}")
    if filled:
        told.append(f"empty cells filled with the median: {columns_shown(filled, longest=80)}")
    if categories:
        valued = columns_shown([_valued(each) for each in categories], longest=80)
        told.append(f"categories, a feature for each value: {valued}")
    if made.dropped:
        told.append("left out: " + columns_shown([f"{name} ({reason})" for name, reason in made.dropped], longest=120))
    if any(reason == "dates" for _, reason in made.dropped):
        told.append("a date is no number by itself: add a column such as an age or a year if it matters")
    told.append(_how(made.coarse))
    told.append(f"learnt from {kinds.raw.name}: {len(made.columns)} columns become {made.width} features")
    return tuple(told)


def _how(coarse: Coarse | None) -> str:
    if coarse is None:
        return "exact: what was learnt of those who will be forgotten stays, and certificates say so first"
    return (
        f"coarse: numbers of {coarse.digits} digits, rounded by chance, at most {coarse.most:g} scales out; values "
        f"that fewer than {coarse.rare} rows have (by chance up to {2 * coarse.rare - 1}), and unknown ones, are one"
    )


def _median(numbers: list[Number], name: str) -> float:
    return next(each.median for each in numbers if each.column == name)


def _valued(each: Category) -> str:
    return f"{each.column} ({len(each.values)} values{', rare ones together' if each.other else ''})"
