"""From the retained rows' sums to the step and the numbers of its region, by every route; the smallest is taken.

Softmax does not see what is added to all classes alike, and at the optimum the weights of all classes sum to zero (or,
for an intercept that is free, can be taken to). So everything happens among weights whose classes sum to zero: the
direction common to all classes is made stiff, in every matrix by the same amount.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from expunge.bounds.deposit import EXACT, LONG_ROWS, PLAIN, RANGE, DepositFacts, radius_in_route
from expunge.errors import ModelError
from expunge.evidence.deposit.blocks import UNIT_ROUNDOFF, Blocks, Norm, largest, norm_of
from expunge.evidence.deposit.sums import Gauge, Sums

LARGEST_REACH = 600.0  # beyond it e^R is of no use
UP = 1.0 + 2.0**-30  # for the float64 arithmetic of one number
FACTORS = (0.25, 4.0)  # beside the balance of the two parts of a long-row matrix, which is tried first
MOST_MISSING = 0.5  # of M's least eigenvalue: a matrix that is mostly error is of no use
MANY = 1500  # weights: from here on that alone is tried


@dataclass(frozen=True)
class Penalty:
    """`(l2/2) ||W||^2` on the columns that are penalised: all, or all but a free intercept, the last."""

    l2: float
    free: bool = False

    def diagonal(self, like: Tensor) -> Tensor:
        """Of the Hessian, K x d."""
        values = torch.full_like(like, self.l2)
        if self.free:
            values[:, -1] = 0.0
        return values


@dataclass(frozen=True)
class Setting:
    """What does not change from deletion to deletion: the anchor, the rows' bounds, the kind of loss, the shape.

    `shift_free`: the loss does not see what is added to all classes (softmax), and outputs compete in pairs. `stiff` is
    what is added to the direction common to all classes.
    """

    anchor: Tensor
    row_bound: float
    gauges: tuple[Gauge, ...]
    quadratic: bool
    shift_free: bool
    stiff: float = 0.0

    def centred(self, weights: Tensor) -> Tensor:
        """Without what is common to all classes, where that is not seen."""
        return weights - weights.mean(dim=0, keepdim=True) if self.shift_free else weights

    def stiffened(self, matrix: Blocks) -> Blocks:
        """With the direction common to all classes made stiff."""
        if not self.shift_free:
            return matrix
        classes, width = self.anchor.shape
        values = matrix.values.clone()
        view = values.view(classes, width, classes, width)
        view.diagonal(dim1=1, dim2=3).add_(self.stiff / classes)
        return Blocks(values, matrix.joint)

    def penalised(self, matrix: Blocks, penalty: Penalty) -> Blocks:
        """With the regulariser on the diagonal."""
        diagonal = penalty.diagonal(self.anchor)
        flat = diagonal.reshape(1, -1) if matrix.joint else (diagonal[: len(matrix.values)])
        return matrix.plus(flat)


@dataclass(frozen=True)
class Found:
    """The step, how it was made, and the numbers of the smallest region."""

    update: Tensor
    facts: DepositFacts
    residual: float
    tried: int


def step_of(setting: Setting, sums: Sums, penalty: Penalty) -> tuple[Tensor, Tensor, Norm] | None:
    """`u = -(H' + reg)^-1 g'` with one refinement, what it left, and the norm it was solved in; None where it is not
    definite."""
    system = norm_of(setting.penalised(setting.stiffened(sums.curvature), penalty))
    if system is None:
        return None
    gradient = setting.centred(sums.gradient + penalty.diagonal(setting.anchor) * setting.anchor)
    update = setting.centred(-system.solved(gradient))
    for _ in range(2):
        update = setting.centred(update - system.solved(gradient + system.matrix.product(update)))
    return update, setting.centred(gradient + system.matrix.product(update)), system


def found(setting: Setting, sums: Sums, penalty: Penalty, shape: Tensor) -> Found | None:
    """The step and its smallest region; None where no route has a finite one."""
    stepped = step_of(setting, sums, penalty)
    if stepped is None:
        return None
    update, left, system = stepped
    return smallest(setting, sums, penalty, shape, update, left, system)


def smallest(
    setting: Setting, sums: Sums, penalty: Penalty, shape: Tensor, update: Tensor, left: Tensor, system: Norm
) -> Found | None:
    """The region of this update, by the route that gives the smallest."""
    work = _Work(setting, sums, penalty, shape, update, left, system)
    candidates = [facts for facts in work.routes() if math.isfinite(size_of(facts))]
    best = min(candidates, key=size_of, default=None)
    if best is None:
        return None
    return Found(update, best, float(left.norm()), len(candidates))


def size_of(facts: DepositFacts) -> float:
    """The radius in the norm of the frozen shape."""
    return radius_in_route(facts) * math.sqrt(facts.shape_ratio)


@dataclass(frozen=True)
class _Work:
    setting: Setting
    sums: Sums
    penalty: Penalty
    shape: Tensor
    update: Tensor
    left: Tensor
    system: Norm

    def routes(self) -> Iterator[DepositFacts]:
        if self.setting.quadratic:
            curvature = self.sums.curvature.plus(-self._curvature_error)
            yield from self._by_norm(EXACT, norm_of(self._matrix(curvature, curvature.frobenius)[0]))
            return
        gauged = [self._gauged(gauge) for gauge in self.setting.gauges]
        reach = min([self._plain_reach(), *(reach for _, reach in gauged)])
        yield from self._range(reach)
        best = (math.inf, -1)
        for index, (length, _) in enumerate(gauged):
            for facts in self._long_rows(index, length, reach, 1.0):
                best = min(best, (size_of(facts), index))
                yield facts
        if best[1] >= 0 and self.update.numel() <= MANY:
            for factor in FACTORS:
                yield from self._long_rows(best[1], gauged[best[1]][0], reach, factor)
        if not self.penalty.free:
            yield self._plain(reach)

    # Lengths of the update ---------------------------------------------------------------------------------------

    def _differences(self, lengths) -> float:  # type: ignore[no-untyped-def]
        """The largest length of `u_j - u_k`, or of `u_k` where classes do not compete."""
        if not self.setting.shift_free:
            return float(lengths(self.update).max()) * UP
        pairs = (self.update[:, None] - self.update[None]).reshape(-1, self.update.shape[1])
        return float(lengths(pairs).max()) * UP

    def _plain_reach(self) -> float:
        return self.setting.row_bound * self._differences(lambda vectors: vectors.norm(dim=-1))

    def _gauged(self, gauge: Gauge) -> tuple[float, float]:
        length = self._differences(gauge.length)
        return length, gauge.kappa * length

    # Matrices ----------------------------------------------------------------------------------------------------

    @property
    def _curvature_error(self) -> float:
        return self.sums.curvature_error

    def _matrix(self, curvature: Blocks, parts: float) -> tuple[Blocks, float]:
        """M, and by how much it was lowered for what float64 made of it; `parts` are the sizes that curvature is of."""
        whole = self.setting.penalised(self.setting.stiffened(curvature), self.penalty)
        lowered = 8 * UNIT_ROUNDOFF * (parts + whole.frobenius)
        return whole.plus(-lowered), lowered

    def _lost(self) -> float:
        """Of the gradient at v, in plain length: by the sums, by the product and by the residual of the step."""
        size, update = self.update.numel(), float(self.update.norm())
        weights = float(self.setting.anchor.norm()) + update
        parts = float(self.sums.gradient.norm()) + self.penalty.l2 * weights + self.system.matrix.frobenius * update
        evaluated = (size + 32) * UNIT_ROUNDOFF * parts
        return (self.sums.gradient_error + self._curvature_error * update + evaluated) * UP

    def _displaced(self) -> float:
        """How far the sum w + u in float64 is from v, and v from weights whose classes sum to zero, in plain length."""
        updated = self.setting.anchor + self.update
        lost = (len(updated) + 4) * UNIT_ROUNDOFF * float(self.setting.anchor.norm() + self.update.norm())
        if not self.setting.shift_free:
            return lost * UP
        common = updated.mean(dim=0)[: -1 if self.penalty.free else None]
        return (lost + math.sqrt(len(updated)) * float(common.norm())) * UP

    def _ratio(self, norm: Norm) -> float:
        """`lambda_max(M^-1 M_0)`, M_0 the product of the shape's own factors."""
        return norm.most(*self._frozen)

    @cached_property
    def _frozen(self) -> tuple[Blocks, float]:
        """M_0, and what float64 may have changed of the product of its factors."""
        error = 4 * (self.shape.shape[-1] + 4) * UNIT_ROUNDOFF * float(self.shape.square().sum(dim=(-1, -2)).max())
        return Blocks(self.shape @ self.shape.mT, self.sums.curvature.joint), error

    def _curved(self, matrix: Blocks, error: float) -> float:
        """`||u||` by a matrix that is off by at most `error`."""
        size = float(self.update.norm())
        lost = error + 2 * (self.update.numel() + 16) * UNIT_ROUNDOFF * matrix.frobenius
        return math.sqrt(max(0.0, matrix.form(self.update)) + lost * size**2) * UP

    def _by_norm(self, route: str, norm: Norm | None, **known: float) -> Iterator[DepositFacts]:
        if norm is None:
            return
        if norm.least <= 0.0:
            return
        rounding = self._lost() / math.sqrt(norm.least) + self._displaced() * math.sqrt(norm.matrix.row_sum())
        yield DepositFacts(route, norm.dual(self.left), rounding * UP, self._ratio(norm), **known)

    def _range(self, reach: float) -> Iterator[DepositFacts]:
        if reach > LARGEST_REACH:
            return
        shrunk, error = math.exp(-reach) / UP, self._curvature_error
        curvature = self.sums.curvature.plus(-error).times(shrunk)
        matrix, lowered = self._matrix(curvature, curvature.frobenius)
        norm = norm_of(matrix)
        # H' itself is at most e^R M but for what was taken off M
        if norm is None or not (missing := 2.0 * error * shrunk + lowered) <= MOST_MISSING * norm.least:
            return
        curved = self._curved(self.sums.curvature, error) * math.sqrt(1.0 + missing / norm.least) * UP
        for facts in self._by_norm(RANGE, norm, reach=reach, update_curved=curved):
            yield replace(facts, concordance=self._concordance(norm))

    def _concordance(self, norm: Norm) -> float:
        """c: the largest range of `e x` over rows, for an e of length 1 in M."""
        pairs = math.sqrt(2.0) if self.setting.shift_free else 1.0
        least = norm.least
        by_bound = pairs * self.setting.row_bound / math.sqrt(least) if least > 0.0 else math.inf
        by_gauge = [gauge.kappa * math.sqrt(self._spread(norm, gauge)) for gauge in self.setting.gauges]
        return min([by_bound, *by_gauge]) * UP

    def _spread(self, norm: Norm, gauge: Gauge) -> float:
        """tau^2: the largest `max ||e_j - e_k||_Q^2` for an e of length 1 in M."""
        moments = gauge.factor @ gauge.factor.T
        error = 4 * (len(moments) + 4) * UNIT_ROUNDOFF * float(gauge.factor.square().sum())
        if not self.setting.shift_free:
            return norm.most(Blocks(moments.expand(norm.matrix.values.shape).contiguous(), joint=False), error)
        classes = len(self.update)
        centred = torch.eye(classes, dtype=moments.dtype, device=moments.device) - 1.0 / classes
        return 2.0 * norm.most(Blocks(torch.kron(centred, moments)[None], joint=True), error)

    def _long_rows(self, index: int, length: float, reach: float, factor: float) -> Iterator[DepositFacts]:
        gauge, weighted = self.setting.gauges[index], self.sums.weighted[index]
        error = self.sums.weighted_errors[index]
        share = factor * length * self._balance(index)
        if reach > LARGEST_REACH or not 0.0 < share < 2.0:
            return
        own, other = (1.0 - share / 2.0) / UP, length**2 / (2.0 * share) * UP
        curvature = self.sums.curvature.plus(-self._curvature_error)
        parts = own * curvature.frobenius + other * (weighted.frobenius + error)
        norm = norm_of(self._matrix(curvature.combined(own, weighted.plus(error), -other), parts)[0])
        curved = self._curved(weighted, error)
        known = {"reach": reach, "gauge": length, "kappa": gauge.kappa, "update_curved": curved}
        for facts in self._by_norm(LONG_ROWS, norm, **known):
            assert norm is not None
            yield replace(
                facts,
                curvature_ratio=norm.most(self.sums.curvature, self._curvature_error),
                spread=self._spread(norm, gauge),
                weight_ratio=norm.most(weighted, error),
            )

    def _balance(self, index: int) -> float:
        """The share at which the two parts of a long-row matrix weigh about the same, for an update of length 1."""
        return math.sqrt(self.system.most(self.sums.weighted[index], self.sums.weighted_errors[index]))

    def _plain(self, reach: float) -> DepositFacts:
        top = largest(self.sums.curvature.plus(self._curvature_error))
        shape, error = self._frozen
        rounding = (self._lost() + self.penalty.l2 * self._displaced()) * UP
        return DepositFacts(
            PLAIN,
            float(self.left.norm()) * UP,
            rounding,
            largest(shape.plus(error)),
            reach=reach,
            update_curved=self._curved(self.sums.curvature, self._curvature_error),
            curvature_ratio=top,
            l2=self.penalty.l2,
        )


def shape_of(setting: Setting, sums: Sums, penalty: Penalty) -> Tensor:
    """The factor of `M_0 = H + reg` at deposit time, b x q x q lower triangular: frozen."""
    norm = norm_of(setting.penalised(setting.stiffened(sums.curvature), penalty))
    if norm is None:
        raise not_definite()
    return norm.factor


def not_definite() -> ModelError:
    """Why there can be no deposit of some models."""
    return ModelError(
        "the Hessian at the optimum is not positive definite, as far as float64 can tell",
        "the noise takes its shape from it",
        "Train with a larger l2, or leave out features that are combinations of others.",
    )
