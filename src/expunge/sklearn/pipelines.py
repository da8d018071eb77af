"""A Pipeline taken apart into what prepares rows and the classifier at its end, and put together with another one."""

from __future__ import annotations

from copy import copy, deepcopy
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags

from expunge.errors import DataError, ModelError
from expunge.record import LEARNT_FROM_SOURCE, PREPARATION
from expunge.runtime.checks import choice
from expunge.sklearn.refusals import Estimator, every_step, require_steps
from expunge.sklearn.rows import by_name, dense

NO_STEP = (None, "passthrough")


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
    def learnt(self) -> bool:
        """Whether preparing rows had to be learnt from some."""
        return any(
            get_tags(transformer).requires_fit or any(map(may_have_learnt, every_step(transformer)))
            for _, transformer in self.steps
        )

    def preparation(self, said: str | None, chosen: bool) -> str | None:
        """Where it was learnt: from the source, unless it is said to be from elsewhere; None where there is none.

        A penalty that was `chosen` by cross-validation was learnt from the source too.
        """
        if said is not None:
            choice(said, PREPARATION, "preparation")
        if chosen:
            return LEARNT_FROM_SOURCE
        return (said or LEARNT_FROM_SOURCE) if self.learnt else None


def may_have_learnt(step: Any) -> bool:
    """Whether a step that needs no fit calls a function which holds something: an object's own, or one with values.

    A FunctionTransformer of a fitted scaler's `transform` was learnt by whoever fitted that.
    """
    functions = [getattr(step, name, None) for name in ("func", "tokenizer", "preprocessor", "analyzer")]
    given = getattr(step, "kw_args", None)
    return bool(given) or any(callable(each) and not _holds_nothing(each) for each in functions)


def _holds_nothing(function: Any) -> bool:
    if isinstance(function, np.ufunc):
        return True
    own = isinstance(function, FunctionType) and not function.__closure__
    return own and not function.__defaults__ and not function.__kwdefaults__


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
    """A Pipeline like this one that ends in `final`; its other steps are copies."""
    if not isinstance(estimator, Pipeline):
        return final
    whole = copy(estimator)
    name, last = estimator.steps[-1]
    whole.steps = [*deepcopy(estimator.steps[:-1]), (name, put_together(last, final))]
    return whole
