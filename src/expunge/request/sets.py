"""Forget and surrogate set as they are given: made ready, matched to the model's training, looked over once."""

from __future__ import annotations

import functools
import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp
from torch import Tensor

from expunge.bounds.retained import FEWEST_SAMPLED_ROWS
from expunge.certificate.claim import PublicNote
from expunge.distance import Distance, Estimation
from expunge.errors import DataError, ModelError, OptionError, UselessModel
from expunge.heads import Block, Rows, RowSet
from expunge.heads.rows import FEW, Scaling
from expunge.model import LinearModel
from expunge.record import Label, TrainingRecord
from expunge.request.promise import Execution, dtype_named
from expunge.rows import EncodedRows, as_features, as_labels, bound_rows, encode, encoder_of, names_of, weight_classes
from expunge.rows.columns import match_record, prepare_frames
from expunge.rows.streams import ArrayStream, Form, Stream, StreamedRows, Watch, fits, load
from expunge.rows.tables import is_frame
from expunge.runtime.group import ALONE, Group
from expunge.runtime.memory import Memory
from expunge.runtime.progress import Progress, silent
from expunge.runtime.values import up

# Forget and surrogate set as they are given: made ready, and matched to what the model was trained on ---------------

FORGET, SURROGATE = "the forget set", "the surrogate set"
SOLVER_VECTORS = 160  # as long as the weights: those of Newton's method and of Lanczos
FORCED = "FORCED: "  # how a note begins that would have been a refusal
MOST_SCALED = 0.5  # of a set's rows: beyond this their lengths, and with them most of what a table says, are gone
FEWEST_TO_JUDGE = 20  # rows: of fewer, a share says little, and a person whose rows are unusual may ask too


def public_if_surrogate(name: str) -> type[str]:
    """The kind of a note on this set: what is said of a surrogate would be the same whoever had left."""
    return PublicNote if name == SURROGATE else str


@dataclass(frozen=True)
class Reading:
    """How streams are read: within what memory, shared out among whom, and who is told how far it is."""

    memory: Memory = field(default_factory=lambda: Memory.of(None))
    group: Group = ALONE
    progress: Progress = silent

    @classmethod
    def by(cls, execution: Execution) -> Reading:
        return cls(Memory.of(execution.memory), execution.group, execution.progress)

    def watch(self, name: str) -> Watch:
        return lambda done, total: self.progress(f"Reading {name} (rows)", done, total)


def rows_of(
    rows: tuple[Any, Any] | Stream | Any,
    model: LinearModel,
    record: TrainingRecord,
    dtype: torch.dtype,
    device: torch.device,
    name: str,
    reading: Reading | None = None,
) -> RowSet:
    """Rows ready for the model's objective, from (features, labels), features alone, or a stream of them."""
    require_encoder(rows, record, name)
    rows = match_record(rows, record, model.n_features, name)
    if name == FORGET and not is_labelled(rows):
        raise DataError(
            f"{name}: no labels", "the gradient of what is forgotten needs them", "Give (features, labels)."
        )
    reading = reading or Reading()
    if reading.group.size > 1 and not isinstance(rows, Stream):
        features, labels = rows if isinstance(rows, tuple) else (rows, None)
        features = as_features(features, name) if is_frame(features) else features
        rows = ArrayStream(features, labels, name, encoder_of(rows))
    if isinstance(rows, Stream):
        form = Form(record.classes, record.max_norm, record.bias, dtype, device, model.n_features, name)
        if reading.group.size > 1 or not fits(rows, form, reading.memory):
            parameters = model.n_classes * (model.n_features + int(record.bias))
            memory = reading.memory.less(8 * parameters * SOLVER_VECTORS)
            return StreamedRows(rows, form, memory, reading.group, reading.watch(name))
        rows = load(rows)
    values, labels = rows if isinstance(rows, tuple) else (rows, None)
    table = as_features(values, name)
    if labels is None:
        indices = torch.zeros(table.shape[0], dtype=torch.int64)
    else:
        indices = encode(as_labels(labels, table.shape[0], name), record.classes, name)
    return bound_rows(
        table,
        indices,
        max_norm=record.max_norm,
        bias=record.bias,
        dtype=dtype,
        device=device,
        width=model.n_features,
        name=name,
    )


def whole_set(rows: Any, reading: Reading, name: str, record: TrainingRecord | None = None) -> Any:
    """A stream's rows in memory, where every process needs all of them; those of a frame prepared as at training."""
    rows = rows if record is None else prepare_frames(rows, record, name)
    if not isinstance(rows, Stream):
        return rows
    size = rows.bytes_in_memory
    if size is not None and 2 * size > reading.memory.spare:
        raise DataError(
            f"{name}: {size / 1e6:,.0f} MB in memory",
            f"half of {reading.memory.spare / 1e6:,.0f} MB may be used for it",
            "Raise the memory limit, or forget fewer rows at once.",
        )
    return EncodedRows(*load(rows), rows.encoder, rows.feature_names, rows.encoder_trained)


def is_labelled(rows: Any) -> bool:
    """Whether rows, as they are given, come with labels."""
    return rows.labelled if isinstance(rows, Stream) else isinstance(rows, tuple) and rows[1] is not None


def of_class(rows: tuple[Any, Any], wanted: Label, record: TrainingRecord) -> tuple[Any, Any]:
    """The rows of one class.

    Refuses a class that is unknown or not there, and rows that are not all the source had of it.
    """
    known: dict[Label, Label] = {str(value): value for value in record.classes}
    known |= {value: value for value in record.classes}
    if wanted not in known:
        shown = ", ".join(repr(value) for value in record.classes[:12]) + (" ..." if len(record.classes) > 12 else "")
        raise OptionError(
            f"class {wanted!r} is to be forgotten", f"the classes are {shown}", "Name one of the model's classes."
        )
    label = known[wanted]
    features = as_features(rows[0], FORGET)
    labels = as_labels(rows[1], len(features), FORGET)
    alike = labels.dtype.kind == ("U" if isinstance(label, str) else "i")
    chosen = labels == label if alike else np.zeros(len(labels), bool)
    count, index = int(chosen.sum()), record.classes.index(label)
    if count == 0:
        raise DataError(
            f"the forget set has no rows of class {label!r}",
            "its training rows are needed: what is forgotten is their gradient",
            "Give a file that holds them.",
        )
    if record.class_counts is not None and count < record.class_counts[index]:
        raise DataError(
            f"the forget set has {count:,} rows of class {label!r}",
            f"the source had {record.class_counts[index]:,}, and a class is forgotten only with all of them",
            "Give all its rows; to forget only these, leave --forget-class (forget_class) out.",
        )
    of_these = features[torch.from_numpy(chosen).to(features.device)]
    return EncodedRows(of_these, labels[chosen], encoder_of(rows), names_of(rows))


# How many -----------------------------------------------------------------------------------------------------------


def check_sizes(n_forget: int, record: TrainingRecord, force: bool) -> None:
    """Refuse to forget everything and, unless forced, more than half."""
    n_source = record.n_source
    if n_forget >= n_source:
        raise DataError(
            f"{n_forget:,} rows to forget of a source of {n_source:,}",
            "at least one row must be retained",
            "Check n_source; if all rows are to go, delete the model and what was kept for it.",
        )
    if 2 * n_forget > n_source and not force:
        raise UselessModel(
            f"{n_forget:,} of {n_source:,} rows are to be forgotten",
            "more than half leaves a model that is mostly guesswork",
            "Retrain on what is left, or insist with --force (force=True).",
        )


class Counted(Protocol):
    """A set whose rows may differ in weight."""

    @property
    def largest_weight(self) -> float:
        """1 without weights."""

    def __len__(self) -> int: ...


def require_enough(surrogate: Counted) -> None:
    """Refuse a surrogate whose moments say too little of its population's.

    Weights of at most q make s rows count as s/q.
    """
    needed = f"at least {FEWEST_SAMPLED_ROWS} are needed before its moments can stand for its population's"
    if len(surrogate) < FEWEST_SAMPLED_ROWS:
        raise DataError(
            f"the surrogate set has {len(surrogate)} rows",
            needed,
            "Add surrogate rows, or declare the distance between the sets themselves (between samples) if it is known.",
        )
    if len(surrogate) / surrogate.largest_weight < FEWEST_SAMPLED_ROWS:
        raise DataError(
            f"with matched classes a surrogate row weighs up to {surrogate.largest_weight:.3g}, so that its "
            f"{len(surrogate):,} rows count as few as {len(surrogate) / surrogate.largest_weight:.0f}",
            needed,
            "Add surrogate rows of the classes that it has too few of, or leave --match-classes out and declare a "
            "distance.",
        )


def matched_rows(
    surrogate: RowSet, record: TrainingRecord, labelled: bool, present: Sequence[int] | None = None
) -> RowSet:
    """The surrogate, weighted to the class counts of the record: of the rows that are retained."""
    if record.class_counts is None:
        raise ModelError(
            "the model's record has no class counts",
            "matching classes needs the source's",
            "Give them with --class-counts (class_counts=), in the order of the classes; model cards often have them.",
        )
    if not labelled:
        raise DataError(
            "the surrogate has no labels", "matching classes needs them", "Give (features, labels), or a label column."
        )
    if min(record.class_counts) < 0:
        raise DataError(
            "more rows of a class are to be forgotten than the source had",
            "the surrogate is matched to what is left",
            "Check the labels; these rows cannot all have been trained on.",
        )
    return weight_classes(surrogate, record.class_counts, record.classes, present)


def weighted_rows(
    rows: RowSet, retained: TrainingRecord, distance: Distance | Estimation, labelled: bool, counts: Any = None
) -> RowSet:
    """A surrogate weighted by class where that is asked for, if there is enough of it."""
    if distance.matched:
        rows = matched_rows(rows, retained, labelled, counts)
    if distance.samples_rows:
        require_enough(rows)
    return rows


# Encoders, columns, lengths -----------------------------------------------------------------------------------------


def require_encoder(rows: Any, record: TrainingRecord, name: str) -> None:
    """Refuse features that say they were made by another encoder than those the model was trained on."""
    made_by = encoder_of(rows)
    if made_by is not None and record.encoder is not None and made_by != record.encoder:
        raise DataError(
            f"{name}: features of encoder {made_by[:16]}...",
            f"the model was trained on those of {record.encoder[:16]}...",
            "Embed these rows with the encoder, and the preparation, that was used for training.",
        )


def encoder_notes(record: TrainingRecord, sets: Mapping[str, Any]) -> tuple[str, ...]:
    """Which features nobody can say the encoder of; two sets of different encoders are refused."""
    made_by = {name: encoder_of(rows) for name, rows in sets.items()}
    named = {digest for digest in made_by.values() if digest is not None}
    if len(named) > 1:
        raise DataError(
            "the forget set and the surrogate set were made by different encoders",
            "all features must come from the one the model was trained on",
            "Embed both with the same encoder.",
        )
    if record.encoder is None:
        return ("the model's record names no encoder; that of the rows could not be compared",) if named else ()
    return tuple(
        public_if_surrogate(name)(
            f"{name} names no encoder; that its features come from the one recorded at training was not checked"
        )
        for name, digest in made_by.items()
        if digest is None
    )


def column_notes(record: TrainingRecord, sets: Mapping[str, Any]) -> tuple[str, ...]:
    """Which sets were matched by position, since they name no columns, or the model's record none."""
    named = {name: names for name, rows in sets.items() if (names := names_of(rows)) is not None}
    if record.features is None:
        if len(set(named.values())) > 1:
            raise DataError(
                f"{' and '.join(named)} have other columns, or the same in another order",
                "the model's record names no columns, so nobody can say which are right",
                "Give all sets the columns of training, in the order of training.",
            )
        said = "the model's record names no columns; those of the rows were matched to it by position"
        return (said,) if named else ()
    bare = [name for name in sets if name not in named]
    if not bare:
        return ()
    files = "this file names none" if len(bare) == 1 else "these files name none"
    note = PublicNote if bare == [SURROGATE] else str  # how a forget file was written is its sender's
    return (note(f"{' and '.join(bare)}: columns are matched by position: {files}"),)


def scaling_words(scaling: Scaling, name: str) -> str:
    """How many rows were scaled, and by how much."""
    percent = min(100 * scaling.share, 100.0)
    return (
        f"{name}: {scaling.n_scaled:,} of {scaling.n_rows:,} rows ({percent:.3g} %) were longer than the norm bound "
        f"and were scaled down to it, half of them to {up(100 * scaling.factor, 2)} % of their length or less"
    )


def refuse_squashed(scaling: Scaling | None, name: str, max_norm: float, force: bool) -> tuple[str, ...]:
    """A note where more than one row in a hundred was scaled; more than half are refused, unless forced."""
    share = 0.0 if scaling is None else scaling.share
    if scaling is None or not math.isfinite(share) or share <= FEW:
        return ()
    said, note = scaling_words(scaling, name), public_if_surrogate(name)
    if share <= MOST_SCALED or scaling.n_rows < FEWEST_TO_JUDGE:
        return (note(said),)
    if not force:
        raise UselessModel(
            said,
            f"a norm bound ({max_norm:g}) that scales more than half of the rows leaves only their directions, which "
            "for a table of raw numbers is next to nothing",
            f"Standardise the features, as was done for training; a --max-norm of {up(scaling.bound_for_few, 2)} would "
            "scale one row in a hundred; or insist with --force (force=True) where all are to have one length.",
        )
    return (note(f"{FORCED}{said}; with more than half it would have been refused"),)


# The sets as they are given, looked over once: what is refused, what is remarked on ---------------------------------

# Rows repeated by copying: counted in one pass without keeping them, and told from honest repetition ----------------
# How many distinct rows occur once, twice, three times is what independent draws can, or cannot, explain
# (docs/theory.md, section 8.5). Rows of categorical columns repeat honestly, but not in steps: a value that is expected
# L times occurs a Poisson number of times, and whatever L is, that is seldom a multiple of 50, and seldom 2 without
# being 1 or 3 about as often.

IMPLAUSIBLE = 1e-9
LARGEST_STEP = 1000  # tried; larger ones are seen by their divisors, or where many rows occur equally often
INFLATION = 1.02  # of a supremum that is taken over a grid
FEWEST = 19  # distinct rows: the bound for fewer is above 3^-19, which is above IMPLAUSIBLE
MEANS = 2.0 ** np.arange(-10, 3)  # of a peak, in units of its place
SHARES = np.array([0.95, 0.5, 0.25, 0.1, 0.03, 0.01])  # of the largest weight a deviation may have
MOST_DISTINCT = 1 << 18  # fingerprints kept: with counts, and those that wait, 8 MB
MIXING = -7046029254386353131  # odd, as are the columns' numbers: wrapping products with it lose nothing
LOW_HALF = (1 << 32) - 1


def copy_factor(
    multiplicities: Mapping[int, int], class_counts: Sequence[int] = (), halvings: int = 0
) -> tuple[int, float] | None:
    """How often rows were copied, and the probability, at most, of independent draws that repeat so; None above 1e-9.

    `multiplicities` says how many distinct rows occur exactly j times. `class_counts` are the rows of each class where
    their numbers may have been chosen; without them only the number of all rows may. `halvings` says how often the
    distinct rows looked at were halved in number, by something that does not depend on how often they occur.

    >>> copy_factor({1: 400, 2: 70, 3: 10}) is None
    True
    >>> copy_factor({50: 100})[0]
    50
    """
    occurring = {j: count for j, count in multiplicities.items() if count}
    if not occurring:
        return None
    times, counts = (np.array(part, np.int64) for part in (list(occurring), list(occurring.values())))
    numbers = list(class_counts) or [int(times @ counts)]
    tests = [(c, _steps(times, counts, c)) for c in range(2, min(max(occurring), LARGEST_STEP) + 1)]
    tests += [(c, _peak(occurring, c)) for c, count in occurring.items() if c > 1 and count >= FEWEST]
    spent = math.log(2 * (halvings + 1) * (halvings + 2)) + math.fsum(map(_fixed, numbers))
    log, factor = min(((log + math.log(c * (c - 1)) + spent, c) for c, log in tests), default=(0.0, 1))
    return None if log >= math.log(IMPLAUSIBLE) else (factor, math.exp(log))


def _fixed(number: int) -> float:
    """ln 1/Pr[Poisson(number) = number]: what it costs that a number of rows was fixed, and not left to chance."""
    return number - number * math.log(number) + math.lgamma(number + 1) if number else 0.0


def _steps(times: NDArray[np.int64], counts: NDArray[np.int64], step: int) -> float:
    """Logarithm of a bound on the probability that so many distinct rows occur a multiple of `step` times."""
    distinct, multiples = int(counts.sum()), int(counts[times % step == 0].sum())
    if multiples <= distinct * math.exp(-_fixed(step)):  # quickly: that is below step_share
        return 0.0
    return binomial_tail(distinct, multiples, min(1.0, INFLATION * step_share(step)))


@functools.cache
def step_share(step: int) -> float:
    """The largest probability, over all Poisson means, that a number which is not 0 is a multiple of `step`.

    Taken over a grid of means up to 8 times `step`; beyond, it is smaller.
    """
    means = np.arange(1.0, 64.0 * math.sqrt(step) + 1.0)[:, None] * math.sqrt(step) / 8.0
    largest = 8.0 * step
    multiples = step * np.arange(1.0, math.ceil((largest + 12.0 * math.sqrt(largest) + 20.0) / step) + 1.0)
    logs = multiples * np.log(means) - means - gammaln(multiples + 1.0)
    return float((np.exp(logs).sum(axis=1) / -np.expm1(-means[:, 0])).max())


def binomial_tail(trials: int, successes: int, probability: float) -> float:
    """Logarithm of Chernoff's bound on Pr[Binomial(trials, probability) >= successes]."""
    share = successes / trials
    if share <= probability:
        return 0.0
    failing = 0.0 if share == 1.0 else (1.0 - share) * math.log((1.0 - share) / (1.0 - probability))
    return -trials * (share * math.log(share / probability) + failing)


def _peak(occurring: Mapping[int, int], place: int) -> float:
    """Logarithm of a bound on the probability that so many rows occur `place` times beside those one more and one less.

    For a Poisson number N and any a, E[c(c+1) 1{N=c+1} - 2ac 1{N=c} + a^2 1{N=c-1}] is a positive multiple of (L-a)^2.
    So the product over rows of 1 minus a small multiple of what is in brackets has a mean of at most 1: it is seldom
    large.
    """
    below, here, above = (occurring.get(place + off, 0) for off in (-1, 0, 1))
    means = place * MEANS[:, None]
    weights = SHARES / np.maximum(place * (place + 1.0), means**2)
    products = (
        below * np.log1p(-weights * means**2)
        + here * np.log1p(2.0 * weights * means * place)
        + above * np.log1p(-weights * place * (place + 1.0))
    )
    return min(0.0, math.log(products.size) - float(logsumexp(products)))


def row_prints(features: Tensor) -> NDArray[np.uint64]:
    """A number of 64 bits for each row, from all its columns: equal rows have equal ones."""
    bits = (features.double() + 0.0).view(torch.int64)  # a copy, so that -0 is 0
    odd = np.random.default_rng(0).integers(-(2**62), 2**62, bits.shape[1]) * 2 + 1
    for factor in (MIXING, torch.from_numpy(odd).to(bits.device)):
        _fold(bits).mul_(factor)
    summed = bits.sum(dim=1)
    prints: NDArray[np.uint64] = _fold(_fold(summed).mul_(MIXING)).cpu().numpy().view(np.uint64)
    return prints


def _fold(numbers: Tensor) -> Tensor:
    """Carry the upper halves into the lower ones, in place."""
    return numbers.bitwise_xor_((numbers >> 32).bitwise_and_(LOW_HALF))


class Multiplicities:
    """Rows counted by fingerprint, a block at a time.

    Where there are too many distinct ones, half of them are let go, by a bit of the fingerprint, as often as needed:
    how often a row occurs has no part in whether it is kept, and those that are kept are counted in full.
    """

    def __init__(self, by_class: bool = False, most: int = MOST_DISTINCT) -> None:
        self.by_class, self.most, self.halvings = by_class, most, 0
        self._prints, self._counts = np.empty(0, np.uint64), np.empty(0, np.int64)
        self._waiting: list[NDArray[np.uint64]] = []

    @staticmethod
    def of(distance: Distance | Estimation) -> Multiplicities | None:
        """To be counted where rows are a sample; its rows of each class may be chosen where classes are matched."""
        return Multiplicities(by_class=distance.matched) if distance.samples_rows else None

    def add(self, features: Tensor) -> None:
        """Count the rows of a block."""
        prints = row_prints(features)
        self._waiting.append(prints[self._chosen(prints)])
        if sum(map(len, self._waiting)) > self.most:
            self._merge()

    def _chosen(self, prints: NDArray[np.uint64]) -> NDArray[np.bool_]:
        chosen: NDArray[np.bool_] = prints & np.uint64((1 << self.halvings) - 1) == 0
        return chosen

    def _merge(self) -> None:
        """Those that wait, counted with the others."""
        fresh, fresh_counts = np.unique(np.concatenate([np.empty(0, np.uint64), *self._waiting]), return_counts=True)
        self._waiting = []
        self._prints, place = np.unique(np.concatenate([self._prints, fresh]), return_inverse=True)
        weights = np.concatenate([self._counts, fresh_counts])
        self._counts = np.bincount(place, weights, len(self._prints)).astype(np.int64)
        while len(self._prints) > self.most:
            self.halvings += 1
            chosen = self._chosen(self._prints)
            self._prints, self._counts = self._prints[chosen], self._counts[chosen]

    def occurring(self) -> Counter[int]:
        """How many distinct rows, of those kept, occur exactly j times."""
        self._merge()
        times, counts = np.unique(self._counts, return_counts=True)
        return Counter(dict(zip(times.tolist(), counts.tolist(), strict=True)))

    def copied(self, class_counts: list[int]) -> int:
        """How often rows were copied, 0 where independent draws may repeat as these do."""
        numbers = class_counts if self.by_class else [sum(class_counts)]
        found = copy_factor(self.occurring(), numbers, self.halvings)
        return 0 if found is None else found[0]


@dataclass(frozen=True)
class Survey:
    """What one pass over the surrogate says of it beside the forget set.

    `counts` are its rows by class. `shared` counts forget rows that occur in it, value for value; `lacking` those that
    do not occur with the same label and as often. `copied` says how often rows were copied, where independent draws do
    not repeat as these rows do; 0 otherwise, and where nobody asked.
    """

    counts: tuple[int, ...]
    shared: int
    lacking: int
    copied: int = 0


def survey(
    forget: Rows,
    surrogate: RowSet,
    n_classes: int,
    progress: Progress = silent,
    repeats: Multiplicities | None = None,
) -> Survey:
    """Look the surrogate over, block by block; with `repeats` also for rows that were copied.

    Copies are looked for by each process among the rows that it goes over.
    """
    asked = _Asked(forget, surrogate.dtype)
    counts = torch.zeros(n_classes, dtype=torch.float64)
    occurrences = torch.zeros(asked.n_rows, dtype=torch.float64)
    labelled = torch.zeros(asked.n_keys, dtype=torch.float64)
    for block in surrogate.blocks():
        progress("Looking over the surrogate (rows)", block.start, surrogate.n_expected)
        counts += torch.bincount(block.labels, minlength=n_classes).cpu()
        for row, label in asked.occurring(block):
            occurrences[asked.rows[row]] += 1
            if (row, label) in asked.keys:
                labelled[asked.keys[row, label]] += 1
        if repeats is not None:
            repeats.add(block.features)
    copied = 0 if repeats is None else repeats.copied([int(count) for count in counts.tolist()])
    counts, occurrences, labelled = (surrogate.total(part) for part in (counts, occurrences, labelled))
    return Survey(
        counts=tuple(int(count) for count in counts.tolist()),
        shared=sum(bool(occurrences[asked.rows[row]]) for row, _ in asked.given),
        lacking=sum(max(0, count - int(labelled[asked.keys[key]])) for key, count in Counter(asked.given).items()),
        copied=int(surrogate.largest(float(copied))),
    )


class _Asked:
    """The forget set's rows, numbered, and a quick test for rows that might be among them."""

    def __init__(self, forget: Rows, dtype: torch.dtype) -> None:
        features = forget.features.cpu().to(dtype)
        self.columns = np.unique(np.linspace(0, forget.n_features - 1, 8).astype(int))
        self.prints = np.unique(_fingerprints(features, self.columns))
        self.given = _row_keys(features, forget.labels)
        self.rows = {row: index for index, row in enumerate(dict.fromkeys(row for row, _ in self.given))}
        self.keys = {key: index for index, key in enumerate(dict.fromkeys(self.given))}
        self.n_rows, self.n_keys = len(self.rows), len(self.keys)

    def occurring(self, block: Block) -> list[tuple[bytes, int]]:
        """Rows of the block, with their labels, that are forget rows."""
        hits = torch.from_numpy(np.flatnonzero(np.isin(_fingerprints(block.features, self.columns), self.prints)))
        where = hits.to(block.features.device)  # rows stay where they are; only a few columns and the hits are fetched
        return [key for key in _row_keys(block.features[where], block.labels[where]) if key[0] in self.rows]


def _fingerprints(features: Tensor, columns: NDArray[Any]) -> NDArray[np.uint64]:
    """A number for each row from the bits of a few columns: equal rows have equal ones."""
    chosen = np.ascontiguousarray((features[:, columns].cpu().double() + 0.0).numpy()).view(
        np.uint64
    )  # so that -0 is 0
    odd = np.random.default_rng(0).integers(0, 2**63, len(columns), dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    mixed = (chosen ^ (chosen >> np.uint64(29))) * odd
    fingerprints: NDArray[np.uint64] = np.bitwise_xor.reduce(mixed ^ (mixed >> np.uint64(32)), axis=1)
    return fingerprints


def _row_keys(features: Tensor, labels: Tensor) -> list[tuple[bytes, int]]:
    """A digest of each row's values in float64, and its label; a block at a time is converted."""
    digests = [
        hashlib.blake2b(row.tobytes(), digest_size=20).digest()
        for block in torch.split(features, 1024)
        for row in (block.cpu().double() + 0.0).numpy()  # so that -0 is 0
    ]
    return list(zip(digests, labels.tolist(), strict=True))


def survey_notes(
    forget: Rows,
    surrogate: RowSet,
    seen: Survey,
    record: TrainingRecord,
    distance: Distance | Estimation,
    has_labels: bool,
    force: bool = False,
) -> tuple[str, ...]:
    """What is odd about the data but not an error; each is recorded in the certificate.

    What contradicts the declared distance is refused, unless forced.
    """
    notes: list[str] = []
    if seen.copied:
        raise DataError(
            f"the surrogate's rows repeat as if they had been copied, {seen.copied} times each",
            f"independent draws repeat so with a probability below {IMPLAUSIBLE:g}, and the sampling term needs such",
            "Remove the copies, or declare the distance between the sets themselves (between samples) if it is known.",
        )
    repeated = len(forget) - len({row for row, _ in _row_keys(forget.features, forget.labels)})
    if repeated:
        notes.append(
            f"{repeated} of {len(forget)} forget rows are repeats of another; each was counted as one training row"
        )
    counts = Counter(forget.labels.tolist())
    if record.class_counts is not None:
        for index, count in counts.items():
            if count > record.class_counts[index]:
                raise DataError(
                    f"{count} rows of class {record.classes[index]!r} are to be forgotten",
                    f"the source had {record.class_counts[index]}",
                    "Check the labels; these rows cannot all have been trained on.",
                )
    if has_labels:
        absent = [value for value, count in zip(record.classes, seen.counts, strict=True) if count == 0]
        if absent:
            named = ", ".join(repr(value) for value in absent)
            notes.append(PublicNote("the surrogate has no rows of class " + named))
        notes += against_the_distance(counts, seen, record, distance, force)
    if distance.is_source:
        _require_source(len(forget), surrogate, seen, record, has_labels)
    elif seen.shared:
        notes.append(
            f"{seen.shared} of {len(forget)} forget rows are also in the surrogate; it should hold none of them"
        )
    return tuple(notes)


def against_the_distance(
    forgotten: Counter[int], seen: Survey, record: TrainingRecord, distance: Distance | Estimation, force: bool
) -> tuple[str, ...]:
    """Refuse a surrogate without any row of a class that is retained, where the distance says that cannot be."""
    if record.class_counts is None or not isinstance(distance, Distance) or distance.provenance != "declared":
        return ()
    left = [count - forgotten[index] for index, count in enumerate(record.class_counts)]
    absent = [index for index, count in enumerate(left) if count > 0 and seen.counts[index] == 0]
    missing = sum(left[index] for index in absent)
    covered = distance.kind == "tv" and missing <= distance.value * sum(left)  # what it declares may well be missing
    if not absent or covered:
        return ()
    named = ", ".join(repr(record.classes[index]) for index in absent[:12])
    said = (
        f"the surrogate has no row of class {named}, of which {missing:,} of {sum(left):,} retained rows are "
        f"({100 * missing / sum(left):.3g} %)"
    )
    if not force:
        raise UselessModel(
            said,
            f"the distance declared, {distance}, says that such rows are there",
            "Add surrogate rows of that class; declare a tv that covers its share; or insist with --force "
            "(force=True), and the certificate says so.",
        )
    against = f"the distance declared, {distance}, says that such rows are there, so it may be false"
    without_counts = f"{FORCED}the surrogate has no row of class {named}, of which rows are retained; {against}"
    return (f"{FORCED}{said}; {against}", PublicNote(without_counts))


def _require_source(n_forget: int, source: RowSet, seen: Survey, record: TrainingRecord, has_labels: bool) -> None:
    """Refuse rows that are given as the source but cannot be it."""
    if not has_labels:
        raise DataError(
            "the source rows have no labels", "with distance source they are needed", "Give (features, labels)."
        )
    if source.dtype != dtype_named(record.rows_dtype):
        raise DataError(
            f"the source rows are kept in {str(source.dtype).removeprefix('torch.')}",
            f"the model was trained on {record.rows_dtype}",
            f"Use --dtype {record.rows_dtype} (dtype='{record.rows_dtype}').",
        )
    if len(source) != record.n_source:
        raise DataError(
            f"the surrogate has {len(source):,} rows",
            f"the source had {record.n_source:,}",
            "With distance source, give the source itself.",
        )
    if record.class_counts is not None and seen.counts != record.class_counts:
        raise DataError(
            f"the rows given as the source have class counts {seen.counts}",
            f"at training they were {record.class_counts}",
            "With distance source, give the source itself.",
        )
    if seen.lacking:
        raise DataError(
            f"{seen.lacking} of {n_forget} forget rows are not among the source rows given, with these labels and as "
            "often",
            "with distance source every forget row must be",
            "Give the source itself, or declare another distance.",
        )


def class_notes(
    forget: Rows,
    seen: Survey,
    record: TrainingRecord,
    asked: Label | None,
    distance: Distance | Estimation,
    has_labels: bool,
) -> tuple[str, ...]:
    """What becomes of classes that are forgotten whole.

    Their surrogate rows stay unless classes are matched, and what is declared is declared of the retained rows, of
    which there are none.
    """
    if record.class_counts is None:
        if asked is None:
            return ()
        return ("the record has no class counts; that these are all rows the source had of the class was not checked",)
    counts = Counter(forget.labels.tolist())
    notes = []
    for index in sorted(index for index, count in counts.items() if count == record.class_counts[index]):
        note = (
            f"every row of class {record.classes[index]!r} is forgotten ({counts[index]:,}); the model keeps its "
            "weights for that class"
        )
        if has_labels and seen.counts[index] and not (distance.is_source or distance.matched):
            note += (
                f"; its {seen.counts[index]:,} surrogate rows stay, so the distance must be that of retained rows "
                "without the class from surrogate rows with it (leave them out, or match classes)"
            )
        notes.append(note)
    return tuple(notes)
