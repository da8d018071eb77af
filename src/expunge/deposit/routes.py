"""From the retained rows' sums to the step and the numbers of its region, by every route; the smallest is taken.

Softmax does not see what is added to all classes alike, and at the optimum the weights of all classes sum to zero (or,
for an intercept that is free, can be taken to). So everything happens among weights whose classes sum to zero: the
direction common to all classes is made stiff, in every matrix by the same amount.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from expunge.bounds.deposit import (
    EXACT,
    LONG_ROWS,
    PLAIN,
    RANGE,
    THIRD,
    DepositFacts,
    bend,
    bend_slope,
    bend_third,
    bend_third_slope,
    way_of,
    weighted_radius,
)
from expunge.bounds.deposit_surrogate import Beside
from expunge.deposit.blocks import UNIT_ROUNDOFF, Blocks, Norm, largest, norm_of, square_of
from expunge.deposit.setting import Penalty, Setting
from expunge.deposit.shape import centred_shape
from expunge.deposit.sizes import settled, size_of, tied, unlike
from expunge.deposit.steps import step_of, third_step
from expunge.deposit.sums import Gauge, Sums
from expunge.deposit.third import pull_error

Tried = tuple[DepositFacts, Norm | None]  # with the norm it measures by
LARGEST_REACH = 600.0  # beyond it e^R is of no use
UP = 1.0 + 2.0**-30  # for the float64 arithmetic of one number
GAIN = 1.1  # a route that can be smaller by no more than this factor is not tried
FACTORS = (0.25, 4.0)  # beside the balance of the two parts of a long-row matrix, which is tried first
MOST_MISSING = 0.5  # of M's least eigenvalue: a matrix that is mostly error is of no use
MANY = 1500  # weights: from here on that alone is tried


@dataclass(frozen=True)
class Found:
    """The step, how it was made, and the numbers of the smallest region; `beside` are those of surrogate rows.

    `steps` counts solutions of the system.
    """

    update: Tensor
    facts: DepositFacts
    residual: float
    tried: int
    beside: Beside | None = None
    steps: int = 1


def found(
    setting: Setting, sums: Sums, penalty: Penalty, shape: Tensor, like: DepositFacts | None = None
) -> Found | None:
    """The step and its smallest region; None where no route has a finite one. `like`: see `smallest`."""
    stepped = step_of(setting, sums, penalty)
    if stepped is None:
        return None
    update, left, system = stepped
    if sums.third is None:
        return smallest(setting, sums, penalty, shape, update, left, system, like=like)
    further, rest, steps = third_step(setting, sums, penalty, update, system)
    third = smallest(setting, sums, penalty, shape, further, rest, system, third=True, like=like)
    if third is None:
        return smallest(setting, sums, penalty, shape, update, left, system, like=like)
    third, size = replace(third, steps=steps), size_of(third.facts)
    second = smallest(setting, sums, penalty, shape, update, left, system, below=size, like=like)
    if second is None:
        return third
    smaller, larger = sorted((third, second), key=lambda each: size_of(each.facts))
    if like is None or settled(larger.facts) > tied(smaller.facts):
        return smaller
    return min((third, second), key=lambda each: unlike(each.facts, like))


def smallest(
    setting: Setting,
    sums: Sums,
    penalty: Penalty,
    shape: Tensor,
    update: Tensor,
    left: Tensor,
    system: Norm,
    *,
    third: bool = False,
    below: float = math.inf,
    like: DepositFacts | None = None,
) -> Found | None:
    """The region of this update, by the route that gives the smallest, or one that is hardly larger.

    `third` if third derivatives are in `left`; routes that cannot be `below` a size are not tried. Where several are as
    small as each other the last digit decides, unless it is said what the one wanted is `like`: then it is the most
    like it of all that are no larger than the usual search would have.
    """
    work = Routes(setting, sums, penalty, shape, update, left, system, third=third)
    made = work.routes(GAIN, below) if like is None else (facts for facts, _ in work.tried(ties=True))
    candidates = [facts for facts in made if math.isfinite(size_of(facts))]
    best = min(candidates, key=size_of, default=None)
    if best is None:
        return None
    if like is not None:  # a search that leaves routes out may have ended with a larger one
        usual = (facts for facts in work.routes(GAIN, below) if math.isfinite(size_of(facts)))
        most = tied(min(usual, key=size_of, default=best))
        best = min((each for each in candidates if settled(each) <= most), key=lambda each: unlike(each, like))
    return Found(update, best, float(left.norm()), len(candidates))


@dataclass(frozen=True)
class Attempt:
    """A route: its size is not below `floor`; `made` gives its numbers, for a factor where it has one to choose."""

    floor: float
    made: Callable[[float], Iterator[Tried]]


@dataclass(frozen=True)
class Routes:
    """The numbers of every route for one update. `left` is what its equation left, `lost` what float64 lost of that
    beyond the deposit's own sums.
    """

    setting: Setting
    sums: Sums
    penalty: Penalty
    shape: Tensor
    update: Tensor
    left: Tensor
    system: Norm
    lost: float = 0.0
    third: bool = False

    def routes(self, gain: float = 0.0, below: float = math.inf) -> Iterator[DepositFacts]:
        """The numbers of each route."""
        return (facts for facts, _ in self.tried(gain, below))

    @cached_property
    def every(self) -> tuple[Tried, ...]:
        """All of them, found once."""
        return tuple(self.tried())

    def tried(self, gain: float = 0.0, below: float = math.inf, *, ties: bool = False) -> Iterator[Tried]:
        """Each route with the norm that it measures by (the plain one has none), those that can give least first.

        With a `gain` the others are left out once none of them could be smaller than the smallest by such a factor.
        Factors are tried of the smallest on long rows, and with `ties` of all that are as small.
        """
        if self.setting.quadratic:
            curvature = self.sums.curvature.plus(-self._curvature_error)
            yield from self._by_norm(EXACT, norm_of(self._matrix(curvature, curvature.frobenius)[0]))
            return
        smallest_yet, long_rows = math.inf, []
        for attempt in sorted(self._attempts(), key=lambda each: each.floor):
            if gain * attempt.floor >= smallest_yet or attempt.floor > below:
                break
            for facts, norm in attempt.made(1.0):
                smallest_yet = min(smallest_yet, size_of(facts))
                if way_of(facts.route) == LONG_ROWS and math.isfinite(size_of(facts)):
                    long_rows.append((facts, attempt))
                yield facts, norm
        best = min(long_rows, key=lambda each: size_of(each[0]), default=None)
        again = [best] if best is not None else []
        if ties and best is not None:
            again = [each for each in long_rows if settled(each[0]) <= tied(best[0])]
        for _, attempt in again:
            if self.update.numel() <= MANY and gain * attempt.floor < smallest_yet:
                for factor in FACTORS:
                    yield from attempt.made(factor)

    def _attempts(self) -> Iterator[Attempt]:
        """Every route with a number that its size is not below."""
        gauged = [self._gauged(gauge) for gauge in self.setting.gauges]
        reach = min([self.plain_reach(), *(reach for _, reach in gauged)])
        curved = self._curved(self.sums.curvature, 0.0)
        bent = (bend_third(reach) if self.third else bend(reach)) * curved
        if reach <= LARGEST_REACH:
            gone = -math.expm1(-reach) * self.sums.curvature.diagonal
            stretched = math.sqrt(self._stretch(self._shape_diagonal, gone))
            yield Attempt(bent * math.exp(reach / 2.0) * stretched, lambda _: self._range(reach))
            for index, (length, _) in enumerate(gauged):
                made = functools.partial(self._long_rows, index, length, reach)
                yield Attempt(self._long_floor(index, length, reach), made)
        if not self.penalty.free:
            largest_two = self.sums.curvature.diagonal.max() * self._shape_diagonal.max()
            floor = bent * math.sqrt(max(0.0, float(largest_two))) / self.penalty.l2
            yield Attempt(floor, lambda _: iter(((self._plain(reach), None),)))

    @property
    def _common(self) -> float:
        """Of each number on a diagonal, what the stiff direction has in it: the other classes can take it away."""
        return self.setting.stiff / len(self.update) if self.setting.shift_free else 0.0

    @property
    def _shape_diagonal(self) -> Tensor:
        return self._shape_seen.diagonal

    def _stretch(self, diagonal: Tensor, gone: Tensor) -> float:
        """`lambda_max(M^-1 A)` is not below this: unit vectors, with the diagonal of A, and of what M lacks."""
        left = self.system.matrix.diagonal - self._common - gone
        return float((diagonal / left.clamp(min=1e-300)).max()) if bool((left > 0.0).all()) else math.inf

    def _long_floor(self, index: int, length: float, reach: float) -> float:
        """On long rows M lacks at least `r sqrt(H_2 H)`, whatever the share."""
        own, weighted = (each.diagonal.clamp(min=0.0) for each in (self.sums.curvature, self.sums.weighted[index]))
        gone = length * (own * weighted).sqrt()
        moments = self.setting.gauges[index].factor.square().sum(dim=-1)
        moments = moments.repeat(self.system.matrix.diagonal.shape[-1] // len(moments))
        slope = bend_third_slope(reach) * length if self.third else bend_slope(reach)
        bent = slope * length * self._curved(self.sums.weighted[index], 0.0)
        rho = bent * math.sqrt(self._stretch(weighted if self.third else own, gone))
        steep = self._stretch(moments, gone) * self._stretch(weighted, gone) * math.exp(reach)
        return weighted_radius(math.sqrt(steep), rho) * math.sqrt(self._stretch(self._shape_diagonal, gone))

    def _differences(self, lengths) -> float:  # type: ignore[no-untyped-def]
        """The largest length of `u_j - u_k`, or of `u_k` where classes do not compete."""
        if not self.setting.shift_free:
            return float(lengths(self.update).max()) * UP
        pairs = (self.update[:, None] - self.update[None]).reshape(-1, self.update.shape[1])
        return float(lengths(pairs).max()) * UP

    def plain_reach(self) -> float:
        """R from the row bound alone: of every admissible row."""
        return self.setting.row_bound * self._differences(lambda vectors: vectors.norm(dim=-1))

    def _gauged(self, gauge: Gauge) -> tuple[float, float]:
        length = self._differences(gauge.length)
        return length, gauge.kappa * length

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
        known = self.sums.gradient_error + self._curvature_error * update
        return (known + evaluated + (self._pulled_error if self.third else 0.0) + self.lost) * UP

    @cached_property
    def _pulled_error(self) -> float:
        assert self.sums.third is not None
        return pull_error(self.sums.third, self.update, self.sums.third_error)

    def _named(self, way: str) -> str:
        """The route, by the order of its remainder."""
        return way + THIRD if self.third else way

    def _displaced(self) -> float:
        """How far the sum w + u in float64 is from v, and v from weights whose classes sum to zero, in plain length."""
        updated = self.setting.anchor + self.update
        lost = (len(updated) + 4) * UNIT_ROUNDOFF * float(self.setting.anchor.norm() + self.update.norm())
        if not self.setting.shift_free:
            return lost * UP
        common = updated.mean(dim=0)[: -1 if self.penalty.free else None]
        return (lost + math.sqrt(len(updated)) * float(common.norm())) * UP

    def _ratio(self, norm: Norm) -> float:
        """`lambda_max(M^-1 M_0)` over what classes see, M_0 the product of the shape's own factors."""
        return norm.most(self._shape_seen, self._shape_error)

    @cached_property
    def _shape_seen(self) -> Blocks:
        """M_0: one block for all classes; where they compete, without what is common to them."""
        if not self.sums.curvature.joint:
            return Blocks(square_of(self.shape), joint=False)
        return Blocks(centred_shape(self.shape, len(self.update))[None], joint=True)

    @property
    def _shape_error(self) -> float:
        """What float64 may have changed of the product of its factors."""
        return 4 * (self.shape.shape[-1] + 4) * UNIT_ROUNDOFF * float(self.shape.square().sum(dim=(-1, -2)).max())

    @cached_property
    def _shape_largest(self) -> float:
        """The largest eigenvalue of M_0, what is common to all classes included."""
        return largest(Blocks(square_of(self.shape), joint=False).plus(self._shape_error))

    def _curved(self, matrix: Blocks, error: float, longest: float = math.inf) -> float:
        """`||u||` by a matrix that is off by at most `error`; it is known not to be above `longest`."""
        size = float(self.update.norm())
        lost = error + 2 * (self.update.numel() + 16) * UNIT_ROUNDOFF * matrix.frobenius
        return min(math.sqrt(max(0.0, matrix.form(self.update)) + lost * size**2), longest) * UP

    def _widest(self, reach: float) -> float:
        """`||u||` by H' is no more: a variance is at most a quarter of the square of the range, in every model."""
        return 0.5 * math.sqrt(1 if self.sums.curvature.joint else len(self.update)) * reach

    def _by_norm(self, route: str, norm: Norm | None, **known: float) -> Iterator[tuple[DepositFacts, Norm]]:
        if norm is None or norm.least <= 0.0:
            return
        ratio = self._ratio(norm)
        # v may be off in what is common to all classes too, where M_0 is another than M
        steepest = max(norm.matrix.row_sum(), self._shape_largest / ratio)
        rounding = self._lost() / math.sqrt(norm.least) + self._displaced() * math.sqrt(steepest)
        yield DepositFacts(route, norm.dual(self.left), rounding * UP, ratio, **known), norm

    def _range(self, reach: float) -> Iterator[tuple[DepositFacts, Norm]]:
        if reach > LARGEST_REACH:
            return
        shrunk, error = math.exp(-reach) / UP, self._curvature_error
        curvature = self.sums.curvature.plus(-error).times(shrunk)
        matrix, lowered = self._matrix(curvature, curvature.frobenius)
        norm = norm_of(matrix)
        # H' itself is at most e^R M but for what was taken off M
        if norm is None or not (missing := 2.0 * error * shrunk + lowered) <= MOST_MISSING * norm.least:
            return
        curved = (
            self._curved(self.sums.curvature, error, self._widest(reach)) * math.sqrt(1.0 + missing / norm.least) * UP
        )
        ratio, route = math.exp(reach) * (1.0 + missing / norm.least) * UP**2, self._named(RANGE)
        for facts, _ in self._by_norm(route, norm, reach=reach, update_curved=curved, curvature_ratio=ratio):
            yield replace(facts, concordance=self._concordance(norm)), norm

    def _concordance(self, norm: Norm) -> float:
        """c: the largest range of `e x` over rows, for an e of length 1 in M."""
        pairs = math.sqrt(2.0) if self.setting.shift_free else 1.0
        least = norm.least
        best = pairs * self.setting.row_bound / math.sqrt(least) if least > 0.0 else math.inf
        for gauge in self.setting.gauges:
            best = min(best, gauge.kappa * math.sqrt(self.spread(norm, gauge, below=(best / gauge.kappa) ** 2)))
        return best * UP

    def spread(self, norm: Norm, gauge: Gauge, below: float = math.inf) -> float:
        """tau^2: the largest `max ||e_j - e_k||_Q^2` for an e of length 1 in M; infinite where it is not `below`."""
        moments = gauge.factor @ gauge.factor.T
        error = 4 * (len(moments) + 4) * UNIT_ROUNDOFF * float(gauge.factor.square().sum())
        if not self.setting.shift_free:
            return norm.most(Blocks(moments.expand(norm.matrix.values.shape), joint=False), error, below)
        classes = len(self.update)
        centred = torch.eye(classes, dtype=moments.dtype, device=moments.device) - 1.0 / classes
        return 2.0 * norm.most(Blocks(torch.kron(centred, moments)[None], joint=True), error, below / 2.0)

    def _long_rows(self, index: int, length: float, reach: float, factor: float) -> Iterator[tuple[DepositFacts, Norm]]:
        gauge, weighted = self.setting.gauges[index], self.sums.weighted[index]
        error = self.sums.weighted_errors[index]
        share = factor * length * self._balance(index)
        if reach > LARGEST_REACH or not 0.0 < share < 2.0:
            return
        own, other = (1.0 - share / 2.0) / UP, length**2 / (2.0 * share) * UP
        curvature = self.sums.curvature.plus(-self._curvature_error)
        parts = own * curvature.frobenius + other * (weighted.frobenius + error)
        norm = norm_of(self._matrix(curvature.combined(own, weighted.plus(error), -other), parts)[0])
        curved = self._curved(weighted, error, gauge.kappa * self._widest(reach))
        known = {"reach": reach, "gauge": length, "kappa": gauge.kappa, "update_curved": curved}
        for facts, found in self._by_norm(self._named(LONG_ROWS), norm, **known):
            ratio = found.most(self.sums.curvature, self._curvature_error)
            # H_2 is at most kappa^2 H, whatever copies are charged for
            heavy = min(found.most(weighted, error), gauge.kappa**2 * ratio * UP)
            yield replace(facts, curvature_ratio=ratio, spread=self.spread(found, gauge), weight_ratio=heavy), found

    def _balance(self, index: int) -> float:
        """The share, of which any is sound, at which both parts of a long-row matrix weigh about the same."""
        return math.sqrt(self.system.most(self.sums.weighted[index], self.sums.weighted_errors[index]))

    def _plain(self, reach: float) -> DepositFacts:
        top = largest(self.sums.curvature.plus(self._curvature_error))
        rounding = (self._lost() + self.penalty.l2 * self._displaced()) * UP
        return DepositFacts(
            self._named(PLAIN),
            float(self.left.norm()) * UP,
            rounding,
            self._shape_largest,
            reach=reach,
            update_curved=self._curved(self.sums.curvature, self._curvature_error, self._widest(reach)),
            curvature_ratio=top,
            l2=self.penalty.l2,
        )
