"""RT, relearn time: optimiser iterations on the forget set until its accuracy is back.

Adam with learning rate 1e-3 on batches of at most 512 forget rows, on the training objective, from the model's weights;
the accuracy on the whole forget set is looked at after every iteration. Back means within 0.5 points of the ORIGINAL
model's, or above. A small count says that the forgotten rows left a trace, or that they were easy anyway: compare with
`Retrain`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from expunge.evaluate.accuracy import accuracy
from expunge.evaluate.case import Case
from expunge.evaluate.membership import FEWEST_ROWS
from expunge.evaluate.score import Score
from expunge.heads import Rows

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
