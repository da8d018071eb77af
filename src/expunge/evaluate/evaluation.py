"""Every metric on every method, for one seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from expunge.evaluate.accuracy import accuracies
from expunge.evaluate.case import Case
from expunge.evaluate.confidence import confidences
from expunge.evaluate.forget_score import forget_score
from expunge.evaluate.likelihood_ratio import likelihood_ratio
from expunge.evaluate.membership import FEWEST_ROWS, membership
from expunge.evaluate.methods import Method, Outcome, UnlearnMinus, UnlearnPlus
from expunge.evaluate.relearn import relearn_time
from expunge.evaluate.score import Score
from expunge.noise import Noise
from expunge.runtime.progress import Progress, silent

N_MODELS = 512
METRICS = ("train", "test", "retain", "forget", "mia", "rt", "fs1", "fs2", "lira", "lira_worst", "sigma", "distance")
PUBLISHED_ONCE = "one published model: no more can be drawn from where it came from"


@dataclass(frozen=True)
class MethodScores:
    """One line of the table, for one seed."""

    method: str
    scores: dict[str, Score]
    notes: tuple[str, ...] = ()


def evaluate(
    case: Case, methods: Sequence[Method], seed: int, *, n_models: int = N_MODELS, progress: Progress = silent
) -> list[MethodScores]:
    """All metrics of METRICS for each method. `n_models` 0 leaves out the forget score and the likelihood ratio.

    `fs1` compares a method's models with retrained ones under the method's own noise, `fs2` under that of Unlearn (+).
    `Retrain` and other methods without noise get that of Unlearn (+); for `Retrain` both sides then have one
    distribution, so its score is the ceiling. `sigma` is the noise, `distance` that of the weights before noise from
    the retrained ones.
    """
    outcomes = []
    for number, method in enumerate(methods):
        progress("Methods", number, len(methods))
        outcomes.append(method.run(case))
    plus = [outcome.noise for method, outcome in zip(methods, outcomes, strict=True) if isinstance(method, UnlearnPlus)]
    rows = []
    for number, (method, outcome) in enumerate(zip(methods, outcomes, strict=True)):
        progress("Metrics", number, len(methods))
        generator = np.random.default_rng([seed, number])
        weights = outcome.published(generator)
        scores = accuracies(weights, case)
        scores["mia"] = membership(weights, case, seed)
        scores["rt"] = relearn_time(weights, case, seed)
        if n_models:
            scores |= _model_scores(case, method, outcome, plus[0] if plus else None, n_models, generator)
        scores["sigma"] = Score(outcome.sigma) if outcome.drawn else Score.meaningless(PUBLISHED_ONCE)
        scores["distance"] = Score(float((outcome.updated - case.retrained).norm()))
        rows.append(MethodScores(method.name, scores, outcome.notes))
    progress("Metrics", len(methods), len(methods))
    return rows


def _model_scores(
    case: Case, method: Method, outcome: Outcome, plus: Noise | None, n_models: int, generator: np.random.Generator
) -> dict[str, Score]:
    """Metrics over many models: forget score and likelihood ratio."""
    names = ("fs1", "lira", "lira_worst")
    noise = outcome.noise or plus
    if not outcome.drawn:
        return dict.fromkeys(names, Score.meaningless(PUBLISHED_ONCE))
    if noise is None:
        return dict.fromkeys(names, Score.meaningless("no noise to compare under; evaluate Unlearn (+) beside it"))
    forget = case.rows["forget"]
    flags = () if len(forget) >= FEWEST_ROWS else (f"only {len(forget)} forget rows",)
    retrained = Outcome(case.retrained, None)

    def both(under: Noise) -> tuple[np.ndarray[tuple[int, int], np.dtype[np.float64]], ...]:
        return tuple(confidences(one.ensemble(n_models, generator, under), forget) for one in (outcome, retrained))

    first = both(noise)
    scores = {"fs1": forget_score(*first).score}
    ratio = likelihood_ratio(*first)
    if isinstance(ratio, Score):
        scores |= {"lira": ratio, "lira_worst": ratio}
    else:
        scores |= {"lira": ratio.mean, "lira_worst": Score(ratio.worst, ratio.mean.error)}
    if isinstance(method, UnlearnMinus) and plus is not None:
        scores["fs2"] = forget_score(*both(plus)).score
    return {name: Score(score.value, score.error, score.flags + flags) for name, score in scores.items()}
