"""A surrogate's curvature on thousands of problems: how far the retrained weights really are, beside what is claimed.

Of every problem everything is known, so the curvature of the retained rows is too, relative to that of the surrogate's: with
it, and with the true gradient, the region is a theorem, and one outside is a fault (`exact`). What `--curvature auto`
declares is mostly less than that; then a claim may be exceeded as often as it says (`claimed`), and problems where it is more,
where the certificate's first assumption is broken, are counted apart (`broken`).

`python tests/soundness/curvature.py --write` puts the table into tests/soundness/README.md.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.linalg import eigh
from threadpoolctl import threadpool_limits

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]

from asking import asked  # noqa: E402
from expunge.curvature import CurvedEvidence, CurvedNorm, CurvedRows, centred, closed_norm  # noqa: E402
from expunge.distance import Distance  # noqa: E402
from expunge.errors import ExpungeError  # noqa: E402
from expunge.evidence import build_claim  # noqa: E402
from expunge.heads import Rows, head_for  # noqa: E402
from expunge.mechanism import weigh  # noqa: E402
from expunge.model import from_matrix  # noqa: E402
from expunge.record import TrainingRecord  # noqa: E402
from expunge.runtime.arrays import norm  # noqa: E402
from expunge.train import minimise  # noqa: E402
from soundness.families import ones_of, unit, zipf  # noqa: E402
from soundness.judging import COUNTABLE, radius_of  # noqa: E402

Array = Any
PAGE = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- curvature: begin -->", "<!-- curvature: end -->"
LOSSES = ("softmax", "one-vs-rest", "ridge")
SAMPLINGS = ("strict", "within:2", "seen")
CHUNK, APART = 20, 1_000_000


@dataclass(frozen=True)
class Outcome:
    """A region beside the truth, both in the norm it is measured in; `kappa` is what was declared, `true` what is so."""

    family: str
    seed: int
    what: str
    radius: float
    truth: float
    uncertain: float
    kappa: float = math.nan
    true: float = math.nan

    @property
    def broken(self) -> bool:
        return self.true < self.kappa

    @property
    def outside(self) -> bool:
        return self.truth - self.uncertain > self.radius * (1.0 + 1e-9)


@dataclass(frozen=True)
class Problem:
    """Source and surrogate with labels, rows of the source to forget, and the trained weights."""

    loss: str
    l2: float
    X: Array
    y: Array
    S: Array
    S_labels: Array
    gone: int
    classes: int

    @property
    def head(self) -> Any:
        longest = float(np.linalg.norm(np.concatenate([self.X, self.S]), axis=1).max()) * (1.0 + 1e-9)
        return head_for(self.loss, l2=self.l2, n_classes=self.classes, n_features=self.X.shape[1], row_bound=longest)

    def optimum(self, rows: slice) -> Array:
        return minimise(self.head, Rows(self.X[rows], self.y[rows]), tolerance=1e-13)


def drawn(seed: int, rows_of: Callable[[np.random.Generator, int], Array]) -> Problem:
    """Rows of one law, of any loss, any regulariser, any number to forget."""
    rng = np.random.default_rng([90, seed])
    loss, classes = str(rng.choice(LOSSES, p=[0.5, 0.3, 0.2])), int(rng.integers(2, 5))
    n, s = (int(np.exp(rng.uniform(np.log(120), np.log(700)))) for _ in range(2))
    X, width = rows_of(rng, n + s), 0
    width = X.shape[1]
    rule = (
        rng.normal(size=(width, classes))
        * rng.choice([0.0, 1.0, 4.0])
        / max(1e-9, float(np.linalg.norm(X, axis=1).mean()))
    )
    y = (X @ rule * math.sqrt(width) + rng.gumbel(size=(n + s, classes))).argmax(axis=1)
    l2 = 1.0 / n if rng.random() < 0.3 else float(10.0 ** rng.uniform(-4, -0.5))
    gone = int(rng.choice([1, 1, 2, max(1, n // 50), n // 10]))
    return Problem(loss, l2, X[:n], y[:n], X[n:], y[n:], gone, classes)


def columns(rng: np.random.Generator, n: int) -> Array:
    """One-hot columns, some with rare levels, and a constant."""
    widths = rng.integers(2, 7, size=int(rng.integers(1, 4)))
    parts = [ones_of(rng.choice(w, size=n, p=zipf(w, float(rng.choice([0.0, 1.0, 2.0])))), w) for w in widths]
    return np.hstack([*parts, np.ones((n, 1))])


def heavy(rng: np.random.Generator, n: int) -> Array:
    """Long tails, cut somewhere."""
    X = rng.standard_t(float(rng.choice([1.5, 2.5, 4.0])), size=(n, int(rng.integers(2, 7))))
    lengths = np.linalg.norm(X, axis=1)
    most = np.quantile(lengths, rng.choice([0.9, 0.99, 1.0]))
    return X * np.minimum(1.0, most / lengths)[:, None]


def directions(rng: np.random.Generator, n: int) -> Array:
    """Rows of length 1."""
    width = int(rng.integers(2, 9))
    return unit(rng.normal(size=(n, width)) + rng.choice([0.0, 1.0]) * np.ones(width))


def scaled(rng: np.random.Generator, n: int) -> Array:
    """Columns of very different scale."""
    width = int(rng.integers(2, 7))
    return rng.normal(size=(n, width)) * 10.0 ** rng.uniform(-2, 1, size=width)


@dataclass(frozen=True)
class Family:
    name: str
    rows_of: Callable[[np.random.Generator, int], Array]
    problems: int = 1500


FAMILIES = (
    Family("one-hot columns", columns),
    Family("heavy tails", heavy),
    Family("rows of length 1", directions),
    Family("columns of different scale", scaled),
)


def true_ratio(rows: CurvedRows, retained: Array, found: CurvedNorm) -> float:
    """The largest kappa that is true of these retained rows, for this M and its reach."""
    kept = CurvedRows(rows.head, rows.weights, rows.update, Rows(retained, np.zeros(len(retained), dtype=np.int64)))
    matrices = []
    for side in (kept, rows):
        none = np.zeros(len(side.features))
        lengths = side.lengths(found.by, 0.0, none)
        assert lengths is not None
        flat = rows.head.constant_curvature
        made = side.norm(1.0, none if flat else lengths.concordance * found.reach)
        assert made is not None
        matrices.append(made.matrix.values)
    return min(float(eigh(one, other, eigvals_only=True)[0]) for one, other in zip(*matrices, strict=True))


def exact_outcome(family: Family, seed: int, problem: Problem, trained: Array, target: Array) -> Outcome | None:
    """The region of some update by the true gradient and the true kappa; None where none closes."""
    rng, head, m = np.random.default_rng([91, seed]), problem.head, problem.gone
    retained = Rows(problem.X[m:], problem.y[m:])
    part = float(rng.choice([1.0, 0.9, 0.0, 1.3]))
    update = centred(
        trained + part * (target - trained) + 1e-3 * rng.normal(size=trained.shape) * rng.integers(0, 2), head
    )
    rows = CurvedRows(head, trained, update - trained, Rows(problem.S, problem.S_labels))
    gradient = centred(head.gradient(update, retained), head)
    kappa, found = 0.5, None
    for _ in range(6):  # towards the largest kappa that is true
        found = closed_norm(rows, kappa, lambda found: found.by.dual(gradient))
        if found is None:
            kappa *= 0.5
            continue
        true = true_ratio(rows, problem.X[m:], found)
        if kappa <= true <= 1.02 * kappa:
            break
        kappa = min(0.999 * true, 1e3)
    if found is None or kappa > true_ratio(rows, problem.X[m:], found):
        return None
    away = math.sqrt(found.by.matrix.form(centred(target, head) - update))
    error = norm(head.gradient(target, retained)) / problem.l2 * math.sqrt(found.by.matrix.trace)
    return Outcome(family.name, seed, "exact", found.by.dual(gradient), away, error)


def claimed_outcome(
    family: Family, seed: int, problem: Problem, trained: Array, target: Array, sampling: str
) -> Outcome | None:
    """What is claimed by the way that every request goes; None where it is refused."""
    head, m, delta = problem.head, problem.gone, COUNTABLE if seed % 2 else 1e-4
    longest = head.row_bound * (1.0 + 1e-12)
    residual = norm(head.gradient(trained, Rows(problem.X, problem.y))) * (1.0 + 1e-6) + 1e-15
    model = from_matrix(trained, bias=False, dtype=np.float64)
    record = TrainingRecord(
        len(problem.X), tuple(range(problem.classes)), tuple(np.bincount(problem.y, minlength=problem.classes).tolist()),
        problem.l2, problem.loss, longest, False, residual, weights_sha256=model.weights_sha256(),
    )  # fmt: skip
    distance = Distance("same", 0.0, sampling=sampling)
    try:
        request = asked(
            model.with_record(record), (problem.X[:m], problem.y[:m]), (problem.S, problem.S_labels),
            epsilon=1.0, delta=delta, distance=distance, curvature="auto", force=True,
        )  # fmt: skip
        evidence = CurvedEvidence.gather(request, seed=seed)
        measured = weigh(evidence)
    except ExpungeError:
        return None
    claim = build_claim(request, measured)
    radius, _ = radius_of(claim, delta)
    if not math.isfinite(radius):
        return None
    shape = measured.retained.shape
    assert shape is not None
    updated = request.weights + measured.step.update
    away = norm(shape.whitened((centred(target, head) - updated).reshape(1, -1)))
    error = norm(head.gradient(target, Rows(problem.X[m:], problem.y[m:]))) / problem.l2 * math.sqrt(shape.largest)
    true = true_ratio(evidence._rows, problem.X[m:], evidence._closed[0])
    return Outcome(family.name, seed, sampling, radius, away, error, claim.curvature or math.nan, true)


def outcomes_of(family: Family, seed: int) -> Iterator[Outcome]:
    """Everything that is found of one problem."""
    problem = drawn(seed + APART * FAMILIES.index(family), family.rows_of)
    trained, target = problem.optimum(slice(None)), problem.optimum(slice(problem.gone, None))
    found = [exact_outcome(family, seed, problem, trained, target)]
    found += [claimed_outcome(family, seed, problem, trained, target, sampling) for sampling in SAMPLINGS]
    yield from (each for each in found if each is not None)


def _work(job: tuple[int, int, int]) -> list[Outcome]:
    threadpool_limits(1)
    index, first, last = job
    return [found for seed in range(first, last) for found in outcomes_of(FAMILIES[index], seed)]


def everything(jobs: int, share: float) -> list[Outcome]:
    counts = [max(1, round(share * family.problems)) for family in FAMILIES]
    parts = [(i, first, min(first + CHUNK, k)) for i, k in enumerate(counts) for first in range(0, k, CHUNK)]
    if jobs == 1:
        return [found for part in parts for found in _work(part)]
    with ProcessPoolExecutor(jobs) as pool:
        return [found for some in pool.map(_work, parts) for found in some]


def row(name: str, what: str, some: list[Outcome]) -> str:
    """A line of the table."""
    held = [found for found in some if not found.broken]
    ratios = [found.radius / found.truth for found in held if found.truth > 100.0 * found.uncertain]
    told = f"{min(ratios):.3g} | {np.median(ratios):.3g}" if ratios else " | "
    broken = [found for found in some if found.broken]
    outside = sum(found.outside for found in held)
    return f"| {name} | {what} | {len(held):,} | {outside} | {told} | {len(broken)}, {sum(found.outside for found in broken)} |"


def table(outcomes: list[Outcome], problems: int, seconds: float) -> str:
    """The section of tests/soundness/README.md."""
    lines = [
        f"{problems:,} problems, in {seconds / 60:.0f} minutes. `exact`: by the true gradient and the largest kappa that is "
        "true. The others: `--curvature auto`, delta 0.2 and 1e-4 in turn; a claim that is refused is not counted.",
        "",
        "| family | | regions | outside | smallest radius over truth | median | kappa broken, outside then |",
        "|---|---|---|---|---|---|---|",
    ]
    for family in FAMILIES:
        for what in ("exact", *SAMPLINGS):
            lines.append(row(family.name, what, [f for f in outcomes if (f.family, f.what) == (family.name, what)]))
    return "\n".join(lines) + "\n"


def written(page: str, section: str) -> str:
    """The page with its section replaced."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + "\n\n" + section + "\n" + END + rest.split(END)[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the table into tests/soundness/README.md")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--share", type=float, default=1.0, help="of the problems; the table is for all of them")
    options = parser.parse_args()
    start = time.perf_counter()
    outcomes = everything(options.jobs, options.share)
    problems = sum(max(1, round(options.share * family.problems)) for family in FAMILIES)
    section = table(outcomes, problems, time.perf_counter() - start)
    print(section)
    for found in outcomes:
        if found.outside and not found.broken:
            print("OUTSIDE", found)
    if options.write:
        PAGE.write_text(written(PAGE.read_text(), section))


if __name__ == "__main__":
    main()
