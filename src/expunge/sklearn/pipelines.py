"""A Pipeline taken apart into what prepares rows and the classifier at its end, and put together with another one."""

from __future__ import annotations

from copy import copy, deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.pipeline import Pipeline

from expunge.errors import DataError, ModelError
from expunge.record import CLASS_WEIGHT, LEARNT_COARSE, LEARNT_ELSEWHERE, LEARNT_FROM_SOURCE
from expunge.runtime.checks import choice
from expunge.sklearn.refusals import Estimator, require_steps
from expunge.sklearn.rows import by_name, dense
from expunge.sklearn.steps import NO_STEP, fitted_steps, has_coarse_weights, has_learnt, is_coarse, strip


@dataclass(frozen=True)
class Parts:
    """`steps` prepare rows, one after the other; `final` is the classifier, and `names` the columns it was given."""

    steps: tuple[tuple[str, Any], ...]
    final: Estimator
    names: tuple[str, ...] | None

    def prepared(self, values: Any, name: str) -> NDArray[np.float64]:
        """Rows as the classifier sees them."""
        values = by_name(values, self.names, name)
        for step, transformer in self.steps:
            try:
                values = transformer.transform(values)
            except (ValueError, TypeError, KeyError) as error:
                raise DataError(
                    f"{name}: step {step!r} ({type(transformer).__name__}) does not take these rows: {error}",
                    "rows must be as the pipeline was fitted on them",
                    "Give the columns of then, before any preparation.",
                ) from error
        return dense(values, name)

    @property
    def learnt(self) -> tuple[Any, ...]:
        """The transformers that keep something of the rows which they were fitted on."""
        return tuple(part for _, step in self.steps for part in fitted_steps(step) if has_learnt(part))

    def preparation(self, said: str | None, *, chosen: bool = False, balanced: bool = False) -> str | None:
        """Where it was learnt, and by which steps exactly: from the source, unless it is said to be from elsewhere.

        None where nothing was. A penalty that was `chosen` by cross-validation was learnt from the source too, and so
        were `balanced` weights of classes: coarsely, where `coarsen` balanced them.
        """
        if said is not None:
            choice(said, (LEARNT_FROM_SOURCE, LEARNT_ELSEWHERE), "preparation")
        learnt = () if said == LEARNT_ELSEWHERE else self.learnt
        exact = [type(part).__name__ for part in learnt if not is_coarse(part)]
        if chosen:
            exact.append(type(getattr(self.final, "estimator", self.final)).__name__)
        if balanced:
            exact.append(CLASS_WEIGHT)
        if exact:
            return f"{LEARNT_FROM_SOURCE}: {', '.join(dict.fromkeys(exact))}"
        if has_coarse_weights(self.final):
            return f"{LEARNT_COARSE}: {CLASS_WEIGHT}"
        if said == LEARNT_ELSEWHERE and self.learnt:
            return LEARNT_ELSEWHERE
        return LEARNT_COARSE if learnt else None


def taken_apart(estimator: Estimator, *, learnt_elsewhere: bool = False) -> Parts:
    """The parts of a Pipeline, or of a classifier alone; refuses steps that no certificate can go with."""
    steps: list[tuple[str, Any]] = []
    names, final = getattr(estimator, "feature_names_in_", None), estimator
    while isinstance(final, Pipeline):
        steps += [step for step in final.steps[:-1] if step[1] not in NO_STEP]
        final = final.steps[-1][1]
    if final in NO_STEP or (hasattr(final, "transform") and not hasattr(final, "predict")):
        raise ModelError("a Pipeline that ends in no classifier", "the last step must be one", "Add a classifier.")
    require_steps(steps, learnt_elsewhere)
    return Parts(tuple(steps), final, None if names is None else tuple(str(name) for name in names))


def put_together(estimator: Estimator, final: Estimator) -> Estimator:
    """A Pipeline like this one that ends in `final`; its other steps are copies, of what they need to prepare rows."""
    if not isinstance(estimator, Pipeline):
        return final
    whole = copy(estimator)
    name, last = estimator.steps[-1]
    before = deepcopy(estimator.steps[:-1])
    for _, step in before:
        strip(step)
    whole.steps = [*before, (name, put_together(last, final))]
    return whole
