"""For linear classifiers in Python: one call from rows to a certificate, its arguments spelled out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from expunge.bounds import PaperConstants
from expunge.bounds.calibration import Scale
from expunge.deposit.file import Deposit
from expunge.deposit.forecast import warn_if_few
from expunge.deposit.make import make_deposit
from expunge.distance import Distance, Estimation
from expunge.door import ask
from expunge.errors import ModelError, OptionError
from expunge.mechanism import Unlearned, carry_out
from expunge.model import LinearModel, checked_model
from expunge.record import Label
from expunge.request.promise import Declared, Execution, Promise
from expunge.rows.streams import Stream
from expunge.runtime.progress import Progress, silent


def deposit(
    model: LinearModel | Any,
    features: Any,
    labels: Any = None,
    *,
    free_bias: bool = False,
    device: str = "cpu",
    progress: Progress = silent,
    seed: int | None = None,
) -> Deposit:
    """Keep what later deletions need of the source, before it goes: its gradient and Hessian at the optimum, no row.

    `features` and `labels` are the rows that `model` was trained on, as they were given then; a frame that holds the
    label column of training needs no labels beside it. PRIVATE: see docs/deposit.md for what it would tell somebody who
    has it. With `free_bias` the bias is not regularised any more, as scikit-learn's intercept: the `model` of the
    deposit is the one trained so, but for the noise that a deposit's weights have. A deposit that most people could not
    leave is warned of (`ServesFew`), while the source is there. `seed` fixes key, noise and rehearsal for tests.

    >>> import numpy as np, expunge
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.normal(size=(200, 3)), rng.integers(0, 2, 200)
    >>> kept = expunge.deposit(expunge.train(X, y, l2=0.01, max_norm=6.0), X, y)
    >>> kept.numbers.n_rows
    200
    """
    if model.record is None:
        raise ModelError(
            "the model has no training record", "a deposit is of a trained model", "Train it with expunge."
        )
    execution = Execution(device=device, progress=progress)
    new = make_deposit(model, (features, labels), execution=execution, free_bias=free_bias, seed=seed)
    warn_if_few(new.deposit, new.people)
    return new.deposit


def unlearn(
    model: LinearModel | Any,
    forget: tuple[Any, Any] | Stream,
    surrogate: tuple[Any, Any] | Stream | Any = None,
    *,
    epsilon: float,
    delta: float,
    distance: Distance | Estimation | str | Any = None,
    deposit: Deposit | None = None,
    match_classes: bool = False,
    step: str | None = None,
    bound: str = "residual",
    curvature: float | str | None = None,
    constants: PaperConstants | str | None = None,
    sizes: str = "source",
    force: bool = False,
    noise: float | str | Scale | None = None,
    bias: Any = None,
    n_source: int | None = None,
    l2: float | None = None,
    loss: str | None = None,
    max_norm: float | None = None,
    training_residual: float | None = None,
    classes: Sequence[Label] | None = None,
    class_counts: Sequence[int] | None = None,
    dtype: str = "float64",
    device: str = "cpu",
    memory: str | int | None = None,
    progress: Progress = silent,
    model_sha256: str | None = None,
    insecure_test_seed: int | None = None,
) -> Unlearned:
    """Remove the forget rows from a model whose source is gone; returns the noised model and what is certified of it.

    Its `model` and `statement` may be handed out; its `certificate`, the dossier, tells who left: for the auditor.

    Nothing the caller passes is changed. What is asked of:

    model                     a LinearModel, or a K x d weight array with `bias` and the facts from `n_source` on
    forget, surrogate         (features, labels), or streams; the surrogate's labels may be left out. Frames (pandas,
                              polars, Arrow, dicts of columns) are prepared where the model's record has a table, and
                              may hold the label column; plain arrays are taken as prepared already

    What changes the promise:

    epsilon, delta            what is certified; smaller protects more, and delta is to be at most 1/n
    distance                  how far the surrogate is from the source: `same`, `tv:0.2`, `chi2:0.1`, `kl:0.5`,
                              `source`; where nobody knows, `estimate`, an Estimation or an estimate made before
    match_classes             weight surrogate rows to the source's class counts; `distance` is then from that
    step                      `converged` (default), `newton` (the paper's one step) or `balanced` (the smallest bound)
    bound, constants, sizes   `residual`, or `paper` with its constants and its convention of sizes
    curvature                 how much the retained rows curve the loss at least, relative to the surrogate rows: a
                              number up to 0.5, `auto` (half of what halves of the surrogate show) or None
    deposit                   what was kept of the source (`expunge.deposit`), in place of surrogate and distance. That
                              of what is retained is in the result; the one given is to be destroyed
    force                     hand over a model that is of little use; never overrides a claim that says nothing
    noise                     the noise's standard deviation, set before anybody asks: a number, or `rows:10` (as for
                              ten rows, rehearsed on surrogate rows); a request that needs more is refused. None: the
                              request chooses a power of two, and the statement says from how many

    Facts of a model without a record, which the certificate then marks as declared: `n_source`, `l2`, `loss`,
    `max_norm`, `training_residual`, `classes`, `class_counts`.

    What changes only speed and memory: `dtype` of the surrogate's rows, `device`, `memory` (`1.5GB`), `progress`.
    `model_sha256` is the digest of the model's file, where it came from one. `insecure_test_seed` makes the noise
    reproducible, hence worthless.
    """
    promise = Promise(
        epsilon,
        delta,
        distance,
        step=step,
        bound=bound,
        curvature=curvature,
        constants=constants,
        sizes=sizes,
        force=force,
        noise=noise,
        match_classes=match_classes,
    )
    request = ask(
        None if model is None else _model(model, bias),
        forget,
        surrogate,
        promise,
        deposit=deposit,
        declared=Declared(n_source, l2, loss, max_norm, training_residual, classes, class_counts),
        execution=Execution(dtype, device, memory, progress=progress),
        model_sha256=model_sha256,
    )
    result = carry_out(request, progress=progress, insecure_test_seed=insecure_test_seed)
    assert result is not None  # there is one process
    return result


def _model(model: Any, bias: Any) -> LinearModel:
    """The model as it is given: whole, or as arrays of weights and bias."""
    if not isinstance(model, LinearModel):
        return checked_model(model, bias)
    if bias is not None:
        raise OptionError(
            "a bias beside a LinearModel", "it has its own, or none", "Leave bias out, or give the weights as an array."
        )
    return model
