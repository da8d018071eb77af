"""RT, relearn time: optimiser iterations on the forget set until its accuracy is back.

Adam with learning rate 1e-3 on batches of at most 512 forget rows, on the training objective, from the model's weights; the
accuracy on the whole forget set is looked at after every iteration. Back means within 0.5 points of the ORIGINAL model's, or
above. A small count says that the forgotten rows left a trace, or that they were easy anyway: compare with `Retrain`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from expunge.evaluate.accuracy import accuracy
from expunge.evaluate.case import Case
from expunge.evaluate.membership import FEWEST_ROWS
from expunge.evaluate.score import Score
from expunge.objectives import Rows

WITHIN = 0.005
LEARNING_RATE = 1e-3
BATCH = 512
MOST_ITERATIONS = 1000


def relearn_time(weights: Tensor, case: Case, seed: int) -> Score:
    """Iterations until the forget accuracy is back; flagged where it never left, or does not come back."""
    rows = case.rows["forget"]
    if len(rows) < FEWEST_ROWS:
        return Score.meaningless(f"{len(rows)} forget rows: within 0.5 points means nothing below {FEWEST_ROWS}")
    goal = accuracy(case.weights, rows) - WITHIN
    if accuracy(weights, rows) >= goal:
        return Score(0.0, None, ("the forget accuracy never left",))
    parameter = torch.nn.Parameter(weights.clone())
    optimiser = torch.optim.Adam([parameter], lr=LEARNING_RATE)
    generator = np.random.default_rng(seed)
    done = 0
    while done < MOST_ITERATIONS:
        order = torch.from_numpy(generator.permutation(len(rows)))
        for batch in torch.split(order, BATCH):
            parameter.grad = case.objective.gradient(parameter.detach(), Rows(rows.features[batch], rows.labels[batch]))
            optimiser.step()
            done += 1
            if accuracy(parameter.detach(), rows) >= goal:
                return Score(float(done))
    return Score.meaningless(f"the forget accuracy was not back after {MOST_ITERATIONS} iterations")
