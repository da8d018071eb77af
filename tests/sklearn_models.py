"""Ten scikit-learn models as people write them, on small generated data, with what a refit of each would be."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import (
    LogisticRegression,
    LogisticRegressionCV,
    RidgeClassifier,
    RidgeClassifierCV,
    SGDClassifier,
)
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from expunge.deposit import forecast
from expunge.deposit.evidence import DepositEvidence
from expunge.deposit.file import Deposit
from expunge.door import ask
from expunge.request.promise import Promise
from expunge.sklearn import deposit
from expunge.sklearn.deletion import FORGET, _given
from expunge.sklearn.objectives import read_objective
from expunge.sklearn.pipelines import split_pipeline

N, GONE = 400, 5
EXACT = {"tol": 1e-10, "max_iter": 100_000}


def numbers(classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of numbers with labels as pandas holds text."""
    generator = np.random.default_rng(classes)
    features = generator.normal(size=(N, 4)) * np.array([1.0, 2.0, 0.5, 1.0]) + np.array([0.0, 3.0, 0.0, -1.0])
    scores = (features - features.mean(axis=0)) @ generator.normal(size=(4, classes)) + np.linspace(0, 2, classes)
    drawn = (scores + generator.gumbel(size=(N, classes))).argmax(axis=1)
    return features, np.array(["clerk", "cook", "none"], dtype=object)[drawn]


def people() -> tuple[pd.DataFrame, pd.Series]:
    """A frame with a category and a large column, and a Series of text labels."""
    generator = np.random.default_rng(7)
    frame = pd.DataFrame(
        {
            "age": generator.integers(18, 80, N),
            "income": generator.lognormal(10.0, 1.0, N),
            "job": generator.choice(["clerk", "cook", "none"], N),
        }
    )
    chance = 1.0 / (1.0 + np.exp(-(frame["age"] - 45) / 15 - (frame["job"] == "clerk")))
    return frame, pd.Series(np.where(generator.random(N) < chance, "good", "bad"), dtype=object)


def texts() -> tuple[list[str], list[str]]:
    """Documents of twelve words, and what they are about."""
    generator = np.random.default_rng(8)
    words = np.array(["loan", "bank", "river", "money", "fish", "boat", "rate", "water", "bond", "tide"])
    about = generator.integers(0, 2, N)
    documents = [" ".join(generator.choice(words[:7] if money else words[3:], 12)) for money in about]
    return documents, ["finance" if money else "nature" for money in about]


@dataclass(frozen=True)
class Case:
    """A model, its rows, and the refit of its last step on prepared rows with weights of rows."""

    model: Any
    rows: Callable[[], tuple[Any, Any]]
    refit: Callable[[Any, int], Any]


def logistic(final: Any, n: int) -> Any:
    chosen = final.C_[0] if isinstance(final, LogisticRegressionCV) else final.C
    return LogisticRegression(C=float(chosen), **EXACT)


CASES = {
    "defaults": Case(LogisticRegression(), lambda: numbers(2), logistic),
    "string labels in a pipeline": Case(
        make_pipeline(StandardScaler(), LogisticRegression(C=0.5)), lambda: numbers(2), logistic
    ),
    "balanced": Case(LogisticRegression(class_weight="balanced"), lambda: numbers(2), logistic),
    "three classes, balanced": Case(
        make_pipeline(StandardScaler(), LogisticRegression(class_weight="balanced")), lambda: numbers(3), logistic
    ),
    "one against the rest": Case(
        OneVsRestClassifier(LogisticRegression()),
        lambda: numbers(3),
        lambda final, n: OneVsRestClassifier(LogisticRegression(**EXACT)),
    ),
    "cross-validation": Case(
        make_pipeline(StandardScaler(), LogisticRegressionCV(Cs=3, cv=3)), lambda: numbers(3), logistic
    ),
    "ridge": Case(RidgeClassifierCV(), lambda: numbers(3), lambda final, n: RidgeClassifier(alpha=final.alpha_)),
    "descent": Case(
        make_pipeline(StandardScaler(), SGDClassifier(loss="log_loss", alpha=0.01, class_weight="balanced", random_state=0)),
        lambda: numbers(2),
        lambda final, n: LogisticRegression(C=1.0 / (final.alpha * n), **EXACT),
    ),
    "columns": Case(
        make_pipeline(
            ColumnTransformer([("n", StandardScaler(), ["age", "income"]), ("c", OneHotEncoder(), ["job"])]),
            LogisticRegression(class_weight={"good": 1.0, "bad": 3.0}),
        ),
        people,
        logistic,
    ),
    "text": Case(make_pipeline(TfidfVectorizer(), LogisticRegression()), texts, logistic),
}  # fmt: skip


@functools.cache
def fitted(name: str) -> tuple[Any, Deposit]:
    """The model and its deposit; two groups are rehearsed of a size, which is enough."""
    case = CASES[name]
    with warnings.catch_warnings(), patch.object(forecast, "GROUPS", ((10**9, 2),)):
        warnings.simplefilter("ignore")  # of scikit-learn's, on defaults that will change
        model = case.model.fit(*case.rows())
        return model, deposit(model, *case.rows(), seed=1)


def some(rows: Any, part: slice) -> Any:
    return rows.iloc[part] if hasattr(rows, "iloc") else rows[part]


def refit_matrix(name: str) -> tuple[np.ndarray, Any]:
    """Weights of the refit on what is retained, with C, preparation and weights of classes as they were; and itself."""
    model, _ = fitted(name)
    X, y = CASES[name].rows()
    parts = split_pipeline(model)
    rows, labels = parts.transform(X, "the source")[GONE:], np.asarray(y)[GONE:]
    weights = read_objective(parts.final).class_weights(np.asarray(y))
    again = CASES[name].refit(parts.final, len(rows))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if weights is None:
            again.fit(rows, labels)
        else:
            places = np.searchsorted(parts.final.classes_, labels)
            again.fit(rows, labels, sample_weight=weights[places])
    return read_objective(again).matrix, again


def away(name: str) -> float:
    """How far the refit is from the updated weights, before noise, in the norm of the noise's shape."""
    model, kept = fitted(name)
    X, y = CASES[name].rows()
    given = _given(split_pipeline(model), (some(X, slice(GONE)), some(y, slice(GONE))), kept, FORGET)
    request = ask(None, given, None, Promise(1.0, 1e-3), deposit=kept)
    evidence = DepositEvidence.gather(request)
    updated = kept.anchor + evidence.step().update
    away = kept.setting.centred(updated - refit_matrix(name)[0])
    return evidence.deposit.length(away)
