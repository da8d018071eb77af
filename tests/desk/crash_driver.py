"""Runs a desk under faults and prints what came of it, as JSON. Started by test_recover.py with faults.c preloaded.

Every trial copies a prepared desk, forks a child that works on the copy and dies or fails at one point, then checks the
copy, lets the desk recover and finish by itself, and checks again. With `deposit` as the last word the desk's state is
a deposit, of which there must be one in use at any time, that of what is retained.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from expunge.certificate.sign import verify_file
from expunge.certificate.statement import read_certificate
from expunge.deposit.file import Deposit, read_deposit
from expunge.deposit.verify import verify_deposits
from expunge.desk import Desk, Policy, accept, create_desk, models, open_desk, requests, run, verify_desk, withdraw
from expunge.desk.state import load_state
from expunge.errors import ExpungeError
from expunge.model import LinearModel
from expunge.train import train
from expunge.unlearn import deposit, unlearn

N_SOURCE = 300
MODES = {"kill": 1, "torn": 2, "full": 3, "broken": 4}


def rows(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Three well separated classes in four dimensions, unit norm."""
    labels = np.arange(count) % 3
    features = 2.0 * np.eye(3, 4)[labels] + 0.3 * np.random.default_rng(seed).normal(size=(count, 4))
    return features / np.linalg.norm(features, axis=1, keepdims=True), labels


X, Y = rows(N_SOURCE, 1)


KEPT = False
STEP = 1


@functools.cache
def made_once() -> Deposit:
    """The deposit, made in the parent and not in every child."""
    return deposit(train(X, Y, l2=0.1, max_norm=1.0), X, Y, seed=1)


def opened(folder: Path, model: LinearModel) -> Desk:
    """A desk with a surrogate, or with a deposit."""
    policy = Policy(epsilon=0.5, delta=1e-3, distance="deposit" if KEPT else "same", planned=10, force=True)
    if KEPT:
        return create_desk(folder, model, None, policy, deposit=made_once())
    return create_desk(folder, model, rows(400, 2), policy)


def prepare(folder: Path) -> Path:
    """A desk with one published model and two pending requests."""
    desk = opened(folder, train(X, Y, l2=0.1, max_norm=1.0))
    accept(desk, X[:1], Y[:1], "first")
    run(desk)
    accept(desk, X[1:3], Y[1:3], "second")
    accept(desk, X[3:4], Y[3:4], "third")
    return folder


def problems(desk: Desk, acknowledged: int, *, finished: bool) -> list[str]:
    """What must never be: a lost request, one done twice, a half file, a certificate without its model."""
    found = []
    try:
        checked = verify_desk(desk)
    except ExpungeError as error:
        return [f"ledger: {error}"]
    asked, made = requests(desk), models(desk)
    if len(asked) < acknowledged:
        found.append(f"{acknowledged} acknowledged, {len(asked)} in the ledger")
    answers = Counter(request for facts in made for request in facts["requests"])
    if any(count > 1 for count in answers.values()):
        found.append(f"done twice: {answers}")
    folders = {path.name for path in desk.layout.published.iterdir()}
    for folder in sorted(desk.layout.published.iterdir()):
        try:
            dossier = desk.layout.dossier_of(int(folder.name))
            verify_file(folder / "statement.json", None, folder / "model.safetensors", dossier)
        except ExpungeError as error:
            found.append(f"{folder.name}: {error}")
    found += in_use(desk)
    if not finished:
        if not folders <= {f"{facts['model']:04d}" for facts in made}:
            found.append(f"published without an entry: {folders}")
        return found
    if folders != {f"{facts['model']:04d}" for facts in made} or checked.absent:
        found.append(f"published {folders}")
    if any(request.state not in ("done", "withdrawn") for request in asked):
        found.append(f"not done: {[request.state for request in asked]}")
    asked = [request for request in asked if request.state == "done"]
    if sorted(answers) != [request.id for request in asked]:
        found.append(f"answered {sorted(answers)}")
    gone = sum(request.n_rows for request in asked)
    if made[-1]["n_left"] != N_SOURCE - gone:
        found.append(f"{made[-1]['n_left']} rows left of {N_SOURCE} less {gone}")
    left = [path.name for path in desk.layout.private.rglob("*") if path.is_file()]
    dossiers = [f"{facts['model']:04d}.json" for facts in made]
    surrogates = [] if KEPT else ["surrogate.npz"]
    if sorted(left) != sorted(["key", "lock", *surrogates, f"{len(made):04d}.safetensors", *dossiers]):
        found.append(f"private files {left}")
    if list(desk.layout.folder.rglob(".expunge*")):
        found.append("temporary files")
    return found


def in_use(desk: Desk) -> list[str]:
    """What is wrong with the deposit in use, once a command has put right what a crash left."""
    if not KEPT:
        return []
    with desk.writing() as ledger:
        kept, made = load_state(desk, ledger).deposit, ledger.models()
    assert kept is not None
    gone = sum(model.facts.n_rows for model in made)
    states = [path.name for path in desk.layout.states.iterdir()]
    wrong = kept.numbers.n_rows != N_SOURCE - gone or kept.numbers.generation != len(made) or len(states) != 1
    return [f"deposit of {kept.numbers.n_rows} rows after {gone} left, files {states}"] if wrong else []


def act(name: str, desk: Desk, tell: Callable[[], object]) -> None:
    """What the child does; `tell` is called when a request is acknowledged."""
    if name == "request":
        accept(desk, X[4:6], Y[4:6], "fourth")
        tell()
    elif name == "run":
        run(desk, each=True)
    elif name == "batch":
        run(desk)
    elif name == "withdraw":
        withdraw(desk, 3, "a mistake")
    else:
        accept(desk, X[4:6], Y[4:6], "fourth")
        tell()
        run(desk)


def child(work: Callable[[Callable[[], object]], object], arm: Callable[[], None]) -> tuple[int, bool, int]:
    """Fork, arm the fault, work. Returns exit code (or minus the signal), whether acknowledged, calls counted."""
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        code = 0
        try:
            arm()
            work(lambda: os.write(writer, b"A"))
        except ExpungeError:
            code = 7
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
            code = 8
        finally:
            count = LIBRARY.fault_count() if LIBRARY is not None else 0
            os.write(writer, b"C%d" % count)
            os._exit(code)
    os.close(writer)
    _, status = os.waitpid(process, 0)
    told = os.read(reader, 100).decode()
    os.close(reader)
    count = int(told.split("C")[1]) if "C" in told else -1
    return os.waitstatus_to_exitcode(status), told.startswith("A"), count


def settle(folder: Path, acknowledged: int) -> list[str]:
    """Check as left, let it finish by itself, check again."""
    desk = open_desk(folder)
    found = [f"as left: {text}" for text in problems(desk, acknowledged, finished=False)]
    outcome = run(desk)
    if outcome.refused is not None:
        found.append(f"refused: {outcome.refused}")
    return found + [f"in the end: {text}" for text in problems(desk, acknowledged, finished=True)]


def under_faults(
    mode: str,
    prepare: Callable[[], Path],
    work: Callable[[Callable[[], object]], object],
    check: Callable[[int, bool], list[str]],
) -> dict[str, object]:
    """One trial for every call that changes a file in the prepared folder, or for each STEP-th of them."""
    found: list[str] = []
    exits: Counter[int] = Counter()
    number = 0
    while True:
        number += STEP
        folder, here = prepare(), number
        code, told, count = child(work, lambda: LIBRARY.fault_arm(str(folder).encode(), here, MODES[mode]))  # noqa: B023
        exits[code] += 1
        if code == 8:
            found.append(f"{number}: an unexpected error")
        found += [f"{number}: {text}" for text in check(code, told)]
        if code == 0 and 0 <= count < number:
            return {"calls": count, "trials": number, "exits": dict(exits), "problems": found}


def anew(folder: Path, base: Path | None = None) -> Path:
    """An empty folder, or a copy of another."""
    shutil.rmtree(folder, ignore_errors=True)
    if base is None:
        folder.mkdir()
    else:
        shutil.copytree(base, folder)
    return folder


def working(base: Path, work: Path, name: str, mode: str) -> dict[str, object]:
    """A command on a desk under faults."""
    return under_faults(
        mode,
        lambda: anew(work, base),
        lambda tell: act(name, open_desk(work), tell),
        lambda _, told: settle(work, 3 + told),
    )


def opening(folder: Path, mode: str) -> dict[str, object]:
    """A new desk under faults: it is there, whole, or it is not there, and opening it again works."""
    model = train(X, Y, l2=0.1, max_norm=1.0)

    def check(_: int, told: bool) -> list[str]:
        if not (folder / "desk").exists():
            opened(folder / "desk", model)
        desk = open_desk(folder / "desk")
        accept(desk, X[:1], Y[:1], "first")
        run(desk)
        others = [path.name for path in folder.iterdir() if path.name != "desk"]
        return problems(desk, 1, finished=True) + ([f"left {others}"] if others else [])

    return under_faults(mode, lambda: anew(folder), lambda _: opened(folder / "desk", model), check)


def result(folder: Path, mode: str) -> dict[str, object]:
    """`expunge unlearn --deposit` under faults: nothing, or the result with its new deposit; the old one is as it was."""
    made, before = unlearn(made_once().model, (X[:2], Y[:2]), epsilon=0.5, delta=1e-3, deposit=made_once()), made_once()

    def prepare() -> Path:
        (anew(folder) / "model.deposit").write_bytes(before.to_bytes())
        return folder

    def check(code: int, told: bool) -> list[str]:
        there = sorted(path.name for path in folder.iterdir())
        found = [f"an error left {there}"] if code == 7 and there != ["model.deposit"] else []
        found += half(folder)
        if not (folder / "result").exists():
            made.save(folder / "result")
        there = sorted(path.name for path in folder.iterdir())
        return found + half(folder) + ([f"{there}"] if there != ["model.deposit", "result"] else [])

    return under_faults(mode, prepare, lambda _: made.save(folder / "result"), check)


def half(folder: Path) -> list[str]:
    """What is wrong with a result: the part of one, or a deposit that is not that of what is retained."""
    if (folder / "model.deposit").read_bytes() != made_once().to_bytes():
        return ["the old deposit was touched"]
    there, private = folder / "result", folder / "result" / "private"
    if not there.exists():
        return []
    try:
        verify_file(there / "statement.json", None, there / "model.safetensors", private / "dossier.json")
        after, dossier = read_deposit(private / "model.deposit"), read_certificate(private / "dossier.json")
        verify_deposits(dossier, after, made_once(), (X[:2], Y[:2]), there / "model.safetensors")
    except ExpungeError as error:
        return [str(error)]
    return []


def at_random(base: Path, work: Path, trials: int, seed: int) -> dict[str, object]:
    """SIGKILL at random instants of a request and a run."""
    generator, found, killed = random.Random(seed), [], 0

    def both(tell: Callable[[], object]) -> None:
        act("both", open_desk(work), tell)

    anew(work, base)
    started = time.monotonic()
    child(both, lambda: None)
    longest = time.monotonic() - started
    for number in range(trials):
        anew(work, base)
        delay = generator.uniform(0.0, longest)
        # the timer is armed in the child, so that it counts from the moment the work begins
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        code, told, _ = child(both, lambda delay=delay: arm_timer(delay))
        killed += code == -signal.SIGKILL
        found += [f"{number} after {delay:.4f} s: {text}" for text in settle(work, 3 + told)]
    return {"trials": trials, "killed": killed, "problems": found}


def arm_timer(delay: float) -> None:
    """SIGKILL from a process beside this one, after a delay."""
    target = os.getpid()
    if os.fork() == 0:
        time.sleep(delay)
        if os.getppid() == target:
            os.kill(target, signal.SIGKILL)
        os._exit(0)


LIBRARY = None


def main() -> None:
    """`crash_driver.py FOLDER enumerate request:7,run kill,torn` (request at each seventh call), or `... random 5 SEED`."""
    global LIBRARY, KEPT, STEP  # noqa: PLW0603
    threadpool_limits(1)
    folder, kind, *rest = sys.argv[1:]
    KEPT = rest[-1] == "deposit"
    base = prepare(Path(folder) / "base")
    work = Path(folder) / "work"
    if kind == "random":
        print(json.dumps(at_random(base, work, int(rest[0]), int(rest[1]))))
        return
    LIBRARY = ctypes.CDLL(None)
    names, modes = rest[0].split(","), rest[1].split(",")
    found = {}
    for name, _, step in (name.partition(":") for name in names):
        STEP = int(step or 1)
        for mode in modes:
            if name in ("init", "unlearn"):
                found[f"{name} {mode}"] = (opening if name == "init" else result)(work, mode)
            else:
                found[f"{name} {mode}"] = working(base, work, name, mode)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
