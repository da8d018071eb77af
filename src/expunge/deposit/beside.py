"""Surrogate rows beside a deposit: the update that takes them into account, and the smallest region around it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace

from expunge.bounds.deposit import LONG_ROWS, RANGE, DepositFacts, radius_in_route
from expunge.bounds.deposit_surrogate import Beside, beside_terms, kept_bound, together
from expunge.bounds.region import Region
from expunge.bounds.retained import WEIGHT_FACTS, RetainedFacts
from expunge.certificate.claim import BESIDE_FACTS, EACH, MOST_ROUTES, TOGETHER
from expunge.deposit.bending import bending
from expunge.deposit.blocks import Norm
from expunge.deposit.contents import Deposit
from expunge.deposit.routes import Found, Routes
from expunge.deposit.sizes import TIE, unlike
from expunge.deposit.solving import Solved, solved
from expunge.deposit.sums import is_joint
from expunge.distance import Distance
from expunge.errors import VacuousClaim
from expunge.heads import Rows, RowSet
from expunge.runtime.progress import Progress, silent

MEASURED = 3  # routes whose norm the rows are measured in, at most; any of MOST_ROUTES can be among them
CHARGED = 1e-7  # of the gradient: charged for a step that left less, so that the charge does not hang on the machine
WEIGHTED = ("sampled_trace", "sampled_eigenvalue", "sampled_largest")


@dataclass(frozen=True)
class Asked:
    """Surrogate rows, how far they are declared to be, and what of delta each route may spend on an unlucky sample.

    `n_source` and `n_forget` are counted since training.
    """

    rows: RowSet
    distance: Distance
    n_source: int
    n_forget: int
    failure: float


def region_of(found: Found, distance: Distance) -> Region:
    """The region of a step, with what surrogate rows say where they have a part in it."""
    return kept_bound(found.facts, found.beside, distance)


@dataclass(frozen=True)
class Answer:
    """The step with surrogate rows, its smallest region, and the route that has it."""

    found: Found
    solved: Solved
    best: Tried


def stated_of(beside: Beside, weighted: bool) -> dict[str, float]:
    """What a certificate says of surrogate rows, by name; `weighted` where they are by class."""
    known = asdict(beside.moments)
    names = [name for name in BESIDE_FACTS if name in known] + list(WEIGHT_FACTS if weighted else ())
    return {name: known[name] for name in names} | {EACH: beside.each, TOGETHER: beside.together}


@dataclass(frozen=True)
class Begun:
    """The step with surrogate rows, and the routes to its region: whatever is declared of the rows or promised."""

    rows: RowSet
    solved: Solved
    routes: Routes


def begun_beside(retained: Deposit, rows: RowSet, progress: Progress = silent) -> Begun | None:
    """The step with these rows; None where there is none.

    `retained` is the deposit of what is left; quadratic losses do not bend, so there surrogate rows add nothing.
    """
    setting, penalty = retained.setting, retained.penalty(retained.sums.count)
    if setting.quadratic:
        return None
    solution = solved(setting, retained.head, retained.sums, penalty, rows, progress)
    if solution is None:
        return None
    progress("the region with the surrogate", 0, None)
    routes = Routes(
        setting,
        retained.sums,
        penalty,
        retained.shape,
        solution.update,
        solution.left,
        solution.system,
        solution.bends.mean_error,
    )
    return Begun(rows, solution, routes)


def found_beside(
    retained: Deposit,
    asked: Asked,
    progress: Progress = silent,
    begun: Begun | None = None,
    like: DepositFacts | None = None,
) -> Answer | None:
    """The step with surrogate rows and its smallest region; None where no route has a finite one.

    `like`: see `smallest_beside`.
    """
    begun = begun or begun_beside(retained, asked.rows, progress)
    best = None if begun is None else smallest_beside(begun.routes, begun.solved, asked, like)
    if begun is None or best is None:
        return None
    solution = begun.solved
    left = float(solution.left.norm())
    return Answer(Found(solution.update, best.facts, left, best.tried, best.beside), solution, best)


@dataclass(frozen=True)
class Tried:
    """A route that was measured, and how many were so far."""

    facts: DepositFacts
    norm: Norm
    beside: Beside
    second: float
    tried: int

    @property
    def radius(self) -> float:
        return radius_with(self.facts, self.second)


def radius_with(facts: DepositFacts, second: float) -> float:
    """In the norm of the shape of the noise, where this much is left of the second order."""
    return radius_in_route(facts, second) * math.sqrt(facts.shape_ratio)


def smallest_beside(routes: Routes, solution: Solved, asked: Asked, like: DepositFacts | None = None) -> Tried | None:
    """The route with the smallest region; of those that are as small the one that is most `like` what is said.

    To measure what the rows say in the norm of a route takes a pass over them; so that of the roundest route is
    measured first, and of the others those few that would be better if they left as much.
    """
    anchor = routes.setting.anchor
    gradient = routes.setting.centred(routes.sums.gradient + routes.penalty.diagonal(anchor) * anchor)
    waiting = [
        (replace(facts, solver=max(facts.solver, CHARGED * norm.dual(gradient))), norm)
        for facts, norm in (routes.every if like is None else routes.tried(ties=True))
        if norm is not None and facts.route in (RANGE, LONG_ROWS) and math.isfinite(facts.shape_ratio)
    ]
    assert like is not None or len(waiting) <= MOST_ROUTES
    waiting.sort(key=lambda each: each[0].shape_ratio)
    nearest = None if like is None else min(waiting, key=lambda each: unlike(each[0], like), default=None)
    best: Tried | None = None
    for tried in range(1, MEASURED + 1):
        if not waiting or (best is not None and radius_with(waiting[0][0], best.second) >= best.radius):
            break
        measured = measured_by(routes, *waiting.pop(0), solution, asked, tried)
        if best is None or measured.radius < best.radius:
            best = measured
        second = best.second
        waiting.sort(key=lambda each: radius_with(each[0], second))
    if best is not None and nearest is not None:
        wanted = measured_by(routes, *nearest, solution, asked, best.tried)
        best = wanted if wanted.radius <= (1.0 + TIE) * best.radius else best
    return best if best is not None and math.isfinite(best.radius) else None


def measured_by(routes: Routes, facts: DepositFacts, norm: Norm, solution: Solved, asked: Asked, tried: int) -> Tried:
    """What the rows say in the norm of a route."""
    beside = beside_of(routes, facts, norm, solution, asked)
    return Tried(facts, norm, beside, math.fsum(beside_terms(facts, beside, asked.distance).values()), tried)


def beside_of(routes: Routes, facts: DepositFacts, norm: Norm, solution: Solved, asked: Asked) -> Beside:
    """What the surrogate rows say of psi in this norm, and the deposit of retained rows unlike any of them."""
    head, rows = solution.bends.head, asked.rows
    measured = asdict(solution.bends.moments(norm, routes.plain_reach()))
    weighted = {name: measured.pop(name) for name in WEIGHTED}
    if rows.has_weights:
        measured |= {**weighted, "weight_largest": rows.largest_weight}
    moments = RetainedFacts(
        n_source=asked.n_source,
        n_forget=asked.n_forget,
        n_surrogate=len(rows),
        l2=1.0,
        training_residual=0.0,
        solver_residual=0.0,
        rounding=0.0,
        row_bound=head.row_bound,
        directions=head.n_directions,
        sampling_failure=asked.failure,
        **measured,
    )
    each = solution.bends.largest(facts.reach, routes.setting.gauges) * _farthest(routes, norm)
    outputs = 1 if is_joint(head) else head.n_classes
    return Beside(moments, min(each, moments.change_supremum), together(facts, outputs))


def _farthest(routes: Routes, norm: Norm) -> float:
    """The largest `||q x||` of a row that the gauges hold, for a q of length 1 in M, classes centred."""
    setting = routes.setting
    pairs = 2.0 if setting.shift_free else 1.0
    by_gauge = (gauge.kappa * math.sqrt(routes.spread(norm, gauge) / pairs) for gauge in setting.gauges)
    return min([setting.row_bound / math.sqrt(norm.least), *by_gauge])


def require_seen(retained: Deposit, answer: Answer, forget: Rows) -> None:
    """Refuse to take what was seen for all there is where the forget rows themselves show that it is not."""
    best = answer.best
    bends = bending(retained.head, retained.setting.anchor, answer.found.update, forget)
    largest = max(math.sqrt(float(squares.max())) for _, _, squares in bends.squares(best.norm))
    if largest > best.beside.moments.change_longest * (1.0 + 1e-9):
        raise VacuousClaim(
            f"a forget row's gradient bends by {largest:.3g}, and no surrogate row's by more than "
            f"{best.beside.moments.change_longest:.3g}",
            "with sampling seen the surrogate must show the largest there is",
            "Use --sampling strict (sampling='strict'), which counts rows unlike any seen, a larger surrogate, "
            "or the deposit alone.",
        )
