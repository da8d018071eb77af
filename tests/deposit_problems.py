"""Deposits with everything known: rows, anchor and retained sums, and dense references in longer numbers that use none of the package.

Weights are K x d matrices, rows n x d tables with the constant feature last, labels 0 .. K-1 (0 and 1 for `logistic`, K = 1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np

from expunge.deposit.file import Deposit
from expunge.deposit.make import anchor_noise, anchor_scales
from expunge.deposit.matrices import Norm, gram_of, not_definite, shape_of
from expunge.deposit.region import Penalty, Setting
from expunge.deposit.sums import Gauge, Sums, gauges_of, has_third, sums_of
from expunge.door import ask
from expunge.heads import LinearHead, Rows, head_for
from expunge.model import LinearModel, from_matrix
from expunge.record import TrainingRecord
from expunge.request.promise import Promise
from expunge.runtime import arrays as engine
from expunge.unlearn import deposit

Array = Any
LONG = np.longdouble
LOSSES = ("softmax", "logistic", "one-vs-rest", "ridge")


# The losses, from their formulas ----------------------------------------------------------------------------------------


def link(outputs: Array, loss: str) -> Array:
    if loss == "ridge":
        return outputs
    if loss == "softmax":
        powers = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)
    return np.where(
        outputs >= 0, 1 / (1 + np.exp(-np.abs(outputs))), np.exp(-np.abs(outputs)) / (1 + np.exp(-np.abs(outputs)))
    )


def targets(y: Array, classes: int, loss: str) -> Array:
    if loss == "logistic":
        return y[:, None].astype(LONG)
    hot = (np.arange(classes) == y[:, None]).astype(LONG)
    return 2 * hot - 1 if loss == "ridge" else hot


def gradient(W: Array, X: Array, y: Array, loss: str) -> Array:
    """Of the mean loss, without the regulariser, in longer numbers."""
    W, X = W.astype(LONG), X.astype(LONG)
    return (link(X @ W.T, loss) - targets(y, len(W), loss)).T @ X / len(X)


def slopes(W: Array, X: Array, loss: str) -> Array:
    """C(p) of each row, n x K x K; what is not p of a class is summed from the other classes."""
    p = link(X.astype(LONG) @ W.astype(LONG).T, loss)
    n, classes = p.shape
    if loss == "ridge":
        return np.broadcast_to(np.eye(classes, dtype=LONG), (n, classes, classes))
    if loss != "softmax":
        other = link(-(X.astype(LONG) @ W.astype(LONG).T), loss)
        return (p * other)[:, :, None] * np.eye(classes, dtype=LONG)
    curved = -p[:, :, None] * p[:, None, :]
    for k in range(classes):
        curved[:, k, k] = p[:, k] * np.delete(p, k, axis=1).sum(axis=1)
    return curved


def hessian(W: Array, X: Array, loss: str, shares: Array | None = None) -> Array:
    """Of the mean loss, weights in row-major order, p x p; each row times its share where there are shares."""
    curved, wide = slopes(W, X, loss), X.astype(LONG)
    curved = curved if shares is None else curved * shares.astype(LONG)[:, None, None]
    size = W.size
    return np.einsum("nkl,ni,nj->kilj", curved, wide, wide, optimize=True).reshape(size, size) / len(X)


def quick_hessian(W: Array, X: Array, loss: str) -> Array:
    """The same in float64, for steps that need not be exact."""
    curved = slopes(W, X, loss).astype(np.float64)
    classes, width = W.shape
    X = np.asarray(X, dtype=np.float64)
    found = np.zeros((classes, width, classes, width))
    for k in range(classes):
        for other in range(k, classes) if loss == "softmax" else (k,):
            found[k, :, other] = found[other, :, k] = (X * curved[:, k, other, None]).T @ X / len(X)
    return found.reshape(W.size, W.size)


def solved(matrix: Array, gradient_there: Array) -> Array:
    """A Newton step; the shortest where the Hessian is singular."""
    g = gradient_there.reshape(-1).astype(np.float64)
    try:
        step = np.linalg.solve(matrix, g)
    except np.linalg.LinAlgError:
        step = np.linalg.lstsq(matrix, g, rcond=1e-15)[0]
    return step.reshape(gradient_there.shape)


def minimiser(X: Array, y: Array, loss: str, penalty: Array, start: Array, steps: int = 200) -> tuple[Array, Array]:
    """Newton's method with gradients and weights in longer numbers, and what is left of the gradient.

    Of weights whose classes sum to zero for softmax.
    """
    W, softmax = start.astype(LONG), loss == "softmax"
    W = W - W.mean(axis=0) if softmax else W
    classes, width = W.shape
    common = np.kron(np.ones((classes, classes)) / classes, np.eye(width)) if softmax else 0.0

    def slope_at(at: Array) -> Array:
        found = gradient(at, X, y, loss) + penalty * at
        return found - found.mean(axis=0) if softmax else found

    def value(at: Array) -> Any:
        outputs = X.astype(LONG) @ at.T
        if loss == "ridge":
            fit = ((outputs - targets(y, classes, loss)) ** 2).sum() / 2
        elif loss == "softmax":
            top = outputs.max(axis=1)
            fit = (top + np.log(np.exp(outputs - top[:, None]).sum(axis=1)) - outputs[np.arange(len(y)), y]).sum()
        else:
            signed = (1 - 2 * targets(y, classes, loss)) * outputs
            fit = (np.maximum(signed, 0) + np.log1p(np.exp(-np.abs(signed)))).sum()
        return fit / len(X) + (penalty * at**2).sum() / 2

    for _ in range(steps):
        g = slope_at(W)
        matrix = quick_hessian(W, X, loss) + np.diag(penalty.reshape(-1)) + common
        step = -solved(matrix, g)
        step = step - step.mean(axis=0) if softmax else step
        length, begun = 1.0, value(W)
        while length > 1e-6 and value(W + length * step) > begun + 1e-4 * length * (g * step).sum() + 1e-18 * abs(
            begun
        ):
            length /= 2
        W = W + length * step
        if np.abs(step).max() <= 1e-17 * (1 + np.abs(W).max()):
            break
    return W, slope_at(W)


# Problems ------------------------------------------------------------------------------------------------------------------


def noised_gauges(rows: Rows, seed: int = 0) -> tuple[Gauge, ...]:
    """Gauges as a deposit has them, with noise of a fixed seed."""
    return gauges_of(rows, gram_of(rows), np.random.default_rng(seed))


@dataclass(frozen=True)
class Problem:
    """Rows, an anchor that need not be the optimum, and how the retained rows are regularised."""

    loss: str
    X: Array
    y: Array
    classes: int
    anchor: Array
    l2: float
    free: bool = False
    fixed_c: bool = False

    @property
    def n(self) -> int:
        return len(self.X)

    @property
    def softmax(self) -> bool:
        return self.loss == "softmax"

    def penalty(self, n_rows: int) -> Penalty:
        """Of so many rows: l2, or at a fixed C what it comes to for them."""
        return Penalty(self.l2 * self.n / n_rows if self.fixed_c else self.l2, self.free)

    def diagonal(self, n_rows: int) -> Array:
        """Of the regulariser, K x d."""
        values = np.full(self.anchor.shape, self.penalty(n_rows).l2)
        if self.free:
            values[:, -1] = 0.0
        return values

    @property
    def row_bound(self) -> float:
        return float(np.linalg.norm(self.X, axis=1).max()) * (1.0 + 1e-12)

    @property
    def head(self) -> LinearHead:
        rows, width = self.anchor.shape
        return head_for(self.loss, l2=0.0, n_classes=rows, n_features=width, row_bound=self.row_bound)

    def rows(self, which: Array) -> Rows:
        return Rows(self.X[which], self.y[which])

    @cached_property
    def gauges(self) -> tuple[Gauge, ...]:
        return () if self.loss == "ridge" else noised_gauges(self.rows(slice(None)))

    @cached_property
    def sums(self) -> Sums:
        return self.of(slice(None))

    def of(self, which: Array) -> Sums:
        """The sums over some of the rows."""
        anchor = self.anchor
        return sums_of(self.head, anchor, self.rows(which), self.gauges, third=has_third(self.head))

    @cached_property
    def setting(self) -> Setting:
        stiff = float(self.sums.curvature.values.diagonal(axis1=-2, axis2=-1).mean())
        anchor = self.anchor
        return Setting(anchor, self.row_bound, self.gauges, self.loss == "ridge", self.softmax, stiff)

    @cached_property
    def shape(self) -> np.ndarray:
        """The noise's shape, of all rows: a region is right by any; an ExpungeError where there is none."""
        return self.shape_of(np.arange(self.n))

    def shape_of(self, kept: Array) -> np.ndarray:
        """The noise's shape, of the rows that are kept."""
        factor = shape_of(self.head, gram_of(self.rows(kept)), self.diagonal(len(kept))[0])
        if factor is None:
            raise not_definite()
        return factor

    def length(self, error: Array, shape: np.ndarray | None = None) -> float:
        """`||e||` by the noise's shape, in longer numbers."""
        factor = (self.shape if shape is None else shape)[0]
        return math.sqrt(float(((error @ engine.to_numpy(factor).astype(LONG)) ** 2).sum()))

    def retrained(self, kept: Array, near: Array, shape: np.ndarray | None = None) -> tuple[Array, float]:
        """The minimiser on the rows that are kept, and how far it can be off, by the noise's shape."""
        diagonal = self.diagonal(len(kept))
        W, left = minimiser(self.X[kept], self.y[kept], self.loss, diagonal, near)
        matrix = quick_hessian(W, self.X[kept], self.loss) + np.diag(diagonal.reshape(-1))
        if self.softmax:
            matrix += np.kron(np.ones((len(W), len(W))) / len(W), np.eye(W.shape[1]))
        return W, 2.0 * self.length(solved(matrix, left), shape)


def drawn(
    seed: int,
    loss: str = "softmax",
    *,
    n: int = 60,
    width: int = 4,
    classes: int = 3,
    l2: float = 0.01,
    free: bool = False,
    fixed_c: bool = False,
    tails: float = 5.0,
    scale: float = 1.0,
    steps: int = 200,
) -> Problem:
    """A problem with a bias column, Student rows, and an anchor so many Newton steps from zero."""
    rng = np.random.default_rng([seed, n, width, classes])
    classes = 2 if loss == "logistic" else classes
    X = np.column_stack([rng.standard_t(tails, size=(n, width)) * scale, np.ones(n)])
    y = np.argmax(X @ rng.normal(size=(width + 1, classes)) / scale + rng.normal(size=(n, classes)) * 2, axis=1)
    y[:classes] = np.arange(classes)
    bare = Problem(loss, X, y, classes, np.zeros((1 if loss == "logistic" else classes, width + 1)), l2, free, fixed_c)
    return anchored(bare, steps)


def anchored(problem: Problem, steps: int = 200) -> Problem:
    """The same with its anchor so many Newton steps on."""
    diagonal = problem.diagonal(problem.n)
    W = minimiser(problem.X, problem.y, problem.loss, diagonal, problem.anchor, steps)[0].astype(np.float64)
    return replace(problem, anchor=W - W.mean(axis=0) if problem.softmax else W)


def noised(problem: Problem, times: float, seed: int) -> Problem:
    """The same with noise in its anchor, so many times one that a deposit may have."""
    anchor, rows = problem.anchor, problem.rows(slice(None))
    scales = anchor_scales(engine.size(anchor), problem.n, quadratic=problem.loss == "ridge")
    scale = times * scales[seed % len(scales)]
    generator = np.random.default_rng([81, seed])
    noise = anchor_noise(problem.head, gram_of(rows), problem.penalty(problem.n), anchor, scale, generator)
    return replace(problem, anchor=engine.to_numpy(anchor + (noise - noise.mean(axis=0) if problem.softmax else noise)))


def dense(norm: Norm, problem: Problem) -> Array:
    """A norm's matrix on all weights, as the weights lie in a vector."""
    return whole(engine.to_numpy(norm.matrix.values), problem)


def whole(blocks: Array, problem: Problem) -> Array:
    """Blocks b x q x q as one p x p matrix."""
    rows, width = problem.anchor.shape
    if blocks.shape[-1] == rows * width:
        return blocks[0].astype(LONG)
    found = np.zeros((rows * width, rows * width), dtype=LONG)
    for k in range(rows):
        found[k * width : (k + 1) * width, k * width : (k + 1) * width] = blocks[k if len(blocks) > 1 else 0]
    return found


def centring(problem: Problem) -> Array:
    """The projection onto weights whose classes sum to zero, for softmax; else the identity."""
    rows, width = problem.anchor.shape
    if not problem.softmax:
        return np.eye(rows * width)
    return np.kron(np.eye(rows) - np.ones((rows, rows)) / rows, np.eye(width))


# Deposits as they are made ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Made:
    """A model, the rows it was trained on as they were given, and the deposit of them."""

    model: LinearModel
    X: Array
    y: Array
    deposit: Deposit

    def request(self, which: Array, *, copy: Any = None, surrogate: Any = None, **options: Any) -> Any:
        """A request for these rows, or for a copy of them."""
        settings = {"epsilon": 1.0, "delta": 1e-5} | options
        promise = Promise(**settings)
        return ask(
            None, (self.X[which] if copy is None else copy, self.y[which]), surrogate, promise, deposit=self.deposit
        )


@cache
def made(
    loss: str = "softmax",
    *,
    n: int = 120,
    width: int = 3,
    classes: int = 3,
    l2: float = 0.01,
    bias: bool = True,
    free: bool = False,
    fixed_c: bool = False,
    max_norm: float = 6.0,
    seed: int = 0,
) -> Made:
    """A deposit of Student rows, some of them longer than the norm bound."""
    rng = np.random.default_rng([seed, n, width])
    classes = 2 if loss == "logistic" else classes
    X = rng.standard_t(4, size=(n, width))
    y = np.argmax(X @ rng.normal(size=(width, classes)) + rng.normal(size=(n, classes)), axis=1)
    y[:classes] = np.arange(classes)
    record = TrainingRecord(
        n,
        tuple(range(classes)),
        tuple(np.bincount(y, minlength=classes).tolist()),
        l2,
        loss,
        max_norm,
        bias,
        0.0,
        provenance="declared",
        free_bias=True if free else None,
        fixed_c=1.0 / (l2 * n) if fixed_c else None,
    )
    weights = np.zeros((1 if loss == "logistic" else classes, width + int(bias)), dtype=np.float64)
    model = from_matrix(weights, bias=bias, dtype=np.float64).with_record(record)
    return Made(model, X, y, deposit(model, X, y, seed=seed))


def prepared(made_deposit: Made) -> Array:
    """The rows as the head sees them: scaled to the norm bound, the constant feature appended."""
    record = made_deposit.deposit.record
    lengths = np.linalg.norm(made_deposit.X, axis=1, keepdims=True)
    X = made_deposit.X * np.minimum(1.0, record.max_norm / lengths)
    return np.column_stack([X, np.ones(len(X))]) if record.bias else X


def problem_of(made_deposit: Made) -> Problem:
    """The same as a problem, with the deposit's own anchor."""
    record, anchor = made_deposit.deposit.record, engine.to_numpy(made_deposit.deposit.model.matrix())
    X, y = prepared(made_deposit), made_deposit.y
    free, fixed = bool(record.free_bias), record.fixed_c is not None
    return Problem(record.loss, X, y, len(record.classes), anchor, record.l2, free, fixed)
