"""Logit-scaled confidence of forgotten rows under many models at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import beta
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedShuffleSplit
from torch import Tensor

from expunge.data import as_labels, encode
from expunge.data.ordered import by_record
from expunge.errors import DataError
from expunge.evaluate.case import Case, Labelled, prepared_rows
from expunge.heads import LinearHead, Rows
from expunge.heads.scaling import FEW, Scaling
from expunge.model import LinearModel
from expunge.record import Label
from expunge.request.rows import is_labelled
from expunge.request.scaling import scaling_words

MODELS_AT_ONCE = 64


def confidences(models: Tensor, rows: Rows) -> NDArray[np.float64]:
    """`ln p_y - ln(1 - p_y) = z_y - logsumexp of the other outputs`, models x rows.

    One matrix product for a block of models: rows x d by d x (models K). One weight vector is that of the second of
    two classes; the first one's output is then zero.
    """
    labels = rows.labels[:, None, None]
    parts = []
    for block in torch.split(models, MODELS_AT_ONCE):
        outputs = (rows.features @ block.reshape(-1, block.shape[2]).T).reshape(len(rows), *block.shape[:2])
        if block.shape[1] == 1:
            outputs = torch.cat([torch.zeros_like(outputs), outputs], dim=2)
        own = outputs.gather(2, labels.expand(-1, block.shape[0], 1)).squeeze(2)
        others = outputs.scatter(2, labels.expand(-1, block.shape[0], 1), -torch.inf).logsumexp(dim=2)
        parts.append((own - others).T)
    return np.ascontiguousarray(torch.cat(parts).numpy())


# The value every metric returns: a number with its error, or none and the reason why.


@dataclass(frozen=True)
class Score:
    """`value` is None where it would be meaningless; `flags` say why, or what to mind.

    `error` is one standard error.
    """

    value: float | None
    error: float | None = None
    flags: tuple[str, ...] = ()

    @staticmethod
    def meaningless(*reasons: str) -> Score:
        return Score(None, None, reasons)


# Accuracy on each part of the data.


PARTS = ("train", "test", "retain", "forget")


def accuracy(weights: Tensor, rows: Rows) -> float:
    """Share of rows whose largest output is their own class; the first of equal outputs counts.

    One weight vector is that of the second of two classes, whose output counts against zero.
    """
    hits = 0
    for block in rows.blocks():
        outputs = block.features @ weights.T
        chosen = outputs.argmax(dim=1) if len(weights) > 1 else (outputs[:, 0] > 0.0).long()
        hits += int((chosen == block.labels).sum())
    return hits / len(rows)


def accuracies(weights: Tensor, case: Case) -> dict[str, Score]:
    """Train (retain and forget together), test, retain and forget accuracy, with binomial errors."""
    shares_right = {}
    for part in PARTS:
        value = accuracy(weights, case.rows[part])
        shares_right[part] = Score(value, math.sqrt(value * (1.0 - value) / len(case.rows[part])))
    return shares_right


# FS, the forget score: how well unlearned models can be told from retrained ones, forgotten row by forgotten row.


DELTA = 1e-5
BUCKET = 0.5
FEWEST_MODELS = 20

Confidences = NDArray[np.float64]


@dataclass(frozen=True)
class ForgetScore:
    """The score, and each row's epsilon."""

    score: Score
    epsilons: NDArray[np.float64]


def forget_score(unlearned: Confidences, retrained: Confidences) -> ForgetScore:
    """The score from two arrays of confidences, N models x rows."""
    count = len(unlearned)
    if retrained.shape != unlearned.shape:
        raise ValueError(f"{unlearned.shape} and {retrained.shape}: as many models and rows are needed on both sides")
    epsilons = row_epsilons(unlearned, retrained)
    if count < FEWEST_MODELS:
        return ForgetScore(Score.meaningless(f"{count} models a side: at least {FEWEST_MODELS} are needed"), epsilons)
    points = row_points(epsilons, count)
    error = float(points.std() / math.sqrt(len(points)))
    return ForgetScore(Score(float(points.mean()), error), epsilons)


def row_points(epsilons: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """2^-k for an epsilon in [k/2, (k+1)/2), 0 from ceil(ln(N-1)) on.

    >>> row_points(np.array([0.0, 0.49, 0.5, 1.2, 6.9, 7.0, math.inf]), 512).tolist()
    [1.0, 1.0, 0.5, 0.25, 0.0001220703125, 0.0, 0.0]
    """
    last = math.ceil(math.log(count - 1))
    capped = np.minimum(epsilons, last)
    return np.where(epsilons < last, np.exp2(-np.floor(capped / BUCKET)), 0.0)


def row_epsilons(unlearned: Confidences, retrained: Confidences) -> NDArray[np.float64]:
    """The largest epsilon of any interval, for each row (column)."""
    return np.maximum(_epsilons_inside(unlearned.T, retrained.T), _epsilons_inside(retrained.T, unlearned.T))


def attack_epsilon(hits: int, false_alarms: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """Epsilon of attacks with `hits` of N on one side and `false_alarms` of N on the other, neither N nor 0."""
    positive, negative = false_alarms / count, (count - hits) / count
    with np.errstate(divide="ignore", invalid="ignore"):
        first = np.log(1.0 - DELTA - positive) - np.log(negative)
        second = np.log(1.0 - DELTA - negative) - np.log(positive)
    epsilon: NDArray[np.float64] = np.fmax(np.fmax(first, second), 0.0)
    return epsilon


def _epsilons_inside(inside: Confidences, outside: Confidences) -> NDArray[np.float64]:
    """Attacks that guess `inside` within an interval; rows x N.

    For a given number of hits the fewest false alarms are best, and the shortest interval has the fewest: from one
    value of `inside` to another. Where that has none, the nearest of `outside` is let in, since a rate of 0 does not
    count. So only N (N + 1) / 2 intervals need a look, not all pairs of thresholds; equal values stay together.
    """
    rows, count = inside.shape
    kind = np.int16 if 4 * count < 2**15 else np.int64
    far = kind(count + 1)  # more false alarms than there are: an interval that cuts through equal values
    low, high, before, after = (np.empty((count, rows), dtype=kind) for _ in range(4))
    for row in range(rows):
        own, other = np.sort(inside[row]), np.sort(outside[row])
        below, upto = np.searchsorted(other, own, "left"), np.searchsorted(other, own, "right")
        starts = np.append(True, own[1:] > own[:-1])
        ends = np.append(own[1:] > own[:-1], True)
        previous, following = np.append(-np.inf, own[:-1]), np.append(own[1:], np.inf)
        low[:, row] = np.where(starts, below, -far)
        high[:, row] = np.where(ends, upto, 2 * far)
        nearest = other[np.maximum(below - 1, 0)]
        size = below - np.searchsorted(other, nearest, "left")
        before[:, row] = np.where((below > 0) & (nearest > previous), size, far)
        nearest = other[np.minimum(upto, count - 1)]
        size = np.searchsorted(other, nearest, "right") - upto
        after[:, row] = np.where((upto < count) & (nearest < following), size, far)
    best = np.zeros(rows)
    for hits in range(1, count):
        alarms = high[hits - 1 :] - low[: count - hits + 1]
        extended = np.minimum(before[: count - hits + 1], after[hits - 1 :])
        fewest = np.where(alarms == 0, extended, alarms).min(axis=0)
        usable = fewest < count
        epsilons = attack_epsilon(hits, np.where(usable, fewest, 1), count)
        best = np.where(usable, np.fmax(best, epsilons), best)
    apart = high[count - 1] - low[0] == 0
    return np.where(apart, math.inf, best)


# U-LiRA: a likelihood-ratio attack on each forgotten row by itself.


CONFIDENCE = 0.999
LEAST_SPREAD = 1e-12


@dataclass(frozen=True)
class LikelihoodRatio:
    """Accuracy of the attack: mean over rows, each row's, and a lower bound on the worst row's.

    `worst_lower` holds for all rows together with 99.9 % confidence: Clopper and Pearson, divided among the rows. 0.5
    or less says nothing.
    """

    mean: Score
    rows: NDArray[np.float64]
    worst: float
    worst_lower: float


def likelihood_ratio(unlearned: Confidences, retrained: Confidences) -> LikelihoodRatio | Score:
    """The attack from two arrays of confidences, N models x rows."""
    if len(unlearned) != len(retrained) or len(unlearned) < FEWEST_MODELS:
        return Score.meaningless(
            f"{len(unlearned)} unlearned and {len(retrained)} retrained models: as many of both, and at least "
            f"{FEWEST_MODELS}, are needed"
        )
    if np.ptp(np.concatenate([unlearned, retrained]), axis=0).max() == 0.0:
        return Score.meaningless("all confidences are equal: the attack has nothing to go by")
    half = len(unlearned) // 2
    hits = _guessed(unlearned[half:], unlearned[:half], retrained[:half]).sum(axis=0)
    hits = hits + (~_guessed(retrained[half:], unlearned[:half], retrained[:half])).sum(axis=0)
    tried = 2 * (len(unlearned) - half)
    accuracies: NDArray[np.float64] = hits / tried
    lower = beta.ppf((1.0 - CONFIDENCE) / len(hits), hits, tried - hits + 1)
    lower = np.where(hits == 0, 0.0, lower)
    return LikelihoodRatio(
        Score(float(accuracies.mean()), 0.5 / math.sqrt(tried)), accuracies, float(accuracies.max()), float(lower.max())
    )


def _guessed(values: Confidences, unlearned: Confidences, retrained: Confidences) -> NDArray[np.bool_]:
    """Whether each value is likelier under the unlearned models' normal law."""
    return _log_density(values, unlearned) > _log_density(values, retrained)


def _log_density(values: Confidences, sample: Confidences) -> Confidences:
    spread = np.maximum(sample.std(axis=0), LEAST_SPREAD)
    result: Confidences = -0.5 * ((values - sample.mean(axis=0)) / spread) ** 2 - np.log(spread)
    return result


# MIA, the paper's membership inference attack: can forget rows be told from test rows by their loss?


FEWEST_ROWS = 20
LARGEST_LOSS = 100.0
HELD_OUT = 0.1
OTHER_CLASSES = 0.1  # total variation of the labels from which, if no chance, the attack sees classes
PERMUTATIONS = 999

Losses = NDArray[np.float64]


def membership(weights: Tensor, case: Case, seed: int, n_splits: int = 5) -> Score:
    """The attack on one model; none where forget and test rows are of other classes, as in class unlearning."""
    forget, test = case.rows["forget"], case.rows["test"]
    if of_other_classes(forget.labels.numpy(), test.labels.numpy()):
        return Score.meaningless(
            "forget and test rows are of other classes (class unlearning): the attack would tell classes, not "
            "membership"
        )
    return attack(
        row_losses(case.objective, weights, forget), row_losses(case.objective, weights, test), seed, n_splits
    )


def row_losses(objective: LinearHead, weights: Tensor, rows: Rows) -> Losses:
    """The loss of each row, without the regulariser."""
    parts = [objective.losses(block.features @ weights.T, block.labels) for block in rows.blocks()]
    return np.concatenate([part.numpy() for part in parts])


def attack(forget: Losses, test: Losses, seed: int, n_splits: int = 5) -> Score:
    """Mean accuracy over the splits. Its error counts each row that was held out once: `0.5 / sqrt(rows)`."""
    fewer = min(len(forget), len(test))
    if fewer < FEWEST_ROWS:
        return Score.meaningless(
            f"{len(forget)} forget and {len(test)} test rows: at least {FEWEST_ROWS} of both are needed"
        )
    generator = np.random.default_rng(seed)
    chosen = [
        values if len(values) == fewer else generator.choice(values, fewer, replace=False) for values in (test, forget)
    ]
    losses = np.clip(np.concatenate(chosen), -LARGEST_LOSS, LARGEST_LOSS)
    if np.ptp(losses) == 0.0:
        return Score.meaningless("all losses are equal: the attack has nothing to go by")
    member = np.repeat([0, 1], fewer)
    held_out = max(2, round(HELD_OUT * 2 * fewer))
    splits = StratifiedShuffleSplit(n_splits=n_splits, test_size=held_out, random_state=seed)
    scores, seen = [], np.zeros(2 * fewer, dtype=bool)
    for known, unknown in splits.split(losses[:, None], member):
        guess = LogisticRegression().fit(losses[known, None], member[known]).predict(losses[unknown, None])
        scores.append(float(np.mean(guess == member[unknown])))
        seen[unknown] = True
    return Score(float(np.mean(scores)), 0.5 / math.sqrt(int(seen.sum())))


def of_other_classes(first: NDArray[np.int64], second: NDArray[np.int64]) -> bool:
    """Whether two sets of labels differ by more than chance: a permutation test of their total variation, at 0.1 %."""
    labels = np.concatenate([first, second])
    classes = int(labels.max()) + 1

    def variation(order: NDArray[np.int64]) -> float:
        shares = [
            np.bincount(part, minlength=classes) / len(part) for part in (order[: len(first)], order[len(first) :])
        ]
        return 0.5 * float(np.abs(shares[0] - shares[1]).sum())

    observed = variation(labels)
    if observed <= OTHER_CLASSES:
        return False
    generator = np.random.default_rng(0)
    return all(variation(generator.permutation(labels)) < observed for _ in range(PERMUTATIONS))


# RT, relearn time: optimiser iterations on the forget set until its accuracy is back.


WITHIN = 0.005
LEARNING_RATE = 1e-3
BATCH = 512
MOST_ITERATIONS = 1000


def relearn_time(weights: Tensor, case: Case, seed: int) -> Score:
    """Iterations until the forget accuracy is back; flagged where it never left, or does not come back."""
    rows = case.rows["forget"]
    return relearn(
        weights,
        len(rows),
        goal=accuracy(case.weights, rows) - WITHIN,
        accuracy_at=lambda at: accuracy(at, rows),
        gradient_at=lambda at, batch: case.objective.gradient(at, Rows(rows.features[batch], rows.labels[batch])),
        seed=seed,
    )


def relearn(
    weights: Tensor,
    n_rows: int,
    *,
    goal: float,
    accuracy_at: Callable[[Tensor], float],
    gradient_at: Callable[[Tensor, Tensor], Tensor],
    seed: int,
) -> Score:
    """The same for any model.

    `gradient_at` is that of the training objective on a batch of the forget rows, given by number.
    """
    if n_rows < FEWEST_ROWS:
        return Score.meaningless(f"{n_rows} forget rows: within 0.5 points means nothing below {FEWEST_ROWS}")
    if accuracy_at(weights) >= goal:
        return Score(0.0, None, ("the forget accuracy never left",))
    parameter = torch.nn.Parameter(weights.clone())
    optimiser = torch.optim.Adam([parameter], lr=LEARNING_RATE)
    generator = np.random.default_rng(seed)
    done = 0
    while done < MOST_ITERATIONS:
        order = torch.from_numpy(generator.permutation(n_rows))
        for batch in torch.split(order, BATCH):
            parameter.grad = gradient_at(parameter.detach(), batch)
            optimiser.step()
            done += 1
            if accuracy_at(parameter.detach()) >= goal:
                return Score(float(done))
    return Score.meaningless(f"the forget accuracy was not back after {MOST_ITERATIONS} iterations")


# How good a model's answers are on labelled rows: accuracy, balanced accuracy, each class, beside mere guessing.


NAME = "the rows to score"


@dataclass(frozen=True)
class OfClass:
    """Of one class: how many rows have it, and what share of them the model gets right."""

    label: Label
    rows: int
    right: float


@dataclass(frozen=True)
class Scores:
    """`accuracy` is the share of rows that are right, `balanced` its mean over the classes that occur.

    `majority` is what always naming the most frequent class of these rows would get right; balanced, that is one over
    the number of classes that occur.
    """

    rows: int
    accuracy: float
    balanced: float
    majority: float
    classes: tuple[OfClass, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"classes": [asdict(each) for each in self.classes]}


def scores_of(model: LinearModel, rows: tuple[Any, Any]) -> Scores:
    """Of a model, on (features, labels) as they come."""
    given = by_record(rows, model.record, model.n_features, NAME)
    if not is_labelled(given):
        raise DataError(f"{NAME}: no labels", "answers are compared with them", "Give rows with their labels.")
    labels = as_labels(given[1], len(given[1]), NAME)
    own = encode(labels, model.classes, NAME).numpy()
    right = model.predict(given[0]) == np.asarray(model.classes)[own]
    counts = np.bincount(own, minlength=len(model.classes))
    hits = np.bincount(own[right], minlength=len(model.classes))
    there = np.flatnonzero(counts)
    shares = hits[there] / counts[there]
    classes = tuple(
        OfClass(model.classes[place], int(counts[place]), float(share))
        for place, share in zip(there, shares, strict=True)
    )
    return Scores(len(own), float(right.mean()), float(shares.mean()), float(counts.max() / len(own)), classes)


# How a model fits the rows it was trained on, beside what guessing would give: a look before the source goes.


@dataclass(frozen=True)
class Fit:
    """Accuracy on the training rows, the share of the most frequent class, accuracy by class, rows that were scaled."""

    accuracy: float
    majority: float
    by_class: tuple[tuple[Label, float], ...]
    scaling: Scaling

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is wrong with such a model, if anything."""
        said = [scaling_words(self.scaling, "the source")] if self.scaling.share > FEW else []
        if self.accuracy <= self.majority:
            said.append("the model is no better than always naming the most frequent class")
        never = [repr(label) for label, share in self.by_class if share == 0.0]
        if never:
            said.append(f"no row of class {', '.join(never[:12])} is classified right")
        return tuple(said)

    def to_json(self) -> dict[str, Any]:
        by_class = [{"class": label, "accuracy": share} for label, share in self.by_class]
        return asdict(self) | {"by_class": by_class, "warnings": list(self.warnings)}


def fit_of(model: LinearModel, source: Labelled) -> Fit:
    """How the model fits these rows; it must have a record."""
    assert model.record is not None
    rows = prepared_rows(source, model, model.record, "the source")
    weights, n_classes = model.matrix(), len(model.record.classes)
    right, counts = torch.zeros(n_classes, dtype=torch.float64), torch.zeros(n_classes, dtype=torch.float64)
    for block in rows.blocks():
        outputs = block.features @ weights.T
        hits = (outputs.argmax(dim=1) if len(weights) > 1 else (outputs[:, 0] > 0).long()) == block.labels
        right += torch.bincount(block.labels[hits], minlength=n_classes)
        counts += torch.bincount(block.labels, minlength=n_classes)
    shares = (right / counts.clamp(min=1.0)).tolist()
    by_class = tuple(zip(model.record.classes, shares, strict=True))
    assert rows.scaling is not None
    return Fit(float(right.sum() / counts.sum()), float(counts.max() / counts.sum()), by_class, rows.scaling)
