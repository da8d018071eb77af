"""Training while the source still exists: to the optimum, with the evidence a later certificate needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.bounds.calibration import power_of_two
from expunge.errors import DataError, OptionError
from expunge.heads import HEADS, LinearHead, Rows, RowSet, head_for
from expunge.heads.rows import evenly
from expunge.model import LinearModel, from_matrix
from expunge.record import TRAINED_ON_SOURCE, Label, TrainingRecord, loss_named
from expunge.request.promise import DTYPES, computing_device
from expunge.request.sets import refuse_squashed
from expunge.rows import as_features, as_labels, encode, names_of, order_columns
from expunge.rows import bound_rows as ready
from expunge.rows.columns import require_names
from expunge.rows.features import require_width, row_norms
from expunge.rows.files import COARSE, as_source
from expunge.rows.preparation import RARE, Coarse, Preparation
from expunge.runtime.arrays import Array, double, engine_dtype, few_threads, namespace_of, norm, put, size, to_numpy
from expunge.runtime.progress import Progress, silent
from expunge.runtime.strict_json import is_digest
from expunge.runtime.values import choice, positive
from expunge.solve.linear import Preconditioner
from expunge.solve.newton import TrainingEquation, newton_step

QUASI_NEWTON_GOAL = 1e-5  # gradient norm at which Newton's method takes over
MAX_QUASI_NEWTON = 500
SHARE, ENOUGH = 16, 50  # one row in so many is begun with, where these are so many times the weights
FEW_WEIGHTS = 256  # whose Hessian costs a few gradients
NEAR = 1e-4  # gradient norm of the rows begun with, whose optimum is some hundredths away


def minimise(
    objective: LinearHead,
    rows: RowSet,
    *,
    start: Array | None = None,
    tolerance: float = 1e-11,
    near: Preconditioner | None = None,
    progress: Progress = silent,
) -> Array:
    """Weights at which the gradient's norm is at most `tolerance`, or as small as float64 lets it be.

    L-BFGS, then Newton; of many rows and few weights Newton alone, from the optimum of some of the rows. Somebody who
    has what is `near` the inverse of the Hessian saves forming Hessians.
    """
    shape = (objective.n_classes, objective.n_features)
    xp = namespace_of(rows.dtype)
    weights = xp.zeros(shape, dtype=xp.float64, device=rows.device) if start is None else double(start)
    if start is None and len(rows) * objective.n_parameters > 1_000_000:
        some = len(rows) // SHARE
        if isinstance(rows, Rows) and objective.n_parameters <= FEW_WEIGHTS and some >= ENOUGH * objective.n_parameters:
            weights = minimise(objective, evenly(rows, some), tolerance=NEAR, progress=progress)
        else:
            weights = _quasi_newton(objective, rows, weights, progress)
    equation = TrainingEquation(objective, weights, rows, near)
    return weights + newton_step(equation, goal=tolerance, objective=equation.objective, progress=progress).update


def _quasi_newton(objective: LinearHead, rows: RowSet, weights: Array, progress: Progress) -> Array:
    from scipy.optimize import minimize  # here: whoever only unlearns need not wait for it

    shape, done = weights.shape, 0

    def value_and_gradient(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        value, gradient = objective.value_and_gradient(put(flat.reshape(shape), weights), rows)
        return value, to_numpy(gradient).reshape(-1)

    def advance(_: NDArray[np.float64]) -> None:
        nonlocal done
        done += 1
        progress("L-BFGS iterations", done, None)

    goal = {"gtol": QUASI_NEWTON_GOAL / np.sqrt(size(weights)), "ftol": 0.0}
    options = {"maxiter": MAX_QUASI_NEWTON, "maxcor": 20, **goal}
    start = to_numpy(weights).reshape(-1)
    optimum = minimize(value_and_gradient, start, jac=True, method="L-BFGS-B", callback=advance, options=options)
    return put(optimum.x.reshape(shape), weights)


def train(
    features: Any,
    labels: Any = None,
    *,
    label: str | None = None,
    l2: float | None = None,
    max_norm: float | str | None = None,
    loss: str = "softmax",
    bias: bool | None = None,
    prepare: str | Preparation = "auto",
    prepare_from: Any = None,
    preparation: str = COARSE,
    rare: int = RARE,
    learnt: str | None = None,
    dtype: str = "float64",
    store: str = "float64",
    device: str = "cpu",
    tolerance: float = 1e-11,
    encoder: str | None = None,
    encoder_trained: str | None = None,
    feature_names: Sequence[str] | None = None,
    force: bool = False,
    progress: Progress = silent,
    tell: Callable[[str], None] = lambda _: None,
) -> LinearModel:
    """Train a linear classifier to its optimum; the result carries its training record.

    `features` may be an array, a sparse matrix or a data frame; of a frame, `label` may name the label column. A frame
    is prepared (numbers imputed and standardised, categories one-hot encoded; `tell` is told each decision) where
    it has anything but numbers in every cell, or no `max_norm` is given; `prepare` may be `table` (always) or `none`.
    The preparation is learnt from these rows, or from `prepare_from` (another frame, or the path of a table), kept in
    the record as plain numbers, and applied to later frames by column name. It is handed out with the model. `coarse`,
    it has numbers that are rounded by chance and no value that fewer than `rare` rows have: in practice no row is to be
    read off it, and hardly whether somebody was there; trained twice, it differs a little.
    `preparation="exact"` keeps what a forgotten row can be worked out from, and certificates say so first. Of rows that
    are public (`prepare_from`) it knows nothing of those who will be forgotten, and that is a proof. `learnt` says
    where rows were prepared that come with their Preparation.

    `l2` and `max_norm` may be left out where rows are prepared: `l2` is then scikit-learn's C = 1 (for the number of
    rows to one digit, by chance one of the two next, so that it does not tell one row more), there is a bias, and the
    norm bound is 3 sqrt(d), a public number; `max_norm="largest"` takes the longest row's, rounded up to a power of
    two, for those who make a deposit; it is not published.

    `loss` is `softmax`, `ridge`, `one-vs-rest`, or `logistic`: two classes and one weight vector, as scikit-learn has
    it; without a deposit it is unlearned as softmax's two rows, at twice the l2.

    `dtype` is what the rows are kept in while computing, `store` what the weights are stored in. The residual in the
    record is measured in float64 at the weights as stored, float64 rounding included. `encoder` is the digest of what
    made the features, `encoder_trained` whether that was trained on rows of the source (`yes`, `no`, `unknown`); later,
    features of another one are refused. `feature_names` are what columns are called (a data frame's own, if not given):
    later sets are matched by them. Rows of which more than half have to be scaled are refused unless `force` is given.
    """
    given = as_source(
        features, labels, label, prepare, prepare_from, preparation=preparation, rare=rare, bounded=max_norm is not None
    )
    for sentence in given.decisions:
        tell(sentence)
    made = prepare if isinstance(prepare, Preparation) else given.preparation
    features, labels = given.rows
    names, table = _named(features, given.rows.feature_names or feature_names)
    values = as_labels(labels, table.shape[0], "the source")
    classes, counts = _classes_of(values)
    if not isinstance(loss, str) or loss not in HEADS:
        raise OptionError(f"loss {loss!r}", f"training has {', '.join(sorted(HEADS))}", "Choose one of them.")
    if loss_named(loss).one_row and len(classes) != 2:
        raise OptionError(
            f"loss {loss!r} for {len(classes)} classes", "it has one weight vector, for two classes", "Use softmax."
        )
    lam, bound, bias = _defaults(l2, max_norm, bias, made, loss, len(classes), table)
    positive(lam, "l2", "Give the lambda of (lambda/2)||w||^2; usual are 1e-4 to 1e-1, where more hides more later.")
    positive(bound, "max_norm", "Choose it before looking at the rows, for example 1 for unit-norm features.")
    positive(tolerance, "tolerance", "1e-11 is the default.")
    choice(dtype, DTYPES, "dtype")
    choice(store, DTYPES, "store")
    _require_encoder(encoder, encoder_trained)
    place = computing_device(device)
    kept = engine_dtype(dtype, place)
    indices = encode(values, classes, "the source")
    rows = ready(table, indices, max_norm=bound, bias=bias, dtype=kept, device=place, name="the source")
    refuse_squashed(rows.scaling, "the source", bound, force)
    record = TrainingRecord(
        n_source=len(rows),
        classes=classes,
        class_counts=counts,
        l2=lam,
        loss=loss,
        max_norm=bound,
        bias=bias,
        residual=0.0,
        rows_dtype=dtype,
        encoder=encoder,
        encoder_trained=encoder_trained,
        features=names,
        preparation=learnt or given.learnt,
        table=None if made is None else made.to_json(),
        norm_measured=True if max_norm == LARGEST_ROW else None,
    )
    n_rows, width = loss_named(loss).weight_rows(len(classes)), rows.n_features
    objective = head_for(loss, l2=lam, n_classes=n_rows, n_features=width, row_bound=record.row_bound)
    with few_threads(len(rows), objective.n_parameters):
        weights = minimise(objective, rows, tolerance=tolerance, progress=progress)
    model = from_matrix(weights, bias=bias, dtype=store)
    return model.with_record(replace(record, residual=residual_upper(objective, model.matrix(place), rows)))


LARGEST_ROW = "largest"


def _defaults(
    l2: float | None,
    max_norm: float | str | None,
    bias: bool | None,
    made: Preparation | None,
    loss: str,
    n_classes: int,
    table: Array,
) -> tuple[float, float, bool]:
    """l2, norm bound and bias as given; of rows that were prepared those that are usual."""
    if max_norm == LARGEST_ROW:
        max_norm = power_of_two(float(row_norms(table).max()) * (1.0 + 2.0**-40))
    elif isinstance(max_norm, str):
        raise OptionError(f"max_norm {max_norm!r}", f"it is a number, or {LARGEST_ROW!r}", "Give one of them.")
    missing = [name for name, value in (("l2", l2), ("max_norm", max_norm)) if value is None]
    if made is None and missing:
        raise OptionError(
            f"no {' and no '.join(missing)}",
            "features that are taken as they are have no usual ones",
            "Give both (on the command line --l2 and --max-norm), for example 1e-3 and the length that no row exceeds; "
            "of a table that is prepared they may be left out.",
        )
    if l2 is None:  # C = 1; two classes are one weight vector there, and the rows -w/2 and w/2 here. The count is
        # rounded by chance: at an edge, rounding down would tell that one row more was there
        l2 = (2.0 if n_classes == 2 and loss == "softmax" else 1.0) / Coarse().count(table.shape[0])
    bound = 3.0 * math.sqrt(table.shape[1]) if max_norm is None else float(max_norm)
    return l2, bound, made is not None if bias is None else bias


def _require_encoder(encoder: str | None, trained: str | None) -> None:
    if encoder is not None and not is_digest(encoder):
        raise DataError(
            f"encoder {encoder!r}", "a SHA-256 digest in hexadecimal is needed", "Use SplitModel.digest, or embed's."
        )
    if trained is None:
        return
    if encoder is None:
        raise DataError(
            f"encoder_trained {trained!r}",
            "there is no encoder that it could be said of",
            "Give its digest as encoder.",
        )
    choice(trained, TRAINED_ON_SOURCE, "encoder_trained")


def _named(features: Any, given: Sequence[str] | None) -> tuple[tuple[str, ...] | None, Array]:
    """What the columns are called, if anybody says so, and the features in that order."""
    named = names_of(features) if given is None else tuple(given)
    if named is None:
        return None, as_features(features, "the source", sparse=True)
    names = require_names(named, "the source")
    table = as_features(order_columns(features, names, len(names), "the source"), "the source", sparse=True)
    require_width(table.shape[1], len(names), "the source")
    return names, table


def _classes_of(values: NDArray[Any]) -> tuple[tuple[Label, ...], tuple[int, ...]]:
    """The classes among the labels, and how many rows each has."""
    unique, counts = np.unique(values, return_counts=True)
    if len(unique) < 2:
        raise DataError(
            f"the source has one class, {unique[0].item()!r}",
            "a classifier needs two or more",
            "Check the label column.",
        )
    return tuple(value.item() for value in unique), tuple(int(count) for count in counts)


def residual_upper(objective: LinearHead, weights: Array, rows: RowSet) -> float:
    """Upper bound on the norm of the objective's gradient: as computed, plus what float64 may hide."""
    return norm(objective.gradient(weights, rows)) + objective.rounding(weights, rows)
