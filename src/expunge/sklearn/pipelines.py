"""A Pipeline taken apart into steps that prepare rows and the classifier at its end, and put together again.

Which steps learnt from rows, what they keep of these, and coarse ones in their place (`coarsen`).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from copy import copy, deepcopy
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Self

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import get_tags

from expunge.errors import DataError, ModelError
from expunge.record import CLASS_WEIGHT, LEARNT_COARSE, LEARNT_ELSEWHERE, LEARNT_FROM_SOURCE
from expunge.rows.columns import order_of
from expunge.rows.features import as_features, as_labels
from expunge.rows.preparation import FILLED, RARE, Coarse, require_rare, round_by_chance
from expunge.rows.tables import frame_names, is_frame
from expunge.runtime.arrays import Array, double, is_sparse, to_numpy
from expunge.runtime.values import choice
from expunge.sklearn.objectives import COARSE_MARK, Estimator

NO_STEP = (None, "passthrough", "drop")
ELSEWHERE = "fit it on rows that are not the source's, and say preparation='learnt elsewhere'."
HOLD_ROWS = (  # steps, or parts of steps, that hold rows of the source; by the name of the class or of an ancestor
    *("KNNImputer", "QuantileTransformer", "Birch", "KernelCenterer", "KNeighborsMixin", "RadiusNeighborsMixin"),
    *("BaseLibSVM", "GaussianProcessRegressor", "GaussianProcessClassifier", "KernelRidge", "KNeighborsTransformer"),
    *("RadiusNeighborsTransformer", "KernelPCA", "Nystroem", "Isomap", "LocallyLinearEmbedding"),
)
OTHERWISE = (  # steps whose fit_transform makes something else of a row than their transform
    *("TargetEncoder", "NMF", "MiniBatchNMF", "DictionaryLearning", "MiniBatchDictionaryLearning"),
)
SHAPES_ALONE = (  # fit looks at the shape of rows, or draws at random
    *("PolynomialFeatures", "RBFSampler", "SkewedChi2Sampler", "AdditiveChi2Sampler", "PolynomialCountSketch"),
    *("GaussianRandomProjection", "SparseRandomProjection", "Normalizer", "Binarizer", "HashingVectorizer"),
)
NOT_NEEDED = {  # of what a step has learnt, what it does without when it prepares rows; by the name of its class
    "StandardScaler": ("n_samples_seen_", "var_"),
    "MinMaxScaler": ("n_samples_seen_", "data_min_", "data_max_", "data_range_"),
    "MaxAbsScaler": ("n_samples_seen_", "max_abs_"),
    "PCA": ("n_samples_", "noise_variance_", "singular_values_", "explained_variance_ratio_"),
    "IncrementalPCA": ("n_samples_seen_", "var_", "noise_variance_", "singular_values_", "explained_variance_ratio_"),
    "TruncatedSVD": ("explained_variance_", "singular_values_", "explained_variance_ratio_"),
    "_BaseKMeans": ("labels_", "inertia_", "n_iter_", "n_steps_", "_counts"),
    "_PLS": ("x_scores_", "y_scores_"),
}
OWN = 50  # rows: of more, an array as long as the source has something of each


# Rows ---------------------------------------------------------------------------------------------------------------


def to_table(values: Any, name: str) -> Array:
    """Rows of float64; sparse ones stay so where few of their entries are stored."""
    if isinstance(values, np.ndarray) and values.dtype.kind == "O":
        try:
            values = values.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise DataError(
                f"{name}: features of dtype object ({error})",
                "numbers are needed where the classifier begins",
                "Put OneHotEncoder, or another step that makes numbers of them, before the classifier.",
            ) from error
    table = double(as_features(values, name, sparse=True))
    return table if is_sparse(table) else to_numpy(table)


def read_labels(values: Any, n_rows: int, name: str) -> NDArray[Any]:
    """Labels as whole numbers or text; of dtype object too, where all are of one kind."""
    array = np.asarray(values)
    if array.dtype.kind == "O" and all(isinstance(value, (int, np.integer, np.bool_)) for value in array.ravel()):
        array = array.astype(np.int64)
    return as_labels(array, n_rows, name)


# Pipelines ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SplitPipeline:
    """`steps` prepare rows, one after the other; `final` is the classifier, and `names` the columns it was given."""

    steps: tuple[tuple[str, Any], ...]
    final: Estimator
    names: tuple[str, ...] | None

    def transform(self, values: Any, name: str) -> Array:
        """Rows as the classifier sees them; the columns of a frame may be in any order."""
        names = self.names
        if names is not None and is_frame(values) and order_of(frame_names(values), names, name) is not None:
            values = values.select(list(names)) if hasattr(values, "column_names") else values[list(names)]
        for step, transformer in self.steps:
            try:
                values = transformer.transform(values)
            except (ValueError, TypeError, KeyError) as error:
                raise DataError(
                    f"{name}: step {step!r} ({type(transformer).__name__}) does not take these rows: {error}",
                    "rows must be as the pipeline was fitted on them",
                    "Give the columns of then, before any preparation.",
                ) from error
        return to_table(values, name)

    @property
    def learnt(self) -> tuple[Any, ...]:
        """The transformers that hold something of the rows which they were fitted on."""
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
        mark = getattr(self.final, COARSE_MARK, None)
        if mark is not None and mark == _digest(self.final.class_weight):
            return f"{LEARNT_COARSE}: {CLASS_WEIGHT}"
        if said == LEARNT_ELSEWHERE and self.learnt:
            return LEARNT_ELSEWHERE
        return LEARNT_COARSE if learnt else None


def split_pipeline(estimator: Estimator, *, learnt_elsewhere: bool = False) -> SplitPipeline:
    """Steps and classifier of a Pipeline, or a classifier alone; refuses steps that no certificate can go with."""
    steps: list[tuple[str, Any]] = []
    names, final = getattr(estimator, "feature_names_in_", None), estimator
    while isinstance(final, Pipeline):
        steps += [step for step in final.steps[:-1] if step[1] not in NO_STEP]
        final = final.steps[-1][1]
    if final in NO_STEP or (hasattr(final, "transform") and not hasattr(final, "predict")):
        raise ModelError("a Pipeline that ends in no classifier", "the last step must be one", "Add a classifier.")
    for name, step in steps:
        for part in _every_part(step):
            _require_usable(name, part, learnt_elsewhere)
    return SplitPipeline(tuple(steps), final, None if names is None else tuple(str(name) for name in names))


def _require_usable(name: str, step: Any, learnt_elsewhere: bool) -> None:
    """Refuse a step that draws rows, prepares training rows otherwise, or holds rows of the source."""
    named, ancestors = f"step {name!r} ({type(step).__name__})", {each.__name__ for each in type(step).__mro__}
    if hasattr(step, "fit_resample"):
        raise ModelError(
            f"{named} draws or makes rows",
            "the model must have been trained on the rows that are given",
            "Leave it out and fit with class_weight='balanced'.",
        )
    if ancestors & set(OTHERWISE):
        raise ModelError(
            f"{named} prepares the rows of training otherwise than later ones",
            "a row must come out as it was trained on",
            "Use OneHotEncoder or OrdinalEncoder; TruncatedSVD for a factorisation.",
        )
    if ancestors & set(HOLD_ROWS) and not learnt_elsewhere:
        raise ModelError(
            f"{named} holds rows that it was fitted on",
            "a row that is forgotten would still be there",
            f"Use a step that holds none (SimpleImputer, StandardScaler, RBFSampler, PCA, KMeans), or {ELSEWHERE}",
        )


def join_pipeline(estimator: Estimator, final: Estimator) -> Estimator:
    """A Pipeline like this one that ends in `final`; its other steps are copies, of what they need to prepare rows."""
    if not isinstance(estimator, Pipeline):
        return final
    whole = copy(estimator)
    name, last = estimator.steps[-1]
    before = deepcopy(estimator.steps[:-1])
    for _, step in before:
        strip(step)
    whole.steps = [*before, (name, join_pipeline(last, final))]
    return whole


# Steps ----------------------------------------------------------------------------------------------------------------


def _every_part(step: Any) -> Iterator[Any]:
    """A transformer and all that it is made of; a FrozenEstimator does not name the parts of what is in it."""
    parts = step.get_params(deep=True).values() if hasattr(step, "get_params") and not isinstance(step, type) else ()
    for part in (step, *(part for part in parts if hasattr(part, "get_params") and not isinstance(part, type))):
        yield part
        if isinstance(part, FrozenEstimator):
            yield from _every_part(part.estimator)


def fitted_steps(step: Any) -> Iterator[Any]:
    """The fitted transformers that a step is made of, down to those that are made of no others."""
    if isinstance(step, FrozenEstimator):
        children = [step.estimator]
    elif isinstance(step, Pipeline):
        children = [part for _, part in step.steps]
    elif isinstance(step, ColumnTransformer):
        children = [part for _, part, *_ in getattr(step, "transformers_", step.transformers)]
    elif isinstance(step, FeatureUnion):
        children = [part for _, part in step.transformer_list]
    else:
        yield from () if isinstance(step, str) or step is None else (step,)
        return
    for child in children:
        yield from fitted_steps(child)


def _holds_something(step: Any) -> bool:
    """Whether a step that needs no fit calls a function which holds something: an object's own, or one with values.

    A FunctionTransformer of a fitted scaler's `transform` was learnt by whoever fitted that.
    """
    functions = [getattr(step, name, None) for name in ("func", "tokenizer", "preprocessor", "analyzer")]
    for function in filter(callable, functions):
        own = isinstance(function, FunctionType) and not function.__closure__
        bare = own and not function.__defaults__ and not function.__kwdefaults__
        if not (bare or isinstance(function, np.ufunc)):
            return True
    return bool(getattr(step, "kw_args", None))


def has_learnt(step: Any) -> bool:
    """Whether a step holds anything that rows decided, as far as its class tells."""
    if any(map(_holds_something, _every_part(step))):
        return True
    shapes_alone = type(step).__module__.startswith("sklearn.") and type(step).__name__ in SHAPES_ALONE
    if shapes_alone and getattr(step, "gamma", None) != "scale":  # which is worked out from the rows
        return False
    return bool(get_tags(step).requires_fit)


def is_coarse(step: Any) -> bool:
    """Whether a step is as `coarsen` made it: fitted again, it is not."""
    mark = getattr(step, COARSE_MARK, None)
    return mark is not None and mark == _learnt_digest(step)


def _learnt_digest(step: Any) -> str:
    learnt = {name: value for name, value in vars(step).items() if name.endswith("_") and name != COARSE_MARK}
    return _digest([type(step).__name__, learnt, getattr(step, "idf_", None)])


def _digest(learnt: Any) -> str:
    """Digest of lists, numbers and words; what is equal is written alike. Of anything else the class alone counts."""

    def plain(value: Any) -> Any:
        return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else type(value).__name__

    return hashlib.sha256(json.dumps(learnt, sort_keys=True, default=plain).encode()).hexdigest()


def _not_needed(part: Any) -> set[str]:
    return {name for kind in type(part).__mro__ for name in NOT_NEEDED.get(kind.__name__, ())}


def strip(step: Any) -> None:
    """Take from a fitted step what it does without when it prepares rows, and what could be read off it."""
    for part in fitted_steps(step):
        for each in (part, getattr(part, "_scaler", None)):
            for name in _not_needed(each):
                vars(each).pop(name, None)


def require_nothing_of_each(steps: tuple[tuple[str, Any], ...], n_rows: int) -> None:
    """Refuse a step that has an array with an entry for each row of the source, other than those that are stripped."""
    if n_rows <= OWN:
        return
    for name, step in steps:
        for part in fitted_steps(step):
            for attribute, value in vars(part).items():
                an_array = isinstance(value, np.ndarray) or scipy.sparse.issparse(value)
                own = an_array and value.shape[:1] == (n_rows,) and n_rows != getattr(part, "n_features_in_", None)
                if own and attribute not in _not_needed(part):
                    raise ModelError(
                        f"step {name!r} ({type(part).__name__}) holds {attribute}, with something of each row",
                        "a row that is forgotten would still be there",
                        f"Use a step that keeps no rows, or {ELSEWHERE}",
                    )


# Coarse steps ---------------------------------------------------------------------------------------------------------


def coarsen(estimator: Estimator, X: Any, y: Any, *, rare: int = RARE) -> Estimator:
    """A Pipeline fitted anew on the source, with coarse steps where there is a coarse form of them.

    `StandardScaler` and `SimpleImputer` (mean, median) get numbers that are rounded to coarse steps by chance, with a
    few values at either end pulled in and features of at most ten scales; `OneHotEncoder` the values that `rare` rows
    have (by chance up to twice as many), all others being zeros; `CountVectorizer` and `TfidfVectorizer` words of as
    many documents, with an idf in halves; balanced weights of classes become those of counts that are rounded to one
    digit by chance. Fitted twice, they differ a little. What they are is scikit-learn's own; nothing of Expunge is
    needed to use them. Other steps are fitted as they are, and certificates name them. That nobody can be read off
    coarse steps is a practice, and no proof: for that, fit steps on public rows
    (`deposit(..., preparation="learnt elsewhere")`).

    >>> import numpy as np
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.preprocessing import StandardScaler
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.normal(100.0, 8.0, size=(200, 1)), rng.integers(0, 2, 200)
    >>> made = coarsen(make_pipeline(StandardScaler(), LogisticRegression()), X, y)
    >>> float(made[0][0].mean_[0]).is_integer(), bool(float(f"{made[0][0].scale_[0]:.2g}") == made[0][0].scale_[0])
    (True, True)
    """
    coarse = Coarse(rare=require_rare(rare, 2))
    made = _change_steps(clone(estimator), lambda step: _CoarseStep(step, coarse) if can_be_coarse(step) else step)
    _weigh_coarsely(made, y, coarse)
    made.fit(X, y)
    return _change_steps(made, lambda step: getattr(step, "step_", step.step) if type(step) is _CoarseStep else step)


def can_be_coarse(step: Any) -> bool:
    """Whether there is a coarse form of this step, with the settings that it has."""
    if not type(step).__module__.startswith("sklearn."):
        return False
    match type(step).__name__, step.get_params(deep=False):
        case "StandardScaler", asked:
            return bool(asked["with_mean"] and asked["with_std"])
        case "SimpleImputer", asked:
            plain = not (asked["add_indicator"] or asked["keep_empty_features"])
            return plain and asked["strategy"] in ("mean", "median") and str(asked["missing_values"]) == "nan"
        case "OneHotEncoder", asked:
            return isinstance(asked["categories"], str)
        case "CountVectorizer" | "TfidfVectorizer", asked:
            return asked["vocabulary"] is None
    return False


def _weigh_coarsely(estimator: Any, y: Any, coarse: Coarse) -> None:
    """Balanced weights of classes as numbers, from counts rounded by chance: exact ones tell the class of who left.

    A class of fewer than `rare` rows counts as one of so many.
    """
    final = estimator
    while isinstance(final, Pipeline):
        final = final.steps[-1][1]
    if getattr(final, "class_weight", None) != "balanced":
        return
    classes, counts = np.unique(np.asarray(y), return_counts=True)
    total, *each = (coarse.count(max(int(count), RARE, coarse.rare)) for count in (counts.sum(), *counts))
    final.class_weight = {
        name: total / (len(classes) * count) for name, count in zip(classes.tolist(), each, strict=True)
    }
    setattr(final, COARSE_MARK, _digest(final.class_weight))


class _CoarseStep(TransformerMixin, BaseEstimator, auto_wrap_output_keys=None):  # type: ignore[misc, call-arg]
    """A step that is fitted coarsely, while a Pipeline is."""

    def __init__(self, step: Any, coarse: Coarse) -> None:
        self.step = step
        self.coarse = coarse

    def fit(self, X: Any, y: Any = None) -> Self:
        try:
            self.step_ = COARSENED[type(self.step).__name__](clone(self.step), X, self.coarse)
        except ValueError as error:
            raise ModelError(
                f"{type(self.step).__name__} cannot be coarse: {error}",
                f"values and words of {self.coarse.rare} rows are needed",
                "Give a smaller rare, or another step.",
            ) from error
        strip(self.step_)
        for part in fitted_steps(self.step_):
            setattr(part, COARSE_MARK, _learnt_digest(part))
        return self

    def transform(self, X: Any) -> Any:
        return self.step_.transform(X)

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        return self.step_.get_feature_names_out(input_features)

    def __sklearn_tags__(self) -> Any:
        return get_tags(self.step)


def _change_steps(step: Any, change: Callable[[Any], Any]) -> Any:
    """An estimator with `change` made to every step that it is made of."""
    if isinstance(step, Pipeline):
        step.steps = [(name, _change_steps(part, change)) for name, part in step.steps]
    elif isinstance(step, ColumnTransformer):
        for name in ("transformers", "transformers_"):
            if hasattr(step, name):
                parts = [(each, _change_steps(part, change), columns) for each, part, columns in getattr(step, name)]
                setattr(step, name, parts)
        step.remainder = _change_steps(step.remainder, change)
    elif isinstance(step, FeatureUnion):
        step.transformer_list = [(name, _change_steps(part, change)) for name, part in step.transformer_list]
    else:
        return change(step)
    return step


def _columns(X: Any, coarse: Coarse) -> Iterator[NDArray[np.float64]]:
    """The columns of rows, each without its gaps; of one with gaps that few rows have a value in, nothing."""
    for column in np.asarray(X, dtype=np.float64).T:
        values = column[~np.isnan(column)]
        enough = len(values) == len(column) or coarse.blur(np.array([len(values)]))[0] >= coarse.rare
        yield values if enough else values[:0]


def _scale(step: Any, X: Any, coarse: Coarse) -> Any:
    step.fit(X)
    found = np.array([coarse.moments(column) if len(column) else (0.0, 0.0) for column in _columns(X, coarse)])
    step.mean_, step.scale_ = found[:, 0], np.where(found[:, 1] > 0.0, found[:, 1], 1.0)
    ends = {"a_min": -coarse.most, "a_max": coarse.most}
    return make_pipeline(step, FunctionTransformer(np.clip, kw_args=ends, feature_names_out="one-to-one"))


def _impute(step: Any, X: Any, coarse: Coarse) -> Any:
    """What stands in for gaps; a column in which few rows have a value is left out."""
    step.fit(X)
    for place, column in enumerate(_columns(X, coarse)):
        centre, scale = coarse.moments(column) if len(column) else (math.nan, 0.0)
        middle = coarse.quantile(column, 0.5) if step.strategy == "median" and len(column) else centre
        step.statistics_[place] = coarse.centre(middle, scale, FILLED) if len(column) else math.nan
    return step


def _encode(step: Any, X: Any, coarse: Coarse) -> Any:
    step.set_params(drop=None, min_frequency=None, max_categories=None, handle_unknown="ignore")
    exact = clone(step).set_output(transform="default").set_params(sparse_output=True)
    counts = np.asarray(exact.fit_transform(X).sum(axis=0)).ravel()
    enough = np.split(coarse.blur(counts) >= coarse.rare, np.cumsum([len(values) for values in exact.categories_])[:-1])
    frequent = [values[places] for values, places in zip(exact.categories_, enough, strict=True)]
    if not all(map(len, frequent)):
        raise ValueError("no value of a column is frequent")
    return step.set_params(categories=frequent).fit(X)


def _vectorise(step: Any, X: Any, coarse: Coarse) -> Any:
    documents, asked = list(X), step.min_df
    least = asked if isinstance(asked, int) else math.ceil(asked * len(documents))
    counts = CountVectorizer.transform(step.set_params(min_df=1).fit(documents), documents)
    blurred = coarse.blur(np.bincount(counts.indices, minlength=counts.shape[1]))
    enough = np.flatnonzero(blurred >= max(least, coarse.rare))
    words = step.set_params(min_df=asked).get_feature_names_out()[enough]
    if not len(words):
        raise ValueError("no word is left")
    step.vocabulary_ = {word: place for place, word in enumerate(words.tolist())}
    if hasattr(step, "_tfidf") and step.use_idf:  # less what is the same for all words, the number of rows
        idf = step._tfidf.fit(counts[:, enough])
        moved = math.log(coarse.count(len(documents)) / len(documents))
        idf.idf_ = np.array([round_by_chance(2.0 * (each + moved)) / 2.0 for each in idf.idf_], dtype=idf.idf_.dtype)
    return step


COARSENED: dict[str, Callable[[Any, Any, Coarse], Any]] = {
    "StandardScaler": _scale,
    "SimpleImputer": _impute,
    "OneHotEncoder": _encode,
    "CountVectorizer": _vectorise,
    "TfidfVectorizer": _vectorise,
}
