"""Everything the suite measures, as a table. `python tests/soundness/report.py --write` puts it into tests/soundness/README.md.

Finished parts are kept (in `.soundness/`, for as long as package and suite stay as they are), so that a run can be continued.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

from threadpoolctl import threadpool_limits  # noqa: E402

from soundness.families import FAMILIES, Family  # noqa: E402
from soundness.judging import COUNTABLE, TIMES, USUAL, Outcome, Verdict, outcomes_of  # noqa: E402
from soundness.old_rule import old_outcome  # noqa: E402
from soundness.series import NAME, series_outcomes  # noqa: E402

ROOT = HERE.parents[1]
PAGE, KEPT = Path(__file__).with_name("README.md"), ROOT / ".soundness"
BEGIN, END = "<!-- hard families: begin -->", "<!-- hard families: end -->"
SERIES = 150
OLD = FAMILIES[:3]
OLD_PROBLEMS = 200
CHUNK = 25


def verdict_of(family: Family, problems: int | None = None) -> Verdict:
    """All problems of a family, judged."""
    return Verdict(
        family.name,
        tuple(
            found for seed in range(family.problems if problems is None else problems) for found in _one(family, seed)
        ),
    )


def series_verdict(problems: int = SERIES) -> Verdict:
    return Verdict(NAME, tuple(found for seed in range(problems) for found in series_outcomes(seed)))


def old_verdict(family: Family, problems: int = OLD_PROBLEMS) -> Verdict:
    """The old rule, `seen`, on a family."""
    return Verdict(family.name, tuple(old_outcome(family.name, family.make(seed), USUAL) for seed in range(problems)))


def _one(family: Family, seed: int) -> Iterator[Outcome]:
    return outcomes_of(family.name, family.make(seed))


def _work(job: tuple[str, int, int]) -> list[Outcome]:
    """Some problems of one family, in a process of its own."""
    threadpool_limits(1)
    name, first, last = job
    if name == NAME:
        return [found for seed in range(first, last) for found in series_outcomes(seed)]
    old = name.startswith("old: ")
    family = next(family for family in FAMILIES if family.name == name.removeprefix("old: "))
    if old:
        return [old_outcome(name, family.make(seed), USUAL) for seed in range(first, last)]
    return [found for seed in range(first, last) for found in _one(family, seed)]


class Parts:
    """Finished parts, with the seconds each took."""

    def __init__(self) -> None:
        files = sorted([*(ROOT / "src" / "expunge").rglob("*.py"), *HERE.glob("*.py"), HERE.parent / "reference.py"])
        digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
        KEPT.mkdir(exist_ok=True)
        self.path = KEPT / f"{digest[:16]}.jsonl"
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        self.known = {tuple(entry["job"]): entry for entry in map(json.loads, lines)}

    def add(self, job: tuple[str, int, int], outcomes: list[Outcome], seconds: float) -> None:
        entry = {"job": job, "seconds": seconds, "outcomes": [asdict(found) for found in outcomes]}
        self.known[job] = entry
        with self.path.open("a") as file:
            file.write(json.dumps(entry) + "\n")


def _timed(job: tuple[str, int, int]) -> tuple[list[Outcome], float]:
    start = time.perf_counter()
    return _work(job), time.perf_counter() - start


def everything(jobs: int, share: float = 1.0) -> tuple[dict[str, Verdict], float]:
    """Every family, the series and the old rule, and the seconds all took; `share` of the problems, at least one."""
    wanted = {family.name: family.problems for family in FAMILIES} | {NAME: SERIES}
    wanted |= {f"old: {family.name}": OLD_PROBLEMS for family in OLD}
    counts = {name: max(1, round(share * count)) for name, count in wanted.items()}
    parts = [(n, first, min(first + CHUNK, k)) for n, k in counts.items() for first in range(0, k, CHUNK)]
    kept = Parts()
    missing = [part for part in parts if part not in kept.known]
    with ProcessPoolExecutor(jobs) as pool:
        for part, (outcomes, seconds) in zip(missing, pool.map(_timed, missing), strict=True):
            kept.add(part, outcomes, seconds)
            print(f"{part[0]}: {part[2]} of {counts[part[0]]}, {seconds:.0f} s", file=sys.stderr)
    found: dict[str, list[Outcome]] = {name: [] for name in counts}
    for part in parts:
        found[part[0]] += [Outcome(**entry) for entry in kept.known[part]["outcomes"]]
    verdicts = {name: Verdict(name, tuple(outcomes)) for name, outcomes in found.items()}
    return verdicts, sum(kept.known[part]["seconds"] for part in parts)


def row(verdict: Verdict) -> str:
    """A line of the table."""
    quantiles, usual = verdict.of("quantile"), verdict.of("usual")
    cells = [
        verdict.family,
        f"{len(verdict.outcomes):,}",
        f"{verdict.exceeded('quantile')} of {len(quantiles):,} ({verdict.stated('quantile'):.2g})" if quantiles else "",
        f"{verdict.exceeded('usual')} of {len(usual):,} ({verdict.stated('usual'):.2g})" if usual else "",
        f"{verdict.mean_delta:.1g}" if verdict.of("noise") else "",
        f"{verdict.closest:.2f}" if quantiles else "",
    ]
    return "| " + " | ".join(cells) + " |"


def table(verdicts: dict[str, Verdict], seconds: float) -> str:
    """The section of tests/soundness/README.md."""
    named = {family.name for family in FAMILIES if family.named}
    held = {name: verdict for name, verdict in verdicts.items() if not name.startswith("old: ")}
    apart = [verdict for name, verdict in held.items() if name in named]
    rest = [verdict for name, verdict in held.items() if name not in named]
    bounds = sum(len(verdict.outcomes) for verdict in held.values())
    violations = sum(verdict.violations for verdict in rest)
    faults = [fault for verdict in rest for fault in verdict.faults()]
    head = [
        f"| family | bounds | exceeded at {COUNTABLE:g} (stated) | exceeded at delta {USUAL:g} (stated) "
        f"| mean delta, {COUNTABLE:g} claimed | smallest bound over truth |",
        "|---|---|---|---|---|---|",
    ]
    old = [verdict for name, verdict in verdicts.items() if name.startswith("old: ")]
    lines = [
        f"{bounds:,} bounds in {seconds / 60:.0f} minutes of one core; {violations} violations where nothing that a certificate assumes is"
        f" broken; beyond what is stated: {'none' if not faults else '; '.join(faults)}.",
        "",
        *head,
        *map(row, rest),
        "",
        "Forget sets chosen along what source and surrogate differ in most, which every certificate with a sampling term"
        " excludes in words:",
        "",
        *head,
        *map(row, apart),
        "",
        "The rule of certificates of schemas 1 and 2 with `seen`, on three of these families, so that the table can be seen to"
        " fail:",
        "",
        "| family | exceeded | stated probability |",
        "|---|---|---|",
        *(
            f"| {v.family.removeprefix('old: ')} | {v.exceeded('usual')} of {len(v.outcomes)} | {v.stated('usual'):.2g} |"
            for v in old
        ),
        "",
        f"A claimed delta is a mean over the drawing of the sets: at delta {USUAL:g}, more than {TIMES} times it was realised in"
        f" {sum(v.far_above() for v in rest)} of {sum(len(v.of('usual')) for v in rest):,} claims.",
    ]
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
    section = table(*everything(options.jobs, options.share))
    print(section)
    if options.write:
        PAGE.write_text(written(PAGE.read_text(), section))


if __name__ == "__main__":
    main()
