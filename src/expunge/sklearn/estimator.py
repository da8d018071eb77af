"""A classifier that can forget: a deposit is made when it is fitted, and rows leave it later, with a certificate."""

from __future__ import annotations

import warnings
from typing import Any, Self

from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.linear_model import LogisticRegression
from sklearn.utils import check_random_state, get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from expunge.errors import ModelError
from expunge.sklearn.deletion import NotAtOptimum, at_optimum, make, require_supported, unlearn
from expunge.sklearn.objectives import Estimator
from expunge.sklearn.pipelines import coarsen


def _has(name: str) -> Any:
    """Whether the estimator inside has this method."""

    def check(self: ForgettingClassifier) -> bool:
        inside = getattr(self, "estimator_", None) or self._inside()
        getattr(inside, name)
        return True

    return available_if(check)


class NoDeposit(UserWarning):
    """An estimator was fitted on rows of which no deposit can be made."""


class ForgettingClassifier(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Any classifier or Pipeline that `expunge.sklearn.deposit` supports, fitted to its optimum, with its deposit.

    Parameters
    ----------
    estimator
        What is fitted; None for `LogisticRegression()`.
    random_state
        A seed for the deposit's key, the noise in its weights and the groups of rows that it is rehearsed on, for
        tests alone: with it that noise hides nothing. None for others at each fit. The noise of published models is
        never drawn from it.
    coarse
        Fit the steps of a Pipeline that can be so coarsely (`coarsen`), since they are in what is handed out; else
        exactly.

    Attributes
    ----------
    estimator_
        The fitted estimator, at the optimum of its objective; after `forget` with the published weights, and with the
        steps as they were fitted: where they are not coarse, the statement says what can be read off them.
    deposit_
        The deposit of the rows; PRIVATE, and with it a pickle of this object. None, after a warning (`NoDeposit`),
        where none can be made; that few of them could leave is warned of too (`ServesFew`).
    certificate_, statement_
        Of the last deletion; the statement may be handed out.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.normal(size=(200, 3)), rng.choice(["no", "yes"], 200)
    >>> model = ForgettingClassifier().fit(X, y)
    >>> model.forget(X[:1], y[:1], epsilon=1.0, delta=1e-3).certificate_.status
    'proven'
    """

    def __init__(self, estimator: Estimator = None, random_state: Any = None, coarse: bool = True) -> None:
        self.estimator = estimator
        self.random_state = random_state
        self.coarse = coarse

    def _inside(self) -> Estimator:
        return LogisticRegression() if self.estimator is None else self.estimator

    def _seed(self) -> int | None:
        if self.random_state is None:
            return None
        return int(check_random_state(self.random_state).randint(2**31))

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to the optimum, and make a deposit of these rows."""
        inside = self._inside()
        fitted = coarsen(inside, X, y) if self.coarse else clone(inside).fit(X, y)
        require_supported(fitted)
        self.deposit_, self._reason = None, ModelError("not fitted", "a deposit is made by fit", "Fit it.")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NotAtOptimum)  # it is moved there
                made = make(fitted, X, y, seed=self._seed())
            self.deposit_, fitted = made.deposit, at_optimum(fitted, made.optimum)
        except ModelError as error:
            self._reason = error
            warnings.warn(f"nobody can be forgotten: {error}", NoDeposit, stacklevel=2)
        self.estimator_, self.classes_ = fitted, fitted.classes_
        for name in ("n_features_in_", "feature_names_in_"):
            self.__dict__.pop(name, None)
            if hasattr(fitted, name):
                setattr(self, name, getattr(fitted, name))
        for name in ("certificate_", "statement_"):
            self.__dict__.pop(name, None)
        return self

    def forget(self, X: Any, y: Any, *, epsilon: float, delta: float) -> Self:
        """Take these rows out, as they were given to `fit`; what is refused leaves everything as it was."""
        check_is_fitted(self, "estimator_")
        if self.deposit_ is None:
            raise self._reason
        made = unlearn(self.estimator_, (X, y), self.deposit_, epsilon=epsilon, delta=delta)
        self.estimator_, self.deposit_ = made.estimator, made.deposit
        self.certificate_, self.statement_ = made.certificate, made.statement
        return self

    def predict(self, X: Any) -> Any:
        """The class of each row."""
        check_is_fitted(self, "estimator_")
        return self.estimator_.predict(X)

    @_has("decision_function")  # type: ignore[untyped-decorator]
    def decision_function(self, X: Any) -> Any:
        """The scores of each row."""
        check_is_fitted(self, "estimator_")
        return self.estimator_.decision_function(X)

    @_has("predict_proba")  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Any:
        """The probabilities of the classes, for each row."""
        check_is_fitted(self, "estimator_")
        return self.estimator_.predict_proba(X)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inside = get_tags(self._inside())
        tags.input_tags, tags.classifier_tags = inside.input_tags, inside.classifier_tags
        return tags
