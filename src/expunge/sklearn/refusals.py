"""What scikit-learn has and no certificate speaks of: each named, with the nearest thing that can be taken."""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType
from typing import Any

import numpy as np

from expunge.errors import ModelError

Estimator = Any  # of scikit-learn, which has no types

TAKEN = (
    "LogisticRegression, LogisticRegressionCV, RidgeClassifier, RidgeClassifierCV, SGDClassifier(loss='log_loss'), a "
    "OneVsRestClassifier of one of these, or a Pipeline that ends in one"
)
LINEAR = "Fit a LogisticRegression on the same columns"
INSTEAD = {  # by the name of the class, from the first that a class descends from
    "SVC": f"{LINEAR}; for a kernel, put RBFSampler or PolynomialFeatures before it.",
    "NuSVC": f"{LINEAR}; for a kernel, put RBFSampler or PolynomialFeatures before it.",
    "LinearSVC": f"{LINEAR}: its loss has no kinks, and its C means the same.",
    "Perceptron": "Fit SGDClassifier(loss='log_loss') or a LogisticRegression.",
    "PassiveAggressiveClassifier": "Fit SGDClassifier(loss='log_loss') or a LogisticRegression.",
    "BaseDecisionTree": f"{LINEAR}, cut into bins by KBinsDiscretizer where thresholds matter.",
    "BaseForest": f"{LINEAR}, cut into bins by KBinsDiscretizer where thresholds matter.",
    "BaseGradientBoosting": f"{LINEAR}, cut into bins by KBinsDiscretizer where thresholds matter.",
    "BaseHistGradientBoosting": f"{LINEAR}, cut into bins by KBinsDiscretizer where thresholds matter.",
    "BaseMultilayerPerceptron": "Take the last layer: a LogisticRegression on what the layers before it make of rows.",
    "KNeighborsMixin": f"{LINEAR}: neighbours are rows of the source themselves.",
    "_BaseNB": f"{LINEAR}.",
    "LinearDiscriminantAnalysis": f"Fit a RidgeClassifier or: {LINEAR[0].lower()}{LINEAR[1:]}.",
    "QuadraticDiscriminantAnalysis": f"{LINEAR}, with PolynomialFeatures(2) before it.",
    "GaussianProcessClassifier": f"{LINEAR}, with RBFSampler before it.",
    "CalibratedClassifierCV": "Give a LogisticRegression itself, whose probabilities need no calibration.",
    "BaseSearchCV": "Give what it chose: search.best_estimator_.",
    "OneVsOneClassifier": "Fit a OneVsRestClassifier of the same estimator.",
    "OutputCodeClassifier": "Fit a OneVsRestClassifier of the same estimator.",
    "_MultiOutputEstimator": "Fit one classifier a label, and keep a deposit of each.",
    "_BaseChain": "Fit one classifier a label, and keep a deposit of each.",
    "_BaseHeterogeneousEnsemble": "Give one of its members that can be taken.",
    "RegressorMixin": "Only classifiers are taken; cut the target into classes, or use a RidgeClassifier.",
}
KEEP_ROWS = {  # steps, or parts of steps, that hold rows of the source; by the name of the class or of an ancestor
    "KNNImputer": "SimpleImputer",
    "QuantileTransformer": "StandardScaler or RobustScaler",
    "Birch": "KMeans",
    "KernelCenterer": "StandardScaler",
    "KNeighborsMixin": "an estimator that keeps no rows",
    "RadiusNeighborsMixin": "an estimator that keeps no rows",
    "BaseLibSVM": "an estimator that keeps no rows, for example LinearSVC",
    "GaussianProcessRegressor": "BayesianRidge",
    "GaussianProcessClassifier": "LogisticRegression",
    "KernelRidge": "BayesianRidge",
    "KNeighborsTransformer": "a transformer that keeps no rows",
    "RadiusNeighborsTransformer": "a transformer that keeps no rows",
    "KernelPCA": "RBFSampler with PCA",
    "Nystroem": "RBFSampler",
    "Isomap": "PCA",
    "LocallyLinearEmbedding": "PCA",
}
OTHERWISE = {  # steps whose fit_transform makes something else of a row than their transform
    "TargetEncoder": "OneHotEncoder or OrdinalEncoder",
    "NMF": "TruncatedSVD",
    "MiniBatchNMF": "TruncatedSVD",
    "DictionaryLearning": "TruncatedSVD",
    "MiniBatchDictionaryLearning": "TruncatedSVD",
}


def not_taken(estimator: Estimator) -> ModelError:
    """The error for an estimator that no objective of ours describes."""
    ancestors = [kind.__name__ for kind in type(estimator).__mro__]
    remedy = next((INSTEAD[name] for name in ancestors if name in INSTEAD), f"{LINEAR}, or use expunge.LinearModel.")
    return ModelError(f"a {type(estimator).__name__}", f"{TAKEN} can be taken", remedy)


def every_step(step: Any) -> Iterator[Any]:
    """A transformer and all that it is made of."""
    yield step
    if hasattr(step, "get_params") and not isinstance(step, type):
        for part in step.get_params(deep=True).values():
            if hasattr(part, "get_params") and not isinstance(part, type):
                yield part


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


def require_steps(steps: list[tuple[str, Any]], learnt_elsewhere: bool) -> None:
    """Refuse steps that change which rows there are, prepare training rows otherwise, or hold rows of the source."""
    for name, step in steps:
        for part in every_step(step):
            kind, ancestors = type(part).__name__, [each.__name__ for each in type(part).__mro__]
            holds, otherwise = (next((a for a in ancestors if a in names), None) for names in (KEEP_ROWS, OTHERWISE))
            if hasattr(part, "fit_resample"):
                raise ModelError(
                    f"step {name!r} ({kind}) draws or makes rows",
                    "the model must have been trained on the rows that are given",
                    "Leave it out and fit with class_weight='balanced'.",
                )
            if otherwise is not None:
                raise ModelError(
                    f"step {name!r} ({kind}) prepares the rows of training otherwise than later ones",
                    "a row must come out as it was trained on",
                    f"Use {OTHERWISE[otherwise]}.",
                )
            if holds is not None and not learnt_elsewhere:
                raise ModelError(
                    f"step {name!r} ({kind}) holds rows that it was fitted on",
                    "a row that is forgotten would still be there",
                    f"Use {KEEP_ROWS[holds]}; or fit it on rows that are not the source's, and say preparation='learnt "
                    "elsewhere'.",
                )
