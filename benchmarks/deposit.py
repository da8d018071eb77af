"""A deletion from a deposit, request to certificate, against scikit-learn's refit on the retained rows, in one run.

    python benchmarks/deposit.py [--rows 50000] [--sizes 48 500 5120] [--forget 10] [--device cpu] [--only NAME]
    python benchmarks/deposit.py --device cuda --sizes 5120 30720 --refits default --strength 0.001

Sizes are weights, intercepts included: 48 is one vector for two classes, others have ten, from 10,000 on thirty. Of
each: the deletion (deposit read, rows looked up, step, region, noise, certificate, result and new deposit written)
and its stages; the refit by LogisticRegression at its default tolerance and at 1e-10, with how far from the region's
centre it stops (lbfgs may stop outside: the region can be far smaller than its accuracy); the optimum of the retained
rows, by Newton's method, which must lie in the region; how the deposit was made, stage by stage, beside one dense
Hessian. Then the growth of a deletion's time with weights,
rows and rows forgotten (a ridge head, for which any number can go), and the process time of `expunge unlearn
--deposit` on a small table. Processor time (all threads) stands beside wall time, since what else runs on the machine
does not add to it. Deletions that would be refused for their noise are timed too (`force`), and what the noise does to
outputs is said. With --device cuda Expunge works on the GPU and scikit-learn where it always does; the results get
the device's name. What is known is written after each stage. `--strength` is scikit-learn's C: at 1 a deposit of
30,720 weights from 50,000 rows has no finite region for ten of them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch
from environment import RESULTS, environment, markdown, synchronise, write
from growth import exponent
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from starting import measured as measured_process

import expunge.sklearn
from expunge.deposit.file import Deposit, read_deposit
from expunge.deposit.make import optimum
from expunge.door import ask
from expunge.errors import BeyondPolicy, VacuousClaim
from expunge.heads import Rows
from expunge.mechanism import certify, measure
from expunge.request.promise import Execution, Promise, computing_device
from expunge.runtime.arrays import Array, norm, put, to_device, to_numpy

LARGE = 1 << 28  # bytes of a deposit from which on a deletion is timed once
EPSILON, DELTA = 1.0, 1e-6
OUTPUTS = {100: 1, 10_000: 10, 10**9: 30}  # below so many weights; one is a vector for two classes
TOLERANCES = {"default": 1e-4, "1e-10": 1e-10}
Data = tuple[np.ndarray, np.ndarray]
Times = dict[str, float]


def drawn(rows: int, weights: int, seed: int = 0) -> Data:
    """Standardised features that go together as a table's do, and labels that a linear model explains in part.

    Eigenvalues of their covariance fall like 1/j^2: at 48 weights LogisticRegression takes 73 iterations to its default
    tolerance, on the Adult census (standardised and one-hot) 71.
    """
    outputs = next(count for most, count in OUTPUTS.items() if weights < most)
    generator, columns = np.random.default_rng(seed), weights // outputs - 1
    turned = np.linalg.qr(generator.standard_normal((columns, columns)))[0] / np.arange(1.0, columns + 1.0)[:, None]
    features = generator.standard_normal((rows, columns)) @ turned
    features = (features - features.mean(axis=0)) / features.std(axis=0)
    mixed = features @ (generator.standard_normal((columns, max(2, outputs))) / np.sqrt(columns))
    return features, (2.0 * mixed + generator.gumbel(size=mixed.shape)).argmax(axis=1)


class Clock:
    """Wall and processor time of stages, one after another; each is told when it begins."""

    def __init__(self, device: str = "cpu", what: str = "") -> None:
        self.what, self.first = what, time.perf_counter()
        self.device, self.wall, self.processor, self.stage = device, {}, {}, ""  # type: ignore[var-annotated]
        self.began = (time.perf_counter(), time.process_time())

    def now(self, stage: str) -> None:
        """What was under way is over; this begins."""
        synchronise(self.device)
        if self.what and stage != self.stage:
            print(f"{time.perf_counter() - self.first:8.1f} s  {self.what}: {stage or 'done'}", flush=True)
        at = (time.perf_counter(), time.process_time())
        if self.stage:
            self.wall[self.stage] = self.wall.get(self.stage, 0.0) + at[0] - self.began[0]
            self.processor[self.stage] = self.processor.get(self.stage, 0.0) + at[1] - self.began[1]
        self.stage, self.began = stage, at

    @property
    def seconds(self) -> Times:
        """All of it, wall and processor."""
        return {"seconds": sum(self.wall.values()), "processor_seconds": sum(self.processor.values())}


def kept(estimator: Any, data: Data, device: str) -> tuple[Deposit, Clock]:
    """A deposit, and the time of its stages."""
    clock = Clock(device, "deposit")
    clock.now("rows checked")
    names = {
        "Newton": "anchor",
        "Hessian": "anchor",
        "Sums": "sums and shape",
        "Rehearsals": "rehearsal",
        "Row": "hashes",
    }
    made = expunge.sklearn.deposit(
        estimator, *data, device=device, progress=lambda stage, *_: clock.now(names[stage.split()[0]]), seed=0
    )
    clock.now("")
    return made, clock


@dataclass(frozen=True)
class Deleted:
    """What a deletion took, and of its result what is compared; the matrices go, since they are large."""

    clock: Clock
    status: str
    radius: float
    update: Array
    shape: Array  # of the noise
    noise: float  # what it moves an output of a typical row by, over the size of outputs


def deletion(file: Path, forget: Data, out: Path, device: str) -> Deleted:
    """From the files to the files, which are then removed."""
    clock = Clock(device, "deletion")
    clock.now("deposit read")
    before = read_deposit(file)
    clock.now("rows looked up")
    promise = Promise(EPSILON, DELTA, force=True)
    asked = ask(None, forget, None, promise, deposit=before, execution=Execution(device=device))
    clock.now("step and region")
    found = measure(asked)
    clock.now("noise and certificate")
    result = certify(asked, found)
    clock.now("result written")
    result.save(out)
    clock.now("")
    shutil.rmtree(out)
    left = found.retained.deposit
    noise = left.output_noise * result.certificate.content["sigma"] / left.output_spread
    update, shape = to_numpy(found.step.update), to_numpy(left.shape[0])
    return Deleted(clock, result.certificate.status, result.certificate.total, update, shape, noise)


def best(file: Path, forget: Data, given: argparse.Namespace) -> Deleted:
    """The run with the shortest time: what else runs on the machine can only add to it."""
    repeats = given.repeats if file.stat().st_size < LARGE else 1
    runs = [deletion(file, forget, file.parent / "result", given.device) for _ in range(repeats)]
    return min(runs, key=lambda run: run.clock.seconds["seconds"])


def refits(retained: Data, tolerances: dict[str, float], strength: float) -> Iterator[tuple[str, Times, Any]]:
    """scikit-learn without the forgotten rows."""
    for name, tolerance in tolerances.items():
        clock = Clock(what="refit")
        clock.now("fit")
        fitted = LogisticRegression(C=strength, tol=tolerance, max_iter=10_000).fit(*retained)
        clock.now("")
        yield name, clock.seconds | {"iterations": int(fitted.n_iter_[0])}, fitted


def one_hessian(deposit: Deposit, data: Data, device: str) -> Times:
    """The dense Hessian of all rows at the anchor, once."""
    rows, clock = padded(data, device), Clock(device)
    clock.now("hessian")
    deposit.head.curvature(put(deposit.anchor, rows.features), rows).dense()
    clock.now("")
    return clock.seconds


def optimum_over_radius(deposit: Deposit, done: Deleted, retained: Data, device: str) -> float:
    """How far the optimum of the retained rows is from the update, over the radius; none may be outside."""
    updated = to_numpy(deposit.anchor) + done.update
    rows, penalty = padded(retained, device), deposit.penalty(len(retained[0]))
    setting = replace(deposit.on(computing_device(device)).setting, anchor=put(updated, rows.features))
    goal = to_numpy(optimum(replace(deposit.head, l2=0.0), rows, setting, penalty))
    share = norm(deposit.setting.centred(goal - updated) @ done.shape) / done.radius
    if not share <= 1.0:
        raise SystemExit(f"the retrained weights are {share:.3g} radii away: the bound is wrong")
    return share


def padded(data: Data, device: str) -> Rows:
    """Rows as the head sees them."""
    features = np.pad(data[0], ((0, 0), (0, 1)), constant_values=1.0)
    place = computing_device(device)
    return Rows(to_device(features, place), to_device(data[1], place))


def case(weights: int, given: argparse.Namespace, told: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """One size: the deposit, the deletion, the refit; what is known goes to `told` after each."""
    data, cuda = drawn(given.rows, weights), given.device.startswith("cuda")
    few = 10_000 if given.first is None else given.first
    estimator = LogisticRegression(C=given.strength, max_iter=few).fit(*data)
    made: dict[str, Any] = {"weights": weights, "rows": given.rows, "threads": torch.get_num_threads()}
    made |= {"strength": given.strength} if given.strength != 1.0 else {}
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "model.deposit"
        deposit, making = kept(estimator, data, given.device)
        made["making"] = making.seconds | {"stages": making.wall, "processor_stages": making.processor}
        file.write_bytes(deposit.to_bytes())
        made["deposit_bytes"] = file.stat().st_size
        told(made)
        done, left = some_that_can(file, data, given)
    clock, retained = done.clock, (data[0][left], data[1][left])
    made |= {"forget": int((~left).sum()), "status": done.status, "noise_over_outputs": done.noise}
    made["deletion"] = clock.seconds | {"stages": clock.wall, "processor_stages": clock.processor}
    told(made)
    made["refit"] = {}
    wanted = {name: TOLERANCES[name] for name in given.refits}
    for tolerance, times, fitted in refits(retained, wanted, given.strength):
        matrix = np.column_stack([fitted.coef_, fitted.intercept_])
        away = norm(deposit.setting.centred(matrix - to_numpy(deposit.anchor) - done.update) @ done.shape)
        fit = times | {"away_over_radius": away / done.radius}
        made["refit"][tolerance] = fit | {f"{kind}_over_deletion": times[kind] / clock.seconds[kind] for kind in KINDS}
        told(made)
    made["dense_hessian"] = one_hessian(deposit, data, given.device)
    stages, kind = (making.wall, "seconds") if cuda else (making.processor, "processor_seconds")
    apart = sum(value for name, value in stages.items() if name not in ("anchor", "rehearsal"))
    made["making_over_hessian"] = apart / made["dense_hessian"][kind]
    told(made)
    made["optimum_over_radius"] = optimum_over_radius(deposit, done, retained, given.device)
    told(made)
    return made


def some_that_can(file: Path, data: Data, given: argparse.Namespace) -> tuple[Deleted, np.ndarray]:
    """A deletion of as many rows as are asked for, or where there is no region for them of one; and who stays."""
    for first, last in [(0, given.forget), *((row, row + 1) for row in range(given.forget, given.forget + 3))]:
        try:
            left = np.ones(len(data[0]), bool)
            left[first:last] = False
            return best(file, (data[0][first:last], data[1][first:last]), given), left
        except (VacuousClaim, BeyondPolicy) as refusal:
            print(f"rows {first} to {last}: {refusal}", flush=True)
    raise SystemExit("nobody could be forgotten: a smaller --strength is needed")


def grown(varied: str, values: list[int], given: argparse.Namespace) -> dict[str, Any]:
    """The time of a deletion as one size grows."""
    cases = []
    for value in values:
        sizes = {"weights": 48, "rows": 20_000, "forget": 10} | {varied: value}
        sizes["weights"] = 500 if varied == "forget" else sizes["weights"]
        data, m = drawn(sizes["rows"], sizes["weights"]), sizes["forget"]
        estimator = (RidgeClassifier() if varied == "forget" else LogisticRegression(max_iter=10_000)).fit(*data)
        deposit, _ = kept(estimator, data, given.device)
        with tempfile.TemporaryDirectory() as name:
            file = Path(name) / "model.deposit"
            file.write_bytes(deposit.to_bytes())
            clock = best(file, (data[0][:m], data[1][:m]), given).clock
        cases.append(sizes | clock.seconds | {"stages": clock.wall})
        print(varied, json.dumps(cases[-1]), flush=True)
    times = {kind: [one[kind] for one in cases] for kind in ("seconds", "processor_seconds")}
    return {
        "cases": cases,
        "exponent": exponent([float(value) for value in values], times["seconds"]),
        "processor_exponent": exponent([float(value) for value in values], times["processor_seconds"]),
    }


def process(repeats: int) -> dict[str, Any]:
    """`expunge unlearn --deposit` on a small table, start of Python included."""
    features, labels = drawn(2_000, 11)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.savez(folder / "source.npz", X=features, y=labels)
        np.savez(folder / "forget.npz", X=features[:3], y=labels[:3])
        model, kept_file = str(folder / "model.safetensors"), str(folder / "model.deposit")
        line = ["train", "--data", str(folder / "source.npz"), "--l2", "1e-3", "--max-norm", "6", "--bias", "--quiet"]
        subprocess.run([sys.executable, "-m", "expunge", *line, "--out", model, "--deposit", kept_file], check=True)
        runs = []
        for number in range(repeats):
            asked = ["unlearn", "--model", model, "--deposit", kept_file, "--forget", str(folder / "forget.npz")]
            asked += ["--epsilon", "1", "--delta", "1e-6", "--out", str(folder / f"result-{number}"), "--quiet"]
            runs.append(measured_process(["-m", "expunge", *asked], repeats=0))
    fastest: dict[str, Any] = min(runs, key=lambda run: float(run["seconds_median"]))
    return {"seconds": fastest["seconds_median"], "processor_seconds": fastest["processor_seconds_median"]}


GROWTH = {
    "weights": [48, 100, 200, 500, 1_000, 2_000],
    "rows": [5_000, 20_000, 80_000, 320_000],
    "forget": [1, 10, 100, 1_000, 10_000],
}


def lines(result: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """The table: what, wall time, processor time."""
    for one in result["cases"]:
        what = f"{one['rows']:,} rows, {one['weights']:,} weights"
        what += f", {one['threads']} threads" if "threads" in one else ""
        what += f", C {one['strength']:g}" if "strength" in one else ""
        if "deletion" in one:
            deleted = one["deletion"]
            yield f"{what}: deletion of {one['forget']}, request to certificate", *both(deleted)
            for stage, seconds in deleted["stages"].items():
                yield f"{what}: deletion, {stage}", f"{seconds:.3f}", f"{deleted['processor_stages'][stage]:.3f}"
        if "noise_over_outputs" in one:
            yield f"{what}: noise on a typical output, of its size", f"{one['noise_over_outputs']:.2g}", ""
        for name, fit in one.get("refit", {}).items():
            ratios = [fit[f"{kind}_over_deletion"] for kind in KINDS]
            times = [
                f"{fit[kind]:.2f} ({ratio:.{0 if ratio >= 10.0 else 1}f} times)"
                for kind, ratio in zip(KINDS, ratios, strict=True)
            ]
            yield f"{what}: refit, tolerance {name}", *times
        if "dense_hessian" in one:
            yield f"{what}: one dense Hessian", *both(one["dense_hessian"])
        for stage, seconds in one["making"]["stages"].items():
            yield f"{what}: deposit, {stage}", f"{seconds:.2f}", f"{one['making']['processor_stages'][stage]:.2f}"
        if "making_over_hessian" in one:
            ratio = f"{one['making_over_hessian']:.2f}"
            yield f"{what}: deposit without anchor and rehearsal, over one dense Hessian", "", ratio
    for varied, growth in result.get("growth", {}).items():
        yield f"growth with {varied}: exponent", f"{growth['exponent']:.2f}", f"{growth['processor_exponent']:.2f}"
    if "process" in result:
        yield "`expunge unlearn --deposit`, 2,000 x 10, whole process", *both(result["process"])


KINDS = ("seconds", "processor_seconds")


def both(times: dict[str, Any]) -> tuple[str, str]:
    """Wall and processor time."""
    return f"{times['seconds']:.2f}", f"{times['processor_seconds']:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--sizes", type=int, nargs="*", default=[48, 500, 5_120])
    parser.add_argument("--forget", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--strength", type=float, default=1.0, help="scikit-learn's C")
    parser.add_argument("--first", type=int, help="iterations of the model that the deposit is of, whose time is not")
    parser.add_argument("--refits", nargs="*", choices=list(TOLERANCES), default=list(TOLERANCES))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", choices=["sizes", *GROWTH, "process"], help="this alone; the rest is kept as it was")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    cuda = given.device.startswith("cuda")
    name = "deposit-cuda" if cuda else "deposit"
    known = given.out / f"{name}.json"
    result: dict[str, Any] = json.loads(known.read_text()) if given.only and known.exists() else {}
    result["environment"] = environment(given.device) | {"scikit-learn": sklearn.__version__}
    if given.only in (None, "sizes"):
        result["cases"] = [one for one in result.get("cases", []) if one["weights"] not in given.sizes]
        done = list(result["cases"])
        for weights in given.sizes:

            def told(made: dict[str, Any], done: list[dict[str, Any]] = done) -> None:
                result["cases"] = sorted([*done, made], key=lambda one: int(one["weights"]))
                write(name, result, None, given.out)

            done.append(case(weights, given, told))
            print(json.dumps(done[-1]), flush=True)
    for varied, values in GROWTH.items() if not cuda else ():
        if given.only in (None, varied):
            result.setdefault("growth", {})[varied] = grown(varied, values, given)
    if given.only in (None, "process") and not cuda:
        result["process"] = process(given.repeats)
    result.setdefault("cases", [])
    page = markdown("Deposits", ("what", "s", "processor s"), list(lines(result)), result["environment"])
    write(name, result, page, given.out)


if __name__ == "__main__":
    main()
