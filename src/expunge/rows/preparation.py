"""How the columns of a table become features: learnt once, kept with the model as plain JSON, applied by name.

A number is `(x - mean) / scale`, the median standing in where there is none, pulled in where that is too far out and
the preparation is coarse; a category has a feature for each value that was frequent at training, one for all others
(of an exact one only if there were any), and a cell without a value is a value too.

What is learnt is coarse, so that no single row decides it, unless exactness is asked for (then it is as scikit-learn's
imputer, scaler and encoder have it). What one person may change is small against a step, and where a step falls is
chance that nobody is told:

- a few values at either end count as the next ones, and how many is drawn anew for each column: one at random of c to
  2c - 1, c being `rare` or one in a hundred. Whoever joins shifts ranks by one, so that on average over the draw centre
  and scale move by a c-th of what lies between these ranks, however far out the person is;
- scales are of twelve a decade, centres multiples of a part of their scale, and which of the two next ones is taken is
  drawn, in proportion to how near they are: a shift by a hundredth of a step shows in one of a hundred preparations;
- a value needs `rare` rows and, at random for each value, up to as many more: who was the tenth does not show.

The draws come from the operating system and are kept nowhere. How often somebody shows all the same is measured in
examples/preparation.md; over many columns it adds up. It is a practice, and no proof.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from expunge.errors import DataError, OptionError
from expunge.record import prepared_names
from expunge.rows.arrays import Array
from expunge.rows.tables import (
    DATES,
    MISSING,
    NO_NUMBER,
    Table,
    Words,
    as_numbers,
    choose_columns,
    is_number,
    is_plain,
    is_text,
    require_columns,
    show_columns,
)
from expunge.runtime.memory import require_room

PART = 1 << 13  # rows that are written at a time
DIGITS = 2  # significant ones, of a scale
RARE = 10  # rows: a value that fewer have shares a feature with all such, and its name is not kept
MOST = 10.0  # scales that a value may lie from its centre; beyond, it counts as that far away
ENDS = 20  # of so many values at most one, and fewer than twice that by chance, counts as the next at either end
TAIL = 100  # of so many values one does, where `rare` is fewer and the column has other values still
A_DECADE = 12  # scales
MOST_VALUES = 100  # of one category that have a feature of their own
LONGEST_VALUE = 150  # characters of a category's value
MANY = 0.5  # of the rows: a column of words with more different ones names rows, it does not group them
FEW_ROWS = 20  # below which nothing is concluded from all values being different
FILLED = 20  # parts of a scale that what stands in for empty cells is rounded to: features show it
SAME, ALMOST_SAME = "the same value in every row", "the same value in every row, or in all but a few"
INDEX = re.compile(r"(Unnamed: \d+)?|__index_level_\d+__")  # what pandas' row numbers are called in files
NUMBER = r"^[+-]?(\d+[.,]?\d*|[.,]\d+)([eE][+-]?\d+)?$"
ENOUGH = 5  # times `few` values, in a column of numbers with gaps: else single ones would decide centre and scale
NUMBERED = re.compile(r"(.*[_ .-])?(id|index|idx|key|uuid|guid|no|nr|number|row|rowid)", re.IGNORECASE)
LABELLED = (
    "Where it has another name here, give that with --label; where there is none, add it: rows are known, and scored, "
    "by their labels too (expunge predict needs none)."
)
TRAINED_ON = "the model was trained on a column of that name"
_chance = secrets.SystemRandom()


@dataclass(frozen=True)
class Coarse:
    """How coarse: public numbers, which stand in the record."""

    digits: int = DIGITS
    rare: int = RARE
    most: float = MOST

    def few(self, n_rows: int, least: int | None = None) -> int:
        """How many of so many rows are too few to decide anything: by chance, `rare` to twice that; none of under 20"""
        least = min(self.rare if least is None else least, n_rows // ENDS)
        return least + _chance.randrange(least) if least else 0

    def blur(self, counts: Array) -> Array:
        """Counts with fewer than `rare` taken off each, by chance; a value needs `rare` of what is left."""
        return np.asarray(counts) - np.array([_chance.randrange(self.rare) for _ in range(len(counts))], dtype=np.int64)

    def pull_in(self, values: Array) -> Array:
        """The values with those furthest out at the place of the next ones; all the same where all but a few are."""
        for least in (max(self.rare, len(values) // TAIL), self.rare):
            few, last = self.few(len(values), least), len(values) - 1
            if few == 0:
                return values
            ordered = np.partition(values, (few, last - few))
            within = np.clip(values, ordered[few], ordered[last - few])
            if within.min() < within.max():
                break
        return within

    def quantile(self, values: Array, part: float) -> float:
        """A value that about this part of the others lies below: of those around it one by chance."""
        few = self.few(len(values), max(self.rare, len(values) // TAIL))
        place = round(part * (len(values) - 1)) + _chance.randint(-few, few)
        place = min(max(place, 0), len(values) - 1)
        return float(np.partition(values, place)[place])

    def scale(self, value: float) -> float:
        """One of the two next scales, by chance, to so many digits; what is above 0 stays so.

        >>> Coarse().scale(10.0), Coarse().scale(11.0) in (10.0, 12.0), Coarse().scale(0.0)
        (10.0, True, 0.0)
        """
        if value <= 0.0:
            return 0.0
        decade, place = divmod(round_by_chance(A_DECADE * math.log10(value)), A_DECADE)
        return float(f"{10.0 ** (place / A_DECADE):.{self.digits - 1}f}e{decade}")

    def centre(self, value: float, scale: float, parts: int = 4) -> float:
        """One of the two next multiples, by chance, of 1, 2 or 5 with zeros: of the largest that is at most a scale's
        fourth part, or what `parts` says.

        >>> Coarse().centre(10_002.0, 4.6), Coarse().centre(1077.6, 6800.0) in (1000.0, 2000.0)
        (10002.0, True)
        """
        if scale <= 0.0:
            return float(f"{value:.{self.digits - 1}e}")
        decade = math.floor(math.log10(scale / parts) + 1e-9)
        step = next(each for each in (5, 2, 1) if each == 1 or float(f"{each}e{decade}") <= scale / parts)
        return float(f"{step * round_by_chance(value / float(f'{step}e{decade}'))}e{decade}")

    def moments(self, values: Array) -> tuple[float, float]:
        """Centre and scale of a column without gaps; a scale of 0 where it has one value but for a few rows."""
        within = self.pull_in(values)
        scale = self.scale(float(within.std())) if within.min() < within.max() else 0.0
        return self.centre(float(within.mean()), scale), scale

    def count(self, rows: int) -> float:
        """How many rows, to one digit, by chance one of the two next.

        >>> Coarse().count(300), Coarse().count(349) in (300.0, 400.0)
        (300.0, True)
        """
        decade = math.floor(math.log10(rows))
        return float(round_by_chance(rows / 10**decade) * 10**decade)


def round_by_chance(value: float) -> int:
    """One of the two next whole numbers: each the more often the nearer it is, so that on average nothing changes."""
    below = math.floor(value)
    return below + (_chance.random() < value - below)


def require_rare(rare: int, least: int = 1) -> int:
    """How many rows a value needs for a feature of its own; where one would be enough, a person's stays."""
    if type(rare) is not int or rare < least:
        alone = " (where it is 1, what a single person has is kept: that is exact)" if least > 1 else ""
        raise OptionError(f"rare {rare!r}", f"a whole number from {least}{alone}", f"Leave it out, which is {RARE}.")
    return rare


# Applied -------------------------------------------------------------------------------------------------------------


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

    def values(self, table: Table) -> Any:
        """Its numbers in a table, by Arrow where they are numbers there."""
        if is_number(table.arrow[self.column].type):
            return table.arrow[self.column]
        values = table.numbers(self.column)
        if values is None:
            raise DataError(
                f"{table.name}: column {self.column!r} has {self._not_a_number(table)!r}",
                "it held numbers at training",
                "Write numbers, or leave the cell empty.",
            )
        return pa.array(values)

    def fill(self, into: Array, values: Any, most: float = np.inf) -> None:
        """Write its feature, features x rows, of some of these values; `most` is how large it may be."""
        numbers, own = as_numbers(values), into[0]
        assert numbers is not None
        np.copyto(own, numbers)
        np.copyto(own, self.median, where=np.isnan(numbers))
        own -= self.mean
        own /= self.scale
        np.clip(own, -most, most, out=own)

    def _not_a_number(self, table: Table) -> str:
        """A value that keeps the column from being one of numbers."""
        for word in table.words(self.column).different.slice(0, 10_000).to_pylist():
            try:
                float(word.replace(",", ".") if table.decimal_comma else word)
            except ValueError:
                return str(word)[:60]
        return "no numbers"


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

    def places(self, table: Table) -> Array:
        """For each row of a table which of its features is 1; -1 for none."""
        places = table.words(self.column).places(self.values)
        missing = self.values.index(MISSING) if MISSING in self.values else -2
        places[places == -1] = missing
        places[places < 0] = len(self.values) if self.other else -1
        return places

    def fill(self, into: Array, places: Array, most: float = np.inf) -> None:
        """Write its features, features x rows, of these places: 1 for the value that a row has, 0 for all others."""
        np.equal(places, np.arange(len(into), dtype=places.dtype)[:, None], out=into)


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

    @property
    def words(self) -> tuple[str, ...]:
        """The columns of words among them, and the label's: cells count as they are written."""
        return (self.label, *(column.column for column in self.columns if isinstance(column, Category)))

    def to_json(self) -> dict[str, Any]:
        """The preparation as it stands in a record."""
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
    def of(content: Mapping[str, Any]) -> Preparation:
        """The preparation that stands in a record, which has checked it."""
        columns = tuple(
            Number(**each)
            if each["kind"] == "number"
            else Category(each["column"], tuple(each["values"]), each["other"])
            for each in content["columns"]
        )
        dropped = tuple((each["column"], each["reason"]) for each in content["dropped"])
        coarse = Coarse(**content["coarse"]) if content["coarse"] else None
        return Preparation(content["label"], content["text_labels"], columns, dropped, tuple(content["names"]), coarse)

    def features(self, table: Table) -> Array:
        """A table's features, in float64; its columns may be in any order, and others may be there too."""
        require_columns(table.name, table.names, self.column_names, TRAINED_ON)
        what = f"{len(table):,} rows of {self.width:,} features"
        require_room(3 * 8 * len(table) * self.width, Path(table.name), what)
        features = np.empty((len(table), self.width), dtype=np.float64)
        most = np.inf if self.coarse is None else self.coarse.most
        given = [each.values(table) if isinstance(each, Number) else each.places(table) for each in self.columns]
        # all columns of some rows, in a cache; eight longer, since in it places a power of two apart get in the way
        part = np.empty((self.width, PART + 8), dtype=np.float64)
        for start in range(0, len(table), PART):
            rows, place = slice(start, min(start + PART, len(table))), 0
            for column, values in zip(self.columns, given, strict=True):
                column.fill(part[place : place + column.width, : rows.stop - start], values[rows], most)
                place += column.width
            features[rows] = part[:, : rows.stop - start].T
        return features

    def labels(self, table: Table, label: str | None = None) -> Array:
        """A table's labels, as they were at training: numbers or text."""
        require_columns(table.name, table.names, [label or self.label], "the label column is needed", LABELLED)
        return table.labels(label or self.label, self.text_labels)


# Learnt --------------------------------------------------------------------------------------------------------------


def learn(
    table: Table,
    label: str | None = None,
    columns: Sequence[str] | None = None,
    *,
    elsewhere: Table | None = None,
    coarse: bool = True,
    rare: int = RARE,
) -> tuple[Preparation, tuple[str, ...]]:
    """What becomes of each column of a table, or of those that are named, and every decision in a sentence.

    With another table `elsewhere` everything but the label is learnt there. Values that fewer than `rare` rows have are
    one; what is not `coarse` is exact, and then tells of everybody whom it was learnt from.
    """
    coarseness = Coarse(rare=require_rare(rare, 2)) if coarse else None
    require_rare(rare)
    target, chosen = choose_columns(table.name, table.names, label, columns)
    labels = table.labels(target)
    _require_classes(labels, target, table)
    if elsewhere is not None:
        required = "the table of --prepare-from needs the feature columns of the source"
        require_columns(elsewhere.name, elsewhere.names, chosen, required)
    kinds = _Kinds(table if elsewhere is None else elsewhere, coarseness)
    for name in chosen:
        kinds.decide(name, asked=columns is not None)
    if not kinds.numbers and not kinds.words:
        raise DataError(
            f"{table.name}: none of the columns {show_columns(chosen)} can be used",
            "at least one column of numbers or categories is needed",
            "; ".join(f"{name}: {reason}" for name, reason in kinds.dropped[:5]) + ".",
        )
    learnt: list[Number | Category] = [*_learn_numbers(kinds), *_learn_categories(kinds, rare)]
    fitted = {each.column: each for each in learnt}
    others = [(name, "not among --columns") for name in table.names if name not in chosen and name != target]
    preparation = Preparation(
        target,
        labels.dtype.kind == "U",
        tuple(fitted[name] for name in chosen if name in fitted),
        (*kinds.dropped, *others),
        () if table.has_header else tuple(table.names),
        coarseness,
    )
    return preparation, _describe(preparation, kinds)


def _require_classes(labels: Array, target: str, table: Table) -> None:
    """Refuse a label column that is no list of classes: measured numbers, or another one in most rows."""
    different = len(np.unique(labels))
    measured = labels.dtype.kind == "f" and bool((labels != np.rint(labels)).any())
    if measured or (len(table) >= FEW_ROWS and different > MANY * len(table)):
        others = show_columns([name for name in table.names if name != target])
        raise DataError(
            f"{table.name}: label column {target!r} has {different:,} different values in {len(table):,} rows",
            "a label is one of a few classes",
            f"Name the column with the classes with --label; the others are {others}.",
        )
    if different < 2:
        raise DataError(
            f"{table.name}: label column {target!r} has one class, {labels[0].item()!r}",
            "a classifier needs two or more",
            "Check the label column.",
        )


class _Kinds:
    """What each column is: numbers, words, or left out with the reason; where it is coarse, a few rows decide none."""

    def __init__(self, table: Table, coarse: Coarse | None) -> None:
        self.table, self.coarse = table, coarse
        self.numbers: dict[str, tuple[float, float]] = {}  # centre and scale of each, where it is coarse
        self.empty: dict[str, int] = {}  # cells of each
        self.words: dict[str, Words] = {}
        self.dropped: list[tuple[str, str]] = []

    def few(self) -> int:
        """How many rows decide nothing; another number each time."""
        return 0 if self.coarse is None else self.coarse.few(len(self.table))

    def decide(self, name: str, asked: bool) -> None:
        """Put a column where it belongs; one that was `asked` for is left out only if nothing can be made of it."""
        table, kind = self.table, self.table.arrow[name].type
        reason: str | None
        if table.has_dates(name):
            reason = "dates"
        elif table.typed and pa.types.is_null(kind):
            reason = "no values" if self.coarse is None else ALMOST_SAME
        elif table.typed and not is_plain(kind):
            reason = "values that are neither numbers nor words"
        elif table.typed and (is_text(kind) or pa.types.is_dictionary(kind)):
            reason = self._decide_words(name, table.words(name), asked)
        elif (values := table.numbers(name)) is not None:
            reason = self._decide_numbers(name, values, asked)
        else:
            words = table.words(name)
            if self.coarse is not None and not table.typed:
                self._require_one_kind(name, words)
            reason = self._decide_words(name, words, asked)
        if reason is not None:
            self.dropped.append((name, reason))

    def _decide_numbers(self, name: str, values: Array, asked: bool) -> str | None:
        there, moments = _without_gaps(values), (0.0, 0.0)
        if len(there) <= min(ENOUGH * self.few(), len(values) // 2):
            return "no values" if self.coarse is None else ALMOST_SAME
        if not asked and is_row_number(name, values, self.few()):
            return "row numbers, or the number of a person"
        if self.coarse is None and there.min() == there.max():
            return SAME
        if self.coarse is not None and (moments := self.coarse.moments(there))[1] == 0.0:
            return ALMOST_SAME
        self.numbers[name], self.empty[name] = moments, len(values) - len(there)
        return None

    def values(self, name: str) -> Array:
        """The numbers of a column, read anew: all columns at once would take as much memory as the table."""
        values = self.table.numbers(name)
        assert values is not None
        return values

    def _require_one_kind(self, name: str, words: Words) -> None:
        """Refuse a column that would be numbers, or dates, but for a few cells: what became of it would show them."""
        counts = np.bincount(words.codes[words.codes >= 0], minlength=len(words.different))
        plain = pc.is_in(pc.utf8_lower(words.different), value_set=pa.array(NO_NUMBER, words.different.type))
        for kind, pattern in (("numbers", NUMBER), ("dates", DATES)):
            fits = pc.or_(pc.match_substring_regex(words.different, pattern), plain)
            others = np.flatnonzero(~fits.to_numpy(zero_copy_only=False).astype(bool))
            odd = int(counts[others].sum())
            if 0 < odd <= min(self.few(), int(counts.sum()) // 2):
                raise DataError(
                    f"{self.table.name}: column {name!r} has {kind} in all but {odd} rows, such as "
                    f"{words.different[int(others[0])].as_py()[:LONGEST_VALUE]!r}",
                    "a few cells must not decide what a column is: the model would tell that somebody had them",
                    "Correct these cells or leave them empty; where the column is meant to be words, write all of its "
                    "values as such (n3 instead of 3), or leave it out with --columns.",
                )

    def _decide_words(self, name: str, words: Words, asked: bool) -> str | None:
        n_rows, different = len(self.table), len(words.different)
        if self.coarse is not None and n_rows - words.most_frequent <= self.few():
            return ALMOST_SAME
        if different == 0:
            return "no values"
        if different == 1 and not words.missing:
            return SAME
        if not asked and n_rows >= FEW_ROWS and different - self.few() > MANY * n_rows:
            return "a different text in most rows"
        if words.longer_than(LONGEST_VALUE) > self.few() or different > n_rows // 2 + MOST_VALUES * RARE:
            return "free text"
        self.words[name] = words
        return None


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
    counts_up = bool((np.diff(whole) != 1).sum() <= 2 * few)
    named = NUMBERED.fullmatch(name) is not None or re.search(r"[a-z](Id|ID|Nr|No)$", name) is not None
    return (counts_up or named) and len(whole) - len(np.unique(whole)) <= few


def _without_gaps(values: Array) -> Array:
    gaps = np.isnan(values)
    return values[~gaps] if gaps.any() else values


def _learn_numbers(kinds: _Kinds) -> list[Number]:
    columns, coarse = kinds.numbers, kinds.coarse
    if coarse is not None:
        learnt = []
        for name, (centre, scale) in columns.items():
            median = coarse.quantile(_without_gaps(kinds.values(name)), 0.5)
            learnt.append(Number(name, coarse.centre(median, scale, FILLED), centre, scale))
        return learnt
    if not columns:
        return []
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import StandardScaler

    table = np.column_stack(list(map(kinds.values, columns)))
    imputer = SimpleImputer(strategy="median").fit(table)
    scaler = StandardScaler().fit(imputer.transform(table))
    numbers = zip(columns, imputer.statistics_, scaler.mean_, scaler.scale_, strict=True)
    return [Number(name, float(median), float(mean), float(scale)) for name, median, mean, scale in numbers]


def _learn_categories(kinds: _Kinds, rare: int) -> list[Category]:
    """For each column of words the values that get a feature: those that `rare` rows have, at most `MOST_VALUES`."""
    learnt = []
    for name, words in kinds.words.items():
        listed = [*words.listed(), MISSING]
        values, places = np.unique(np.array(listed, dtype=object), return_inverse=True)
        each = np.bincount(words.codes + 1, minlength=len(listed))  # of no word first
        counts = np.bincount(places, weights=np.append(each[1:], each[0]), minlength=len(values)).astype(np.int64)
        blurred = counts if kinds.coarse is None else kinds.coarse.blur(counts)
        frequent = np.flatnonzero(blurred >= rare)
        pooled = kinds.coarse is not None or len(frequent) < np.count_nonzero(counts)
        if len(frequent) + pooled > MOST_VALUES:
            pooled, most = True, np.argsort(-blurred[frequent], kind="stable")[: MOST_VALUES - 1]
            frequent = np.sort(frequent[most])
        if not len(frequent):
            kinds.dropped.append((name, f"no value that {rare} rows have"))
        else:  # that there were rare ones would itself tell of somebody
            learnt.append(Category(name, tuple(values[frequent].tolist()), bool(pooled)))
    return learnt


def _describe(preparation: Preparation, kinds: _Kinds) -> tuple[str, ...]:
    """What was decided, a sentence a kind of decision."""
    numbers = [each for each in preparation.columns if isinstance(each, Number)]
    categories = [
        f"{each.column} ({len(each.values)} values{', rare ones together' if each.other else ''})"
        for each in preparation.columns
        if isinstance(each, Category)
    ]
    empty = ((each, kinds.empty[each.column]) for each in numbers)
    filled = [f"{each.column} ({count:,} cells: {each.median:g})" for each, count in empty if count]
    dropped, coarse = [f"{name} ({reason})" for name, reason in preparation.dropped], preparation.coarse
    sentences = [f"label: {preparation.label} ({'text' if preparation.text_labels else 'numbers'})"]
    if numbers:
        sentences.append(f"numbers, standardised: {show_columns([each.column for each in numbers])}")
    if filled:
        sentences.append(f"empty cells filled with the median: {show_columns(filled, longest=80)}")
    if categories:
        sentences.append(f"categories, one-hot encoded: {show_columns(categories, longest=80)}")
    if dropped:
        sentences.append(f"left out: {show_columns(dropped, longest=120)}")
    if any(reason == "dates" for _, reason in preparation.dropped):
        sentences.append("a date is no number by itself: add a column such as an age or a year if it matters")
    if coarse is None:
        how = "exact: what was learnt of those who will be forgotten stays, and certificates say so first"
    else:
        how = (
            f"coarse: numbers of {coarse.digits} digits, rounded by chance, at most {coarse.most:g} scales out; values "
            f"that fewer than {coarse.rare} rows have (by chance up to {2 * coarse.rare - 1}), and unknown ones, are "
            "one"
        )
    n_columns, width = len(preparation.columns), preparation.width
    return *sentences, how, f"learnt from {kinds.table.name}: {n_columns} columns become {width} features"
