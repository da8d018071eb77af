"""`make mutants`: each change in turn, and which of them no test notices. Results are kept, so that a run can be continued."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from mutation.changes import Mutant, changed, mutants_of
from mutation.forking import (
    OVERTIME,
    PACKAGE,
    ROOT,
    SURVIVED,
    Ended,
    Failures,
    Job,
    in_children,
    judge,
    module_name,
    prepare,
    run_tests,
)
from mutation.modules import TARGETS, Target, files_of, suites_of, text_of

KEPT = ROOT / ".mutants"
EQUIVALENT = ROOT / "tests" / "equivalent_mutants.toml"
ENOUGH = 0.95
OWN = "unnoticed by its own tests"
LONGEST = 900.0  # seconds, of the tests of one module as they are
PATIENCE = 10.0  # seconds on top of three times what the tests, or the longest of them, take as they are


@dataclass(frozen=True)
class Case:
    """A mutant with the tests that are to notice it, and what names it among the results kept."""

    mutant: Mutant
    target: Target
    source: str

    @property
    def key(self) -> str:
        return _digest(self.mutant.key + self.source + _tests_digest(self.target))


@cache
def _tests_digest(target: Target) -> str:
    return "".join(_digest(text_of(test, ROOT)) for test in suites_of(target, ROOT))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def cases(wanted: str) -> list[Case]:
    """All mutants of modules whose path holds `wanted`."""
    found = []
    for target in TARGETS:
        for path in files_of(target, PACKAGE):
            file = str(path.relative_to(PACKAGE))
            if wanted in file:
                source = path.read_text()
                found += [Case(mutant, target, source) for mutant in mutants_of(file, source, target.only)]
    return found


@dataclass(frozen=True)
class AsItIs:
    """Of a suite with nothing changed: what fails already, the seconds of all and of the longest test."""

    failed: list[str]
    seconds: float
    longest: float


class Kept:
    """Lines of JSON, one a result."""

    def __init__(self, name: str, fresh: bool) -> None:
        KEPT.mkdir(exist_ok=True)
        self.path = KEPT / name
        lines = [] if fresh or not self.path.exists() else self.path.read_text().splitlines()
        self.known = {entry["key"]: entry for entry in map(json.loads, lines)}

    def add(self, entry: dict[str, object]) -> None:
        self.known[str(entry["key"])] = entry
        with self.path.open("a") as file:
            file.write(json.dumps(entry) + "\n")


def baseline(tests: list[str], kept: Kept, at_once: int) -> dict[str, AsItIs]:
    """Of each file, as the package stands: what fails already, and the seconds it takes."""
    package = "".join(_digest(path.read_text()) for path in sorted(PACKAGE.rglob("*.py")))

    def key(test: str) -> str:
        return _digest(package + test + text_of(test, ROOT))

    def work(test: str) -> bool:  # a child's: it has nothing to tell but what is kept
        plugin, start = Failures(), time.monotonic()
        run_tests([test], [], first=False, plugin=plugin)
        found = {"failed": plugin.failed, "read": plugin.read, "longest": plugin.longest}
        kept.add({"key": key(test), "test": test, "seconds": time.monotonic() - start, **found})
        return True

    missing = [test for test in tests if key(test) not in kept.known]
    for ended in in_children((Job(t, lambda _, t=t: work(t), LONGEST) for t in missing), at_once):
        print(f"as it is: {ended.label}, {ended.seconds:.1f} s", file=sys.stderr)
    again = Kept(kept.path.name, False).known
    lost = [test for test in tests if key(test) not in again or not again[key(test)]["read"]]
    if lost:
        raise SystemExit(f"these tests cannot be read, or do not come to an end: {', '.join(lost)}")
    return {
        test: AsItIs(**{name: again[key(test)][name] for name in ("failed", "seconds", "longest")}) for test in tests
    }


def control(chosen: list[Case], results: Kept, known: dict[str, AsItIs], at_once: int) -> None:
    """Where no mutant survived, what noticed them must pass of the module as it is: all tests that ran before the last.

    Otherwise they fail together whatever is changed.
    """
    alive = {case.target for case in chosen if results.known[case.key]["result"] == SURVIVED}
    doubtful: dict[Target, tuple[int, Case]] = {}
    for case in chosen:
        order = in_order(case, known)
        noticed = str(results.known[case.key].get("told", "")).partition("::")[0]
        last = max((place for place, test in enumerate(order) if noticed and test.startswith(noticed)), default=-1)
        doubtful[case.target] = max(doubtful.get(case.target, (-1, case)), (last, case), key=lambda it: it[0])
    jobs = (job_of(case, known, first=last + 1) for target, (last, case) in doubtful.items() if target not in alive)
    for ended in in_children(jobs, at_once):
        file = ended.label.mutant.file
        if ended.result != SURVIVED:
            raise SystemExit(f"{file}: its tests fail together although nothing is changed ({ended.result})")
        print(f"unchanged: {file}, {ended.seconds:.1f} s", file=sys.stderr)


def in_order(case: Case, known: dict[str, AsItIs], farthest: int = 2) -> list[str]:
    """The tests of a module, those that are about it first, fast ones before slow ones."""
    near = [test for test in suites_of(case.target, ROOT) if _far(case, test) <= farthest]
    return sorted(near, key=lambda test: (_far(case, test), known[test].seconds))


def job_of(case: Case, known: dict[str, AsItIs], first: int | None = None, farthest: int = 2) -> Job:
    """The tests of a module with one change made; or its `first` tests with none."""
    tests = in_order(case, known, farthest)[:first]
    left_out = [name for test in tests for name in known[test].failed]
    path = PACKAGE / case.mutant.file
    as_it_is = first is not None
    code = compile(case.source, str(path), "exec") if as_it_is else changed(case.source, case.mutant, str(path))
    limit = PATIENCE + 3.0 * sum(known[test].seconds for test in tests)
    longest = PATIENCE + 3.0 * max((known[test].longest for test in tests), default=0.0)
    return Job(case, partial(judge, module_name(path), path, code, tests, left_out, longest), limit)


def _far(case: Case, test: str) -> int:
    """How far a test is from the module: 0 if it has its name, 1 if it is in its folder."""
    file = Path(case.mutant.file)
    return 0 if f"test_{file.stem}.py" in test else 1 if f"tests/{file.parts[0]}/" in test else 2


def equivalents() -> dict[str, str]:
    """Reasons, by file, place, line and change; one without line and change is for a whole function.

    Where a line has the same change in several places, `after` is what stands before the one that is meant.
    """
    if not EQUIVALENT.exists():
        return {}
    listed = tomllib.loads(EQUIVALENT.read_text()).get("same", [])
    named = ("line", "change", "after")
    return {_name(e["file"], e["within"], *(e.get(part, "") for part in named)): e["reason"] for e in listed}


def _name(file: str, within: str, line: str, change: str, after: str = "") -> str:
    return "|".join((file, within, line, change, after))


def reason_for(mutant: Mutant, listed: dict[str, str]) -> str | None:
    known = (mutant.file, mutant.within, mutant.text, mutant.change)
    return (
        listed.get(_name(*known, mutant.before))
        or listed.get(_name(*known))
        or listed.get(_name(mutant.file, mutant.within, "", ""))
    )


def report(chosen: list[Case], results: dict[str, dict[str, object]]) -> bool:
    """Print what was found; whether enough was caught and the rest has its reasons."""
    listed, counts, rest = equivalents(), Counter[str](), []
    by_file: dict[str, Counter[str]] = {}
    for case in chosen:
        entry, reason = results.get(case.key), reason_for(case.mutant, listed)
        if entry is None and reason is None:
            counts["not run"] += 1
            continue
        entry = entry or {"result": SURVIVED}
        reason = reason if entry["result"] == SURVIVED else None
        reason = reason or (reason_for(case.mutant, listed) if entry["result"] == OWN else None)
        result = "listed" if reason else str(entry["result"])
        counts[result] += 1
        by_file.setdefault(case.mutant.file, Counter())[result] += 1
        if result in (SURVIVED, OWN):
            rest.append(case.mutant)
    for file, found in sorted(by_file.items()):
        print(f"{file}: " + ", ".join(f"{count} {what}" for what, count in sorted(found.items())))
    for mutant in rest:
        print(f"SURVIVED src/expunge/{mutant.file}:{mutant.line} ({mutant.within or 'module'}): {mutant.change}")
        print(f"    {mutant.text}")
    total = sum(counts.values()) - counts["not run"]
    caught = counts["caught"] + counts[OVERTIME]
    share = caught / max(total, 1)
    print(
        f"{total} changes: {caught} caught ({share:.1%}; {counts[OVERTIME]} of them by never ending), "
        f"{counts['listed']} listed as changing nothing, {len(rest)} unnoticed; {counts['not run']} not run"
    )
    return share >= ENOUGH and not rest


def main() -> None:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("--module", default="", help="only files whose path holds this, such as bounds/ or noise.py")
    parser.add_argument("--sample", type=int, help="so many, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--own", action="store_true", help="only by the tests with the module's name; run again for the rest"
    )
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--list", action="store_true", help="only list the changes")
    parser.add_argument("--known", action="store_true", help="only report what is known already")
    options = parser.parse_args()
    chosen = cases(options.module)
    if options.sample is not None and options.sample < len(chosen):
        chosen = random.Random(options.seed).sample(chosen, options.sample)
    if options.list:
        for case in chosen:
            print(f"{case.mutant.file}:{case.mutant.line} {case.mutant.change}")
        print(len(chosen))
        return
    results = Kept("results.jsonl", options.fresh)
    if not options.known:
        run(chosen, results, options.jobs, options.own)
    if not report(chosen, results.known):
        sys.exit(1)


def run(chosen: list[Case], results: Kept, at_once: int, own: bool) -> None:
    """What is not known yet."""
    prepare()
    listed = equivalents()
    passed = () if own else (OWN,)
    to_do = [
        case
        for case in chosen
        if results.known.get(case.key, {"result": OWN})["result"] in passed or case.key not in results.known
        if reason_for(case.mutant, listed) is None
    ]
    tests = sorted({test for case in to_do for test in suites_of(case.target, ROOT)})
    known = baseline(tests, Kept("baseline.jsonl", False), at_once)
    failing = [name for found in known.values() for name in found.failed]
    if failing:
        print(f"{len(failing)} tests fail as it is, and are left out: {', '.join(failing[:5])} ...", file=sys.stderr)
    if own:
        of_its_own(to_do, known, results, at_once)
        return
    for ended in told(to_do, in_children((job_of(case, known) for case in to_do), at_once)):
        results.add(entry_of(ended, ended.result))
    control(to_do, results, known, at_once)


def of_its_own(to_do: list[Case], known: dict[str, AsItIs], results: Kept, at_once: int) -> None:
    """By the tests that have the module's name alone, which takes seconds: what they do not notice, others may."""
    jobs = (job_of(case, known, farthest=0) for case in to_do)
    for ended in told(to_do, in_children(jobs, at_once)):
        results.add(entry_of(ended, OWN if ended.result == SURVIVED else ended.result))


def told(to_do: list[Case], all_ended: Iterator[Ended]) -> Iterator[Ended]:
    for done, ended in enumerate(all_ended, start=1):
        mutant = ended.label.mutant
        line = f"{mutant.file}:{mutant.line} {mutant.change}"
        print(f"{done}/{len(to_do)} {ended.result} {ended.seconds:.1f} s {line}", file=sys.stderr)
        yield ended


def entry_of(ended: Ended, result: str) -> dict[str, Any]:
    case = ended.label
    named = {"file": case.mutant.file, "change": case.mutant.change, "told": ended.told}
    return {"key": case.key, "result": result, "seconds": round(ended.seconds, 2), **named}


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
