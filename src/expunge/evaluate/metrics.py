"""Metrics: did a model forget, and how good are its answers? Each is a function with its formula.

accuracies          share of rows that are right, on each part of the data
forget_score        FS: can unlearned models be told from retrained ones, forgotten row by forgotten row
membership          MIA: can forgotten rows be told from test rows by their loss
relearn_time        RT: iterations until the forgotten rows are fitted as well as before
score_model         any model on labelled rows: accuracy, balanced accuracy, each class, against mere guessing
describe_fit        score_model of the rows a model was trained on, with warnings
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.errors import DataError
from expunge.evaluate.case import Case, Labelled
from expunge.heads import LinearHead, Rows
from expunge.heads.rows import FEW, Scaling, scaling_of
from expunge.model import LinearModel
from expunge.record import Label
from expunge.request.sets import is_labelled, scaling_words
from expunge.rows import as_features, as_labels, encode
from expunge.rows.columns import match_record
from expunge.rows.features import row_norms
from expunge.runtime.arrays import Array, cast, copy, log_sum_exp, namespace, put, to_numpy, zeros

PARTS = ("train", "test", "retain", "forget")
FEWEST_ROWS, FEWEST_MODELS = 20, 20
MODELS_AT_ONCE = 64
FORGET_SCORE_DELTA = 1e-5
BUCKET = 0.5  # of epsilon, in the forget score
LARGEST_LOSS = 100.0
HELD_OUT = 0.1
OTHER_CLASSES = 0.1  # total variation of the labels from which, if no chance, the attack sees classes
PERMUTATIONS = 999
WITHIN = 0.005  # of the original accuracy: relearned
LEARNING_RATE, BATCH, MOST_ITERATIONS = 1e-3, 512, 1000
MEMORY, LEAST = (0.9, 0.999), 1e-8  # of Adam's means of gradients and of their squares; beside the root of these

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Score:
    """The value of a metric and its standard error; None where it would be meaningless, and `flags` say why."""

    value: float | None
    error: float | None = None
    flags: tuple[str, ...] = ()

    @staticmethod
    def meaningless(*reasons: str) -> Score:
        return Score(None, None, reasons)


# Accuracy -------------------------------------------------------------------------------------------------------------


def classify(outputs: Array) -> Array:
    """The class of the largest output, the first of equal ones; one output is the second class's, against zero."""
    return outputs.argmax(axis=1) if outputs.shape[1] > 1 else cast(outputs[:, 0] > 0.0, "int64")


def accuracy(weights: Array, rows: Rows) -> float:
    """Share of rows that are classified as labelled."""
    hits = sum(int((classify(block.features @ weights.T) == block.labels).sum()) for block in rows.blocks())
    return hits / len(rows)


def accuracies(weights: Array, case: Case) -> dict[str, Score]:
    """Train (retain and forget together), test, retain and forget accuracy a, with errors `sqrt(a (1 - a) / rows)`."""
    scores = {}
    for part in PARTS:
        value = accuracy(weights, case.rows[part])
        scores[part] = Score(value, math.sqrt(value * (1.0 - value) / len(case.rows[part])))
    return scores


def confidences(models: Array, rows: Rows) -> Values:
    """Logit-scaled confidence in each row's label, models x rows.

    `ln p_y - ln(1 - p_y) = z_y - logsumexp of the other outputs`; one matrix product for a block of models. One weight
    vector is that of the second of two classes; the first one's output is then zero.
    """
    xp, parts = namespace(models), []
    each = xp.arange(len(rows), device=models.device)
    for start in range(0, len(models), MODELS_AT_ONCE):
        block = models[start : start + MODELS_AT_ONCE]
        outputs = (rows.features @ block.reshape(-1, block.shape[2]).T).reshape(len(rows), *block.shape[:2])
        if block.shape[1] == 1:
            outputs = xp.concat([zeros(outputs), outputs], axis=2)
        own = outputs[each, :, rows.labels]
        outputs[each, :, rows.labels] = -math.inf
        parts.append(to_numpy((own - log_sum_exp(outputs)).T))
    return np.concatenate(parts)


# Attacks on forgotten rows by many models -----------------------------------------------------------------------------


def epsilon_lower(false_positive: Values, false_negative: Values, delta: float) -> Values:
    """`max(ln((1 - delta - FPR)/FNR), ln((1 - delta - FNR)/FPR))`, at least 0 (Kairouz, Oh and Viswanath)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        first = np.log(1.0 - delta - false_positive) - np.log(false_negative)
        second = np.log(1.0 - delta - false_negative) - np.log(false_positive)
    epsilon: Values = np.fmax(0.0, np.fmax(first, second))
    return epsilon


def forget_score(unlearned: Values, retrained: Values) -> Score:
    """FS, how well unlearned models can be told from retrained ones, from confidences of both, N models x rows.

    For each row an attack guesses by an interval of confidences, open or closed at its ends, so that it has one
    threshold or two; which of the two kinds lies inside is the attack's choice. With false positive and false negative
    rates its epsilon is

        max( ln((1 - delta - FPR) / FNR), ln((1 - delta - FNR) / FPR) ),        delta = 1e-5.

    A rate of 0 is a sign of too few models, so such attacks are left out, unless both are 0: then epsilon is infinite.
    The row's epsilon is the largest over ALL intervals, and the row scores 2^-k if that lies in [k/2, (k+1)/2), up to
    the largest epsilon that N models can show, ceil(ln(N - 1)), and 0 from there on. The score is the mean over rows.

    The largest of many noisy rates is above 0 even for two sets of models of one distribution: the score of `Retrain`
    against itself is the ceiling to compare with, and about it is the best that any method can reach.
    """
    count = len(unlearned)
    if retrained.shape != unlearned.shape:
        raise ValueError(f"{unlearned.shape} and {retrained.shape}: as many models and rows are needed on both sides")
    if count < FEWEST_MODELS:
        return Score.meaningless(f"{count} models a side: at least {FEWEST_MODELS} are needed")
    points = row_points(row_epsilons(unlearned, retrained), count)
    return Score(float(points.mean()), float(points.std() / math.sqrt(len(points))))


def row_points(epsilons: Values, count: int) -> Values:
    """2^-k for an epsilon in [k/2, (k+1)/2), 0 from ceil(ln(N-1)) on.

    >>> row_points(np.array([0.0, 0.49, 0.5, 1.2, 6.9, 7.0, math.inf]), 512).tolist()
    [1.0, 1.0, 0.5, 0.25, 0.0001220703125, 0.0, 0.0]
    """
    last = math.ceil(math.log(count - 1))
    return np.where(epsilons < last, np.exp2(-np.floor(np.minimum(epsilons, last) / BUCKET)), 0.0)


def row_epsilons(unlearned: Values, retrained: Values) -> Values:
    """The largest epsilon of any interval, for each row (column)."""
    return np.maximum(_epsilons_inside(unlearned.T, retrained.T), _epsilons_inside(retrained.T, unlearned.T))


def _epsilons_inside(inside: Values, outside: Values) -> Values:
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
        rate, missed = np.where(usable, fewest, 1) / count, np.array((count - hits) / count)
        best = np.where(usable, np.fmax(best, epsilon_lower(rate, missed, FORGET_SCORE_DELTA)), best)
    return np.where(high[count - 1] - low[0] == 0, math.inf, best)


# Attacks on one model -------------------------------------------------------------------------------------------------


def membership(weights: Array, case: Case, seed: int, n_splits: int = 5) -> Score:
    """MIA, the paper's membership inference attack: can forget rows be told from test rows by their loss?

    As many forget as test rows; a logistic regression on the loss alone, trained on 90 % and scored on 10 % of them in
    stratified shuffled splits. 50 % means that it cannot. One threshold for everybody: it understates what an attacker
    can do about one person; the forget score and the audit do not. It is meaningless where forget and test rows are of
    other classes, as in class unlearning.
    """
    forget, test = case.rows["forget"], case.rows["test"]
    if of_other_classes(to_numpy(forget.labels), to_numpy(test.labels)):
        return Score.meaningless(
            "forget and test rows are of other classes (class unlearning): the attack would tell classes, not "
            "membership"
        )
    losses = [row_losses(case.objective, weights, rows) for rows in (forget, test)]
    return attack_membership(losses[0], losses[1], seed, n_splits)


def row_losses(objective: LinearHead, weights: Array, rows: Rows) -> Values:
    """The loss of each row, without the regulariser."""
    parts = [objective.losses(block.features @ weights.T, block.labels) for block in rows.blocks()]
    return np.concatenate([to_numpy(part) for part in parts])


def attack_membership(forget: Values, test: Values, seed: int, n_splits: int = 5) -> Score:
    """Mean accuracy over the splits. Its error counts each row that was held out once: `0.5 / sqrt(rows)`."""
    fewer = min(len(forget), len(test))
    if fewer < FEWEST_ROWS:
        return Score.meaningless(
            f"{len(forget)} forget and {len(test)} test rows: at least {FEWEST_ROWS} of both are needed"
        )
    from sklearn.linear_model import LogisticRegression  # here: whoever only scores need not wait for it
    from sklearn.model_selection import StratifiedShuffleSplit

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


def relearn_time(weights: Array, case: Case, seed: int) -> Score:
    """RT, optimiser iterations on the forget set until its accuracy is back; flagged where it never left.

    Adam with learning rate 1e-3 on batches of at most 512 forget rows, on the training objective, from the model's
    weights; the accuracy on the whole forget set is looked at after every iteration. Back means within 0.5 points of
    the ORIGINAL model's, or above. A small count says that the forgotten rows left a trace, or that they were easy
    anyway: compare with `Retrain`.
    """
    rows, start = case.rows["forget"], accuracy(case.weights, case.rows["forget"])

    def gradient_at(at: Array, batch: Array) -> Array:
        return case.objective.gradient(at, Rows(rows.features[batch], rows.labels[batch]))

    accuracy_at = functools.partial(accuracy, rows=rows)
    goal = start - WITHIN
    return relearn(weights, len(rows), goal=goal, accuracy_at=accuracy_at, gradient_at=gradient_at, seed=seed)


def relearn(
    weights: Array,
    n_rows: int,
    *,
    goal: float,
    accuracy_at: Callable[[Array], float],
    gradient_at: Callable[[Array, Array], Array],
    seed: int,
) -> Score:
    """Relearn time of any model; `gradient_at` is of the training objective on forget rows, given by number."""
    if n_rows < FEWEST_ROWS:
        return Score.meaningless(f"{n_rows} forget rows: within 0.5 points means nothing below {FEWEST_ROWS}")
    if accuracy_at(weights) >= goal:
        return Score(0.0, None, ("the forget accuracy never left",))
    at, mean, square, done = copy(weights), zeros(weights), zeros(weights), 0
    generator, root = np.random.default_rng(seed), namespace(weights).sqrt
    while done < MOST_ITERATIONS:
        order = put(generator.permutation(n_rows), weights)
        for start in range(0, n_rows, BATCH):
            gradient = gradient_at(at, order[start : start + BATCH])
            done += 1
            mean += (1.0 - MEMORY[0]) * (gradient - mean)
            square += (1.0 - MEMORY[1]) * (gradient * gradient - square)
            step = LEARNING_RATE / (1.0 - MEMORY[0] ** done)
            at = at - step * mean / (root(square) / math.sqrt(1.0 - MEMORY[1] ** done) + LEAST)
            if accuracy_at(at) >= goal:
                return Score(float(done))
    return Score.meaningless(f"the forget accuracy was not back after {MOST_ITERATIONS} iterations")


# Any model on labelled rows -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClassScore:
    """How many rows a class has, and what share of them the model gets right."""

    label: Label
    rows: int
    right: float


@dataclass(frozen=True)
class ModelScores:
    """`accuracy` is the share of rows that are right, `balanced` its mean over the classes that occur.

    `majority` is what always naming the most frequent class of these rows would get right; balanced, that is one over
    the number of classes that occur.
    """

    rows: int
    accuracy: float
    balanced: float
    majority: float
    classes: tuple[ClassScore, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"classes": [asdict(each) for each in self.classes]}


def score_model(model: LinearModel, rows: tuple[Any, Any]) -> ModelScores:
    """The scores of a model, on (features, labels) as they come."""
    name = "the rows to score"
    given = match_record(rows, model.record, model.n_features, name)
    if not is_labelled(given):
        raise DataError(f"{name}: no labels", "answers are compared with them", "Give rows with their labels.")
    own = to_numpy(encode(as_labels(given[1], len(given[1]), name), model.classes, name))
    right = model.predict(given[0]) == np.asarray(model.classes)[own]
    counts, hits = (np.bincount(part, minlength=len(model.classes)) for part in (own, own[right]))
    classes = tuple(
        ClassScore(model.classes[place], int(counts[place]), float(hits[place] / counts[place]))
        for place in np.flatnonzero(counts)
    )
    balanced = float(np.mean([each.right for each in classes]))
    return ModelScores(len(own), float(right.mean()), balanced, float(counts.max() / len(own)), classes)


@dataclass(frozen=True)
class Fit:
    """How a model fits the rows it was trained on, and rows that were scaled: a look before the source goes."""

    scores: ModelScores
    scaling: Scaling

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is wrong with such a model, if anything."""
        warnings = [scaling_words(self.scaling, "the source")] if self.scaling.share > FEW else []
        if self.scores.accuracy <= self.scores.majority:
            warnings.append("the model is no better than always naming the most frequent class")
        never = [repr(each.label) for each in self.scores.classes if each.right == 0.0]
        if never:
            warnings.append(f"no row of class {', '.join(never[:12])} is classified right")
        return tuple(warnings)

    def to_json(self) -> dict[str, Any]:
        by_class = [{"class": each.label, "accuracy": each.right} for each in self.scores.classes]
        known = {"accuracy": self.scores.accuracy, "majority": self.scores.majority, "by_class": by_class}
        return known | {"scaling": asdict(self.scaling), "warnings": list(self.warnings)}


def describe_fit(model: LinearModel, source: Labelled) -> Fit:
    """How the model fits these rows; it must have a record."""
    assert model.record is not None
    given = match_record(source, model.record, model.n_features, "the source")
    norms = row_norms(as_features(given[0], "the source"))
    return Fit(score_model(model, given), scaling_of(norms, model.record.max_norm))
