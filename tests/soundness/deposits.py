"""Deposits on thousands of problems: how far the retrained weights really are, beside the radius of every region that is used.

Nothing is declared and nothing sampled, so a single violation is a fault. `python tests/soundness/deposits.py --write` puts the
table into tests/soundness/README.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from expunge.runtime.arrays import norm, to_numpy

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

import numpy as np  # noqa: E402
from threadpoolctl import threadpool_limits  # noqa: E402

from deposit_problems import LOSSES, Problem, anchored, noised  # noqa: E402
from expunge.bounds.deposit import EXACT, deposit_bound  # noqa: E402
from expunge.deposit.file import SCHEMA, Deposit, Numbers  # noqa: E402
from expunge.deposit.matrices import gram_of  # noqa: E402
from expunge.deposit.membership import (  # noqa: E402
    look_up,
    remove_rows,
    require_members,
)
from expunge.deposit.region import (  # noqa: E402
    RetainedProblem,
    Routes,
    Solution,
    smallest_region,
)
from expunge.deposit.sums import Sums  # noqa: E402
from expunge.errors import DataError, ModelError  # noqa: E402
from expunge.heads import Rows  # noqa: E402
from expunge.model import from_matrix  # noqa: E402
from expunge.record import TrainingRecord  # noqa: E402
from expunge.rows.hashes import KEY_BYTES, hash_rows  # noqa: E402

Array = Any
ROOT = HERE.parents[1]
PAGE = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- deposits: begin -->", "<!-- deposits: end -->"
CHUNK = 20
APART = 1_000_000  # between the seeds of families
TOLD = 100.0  # times what the reference itself can be off: a truth below it is not told from zero


@dataclass(frozen=True)
class Outcome:
    """One region: its route and radius (None where none is finite), and how far the retrained weights are."""

    family: str
    seed: int
    loss: str
    route: str | None
    radius: float
    truth: float
    uncertain: float
    shape_ratio: float = 1.0

    @property
    def finite(self) -> bool:
        return self.route is not None

    @property
    def violated(self) -> bool:
        return self.finite and self.truth - self.uncertain > self.radius * (1.0 + 1e-12)

    @property
    def ratio(self) -> float | None:
        """Radius over truth, where the truth is more than rounding."""
        told = self.finite and self.route != EXACT and self.truth > TOLD * self.uncertain
        return self.radius / self.truth if told else None


# Problems -----------------------------------------------------------------------------------------------------------------------


def drawn(seed: int, *, tails: float | None = None, separable: bool = False, steps: int = 60) -> Problem:
    """Rows of random tails and scale, of 2 to 10 classes, any loss, any regulariser; the anchor so many Newton steps from zero."""
    rng = np.random.default_rng([77, seed])
    loss = str(rng.choice(LOSSES, p=[0.4, 0.25, 0.25, 0.1]))
    classes = 2 if loss == "logistic" else int(rng.integers(2, 11))
    width = int(rng.integers(1, 7))
    n = max(int(np.exp(rng.uniform(np.log(12), np.log(300)))), classes + 4)
    tails = float(rng.choice([2.0, 5.0, 50.0])) if tails is None else tails
    X = rng.standard_t(tails, size=(n, width)) * 10.0 ** rng.uniform(-1, 1)
    plane = rng.normal(size=(width, classes))
    outputs = X @ plane if separable else X @ plane * rng.integers(0, 2) / X.std() + rng.normal(size=(n, classes))
    y = np.argmax(outputs, axis=1)
    if not separable:
        y[:classes] = np.arange(classes)
    X = np.column_stack([X, np.ones(n)])
    l2 = float(10.0 ** rng.uniform(-8, 0)) if rng.random() < 0.5 else 1.0 / n
    rows = 1 if loss == "logistic" else classes
    free, fixed = bool(rng.random() < 0.5), bool(rng.random() < 0.4)
    return anchored(Problem(loss, X, y, classes, np.zeros((rows, width + 1)), l2, free, fixed), steps)


def few(problem: Problem, rng: np.random.Generator) -> int:
    """How many leave: one, a hundredth, a tenth, half, or all but one."""
    n = problem.n
    return int(min(n - 1, rng.choice([1, 1, 2, max(1, n // 100), max(1, n // 10), n // 2, n - 1])))


def judged(
    family: str, seed: int, problem: Problem, kept: Array, result: Solution | None, anchor: Array, shape: Array
) -> Outcome:
    """How far the retrained weights are from the anchor with its update, by this shape."""
    if result is None:
        return Outcome(family, seed, problem.loss, None, np.inf, np.nan, np.nan)
    v = to_numpy(anchor + result.update)
    W, uncertain = problem.retrained(kept, v, shape)
    radius = deposit_bound(result.facts).radius
    truth, ratio = problem.length(W - v, shape), result.facts.shape_ratio
    return Outcome(family, seed, problem.loss, result.facts.route, radius, truth, uncertain, ratio)


def one_deletion(
    family: str, seed: int, problem: Problem, m: int | None = None, spoilt: float = 0.0
) -> Iterator[Outcome]:
    rng = np.random.default_rng([78, seed])
    order = rng.permutation(problem.n)
    m = few(problem, rng) if m is None else m
    kept, sums = order[m:], problem.sums.without(problem.of(order[:m]))
    shape = problem.shape_of(kept)
    result = made(problem, sums, len(kept), shape, spoilt, rng)
    yield judged(family, seed, problem, kept, result, problem.setting.anchor, shape)


def made(
    problem: Problem, sums: Sums, n_kept: int, shape: Array, spoilt: float, rng: np.random.Generator
) -> Solution | None:
    """The region of the step, or of another update than the step."""
    given = RetainedProblem(problem.setting, sums, problem.penalty(n_kept), shape)
    if not spoilt:
        return smallest_region(given)
    if not given.solvable:
        return None
    update = given.linear_step
    noise = problem.setting.centred(rng.normal(size=update.shape))
    update = update + spoilt * (norm(update) / norm(noise)) * noise
    found = Routes(given, update, given.left(update)).solutions()
    return min(found, key=lambda each: each.facts.size, default=None)


# Deletions from a deposit ------------------------------------------------------------------------------------------------------------


def deposit_of(problem: Problem, seed: int) -> Deposit:
    """A deposit of the problem's rows at its anchor, as it would be made, without a rehearsal."""
    counts = tuple(np.bincount(problem.y, minlength=problem.classes).tolist())
    fixed = 1.0 / (problem.l2 * problem.n) if problem.fixed_c else None
    longest = float(np.linalg.norm(problem.X[:, :-1], axis=1).max()) * (1.0 + 1e-12)
    record = TrainingRecord(
        problem.n, tuple(range(problem.classes)), counts, problem.l2, problem.loss, longest, True, 0.0,
        free_bias=True if problem.free else None, fixed_c=fixed, noised=True,
    )  # fmt: skip
    model = from_matrix(problem.anchor, bias=True, dtype=np.float64).with_record(record)
    key = np.random.default_rng(seed).bytes(KEY_BYTES)
    sums = replace(problem.sums, gram=gram_of(problem.rows(slice(None))))
    numbers = Numbers(
        SCHEMA, key.hex(), problem.n, 0, 0, counts, problem.row_bound, 0.0, tuple(gauge.kappa for gauge in problem.gauges),
        "",
    )  # fmt: skip
    return Deposit(model, numbers, sums, problem.gauges, hash_rows(key, problem.X[:, :-1], problem.y))


def copy_of(rows: Array, kind: str) -> Array:
    """Rows as a copy of them has them."""
    if kind == "float32":
        return rows.astype(np.float32).astype(np.float64)
    return np.round(rows, 6) if kind == "six decimals" else rows


def leave(problem: Problem, deposit: Deposit, which: Array, kind: str) -> Deposit | None:
    """What is left of the deposit when copies of these rows go; None where a copy says too little of a row."""
    copy = copy_of(problem.X[which, :-1], kind)
    membership = look_up(deposit, copy, problem.y[which])
    if membership.missing:
        return None
    require_members(membership)
    ready = np.column_stack([copy, np.ones(len(copy))])
    lengths = np.linalg.norm(copy, axis=1)
    ready[:, :-1] *= np.minimum(1.0, deposit.record.max_norm / np.maximum(lengths, 1e-300))[:, None]
    rows = Rows(ready, problem.y[which])
    try:
        return remove_rows(deposit, rows, membership)
    except DataError:
        return None


def deletions(
    family: str, seed: int, problem: Problem, kinds: tuple[str, ...], steps: int, order: Array | None = None
) -> Iterator[Outcome]:
    """So many deletions one after another, each of the whole way from the deposit before."""
    rng = np.random.default_rng([79, seed])
    order, deposit = rng.permutation(problem.n) if order is None else order, deposit_of(problem, seed)
    each = max(1, problem.n // 100)
    for step in range(steps):
        which, order = order[:each], order[each:]
        if not len(order):
            return
        kind = kinds[step % len(kinds)]
        after = leave(problem, deposit, which, kind)
        if after is None:
            return
        deposit = after
        result = smallest_region(deposit.problem)
        yield judged(family, seed, problem, order, result, deposit.anchor, deposit.shape)


# Families -----------------------------------------------------------------------------------------------------------------------------


def long_rows(seed: int) -> Problem:
    """Some rows, or all of them, a thousand times as long."""
    rng, problem = np.random.default_rng([80, seed]), drawn(seed)
    X = problem.X.copy()
    many = problem.n if rng.random() < 0.3 else int(rng.integers(1, 1 + problem.n // 10))
    X[:many, :-1] *= 1000.0
    return anchored(replace(problem, X=X, anchor=np.zeros_like(problem.anchor)), 60)


def rare_features(family: str, seed: int) -> Iterator[Outcome]:
    """Categories that a few rows have; all rows of one of them leave first, so that nobody retained has it."""
    rng, problem = np.random.default_rng([82, seed]), drawn(seed)
    levels = np.minimum(rng.geometric(0.3, size=problem.n), 6) - 1
    wide = np.column_stack([np.eye(6)[levels] * rng.choice([0.1, 1.0, 10.0]), problem.X])
    bare = replace(problem, X=wide, anchor=np.zeros((len(problem.anchor), wide.shape[1])))
    gone = levels == int(rng.choice(levels))
    order = np.concatenate([np.flatnonzero(gone), rng.permutation(np.flatnonzero(~gone))])
    if gone.sum() < problem.n:
        yield from deletions(family, seed, noised(anchored(bare, 60), 1.0, seed), ("float64",), 12, order)


@dataclass(frozen=True)
class Family:
    name: str
    problems: int
    outcomes: Callable[[str, int], Iterator[Outcome]]


def noisy(seed: int, times: float = 1.0) -> Problem:
    """With an anchor as a deposit has it."""
    return noised(drawn(seed), times, seed)


FAMILIES = (
    Family("random", 2000, lambda name, seed: one_deletion(name, seed, drawn(seed))),
    Family("heavy tails (t with 2)", 1000, lambda name, seed: one_deletion(name, seed, drawn(seed, tails=2.0))),
    Family("rows times 1,000", 1000, lambda name, seed: one_deletion(name, seed, long_rows(seed))),
    Family("separable", 800, lambda name, seed: one_deletion(name, seed, drawn(seed, separable=True))),
    Family(
        "anchor one to three steps from zero",
        800,
        lambda name, seed: one_deletion(name, seed, drawn(seed, steps=1 + seed % 3)),
    ),
    Family("anchor with noise", 1600, lambda name, seed: one_deletion(name, seed, noisy(seed))),
    Family("anchor with ten times the noise", 800, lambda name, seed: one_deletion(name, seed, noisy(seed, 10.0))),
    Family(
        "spoilt updates",
        800,
        lambda name, seed: one_deletion(name, seed, drawn(seed), spoilt=(0.01, 0.3, 3.0)[seed % 3]),
    ),
    Family("all but one forgotten", 500, lambda name, seed: one_deletion(name, seed, p := drawn(seed), p.n - 1)),
    Family(
        "ten deletions in a row", 300, lambda name, seed: deletions(name, seed, noisy(seed), ("float64", "float32"), 10)
    ),
    Family("features that leave with their rows", 300, rare_features),
    Family("copies in float32", 500, lambda name, seed: deletions(name, seed, noisy(seed), ("float32",), 1)),
    Family(
        "copies with six decimals", 500, lambda name, seed: deletions(name, seed, noisy(seed), ("six decimals",), 1)
    ),
)


def outcomes_of(family: Family, seed: int) -> list[Outcome]:
    """Of one problem; none where its Hessian is not positive definite to float64, and a deposit would be refused."""
    try:
        return list(family.outcomes(family.name, seed + APART * FAMILIES.index(family)))
    except ModelError:
        return []


def _work(job: tuple[int, int, int]) -> list[Outcome]:
    threadpool_limits(1)
    index, first, last = job
    return [found_here for seed in range(first, last) for found_here in outcomes_of(FAMILIES[index], seed)]


def everything(jobs: int, share: float) -> list[Outcome]:
    counts = [max(1, round(share * family.problems)) for family in FAMILIES]
    parts = [(i, first, min(first + CHUNK, k)) for i, k in enumerate(counts) for first in range(0, k, CHUNK)]
    outcomes: list[Outcome] = []
    with ProcessPoolExecutor(jobs) as pool:
        for done, some in enumerate(pool.map(_work, parts), start=1):
            outcomes += some
            if done % 20 == 0:
                print(f"{done} of {len(parts)}", file=sys.stderr)
    return outcomes


def row(name: str, some: list[Outcome]) -> str:
    finite = [found_here for found_here in some if found_here.finite]
    ratios = [ratio for ratio in (found_here.ratio for found_here in finite) if ratio is not None]
    routes = Counter(found_here.route for found_here in finite)
    told = f"{min(ratios):.3g} | {np.median(ratios):.3g}" if ratios else " | "
    shares = ", ".join(f"{count:,} {route}" for route, count in sorted(routes.items()))
    violations = sum(found_here.violated for found_here in some)
    return f"| {name} | {len({f.seed for f in some}):,} | {len(finite):,} of {len(some):,} | {violations} | {told} | {shares} |"


def table(outcomes: list[Outcome], seconds: float) -> str:
    """The section of tests/soundness/README.md."""
    problems = sum(len({f.seed for f in outcomes if f.family == family.name}) for family in FAMILIES)
    finite = [found_here for found_here in outcomes if found_here.finite]
    lines = [
        f"{problems:,} problems, {len(outcomes):,} deletions, {len(finite):,} finite regions, "
        f"{sum(found_here.violated for found_here in outcomes)} violations, in {seconds / 60:.0f} minutes. "
        "Radius over true distance is told where the truth is more than rounding.",
        "",
        "| family | problems | finite regions | violations | smallest ratio | median | routes |",
        "|---|---|---|---|---|---|---|",
    ]
    for family in FAMILIES:
        lines.append(row(family.name, [found_here for found_here in outcomes if found_here.family == family.name]))
    for loss in LOSSES:
        lines.append(row(f"of these: {loss}", [found_here for found_here in outcomes if found_here.loss == loss]))
    return "\n".join(lines)


def written(page: str, section: str) -> str:
    """The page with its section replaced."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + "\n\n" + section + "\n\n" + END + rest.split(END)[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the table into tests/soundness/README.md")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--share", type=float, default=1.0, help="of the problems; the table is for all of them")
    options = parser.parse_args()
    start = time.perf_counter()
    outcomes = everything(options.jobs, options.share)
    section = table(outcomes, time.perf_counter() - start)
    print(section)
    for found_here in outcomes:
        if found_here.violated:
            print("VIOLATED", found_here)
    if options.write:
        PAGE.write_text(written(PAGE.read_text(), section))


if __name__ == "__main__":
    main()
