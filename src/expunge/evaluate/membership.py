"""MIA, the paper's membership inference attack: can forget rows be told from test rows by their loss?

As many forget as test rows; a logistic regression on the loss alone, trained on 90 % and scored on 10 % of them in
stratified shuffled splits. 50 % means that it cannot. One threshold for everybody: it understates what an attacker can
do about one person (docs/evaluation.md); the likelihood-ratio attack and the audit do not.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedShuffleSplit
from torch import Tensor

from expunge.evaluate.case import Case
from expunge.evaluate.score import Score
from expunge.heads import LinearHead, Rows

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
