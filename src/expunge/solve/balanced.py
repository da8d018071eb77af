"""Updates that are held back by a pull toward 0, and which of them to take."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch

from expunge.runtime.progress import Progress, silent
from expunge.solve.newton import Equation, newton_step
from expunge.solve.outcome import Step

MAX_PULLS = 16


def no_step(like: Step) -> Step:
    """Staying where one is: all of the equation is left."""
    return replace(like, update=torch.zeros_like(like.update), residual=like.residual_at_start, pull=math.inf)


def balanced_step(
    equation: Equation, bound_of: Callable[[Step], float], first_pull: float, progress: Progress = silent
) -> Step:
    """The update with the smallest bound found among those held back by a pull toward 0.

    A longer update leaves less of the forgotten gradient (solver term) but relies more on the surrogate (surrogate and
    sampling terms). Pulls grow fourfold; the search ends when the bound has risen twice, or is no better than
    for no update at all. Ranking needs no guarantee: the bound of the update chosen is computed anew afterwards.
    """
    best = newton_step(equation, single=False, progress=progress)
    none = no_step(best)
    smallest, rises, pull = bound_of(best), 0, first_pull
    for tried in range(MAX_PULLS):
        progress("Balancing the step", tried, None)
        step = newton_step(equation, single=False, pull=pull)
        bound = bound_of(step)
        rises = rises + 1 if bound >= smallest else 0
        if bound < smallest:
            best, smallest = step, bound
        if rises == 2:
            break
        pull *= 4.0
    return none if bound_of(none) <= smallest else best
