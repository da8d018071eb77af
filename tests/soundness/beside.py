"""A surrogate beside a deposit on thousands of problems: how often the retrained weights lie outside the region.

Retained and surrogate rows are drawn anew in each problem, as the certificate assumes, and what may be spent on an
unlucky drawing is raised to `FAILURE`, so that there is something to see: violations may be as often as that, and no more.
Issuing gives each route a sixth of what it spends; here each has all of it. `python tests/soundness/beside.py --write`
puts the table into tests/soundness/README.md.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

import numpy as np  # noqa: E402
from scipy.stats import binom  # noqa: E402
from threadpoolctl import threadpool_limits  # noqa: E402

from beside_problems import FAMILIES, Problem, random_problem  # noqa: E402
from expunge.bounds.deposit import surrogate_terms  # noqa: E402
from expunge.deposit.region import smallest_region  # noqa: E402
from expunge.deposit.with_surrogate import (  # noqa: E402
    SurrogateRegion,
    remainder_of,
    smallest_with_surrogate,
    step_with_surrogate,
)

ROOT = HERE.parents[1]
PAGE = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- beside: begin -->", "<!-- beside: end -->"
FAILURE = 0.2
PROBLEMS = 400
CHUNK = 20
CERTAIN = ("samples",)  # families in which nothing is drawn that the region does not know


@dataclass(frozen=True)
class Outcome:
    """One problem: the region's radius and that of the deposit alone (infinite where there is none), and the truth.

    `charged` is what is charged for the second order, in the norm of the route, and `deviation` what it is.
    """

    family: str
    seed: int
    radius: float
    alone: float
    truth: float
    charged: float
    deviation: float

    @property
    def finite(self) -> bool:
        return math.isfinite(self.radius)

    @property
    def outside(self) -> bool:
        return self.finite and self.truth > self.radius * (1.0 + 1e-9) + 1e-10

    @property
    def exceeded(self) -> bool:
        return self.finite and self.deviation > self.charged * (1.0 + 1e-9)


def outcome_of(family: str, seed: int, failure: float = FAILURE) -> Outcome | None:
    """None where there is no such problem."""
    problem = random_problem(family, seed, failure=failure)
    if problem is None:
        return None
    retained = problem.retained
    single = smallest_region(retained.problem)
    alone = math.inf if single is None else single.region(problem.asked.distance).radius
    answer = smallest_with_surrogate(step_with_surrogate(retained, problem.surrogate), problem.asked)
    if answer is None:
        return Outcome(family, seed, math.inf, alone, math.nan, math.nan, math.nan)
    result, distance = answer.solution, problem.asked.distance
    assert result.surrogate is not None
    radius, truth = result.region(distance).radius, problem.off(result.update)
    charged = math.fsum(surrogate_terms(result.facts, result.surrogate, distance).values())
    return Outcome(family, seed, radius, alone, truth, charged, deviation_of(problem, answer))


def deviation_of(problem: Problem, answer: SurrogateRegion) -> float:
    """`||(E_R - E_S) psi||` in the norm of the route, from the retained rows, which nobody who issues has."""
    kept = remainder_of(problem.head, problem.setting.anchor, answer.step.update, problem.kept)
    return answer.norm.dual(kept.mean - answer.step.remainder.mean)


def most(count: int, failure: float = FAILURE) -> int:
    """Violations of so many problems that a probability of `failure` exceeds in one run of a million."""
    return int(binom.isf(1e-6, count, failure)) if count else 0


def _work(job: tuple[str, int, int]) -> list[Outcome]:
    threadpool_limits(1)
    family, first, last = job
    made = (outcome_of(family, seed) for seed in range(first, last))
    return [outcome for outcome in made if outcome is not None]


def everything(jobs: int, problems: int) -> list[Outcome]:
    parts = [
        (family, first, min(first + CHUNK, problems)) for family in FAMILIES for first in range(0, problems, CHUNK)
    ]
    with ProcessPoolExecutor(jobs) as pool:
        return [outcome for some in pool.map(_work, parts) for outcome in some]


def row(name: str, some: list[Outcome]) -> str:
    finite = [outcome for outcome in some if outcome.finite]
    outside, exceeded = (sum(getattr(each, kind) for each in finite) for kind in ("outside", "exceeded"))
    ratios = [each.radius / each.truth for each in finite if each.truth > 1e-8] or [math.nan]
    smaller = [each for each in finite if each.radius < each.alone]
    gains = [each.alone / each.radius for each in smaller if math.isfinite(each.alone)] or [math.nan]
    reached = sum(not math.isfinite(each.alone) for each in finite)
    cells = [name, f"{len(finite):,} of {len(some):,}", f"{outside}", f"{exceeded}", f"{min(ratios):.3g}"]
    cells += [f"{np.median(ratios):.3g}", f"{len(smaller):,}", f"{np.median(gains):.3g}", f"{reached}"]
    return "| " + " | ".join(cells) + " |"


def table(outcomes: list[Outcome], seconds: float) -> str:
    """The section of tests/soundness/README.md."""
    finite = [outcome for outcome in outcomes if outcome.finite]
    lines = [
        f"{len(outcomes):,} problems, {len(finite):,} finite regions, with {FAILURE:g} spent on an unlucky drawing: "
        f"{sum(each.outside for each in finite)} times the retrained weights lay outside, "
        f"{sum(each.exceeded for each in finite)} times the deviation itself was larger than what was charged for it "
        f"(nothing is drawn in `samples`, where neither may happen); {seconds / 60:.0f} minutes.",
        "",
        "| family | finite regions | outside | deviation exceeded | smallest radius/true | median | smaller than alone | "
        "median gain | alone not finite |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *(row(name, [each for each in outcomes if each.family == name]) for name in FAMILIES)])


def written(page: str, section: str) -> str:
    """The page with its section replaced."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + "\n\n" + section + "\n\n" + END + rest.split(END)[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the table into tests/soundness/README.md")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--problems", type=int, default=PROBLEMS, help="a family")
    options = parser.parse_args()
    start = time.perf_counter()
    outcomes = everything(options.jobs, options.problems)
    section = table(outcomes, time.perf_counter() - start)
    print(section)
    for family in FAMILIES:
        finite = [each for each in outcomes if each.family == family and each.finite]
        allowed = 0 if family in CERTAIN else most(len(finite))
        for kind in ("outside", "exceeded"):
            count = sum(getattr(each, kind) for each in finite)
            print(
                f"{family}: {kind} {count} of {len(finite)}, at most {allowed}", "" if count <= allowed else "VIOLATED"
            )
    if options.write:
        PAGE.write_text(written(PAGE.read_text(), section))


if __name__ == "__main__":
    main()
