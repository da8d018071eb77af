"""The sets as they are given, looked over once: what is refused, what is remarked on."""

from __future__ import annotations

import functools
import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp
from torch import Tensor

from expunge.certificate.claim import PublicNote
from expunge.distance import Distance, Estimation
from expunge.errors import DataError, UselessModel
from expunge.heads import Block, Rows, RowSet
from expunge.record import Label, TrainingRecord
from expunge.request.promise import dtype_named
from expunge.request.sets import FORCED
from expunge.runtime.progress import Progress, silent

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
