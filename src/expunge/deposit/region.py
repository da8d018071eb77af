"""The step from the retained rows' sums, and where the retrained weights are around it.

`smallest_region` has the answer: a `RetainedProblem` (made by `Deposit.problem`, file.py) gives the step, `Routes` the
numbers of each route, and bounds/deposit.py the radius that follows from them, in plain numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial

from expunge.bounds.deposit import (
    EXACT,
    LONG_ROWS,
    PLAIN,
    RANGE,
    THIRD,
    DepositFacts,
    bend,
    bend_third,
    deposit_bound,
    remainder,
)
from expunge.bounds.region import Region
from expunge.deposit.matrices import (
    UNIT_ROUNDOFF,
    Blocks,
    Norm,
    Shared,
    centred_shape,
    largest,
    most_shared,
    square_of,
)
from expunge.deposit.sums import Gauge, Sums, along, pull, pull_error
from expunge.runtime.arrays import Array, add_to_diagonal, copy, is_double, namespace, size
from expunge.runtime.arrays import norm as length_of

# The step from the retained rows' sums: Newton's, and with third derivatives on to the root of a quadratic ----------
# Softmax does not see what is added to all classes alike, and at the optimum the weights of all classes sum to zero
# (or, for an intercept that is free, can be taken to). So everything happens among weights whose classes sum to zero:
# the direction common to all classes is made stiff, in every matrix by the same amount.

MOST_REFINEMENTS = 20  # of a step by rough factors
MOST_STEPS = 60  # by the same matrix, towards the root of a quadratic
AT_REST = 2.0**-5  # of what float64 made of the gradient: to go on from there would hardly make a region smaller


@dataclass(frozen=True)
class Penalty:
    """`(l2/2) ||W||^2` on the columns that are penalised: all, or all but a free intercept, the last."""

    l2: float
    free: bool = False

    def diagonal(self, like: Array) -> Array:
        """What the regulariser adds to the Hessian's diagonal, K x d."""
        values = namespace(like).full_like(like, self.l2)
        if self.free:
            values[:, -1] = 0.0
        return values


@dataclass(frozen=True)
class Setting:
    """What hardly changes from deletion to deletion: the anchor, the rows' bounds, the kind of loss.

    `shift_free`: the loss does not see what is added to all classes (softmax), and outputs compete in pairs. `stiff` is
    what is added to the direction common to all classes.
    """

    anchor: Array
    row_bound: float
    gauges: tuple[Gauge, ...]
    quadratic: bool
    shift_free: bool
    stiff: float = 0.0

    def centred(self, weights: Array) -> Array:
        """The weights without what is common to all classes, where the loss does not see that."""
        return weights - weights.mean(axis=0) if self.shift_free else weights

    def stiffened(self, matrix: Blocks, *, in_place: bool = False) -> Blocks:
        """A matrix with the direction common to all classes made stiff."""
        if not self.shift_free:
            return matrix
        classes, width = self.anchor.shape
        values = matrix.values if in_place else copy(matrix.values)
        pairs = namespace(values).permute_dims(values.reshape(classes, width, classes, width), (0, 2, 1, 3))
        add_to_diagonal(pairs, self.stiff / classes)
        return Blocks(values, matrix.joint)

    def penalised(self, matrix: Blocks, penalty: Penalty, *, in_place: bool = False) -> Blocks:
        """A matrix with the regulariser on the diagonal."""
        diagonal = penalty.diagonal(self.anchor)
        added = diagonal.reshape(1, -1) if matrix.joint else diagonal[: len(matrix.values)]
        return Blocks(add_to_diagonal(matrix.values, added), matrix.joint) if in_place else matrix.plus(added)


@dataclass(frozen=True)
class RetainedProblem:
    """What step and region follow from: the retained rows' sums and regulariser, and the factor of the noise's shape.

    `system` is the norm of `H' + reg`, in which steps are solved.
    """

    setting: Setting
    sums: Sums
    penalty: Penalty
    shape: Array

    @cached_property
    def gradient(self) -> Array:
        """`g' + reg w`, classes centred."""
        anchor = self.setting.anchor
        return self.setting.centred(self.sums.gradient + self.penalty.diagonal(anchor) * anchor)

    @cached_property
    def system(self) -> Norm:
        norm = self._system
        assert norm is not None
        return norm

    @cached_property
    def _system(self) -> Norm | None:
        matrix = self.setting.stiffened(self.sums.curvature.plus(0.0), in_place=True)
        matrix = self.setting.penalised(matrix, self.penalty, in_place=True)
        return Norm.of(matrix) if size(self.setting.anchor) <= MANY else Norm.rough(matrix)

    @property
    def solvable(self) -> bool:
        """Whether `H' + reg` is positive definite."""
        return self._system is not None

    def left(self, update: Array) -> Array:
        """`g' + (H' + reg) u`: what an update leaves of the linearised gradient."""
        return self.setting.centred(self.gradient + self.system.matrix.product(update))

    @cached_property
    def linear_step(self) -> Array:
        """`u = -(H' + reg)^-1 g'`, refined."""
        centred, system = self.setting.centred, self.system
        update = centred(-system.solved(self.gradient))
        if is_double(system.factor.dtype):
            for _ in range(2):
                update = centred(update - system.solved(self.gradient + system.matrix.product(update)))
            return update
        left = self.left(update)
        for _ in range(MOST_REFINEMENTS):  # until rounding is all that is left
            further = centred(update - system.solved(left))
            beyond = self.left(further)
            if not length_of(beyond) < 0.5 * length_of(left):
                break
            update, left = further, beyond
        return update

    def third_order_step(self) -> tuple[Array, Array, int]:
        """From the linear step on to `g' + (H' + reg) u + T'[u, u]/2 = 0`, what is left of it, and how many steps.

        By its Jacobian at the linear step, as far as that falls; where that is not definite, or leads no further, by
        `H' + reg`.
        """
        third, joint, update, system = self.sums.third, self.sums.curvature.joint, self.linear_step, self.system
        assert third is not None
        change = along(third, update, joint=joint)
        left = self.setting.centred(self.left(update) + 0.5 * change.product(update))
        jacobian = Norm.of(system.matrix.combined(1.0, change, 1.0))
        ways = [system] if jacobian is None else [system, jacobian]
        lost = (size(update) + 32) * UNIT_ROUNDOFF * length_of(self.gradient)
        rest = AT_REST * max(self.sums.gradient_error, lost)
        for step in range(1, MOST_STEPS):
            if length_of(left) <= rest:
                return update, left, step
            further = self.setting.centred(update - ways[-1].solved(left))
            beyond = self.setting.centred(self.left(further) + pull(third, further, joint=joint))
            if length_of(beyond) < length_of(left):
                update, left = further, beyond
            elif len(ways) == 1:
                return update, left, step
            else:
                ways.pop()
        return update, left, MOST_STEPS


# Where the retrained weights are around the step: the region by every route, of which the smallest is taken ---------
# A route measures the error by a matrix M of its own and finds a radius in that norm; bounds/deposit.py has the formula
# of each. Here are the numbers that they follow from, each rounded up.

RouteFacts = tuple[DepositFacts, Blocks | None]  # the numbers of a route, and the matrix it measures by (plain: none)
LARGEST_REACH = 600.0  # beyond it e^R is of no use
UP = 1.0 + 2.0**-30  # for the float64 arithmetic of one number
FACTORS = (0.25, 4.0)  # of the balance of the two parts of a long-row matrix, which is tried first
MOST_MISSING = 0.5  # of M's least eigenvalue: a matrix that is mostly error is of no use
MANY = 1500  # weights: from here on that alone is tried, and one matrix serves all routes where they reach so far
SHORT_REACH = 1.0
NEARLY_LINEAR = 0.125  # of c rho: up to here a closer c would make a region smaller by less than a fifteenth


@dataclass(frozen=True)
class Solution:
    """The step, and the numbers of the smallest region; `steps` counts solutions of the system."""

    update: Array
    facts: DepositFacts
    residual: float
    steps: int = 1

    @property
    def region(self) -> Region:
        """The region in the norm of the noise's shape."""
        return deposit_bound(self.facts)


def smallest_region(problem: RetainedProblem) -> Solution | None:
    """The step and its smallest region; None where no route has a finite one."""
    return min(regions(problem), key=lambda each: each.facts.size, default=None)


def regions(problem: RetainedProblem, *, ties: bool = False) -> list[Solution]:
    """The finite regions among which the smallest is: of the step with third derivatives, and of the one without where
    it might be better. Where several are as small as each other the last digit decides which is taken: with `ties` a
    verifier, whose last digit is another, gets all that could be.
    """
    if not problem.solvable:
        return []
    found: list[Solution] = []
    if problem.sums.third is not None:
        update, left, steps = problem.third_order_step()
        found = Routes(problem, update, left, third=True, steps=steps).solutions(ties=ties)
        if not ties and gains_by_third(min(found, key=lambda each: each.facts.size, default=None)):
            return found
    update = problem.linear_step
    return found + Routes(problem, update, problem.left(update)).solutions(ties=ties)


def gains_by_third(solution: Solution | None) -> bool:
    """Whether without third derivatives the region is larger for certain: its remainder alone, for an update about as
    long, is twice all that there is with them."""
    if solution is None or not 0.0 < solution.facts.reach <= 1.0:
        return False
    facts = solution.facts
    own = remainder(facts)
    return own * bend(facts.reach) / bend_third(facts.reach) > 2.0 * (own + facts.solver + facts.rounding)


def difference(one: DepositFacts, other: DepositFacts) -> tuple[bool, float, float]:
    """Whether it is another route, how far its gauge is another, and the sum of relative differences of its numbers.

    What a step left is rounding. Where the update is so too its lengths can be anything, but are those of all routes by
    the same gauge. Of l2 routes say nothing, or the same.
    """
    left_out = ("route", "kappa", "solver", "l2")
    pairs = [(value, asdict(other)[name]) for name, value in asdict(one).items() if name not in left_out]
    apart = math.fsum(abs(a - b) / max(abs(a), abs(b), 1e-300) for a, b in pairs)
    return one.route != other.route, abs(one.kappa - other.kappa), apart


@dataclass(frozen=True)
class Routes:
    """Every route for one update, and what they share.

    `left_over` is what its equation left; `third` if third derivatives are in it; `steps` counts solutions of the
    system.
    """

    problem: RetainedProblem
    update: Array
    left_over: Array
    third: bool = False
    steps: int = 1

    def solutions(self, *, ties: bool = False) -> list[Solution]:
        """The finite regions of this update."""
        left = length_of(self.left_over)
        finite = (facts for facts, _ in self.measurements(ties=ties) if math.isfinite(facts.size))
        return [Solution(self.update, facts, left, self.steps) for facts in finite]

    def measurements(self, *, ties: bool = False) -> Iterator[RouteFacts]:
        """The numbers of each route that has any; other factors are tried of the smallest on long rows, with `ties` of
        all."""
        if self.problem.setting.quadratic:
            yield from self.exact()
            return
        few, smallest, long_rows = size(self.update) <= MANY, math.inf, []
        if not few and self.reach <= SHORT_REACH:
            for facts, matrix in self.by_system():
                smallest = min(smallest, facts.size)
                yield facts, matrix
        elif self.reach <= LARGEST_REACH:
            for facts, matrix in self.by_range():
                smallest = min(smallest, facts.size)
                yield facts, matrix
            for index in range(len(self.lengths)):
                for facts, matrix in self.by_long_rows(index):
                    if math.isfinite(facts.size):
                        long_rows.append((facts.size, index))
                    smallest = min(smallest, facts.size)
                    yield facts, matrix
        if not self.problem.penalty.free and (few or self.least_by_plain <= smallest):
            yield self.plain(), None
        if few:
            for _, index in long_rows if ties else sorted(long_rows)[:1]:
                for factor in FACTORS:
                    yield from self.by_long_rows(index, factor)

    # The routes: the numbers that the formula of each takes ---------------------------------------------------------

    def exact(self) -> Iterator[RouteFacts]:
        """The route of quadratic losses, whose Hessian is the same everywhere: M is that of the retained rows."""
        curvature = self.problem.sums.curvature.plus(-self.problem.sums.curvature_error)
        norm = Norm.of(self.matrix(curvature, curvature.frobenius)[0])
        if norm is not None:
            yield from self.by_norm(EXACT, norm)

    def by_range(self) -> Iterator[RouteFacts]:
        """`M = e^-R H' + reg`: along u no row's Hessian changes by more than e^R."""
        matrix, missing = self.range_matrix()
        norm = Norm.of(matrix)
        if norm is None or not missing <= MOST_MISSING * norm.least:
            return
        known = self.known_by_range(missing / norm.least)
        for facts, _ in self.by_norm(RANGE, norm, **known):
            yield replace(facts, concordance=self.concordance(norm)), matrix

    def range_matrix(self) -> tuple[Blocks, float]:
        """`e^-R H' + reg`, and by how much more H' itself can be than e^R times that: what was taken off for errors."""
        sums, shrunk = self.problem.sums, math.exp(-self.reach) / UP
        curvature = sums.curvature.times(shrunk)
        add_to_diagonal(curvature.values, -sums.curvature_error * shrunk)
        matrix, lowered = self.matrix(curvature)
        return matrix, 2.0 * (sums.curvature_error * shrunk + lowered)

    def known_by_range(self, missing: float) -> dict[str, float]:
        """What the range route's matrix says of H'; `missing` is the share of M that was taken off."""
        sums, more = self.problem.sums, 1.0 + missing
        curved = self.curved(sums.curvature, sums.curvature_error, self.widest) * math.sqrt(more) * UP
        ratio = math.exp(self.reach) * more * UP**2
        return {"reach": self.reach, "update_curved": curved, "curvature_ratio": ratio}

    def concordance(self, norm: Norm) -> float:
        """c: the largest range of `e x` over rows, for an e of length 1 in M."""
        best = self.by_row_bound(norm.least)
        for gauge in self.problem.setting.gauges:
            best = min(best, gauge.kappa * math.sqrt(self.spread(norm, gauge, below=(best / gauge.kappa) ** 2)))
        return best * UP

    def by_row_bound(self, least: float) -> float:
        """A bound on c from the row bound and M's least eigenvalue."""
        pairs = math.sqrt(2.0) if self.problem.setting.shift_free else 1.0
        return pairs * self.problem.setting.row_bound / math.sqrt(least) if least > 0.0 else math.inf

    def by_long_rows(self, index: int, factor: float = 1.0) -> Iterator[RouteFacts]:
        """`M = (1 - a/2) H' - (r^2/2a) H_2' + reg`, by one gauge, whatever the share a: for rows of unequal length."""
        sums, length = self.problem.sums, self.lengths[index]
        gauge, weighted = self.problem.setting.gauges[index], sums.weighted[index]
        error = sums.weighted_errors[index]
        # the share, of which any is sound, at which both parts of the matrix weigh about the same, times the factor
        share = factor * length * math.sqrt(self.weights_found[index])
        if not 0.0 < share < 2.0:
            return
        own, other = (1.0 - share / 2.0) / UP, length**2 / (2.0 * share) * UP
        curvature = sums.curvature.plus(-sums.curvature_error)
        parts = own * curvature.frobenius + other * (weighted.frobenius + error)
        norm = Norm.of(self.matrix(curvature.combined(own, weighted.plus(error), -other), parts)[0])
        if norm is None:
            return
        curved = self.curved(weighted, error, gauge.kappa * self.widest)
        known = {"reach": self.reach, "gauge": length, "kappa": gauge.kappa, "update_curved": curved}
        for facts, matrix in self.by_norm(LONG_ROWS, norm, **known):
            ratio = norm.most(sums.curvature, sums.curvature_error)
            # H_2 is at most kappa^2 H, whatever copies are charged for
            heavy = min(norm.most(weighted, error), gauge.kappa**2 * ratio * UP)
            spread = self.spread(norm, gauge)
            c = min(self.by_row_bound(norm.least), gauge.kappa * math.sqrt(spread)) * UP
            made = replace(facts, curvature_ratio=ratio, weight_ratio=heavy, concordance=c, spread=spread)
            yield made, matrix

    @cached_property
    def weights_found(self) -> list[float]:
        """About the largest eigenvalue of H_2' by `H' + reg`, for each gauge."""
        pairs = zip(self.problem.sums.weighted, self.problem.sums.weighted_errors, strict=True)
        return [self.problem.system.about(weighted, error) for weighted, error in pairs]

    def by_system(self) -> Iterator[RouteFacts]:
        """Both routes of many weights, by the matrix of the range route: it is at most the Hessian at v, whichever
        remainder is charged. It is not factored: one eigenvalue by the noise's shape is proved of it, from the factors
        that the step was solved with, and bounds everything else; where that is not enough, one by a gauge."""
        setting, system = self.problem.setting, self.problem.system
        matrix, missing = self.range_matrix()
        shape = Norm(Blocks(square_of(self.problem.shape), joint=False).plus(-self.shape_error), self.problem.shape)
        ratio = most_shared(matrix, self.shared(shape.matrix.values[0]), 2.0 * self.shape_error, system)
        # M is at least M_0 by the ratio, where classes compete among weights whose classes sum to zero, and beyond them
        # it is stiff. Errors of H' mix the two: without them M would be more, by what is missing at most
        least = shape.least / ratio
        if setting.shift_free:
            least = min(least, setting.stiff) - missing
        if not (least > 0.0 and missing <= MOST_MISSING * least):
            return
        solver = length_of(self.left_over) / math.sqrt(least) * UP
        steepest = max(matrix.row_sum(), self.shape_largest / ratio)
        rounding = (self.of_gradient() / math.sqrt(least) + self.displaced() * math.sqrt(steepest)) * UP
        known = self.known_by_range(missing / least)
        by_range = DepositFacts(self.named(RANGE), solver, rounding, ratio, **known)
        found, pairs = [by_range], 2.0 if setting.shift_free else 1.0
        heaviest = by_range.curvature_ratio  # of H' by M
        if not self.problem.penalty.free:  # of an eigenvalue h of H' it is h / (e^-R h + l2), which grows with h
            curvature = self.problem.sums.curvature
            top = min(curvature.frobenius, curvature.row_sum()) * UP + self.problem.sums.curvature_error
            l2 = self.problem.penalty.l2 / (1.0 + missing / least)
            heaviest = min(heaviest, heaviest * top / (top + heaviest * l2) * UP)
        spreads = [pairs * ratio * shape.most(*self.moments(gauge)) * UP for gauge in setting.gauges]
        for index, gauge in enumerate(setting.gauges):
            weighted, error = self.problem.sums.weighted[index], self.problem.sums.weighted_errors[index]
            found.append(
                replace(
                    by_range,
                    route=self.named(LONG_ROWS),
                    update_curved=self.curved(weighted, error, gauge.kappa * self.widest),
                    gauge=self.lengths[index],
                    kappa=gauge.kappa,
                    curvature_ratio=heaviest,
                    weight_ratio=gauge.kappa**2 * heaviest * UP,
                )
            )

        def closest() -> float:
            each = (gauge.kappa * math.sqrt(spread) for gauge, spread in zip(setting.gauges, spreads, strict=True))
            return min(self.by_row_bound(least), *each, math.inf) * UP

        rho = min(solver + rounding + remainder(facts) for facts in found)
        for index, gauge in enumerate(setting.gauges):
            if closest() * rho > NEARLY_LINEAR:
                moments, error = self.moments(gauge)
                spread = pairs * most_shared(matrix, self.shared(moments.values[0]), error, system) * UP
                spreads[index] = min(spreads[index], spread)
        c = closest()
        for facts, spread in zip(found, [0.0, *spreads], strict=True):
            yield replace(facts, concordance=c, spread=spread), matrix

    @property
    def least_by_plain(self) -> float:
        """What the plain route's region is at least: the largest eigenvalue of H' is no less than that along u."""
        sums, update = self.problem.sums, length_of(self.update)
        if update == 0.0:
            return 0.0
        curved = self.curved(sums.curvature, sums.curvature_error, self.widest)
        along_u = max(0.0, sums.curvature.form(self.update)) / update**2
        known = {"reach": self.reach, "update_curved": curved, "curvature_ratio": along_u}
        facts = DepositFacts(self.named(PLAIN), 0.0, 0.0, self.shape_largest, l2=self.problem.penalty.l2, **known)
        return facts.size / UP

    def plain(self) -> DepositFacts:
        """M = I, for a regulariser that leaves no weight free."""
        sums, l2 = self.problem.sums, self.problem.penalty.l2
        return DepositFacts(
            self.named(PLAIN),
            length_of(self.left_over) * UP,
            (self.of_gradient() + l2 * self.displaced()) * UP,
            self.shape_largest,
            reach=self.reach,
            update_curved=self.curved(sums.curvature, sums.curvature_error, self.widest),
            curvature_ratio=largest(sums.curvature.plus(sums.curvature_error)),
            l2=l2,
        )

    def named(self, route: str) -> str:
        """The route, with the order of its remainder."""
        return route + THIRD if self.third else route

    def by_norm(self, route: str, norm: Norm, **known: float) -> Iterator[RouteFacts]:
        """The numbers of a route that measures by this norm, where it is certainly one."""
        if norm.least <= 0.0:
            return
        ratio = norm.most(self.shape_seen, self.shape_error)  # `lambda_max(M^-1 M_0)` over what classes see
        # v may be off in what is common to all classes too, where M_0 is another than M
        steepest = max(norm.matrix.row_sum(), self.shape_largest / ratio)
        rounding = self.of_gradient() / math.sqrt(norm.least) + self.displaced() * math.sqrt(steepest)
        yield DepositFacts(self.named(route), norm.dual(self.left_over), rounding * UP, ratio, **known), norm.matrix

    # How long the update is ------------------------------------------------------------------------------------------

    @cached_property
    def lengths(self) -> list[float]:
        """r of each gauge."""
        return [self._differences(gauge.length) for gauge in self.problem.setting.gauges]

    @cached_property
    def reach(self) -> float:
        """R: the largest range of `u x` over the rows, by the row bound and by every gauge."""
        setting = self.problem.setting
        plain = setting.row_bound * self._differences(partial(namespace(self.update).linalg.vector_norm, axis=-1))
        return min([plain, *(g.kappa * length for g, length in zip(setting.gauges, self.lengths, strict=True))])

    def _differences(self, lengths) -> float:  # type: ignore[no-untyped-def]
        """The largest length of `u_j - u_k`, or of `u_k` where classes do not compete."""
        if not self.problem.setting.shift_free:
            return float(lengths(self.update).max()) * UP
        pairs = (self.update[:, None] - self.update[None]).reshape(-1, self.update.shape[1])
        return float(lengths(pairs).max()) * UP

    def curved(self, matrix: Blocks, error: float, longest: float = math.inf) -> float:
        """`||u||` by a matrix that is off by at most `error`; it is known not to be above `longest`."""
        lost = error + 2 * (size(self.update) + 16) * UNIT_ROUNDOFF * matrix.frobenius
        return min(math.sqrt(max(0.0, matrix.form(self.update)) + lost * length_of(self.update) ** 2), longest) * UP

    @property
    def widest(self) -> float:
        """`||u||` by H' is no more: a variance is at most a quarter of the square of the range, in every model."""
        return 0.5 * math.sqrt(1 if self.problem.sums.curvature.joint else len(self.update)) * self.reach

    # Matrices and what float64 lost of them --------------------------------------------------------------------------

    def matrix(self, curvature: Blocks, parts: float | None = None) -> tuple[Blocks, float]:
        """M, made in the place of its curvature, and by how much it was lowered for what float64 made of it; `parts`
        are the sizes that curvature is a difference of."""
        setting, parts = self.problem.setting, curvature.frobenius if parts is None else parts
        curvature = setting.stiffened(curvature, in_place=True)
        whole = setting.penalised(curvature, self.problem.penalty, in_place=True)
        lowered = 8 * UNIT_ROUNDOFF * (parts + whole.frobenius)
        return Blocks(add_to_diagonal(whole.values, -lowered), whole.joint), lowered

    def of_gradient(self) -> float:
        """What is lost of the gradient at v, in plain length: by the sums, the product and the step's residual."""
        sums, update = self.problem.sums, length_of(self.update)
        weights = length_of(self.problem.setting.anchor) + update
        parts = length_of(sums.gradient) + self.problem.penalty.l2 * weights
        parts += self.problem.system.matrix.frobenius * update
        evaluated = (size(self.update) + 32) * UNIT_ROUNDOFF * parts
        known = sums.gradient_error + sums.curvature_error * update
        pulled = pull_error(sums.third, self.update, sums.third_error) if self.third and sums.third is not None else 0.0
        return (known + evaluated + pulled) * UP

    def displaced(self) -> float:
        """How far the sum w + u in float64 is from v, and v from weights whose classes sum to zero, in plain length."""
        setting = self.problem.setting
        updated = setting.anchor + self.update
        lost = (len(updated) + 4) * UNIT_ROUNDOFF * (length_of(setting.anchor) + length_of(self.update))
        if not setting.shift_free:
            return lost * UP
        common = updated.mean(axis=0)[: -1 if self.problem.penalty.free else None]
        return (lost + math.sqrt(len(updated)) * length_of(common)) * UP

    @cached_property
    def shape_seen(self) -> Blocks:
        """M_0: one block for all classes; where they compete, without what is common to them."""
        if not self.problem.sums.curvature.joint:
            return Blocks(square_of(self.problem.shape), joint=False)
        return Blocks(centred_shape(self.problem.shape, len(self.update))[None], joint=True)

    @property
    def shape_error(self) -> float:
        """What float64 may have changed of the product of its factors."""
        shape = self.problem.shape
        return 4 * (shape.shape[-1] + 4) * UNIT_ROUNDOFF * float((shape * shape).sum(axis=(-1, -2)).max())

    @cached_property
    def shape_largest(self) -> float:
        """The largest eigenvalue of M_0, what is common to all classes included."""
        return largest(Blocks(square_of(self.problem.shape), joint=False).plus(self.shape_error))

    def moments(self, gauge: Gauge) -> tuple[Blocks, float]:
        """A gauge's Q, d x d, and what float64 may have changed of the product of its factors."""
        moments = gauge.factor @ gauge.factor.T
        return Blocks(moments[None], joint=False), 4 * (len(moments) + 4) * UNIT_ROUNDOFF * length_of(gauge.factor) ** 2

    def shared(self, matrix: Array) -> Shared:
        """A d x d matrix for every class, as they see it."""
        return Shared(matrix, len(self.update), self.problem.sums.curvature.joint)

    def spread(self, norm: Norm, gauge: Gauge, below: float = math.inf) -> float:
        """tau^2: the largest `max ||e_j - e_k||_Q^2` for an e of length 1 in M; infinite where it is not `below`."""
        (moments, error), xp = self.moments(gauge), namespace(gauge.factor)
        if not self.problem.setting.shift_free:
            return norm.most(
                Blocks(xp.broadcast_to(moments.values, norm.matrix.values.shape), joint=False), error, below
            )
        classes, values = len(self.update), moments.values[0]
        centred = xp.eye(classes, dtype=values.dtype, device=values.device) - 1.0 / classes
        return 2.0 * norm.most(Blocks(xp.kron(centred, values)[None], joint=True), error, below / 2.0)
