"""Deposits of fitted estimators, and rows deleted from them: from a Pipeline to a Pipeline of the same kind."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.linear_model import LogisticRegression
from sklearn.utils import check_random_state, get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from expunge.bounds.calibration import power_of_two
from expunge.certificate.dossier import Certificate
from expunge.certificate.statement import Statement
from expunge.certificate.wording import headline, outside
from expunge.deposit.file import Deposit
from expunge.deposit.forecast import warn_if_few
from expunge.deposit.make import NewDeposit, make_from_rows, most_weights
from expunge.errors import ModelError, OptionError
from expunge.model import LinearModel, from_matrix
from expunge.record import LEARNT_ELSEWHERE, TrainingRecord
from expunge.request.promise import computing_device
from expunge.rows import EncodedRows, bound_rows, encode
from expunge.rows.features import row_norms, to_engine
from expunge.rows.preparation import round_by_chance
from expunge.runtime.arrays import Array, engine_dtype, put, to_numpy
from expunge.runtime.progress import Progress, silent
from expunge.sklearn.objectives import Estimator, Objective, read_objective, with_weights
from expunge.sklearn.pipelines import (
    SplitPipeline,
    can_be_coarse,
    coarsen,
    is_coarse,
    join_pipeline,
    read_labels,
    require_nothing_of_each,
    split_pipeline,
)
from expunge.unlearn import unlearn as unlearn_model

DELETIONS = "expunge_deletions_"  # how many an estimator has been through
SOURCE, FORGET = "the source", "the forget set"
MOVED = 0.01  # of the rows: if more of them get another class at the optimum, somebody should know


class NotAtOptimum(UserWarning):
    """The estimator that was given predicts otherwise than the optimum of its own objective, of which a deposit is."""


class ExactPreparation(UserWarning):
    """Steps of a Pipeline keep what rows can be read off that are forgotten later."""


@dataclass(frozen=True)
class Deletion:
    """`statement` may be handed out, and `model`, the published weights; `certificate` and `deposit` are private.

    `estimator` has these weights, and copies of the steps before, without what they do not need to prepare rows. What
    else these learnt is in it: whether that knows the forgotten rows the statement's guarantee says, and `headline`.
    Coarse steps (`coarsen`), or steps fitted on public rows, may be handed out.
    """

    estimator: Estimator
    model: LinearModel
    statement: Statement
    certificate: Certificate
    deposit: Deposit

    @property
    def headline(self) -> str:
        """The status, and which steps were learnt with the forgotten rows and are unchanged."""
        return headline(self.statement.content)

    def __repr__(self) -> str:
        said, kind = self.statement, type(self.estimator).__name__
        return f"<{kind} after unlearning, epsilon {said.epsilon:g}, delta {said.delta:g}: {self.headline}>"


def deposit(
    estimator: Estimator,
    X: Any,
    y: Any,
    *,
    preparation: str | None = None,
    device: str = "cpu",
    progress: Progress = silent,
    seed: int | None = None,
) -> Deposit:
    """Store what later deletions need of the rows that a fitted estimator was trained on. PRIVATE; docs/deposit.md.

    `estimator` is a classifier or a Pipeline that ends in one; `X` and `y` are what `fit` was given, frames, lists of
    texts and sparse matrices among them. The reference is what you would do yourself: refit on the retained rows with
    the same C (or alpha), the same weights of classes, the intercept not penalised, rows prepared as they are now. The
    anchor is the optimum, reached from the estimator's weights, which a loose tolerance leaves before it.

    `preparation`: what a Pipeline's steps learnt from the source stays as it is. Of steps that are coarse (`coarsen`)
    no values of a row are to be read off, in practice; the others are named by certificates, in their first lines, and
    warned of here (`ExactPreparation`). `learnt elsewhere` says that steps were fitted on other rows.

    >>> import numpy as np
    >>> from sklearn.linear_model import LogisticRegression
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.normal(size=(200, 3)), rng.integers(0, 2, 200)
    >>> stored = deposit(LogisticRegression().fit(X, y), X, y)
    >>> result = unlearn(LogisticRegression().fit(X, y), (X[:1], y[:1]), stored, epsilon=1.0, delta=1e-3)
    >>> result.certificate.status, result.deposit.numbers.n_rows
    ('proven', 199)
    """
    return make(estimator, X, y, preparation, device, progress, seed).deposit


def make(
    estimator: Estimator,
    X: Any,
    y: Any,
    preparation: str | None = None,
    device: str = "cpu",
    progress: Progress = silent,
    seed: int | None = None,
) -> NewDeposit:
    """A deposit with what single rows of it need to leave, and the optimum."""
    split = split_pipeline(estimator, learnt_elsewhere=preparation == LEARNT_ELSEWHERE)
    objective = read_objective(split.final)
    prepared = split.preparation(preparation, chosen=objective.chosen, balanced=objective.balanced)
    _require_size(objective, device)
    features, place = to_engine(split.transform(X, SOURCE)), computing_device(device)
    if prepared != LEARNT_ELSEWHERE:
        require_nothing_of_each(split.steps, features.shape[0])
    _warn_if_exact(split, preparation, balanced=objective.balanced)
    labels = read_labels(y, features.shape[0], SOURCE)
    model = _with_record(objective, features, labels, None if split.steps else split.names, prepared)
    record = model.record
    assert record is not None
    rows = bound_rows(
        features, encode(labels, record.classes, SOURCE), max_norm=record.max_norm, bias=record.bias,
        dtype=engine_dtype("float64", place), device=place, width=model.n_features, name=SOURCE,
    )  # fmt: skip
    made = make_from_rows(model, record, rows, (features, labels), progress=progress, seed=seed)
    _warn_if_moved(objective, made.optimum, features, type(split.final).__name__)
    warn_if_few(made.deposit, made.people)
    return made


def unlearn(
    estimator: Estimator,
    forget: tuple[Any, Any],
    deposit: Deposit,
    *,
    epsilon: float,
    delta: float,
    force: bool = False,
    device: str = "cpu",
    progress: Progress = silent,
) -> Deletion:
    """Take rows out of a fitted estimator of whose source there is a deposit; nothing that is passed is changed.

    `forget` are rows and labels as they were given to `fit`, before any step of a Pipeline.
    """
    if not isinstance(deposit, Deposit):
        raise OptionError(
            f"a deposit of type {type(deposit).__name__}",
            "what expunge.sklearn.deposit gave is needed, or the deposit of the last result",
            "Of a file, give expunge.read_deposit(path).",
        )
    split = split_pipeline(estimator, learnt_elsewhere=deposit.record.preparation == LEARNT_ELSEWHERE)
    objective = read_objective(split.final)
    own = (objective.loss, objective.matrix.shape, objective.labels)
    its = (deposit.record.loss, tuple(deposit.model.matrix().shape), deposit.record.classes)
    if own != its:
        raise ModelError(
            f"an estimator of {own[0]} loss with {own[1][0]} x {own[1][1]} weights and {len(own[2])} classes",
            f"the deposit is of one of {its[0]} loss with {its[1][0]} x {its[1][1]} and {len(its[2])}",
            "Give the estimator that the deposit was made for, or one that a deletion from it gave.",
        )
    deletions, generation = getattr(estimator, DELETIONS, 0), deposit.numbers.generation
    if deletions > generation:
        raise ModelError(
            f"the estimator has been through {deletions} {'deletion' if deletions == 1 else 'deletions'}",
            f"the deposit through {generation}: whoever was forgotten since would be back",
            "Give the deposit of the last result, and destroy this one.",
        )
    made = unlearn_model(
        deposit.model,
        _given(split, forget, deposit, FORGET),
        epsilon=epsilon,
        delta=delta,
        deposit=deposit,
        force=force,
        device=device,
        progress=progress,
    )
    whole = join_pipeline(estimator, with_weights(split.final, to_numpy(made.model.matrix())))
    setattr(whole, DELETIONS, made.deposit.numbers.generation)
    return Deletion(whole, made.model, made.statement, made.certificate, made.deposit)


def _given(split: SplitPipeline, rows: Any, deposit: Deposit, name: str) -> Any:
    """Rows as the classifier sees them, and labels where there are any."""
    if not isinstance(rows, tuple):
        return split.transform(rows, name)
    features = split.transform(rows[0], name)
    labels = None if rows[1] is None else read_labels(rows[1], features.shape[0], name)
    return EncodedRows(features, labels, None, deposit.record.features)


def _require_size(objective: Objective, device: str) -> None:
    """Refuse more weights than a deposit keeps, before any work is done."""
    vectors, width = objective.matrix.shape
    size, most = (vectors if objective.loss == "softmax" else 1) * width, most_weights(computing_device(device))
    if size > most:
        fewer = (
            "fewer features (TfidfVectorizer(max_features=2000), SelectKBest, or TruncatedSVD before the classifier)"
        )
        raise ModelError(
            f"{size:,} weights{' (classes times features)' if objective.loss == 'softmax' else ''}",
            f"a deposit keeps a matrix of their square, and at most {most:,} of them",
            "Use RidgeClassifier, of which features alone count, and which with a hundred classes loses a point or two "
            f"of accuracy; or {fewer}; or OneVsRestClassifier."
            if width <= most
            else f"Use {fewer}.",
        )


def _with_record(
    objective: Objective,
    features: Array,
    labels: NDArray[Any],
    names: tuple[str, ...] | None,
    preparation: str | None,
) -> LinearModel:
    """The estimator's weights with what a deposit has to know of its training."""
    n, classes = int(features.shape[0]), objective.labels
    kind = objective.classes.dtype
    weights = objective.class_weights(labels.astype(object if kind.kind == "O" else kind))
    unit = 1.0 if weights is None else float(weights.max())  # what they are written relative to: none is above 1
    if weights is not None and objective.balanced:
        # it is in C or l2, which are handed out: the largest weight would tell how many rows each class had, so it is
        # one of the next two powers of two, by chance
        unit = 2.0 ** (round_by_chance(math.log2(unit)) + 1)
    relative = None if weights is None or np.all(weights == unit) else tuple((weights / unit).tolist())
    constant = None if objective.per_row else objective.strength * unit
    record = TrainingRecord(
        n,
        classes,
        tuple(np.bincount(to_numpy(encode(labels, classes, SOURCE)), minlength=len(classes)).tolist()),
        objective.strength / unit if constant is None else 1.0 / (constant * n),
        objective.loss,
        power_of_two(max(float(row_norms(features).max()), 2.0**-40) * (1.0 + 2.0**-40)),
        objective.bias,
        0.0,
        features=names,
        free_bias=True if objective.free else None,
        fixed_c=constant,
        preparation=preparation,
        class_weights=relative,
        norm_measured=True,
    )
    matrix = to_engine(np.array(objective.matrix))
    return from_matrix(matrix, bias=objective.bias, dtype=matrix.dtype).with_record(record)


def _warn_if_exact(split: SplitPipeline, said: str | None, *, balanced: bool) -> None:
    exact = [part for part in split.learnt if not is_coarse(part) and said != LEARNT_ELSEWHERE]
    if not exact and not balanced:
        return
    offers = ["pipeline = expunge.sklearn.coarsen(pipeline, X, y), and a deposit of that"]
    offers *= balanced or any(map(can_be_coarse, exact))
    offers.append(
        "fit these steps on public rows, and deposit(..., preparation='learnt elsewhere')."
        if exact
        else "give class_weight as numbers that no row decided."
    )
    warnings.warn(
        f"{outside(split.preparation(said, balanced=balanced))} So it will be after every deletion, and certificates "
        f"say so. While the source is there: {'; or '.join(offers)}",
        ExactPreparation,
        stacklevel=4,
    )


def _warn_if_moved(objective: Objective, optimum: Array, features: Array, kind: str) -> None:
    classes = []
    for weights in (put(objective.matrix, features), optimum):
        outputs = features @ weights[:, : features.shape[1]].T + (weights[:, -1] if objective.bias else 0.0)
        classes.append(outputs[:, 0] > 0.0 if len(weights) == 1 else outputs.argmax(axis=1))
    moved = float(np.mean(to_numpy(classes[0] != classes[1])))
    if moved > MOVED:
        warnings.warn(
            f"at the optimum of its objective, which the deposit is of, the {kind} gives {100 * moved:.1f} % of the "
            "source's rows another class: it had not converged, or was fitted on other rows or with sample_weight. "
            "After a deletion its predictions are those of the optimum. To have them now, fit with a smaller tol and a "
            "larger max_iter.",
            NotAtOptimum,
            stacklevel=4,
        )


# A classifier that can forget: a deposit is made when it is fitted, and rows leave it later, with a certificate -----


def _has(name: str) -> Any:
    """Whether the estimator inside has this method."""
    return available_if(lambda self: hasattr(getattr(self, "estimator_", None) or self._inside(), name))


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
        The deposit of the rows; PRIVATE, and with it a pickle of this object. That few of them could leave is warned
        of (`ServesFew`).
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

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to the optimum, and make a deposit of these rows."""
        inside = self._inside()
        seed = None if self.random_state is None else int(check_random_state(self.random_state).randint(2**31))
        fitted = coarsen(inside, X, y) if self.coarse else clone(inside).fit(X, y)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotAtOptimum)  # it is moved there
            made = make(fitted, X, y, seed=seed)
        fitted = join_pipeline(fitted, with_weights(split_pipeline(fitted).final, to_numpy(made.optimum)))
        self.deposit_ = made.deposit
        self.estimator_, self.classes_ = fitted, fitted.classes_
        for name in ("n_features_in_", "feature_names_in_", "certificate_", "statement_"):
            self.__dict__.pop(name, None)
            if hasattr(fitted, name):
                setattr(self, name, getattr(fitted, name))
        return self

    def forget(self, X: Any, y: Any, *, epsilon: float, delta: float) -> Self:
        """Take these rows out, as they were given to `fit`; what is refused leaves everything as it was."""
        check_is_fitted(self, "estimator_")
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
