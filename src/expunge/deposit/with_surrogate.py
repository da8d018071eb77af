"""Surrogate rows together with a deposit: the step that takes them into account, and the smallest region around it.

`psi_u(x) = c outer x` with `c = link((W+U) x) - link(W x) - C(p) U x` is the remainder of a row's gradient: its change
along the update without the linear part, which the deposit has of the retained rows. The step solves
`g' + (H' + reg) u + E_S psi_u = 0`; any update is valid, since what is left is measured and charged. Then the moments
of psi are measured in the norm of a route, `||psi||_{M^-1}`; bounds/deposit.py has the formulas. Quadratic
losses have no remainder, so there surrogate rows add nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial

from expunge.bounds.deposit import (
    LONG_ROWS,
    RANGE,
    DepositFacts,
    SurrogateFacts,
    radius_in_route,
    sigmoid_bend,
    softmax_bend,
    surrogate_terms,
    together,
)
from expunge.bounds.retained import RetainedFacts
from expunge.certificate.claim import MOST_ROUTES, route_failure
from expunge.deposit.file import Deposit
from expunge.deposit.matrices import UNIT_ROUNDOFF, Blocks, Norm
from expunge.deposit.region import RetainedProblem, Routes, Solution, difference
from expunge.deposit.sums import Gauge, is_joint
from expunge.distance import Distance
from expunge.errors import VacuousClaim
from expunge.heads import Block, LinearHead, Rows, RowSet
from expunge.heads.linear import Curvature, product_means
from expunge.heads.network import MatrixFree
from expunge.runtime.arrays import Array, add_product, copy, double, namespace, size, upper_triangle, zeros
from expunge.runtime.arrays import norm as length_of
from expunge.runtime.progress import Progress, silent
from expunge.solve.linear import Step, SymmetricOperator
from expunge.solve.newton import Manner, newton_step
from expunge.surrogate import Moments

CHARGED = 1e-7  # of the gradient: charged for a step that left less, so that the charge does not hang on the machine
WEIGHTED = ("sampled_trace", "sampled_eigenvalue", "sampled_largest")
WHOLE = 2_000  # weights: up to here classes with a loss each are measured together, beyond one by one
AT_ONCE = 1 << 23  # numbers in memory while rows are solved for
PANEL = 64  # rows of a product that is never whole in memory
ACCURATE = 1e-2  # of what is left: how far a linear system is solved at most
UP = 1.0 + 2.0**-30  # for the float64 arithmetic of one number


# The remainder of the rows' gradients ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class GradientRemainder:
    """`psi_u` over the rows of a set, at the anchor `weights`; `head` has no regulariser."""

    head: LinearHead
    weights: Array
    update: Array
    rows: RowSet

    def pieces(self) -> Iterator[tuple[Block, Array]]:
        """Blocks in float64, and c of their rows, rows x K."""
        for block in self.rows.blocks():
            features = double(block.features)
            before = self.head.predictions(features @ self.weights.T)
            linear = self.head.curve(before.T, self.update @ features.T).T
            after = self.head.predictions(features @ (self.weights + self.update).T)
            yield replace(block, features=features), after - before - linear

    @cached_property
    def mean(self) -> Array:
        """`E_S psi`, K x d."""
        total = zeros(self.weights)
        for block, remainders in self.pieces():
            total += block.weighted(remainders, 0).T @ block.features
        return self.rows.total(total) / len(self.rows)

    @cached_property
    def lengths(self) -> tuple[float, float, float]:
        """Mean of `||psi||` and of its square, both weighted, and the longest row."""
        totals, longest, xp = zeros(self.weights, (2,)), 0.0, namespace(self.weights)
        for block, remainders in self.pieces():
            squares = xp.square(block.features).sum(axis=1)
            sizes = squares * xp.square(remainders).sum(axis=1)
            totals += block.weighted(xp.stack((xp.sqrt(sizes), sizes)), 1).sum(axis=1)
            longest = max(longest, float(squares.max()) if len(block) else 0.0)
        size, square = (self.rows.total(totals) / len(self.rows)).tolist()
        return size, square, math.sqrt(self.rows.largest(longest))

    @property
    def row_error(self) -> float:
        """What float64 may have changed of one row's psi, in plain length.

        Outputs are off by `sqrt(K) (d + 64) u (1 + ||W|| B)`, before and after, and so are predictions; C(p) by at most
        three times that, which multiplies U x.
        """
        bound, moved = self.head.row_bound, length_of(self.update) * self.head.row_bound
        farthest = length_of(self.weights) * bound + moved
        output = math.sqrt(self.head.n_classes) * (self.head.n_features + 64) * UNIT_ROUNDOFF * (1.0 + farthest)
        return bound * (2.0 + 4.0 * moved) * output

    @property
    def mean_error(self) -> float:
        """What float64 may change of the mean: s terms summed are off by (s + 1) u times the mean of their lengths."""
        return self.row_error + (len(self.rows) + 64) * UNIT_ROUNDOFF * self.lengths[0] * self.rows.largest_weight

    def largest(self, reach: float, gauges: Sequence[Gauge] = ()) -> float:
        """Bound on `||c||` over every admissible row with this R; with gauges, over those that they hold."""
        moved = self.update - self.update.mean(axis=0) if is_joint(self.head) else self.update
        spectral = partial(namespace(moved).linalg.matrix_norm, ord=2)
        lengths = [self.head.row_bound * float(spectral(moved))]
        lengths += [gauge.kappa * float(spectral(moved @ gauge.factor)) for gauge in gauges]
        bound = softmax_bend if is_joint(self.head) else sigmoid_bend
        return bound(reach, min(lengths) * UP) * UP

    def squares(self, norm: Norm) -> Iterator[tuple[Block, Array, Array]]:
        """Blocks, c of their rows, and `||psi||^2` in `M^-1`."""
        at_once, xp = max(16, AT_ONCE // norm.matrix.size), namespace(self.weights)

        def of(c: Array, features: Array) -> Array:
            if norm.matrix.joint:
                psi = (c[:, :, None] * features[:, None, :]).reshape(len(features), -1)
                return xp.square(norm.half(psi.T[None])[0]).sum(axis=0) * UP
            halves = norm.half(xp.broadcast_to(features.T, (len(norm.factor), *features.T.shape)))
            return (xp.square(halves).sum(axis=1).T * xp.square(c)).sum(axis=1) * UP

        for block, remainders in self.pieces():
            starts = range(0, len(block), at_once)
            parts = [of(remainders[i : i + at_once], block.features[i : i + at_once]) for i in starts]
            yield block, remainders, xp.concat(parts) if parts else zeros(remainders, (0,))

    def moments(self, norm: Norm, reach: float) -> Moments:
        """All that the bound needs of psi, in `M^-1`; every number is raised by what float64 may have lost of it.

        `reach` is R of every admissible row. It takes passes over the rows.
        """
        least = norm.least
        error = self.row_error / math.sqrt(least)
        mean, length = norm.solved(self.mean), norm.dual(self.mean)
        lost = (norm.matrix.size + 64) * 2.0**-52
        totals, largest, xp = zeros(self.weights, (3,)), zeros(self.weights, (3,)), namespace(self.weights)
        for block, remainders, squares in self.squares(norm):
            along = ((block.features @ mean.T) * remainders).sum(axis=1)
            about = xp.clip(squares - 2.0 * along + length**2 + lost * (squares + length**2), min=0.0)
            once = block.weighted(about, 0)
            twice = block.weighted(once, 0)
            totals += xp.stack((once.sum(), block.weighted(xp.square(about), 0).sum(), twice.sum()))
            if len(block):
                largest = xp.maximum(largest, xp.stack((about.max(), twice.max(), squares.max())))
        trace, fourth, sampled_trace = (self.rows.total(totals) / len(self.rows)).tolist()
        widest, weighted, longest = (math.sqrt(self.rows.largest(value)) * UP for value in largest.tolist())
        weight = self.rows.largest_weight
        trace, sampled_trace = (math.sqrt(trace) * UP + 2.0 * error) ** 2, math.sqrt(sampled_trace) * UP
        sampled_trace = min((sampled_trace + 2.0 * math.sqrt(weight) * error) ** 2, weight * trace)
        eigenvalue = min(trace, (math.sqrt(self._eigenvalue(norm)) + 2.0 * error) ** 2)
        widest += 2.0 * error
        return Moments(
            change_mean=length + error,
            change_eigenvalue=eigenvalue,
            change_trace=trace,
            change_fourth=(fourth**0.25 * UP + 2.0 * error) ** 4,
            change_fourth_eigenvalue=widest**2 * eigenvalue,
            change_largest=widest,
            change_longest=longest + 3.0 * error,
            change_supremum=self.largest(reach) * self.head.row_bound / math.sqrt(least) * UP + 3.0 * error,
            longest_row=self.lengths[2],
            sampled_trace=sampled_trace,
            sampled_eigenvalue=min(sampled_trace, weight * eigenvalue),
            sampled_largest=min(weighted + 2.0 * weight * error, weight * widest),
        )

    @cached_property
    def _whole(self) -> bool:
        """Whether all weights are measured together."""
        return is_joint(self.head) or len(self.weights) == 1 or size(self.weights) <= WHOLE

    @cached_property
    def covariance(self) -> Blocks:
        """The covariance of psi over the rows, in one block or, beyond `WHOLE`, a block for each class; formed, so that
        its largest eigenvalue can be bounded for certain."""
        classes, width = self.weights.shape
        if self._whole:
            pairs = upper_triangle(classes, self.weights)
            pieces = ((block, remainders.T) for block, remainders in self.pieces())
            matrix = product_means(self.rows, pieces, lambda c: c[pairs[0]] * c[pairs[1]], classes)[None]
            mean = self.mean.reshape(1, -1)
        else:
            matrix = zeros(self.weights, (classes, width, width))
            for block, remainders in self.pieces():
                shares = block.weighted(remainders * remainders, 0)
                for index in range(classes):
                    add_product(matrix[index], (block.features * shares[:, index : index + 1]).T, block.features)
            matrix, mean = self.rows.total(matrix) / len(self.rows), self.mean
        for start in range(0, mean.shape[1], PANEL):  # it may be as large as there is room for
            matrix[:, start : start + PANEL] -= mean[:, start : start + PANEL, None] * mean[:, None, :]
        matrix += copy(matrix.mT)
        matrix /= 2.0
        return Blocks(matrix, joint=self._whole)

    def _eigenvalue(self, norm: Norm) -> float:
        """Certain upper bound on the largest eigenvalue in `M^-1`; of classes one by one, the sum of theirs."""
        lost = 2.0 * (len(self.rows) + 64) * UNIT_ROUNDOFF * self.lengths[1] * self.rows.largest_weight
        if not self._whole:
            pairs = zip(norm.matrix.values[:, None], norm.factor[:, None], self.covariance.values[:, None], strict=True)
            return math.fsum(Norm(Blocks(m, False), f).most(Blocks(c, False), lost) for m, f, c in pairs)
        values, factor = norm.matrix.values, norm.factor
        if len(values) > 1:
            values, factor = one_block(values), one_block(factor)
        return Norm(Blocks(values, True), factor).most(self.covariance, lost)


def one_block(matrices: Array) -> Array:
    """A stack of matrices along the diagonal of one, 1 x b q x b q."""
    count, width = matrices.shape[:2]
    made = zeros(matrices, (1, count * width, count * width))
    for index, matrix in enumerate(matrices):
        part = slice(index * width, (index + 1) * width)
        made[0, part, part] = matrix
    return made


def remainder_of(head: LinearHead, weights: Array, update: Array, rows: RowSet) -> GradientRemainder:
    """The remainder of the rows' gradients, of the loss alone, without its regulariser."""
    return GradientRemainder(replace(head, l2=0.0), weights, update, rows)


# The step -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StepEquation:
    """`g' + A u + E_S psi_u = 0` with `A = H' + reg = L L'`, in coordinates `z = L' u`, in which plain lengths of what
    is left are those in `A^-1`. Its Jacobian `A + H_S(w+u) - H_S(w)` can be indefinite, since the surrogate's rows are
    not those that A is of; then conjugate gradients shift it."""

    problem: RetainedProblem
    head: LinearHead
    rows: RowSet
    scale: int = 1

    @property
    def weights(self) -> Array:
        return self.problem.system.matrix.columns(self.problem.setting.anchor)

    @property
    def n_rows(self) -> int:
        return len(self.rows)

    def update(self, z: Array) -> Array:
        """The update u, K x d, that belongs to the coordinates z."""
        system, anchor = self.problem.system, self.problem.setting.anchor
        return self.problem.setting.centred(system.matrix.from_columns(system.other_half(z), anchor))

    def left(self, update: Array, remainder: GradientRemainder) -> Array:
        """What an update leaves of the equation, K x d."""
        return self.problem.setting.centred(self.problem.left(update) + remainder.mean)

    def remainder(self, update: Array) -> GradientRemainder:
        return GradientRemainder(self.head, self.problem.setting.anchor, update, self.rows)

    def residual(self, z: Array) -> Array:
        update, system = self.update(z), self.problem.system
        return system.half(system.matrix.columns(self.left(update, self.remainder(update))))

    @cached_property
    def before(self) -> Curvature:
        """The surrogate's Hessian at the anchor."""
        return self.head.curvature(self.problem.setting.anchor, self.rows)

    def jacobian(self, z: Array, pull: float, last: SymmetricOperator | None) -> SymmetricOperator:
        system, setting = self.problem.system, self.problem.setting
        after = self.head.curvature(setting.anchor + self.update(z), self.rows)

        def product(direction: Array) -> Array:
            moved = self.update(direction)
            change = setting.centred(after.product(moved) - self.before.product(moved))
            return direction + system.half(system.matrix.columns(change))

        return MatrixFree(product)

    def manner(self) -> Manner:
        return Manner(dense=False, working=self.weights.dtype, accurate=ACCURATE)

    def agreed(self, step: Array) -> Array:
        return step


@dataclass(frozen=True)
class SurrogateStep:
    """The step with surrogate rows, what it left of the equation, and the routes to its region: whatever is declared of
    the rows or promised."""

    rows: RowSet
    remainder: GradientRemainder
    routes: Routes
    solved: Step

    @property
    def update(self) -> Array:
        return self.routes.update


def step_with_surrogate(retained: Deposit, rows: RowSet, progress: Progress = silent) -> SurrogateStep | None:
    """None where there is none; `retained` is the deposit of what is left."""
    problem = retained.problem
    if problem.setting.quadratic or not problem.solvable:
        return None
    equation = StepEquation(problem, replace(retained.head, l2=0.0), rows)
    solved = newton_step(equation, single=False, progress=progress)
    update = equation.update(solved.update)
    remainder = equation.remainder(update)
    left = equation.left(update, remainder)
    return SurrogateStep(rows, remainder, Routes(problem, update, left, remainder.mean_error), solved)


# Its region -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SurrogateTerms:
    """How far surrogate rows are declared to be, and what of delta each route may spend on an unlucky sample.

    `n_source` and `n_forget` are counted since training.
    """

    distance: Distance
    n_source: int
    n_forget: int
    failure: float

    @classmethod
    def of(cls, retained: Deposit, distance: Distance, delta: float) -> SurrogateTerms:
        """The terms of surrogate rows beside the deposit of what is retained."""
        n_rows, gone = retained.numbers.n_rows, retained.numbers.forgotten
        return cls(distance, n_rows + gone, gone, route_failure(delta, distance))


@dataclass(frozen=True)
class SurrogateRegion:
    """A route that was measured with surrogate rows, and the step it is of; `second` is what they leave of the second
    order."""

    step: SurrogateStep
    facts: DepositFacts
    norm: Norm
    known: SurrogateFacts
    second: float

    @property
    def radius(self) -> float:
        return _radius(self.facts, self.second)

    @property
    def solution(self) -> Solution:
        return Solution(self.step.update, self.facts, length_of(self.step.routes.left_over), self.known)

    def require_seen(self, retained: Deposit, forget: Rows) -> None:
        """Refuse to take what was seen for all there is where the forget rows themselves show that it is not."""
        remainder = remainder_of(retained.head, retained.anchor, self.step.update, forget)
        largest = max(math.sqrt(float(squares.max())) for _, _, squares in remainder.squares(self.norm))
        if largest > self.known.moments.change_longest * (1.0 + 1e-9):
            raise VacuousClaim(
                f"the remainder of a forget row's gradient is {largest:.3g} long, and no surrogate row's is longer "
                f"than {self.known.moments.change_longest:.3g}",
                "with sampling seen the surrogate must show the largest there is",
                "Use --sampling strict (sampling='strict'), which counts rows unlike any seen, a larger surrogate, "
                "or the deposit alone.",
            )


def _radius(facts: DepositFacts, second: float) -> float:
    """The radius in the norm of the noise's shape, where this much is left of the second order."""
    return radius_in_route(facts, second) * math.sqrt(facts.shape_ratio)


def smallest_with_surrogate(
    step: SurrogateStep | None, terms: SurrogateTerms, *, like: DepositFacts | None = None
) -> SurrogateRegion | None:
    """The route with the smallest region, or the one most `like` what is said; None where none is finite.

    To measure what the rows say in the norm of a route takes passes over them, so a route that would not be better if
    they left nothing is not measured.
    """
    if step is None:
        return None
    gradient = step.routes.problem.gradient
    waiting = [
        (replace(facts, solver=max(facts.solver, CHARGED * norm.dual(gradient))), norm)
        for facts, norm in step.routes.measurements(ties=like is not None)
        if norm is not None and facts.route in (RANGE, LONG_ROWS) and math.isfinite(facts.shape_ratio)
    ]
    if like is not None:
        waiting = sorted(waiting, key=lambda each: difference(each[0], like))[:1]
    assert len(waiting) <= MOST_ROUTES
    best: SurrogateRegion | None = None
    for facts, norm in sorted(waiting, key=lambda each: _radius(each[0], 0.0)):
        if best is None or _radius(facts, 0.0) < best.radius:
            region = measure(step, facts, norm, terms)
            best = region if best is None or region.radius < best.radius else best
    return best if best is not None and math.isfinite(best.radius) else None


def measure(step: SurrogateStep, facts: DepositFacts, norm: Norm, terms: SurrogateTerms) -> SurrogateRegion:
    """What the rows say of psi in the norm of a route, and the deposit of retained rows unlike any of them."""
    head, routes, rows = step.remainder.head, step.routes, step.rows
    measured = asdict(step.remainder.moments(norm, routes.plain_reach))
    weighted = {name: measured.pop(name) for name in WEIGHTED}
    if rows.has_weights:
        measured |= {**weighted, "weight_largest": rows.largest_weight}
    moments = RetainedFacts(
        n_source=terms.n_source,
        n_forget=terms.n_forget,
        n_surrogate=len(rows),
        l2=1.0,
        training_residual=0.0,
        solver_residual=0.0,
        rounding=0.0,
        row_bound=head.row_bound,
        directions=head.n_directions,
        sampling_failure=terms.failure,
        **measured,
    )
    setting = routes.problem.setting
    # the largest `||q x||` of a row that the gauges hold, for a q of length 1 in M, classes centred
    pairs = 2.0 if setting.shift_free else 1.0
    by_gauge = (gauge.kappa * math.sqrt(routes.spread(norm, gauge) / pairs) for gauge in setting.gauges)
    farthest = min([setting.row_bound / math.sqrt(norm.least), *by_gauge])
    each = step.remainder.largest(facts.reach, setting.gauges) * farthest
    outputs = 1 if is_joint(head) else head.n_classes
    known = SurrogateFacts(moments, min(each, moments.change_supremum), together(facts, outputs))
    return SurrogateRegion(step, facts, norm, known, math.fsum(surrogate_terms(facts, known, terms.distance).values()))
