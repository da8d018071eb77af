"""One table of what the benchmarks found, from their result files, with the environment each was taken in.

python benchmarks/summary.py
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from environment import RESULTS

Line = tuple[str, str]


def retraining(result: dict[str, Any]) -> Iterator[Line]:
    task = result["task"]
    yield (
        f"unlearn {task['rows']:,} x {task['features']}, {task['classes']} classes",
        f"{result['unlearn_seconds']:.1f} s",
    )
    for fit in result["retraining"]:
        missed = " (missed the goal)" if fit["missed"] else ""
        yield f"retrain with scikit-learn, {fit['solver']}", f"{fit['seconds']:.1f} s{missed}"
    yield "peak memory over the surrogate's size", f"{result['peak_over_surrogate']:.2f}"


def kernels(result: dict[str, Any]) -> Iterator[Line]:
    for one in result["cases"]:
        name = f"Hessian products, {one['rows']:,} x {one['features']}, {one['classes']} classes, {one['dtype']}"
        best = max(one["rows_first_gflops"], one["classes_first_gflops"])
        yield name, f"{one['product_gflops']:.1f} of {best:.1f} GFLOP/s attainable = {one['ratio']:.2f}"


def naive(result: dict[str, Any]) -> Iterator[Line]:
    for name, one in result.items():
        if name.startswith("autograd"):
            yield f"Hessian product against {name.replace('_', ' ')}", f"{one['times_slower']:.0f} times faster"
    for form in ("torch", "numpy"):
        times = result["dense"][form]["times_slower"]
        yield f"dense Hessian against one Kronecker product a row, {form}", f"{times:.0f} times faster"


def langevin(result: dict[str, Any]) -> Iterator[Line]:
    what = f"Langevin, {result['chains']:,} chains of {result['steps']:,} steps, {result['device']}"
    yield what, f"{result['seconds_all_chains_at_once']} s, {result['times_faster']:,} times one chain after another"


def growth(result: dict[str, Any]) -> Iterator[Line]:
    for varied, one in result["growth"].items():
        times = ", ".join(f"{case['seconds']:.2f}" for case in one["cases"])
        yield (
            f"growth with {varied}: exponent of the time",
            f"{one['exponent']:.2f}, of processor time {one['processor_exponent']:.2f} ({times} s)",
        )


def imagenet(result: dict[str, Any]) -> Iterator[Line]:
    task = result["task"]
    device = result["environment"].get("device")
    what = f"unlearn {task['rows']:,} x {task['features']:,}, {task['classes']:,} classes, {device}"
    if "unlearn_seconds" in result:
        yield what, f"{result['unlearn_seconds']:.1f} s"
    yield "its Hessian products over plain matrix products", f"{result['rates']['ratio']:.2f}"


def streaming(result: dict[str, Any]) -> Iterator[Line]:
    for state, one in result.get("rates", {}).items():
        if isinstance(one, dict) and "share" in one:
            speeds = f"{one['product_gb_per_s']:.2f} of {one['read_gb_per_s']:.2f} GB/s"
            yield f"streamed Hessian products over merely reading the file, {state}", f"{speeds} = {one['share']:.2f}"
    for one in result.get("complete", []):
        limits = f"peak {one['peak_mb']:,.0f} MB of {one['limit_mb']:,.0f} MB allowed"
        yield f"unlearn {one['rows']:,} x {result['columns']} from disk", f"{one['seconds']:.0f} s, {limits}"
    if "growth" in result:
        grown = result["growth"]
        yield "streamed: exponent of the time in rows", f"{grown['exponent']:.2f}, memory {grown['memory_mb']:+.0f} MB"
    for one in result.get("processes", []):
        yield f"unlearn {one['rows']:,} x {result['columns']}, processes: {one['processes']}", f"{one['seconds']:.0f} s"


def deposit(result: dict[str, Any]) -> Iterator[Line]:
    device = result["environment"].get("device", "processor time")
    for one in result["cases"]:
        kind = "processor_seconds" if device == "processor time" else "seconds"
        what = f"{one['rows']:,} rows, {one['weights']:,} weights ({device})"
        ratios = {name: fit[f"{kind}_over_deletion"] for name, fit in one.get("refit", {}).items()}
        fits = [f"{ratio:.{0 if ratio >= 10.0 else 1}f} times ({name})" for name, ratio in ratios.items()]
        if "deletion" in one:
            yield f"deletion of {one['forget']} with a deposit, {what}", f"{one['deletion'][kind]:.3f} s"
        if fits:
            yield f"scikit-learn's refit over it, by tolerance, {what}", ", ".join(fits)
        if "making_over_hessian" not in one:
            continue
        stages = one["making"]["stages" if kind == "seconds" else "processor_stages"]
        named = (f"{name} {stages[name]:.1f} s" for name in ("anchor", "rehearsal") if name in stages)
        yield (
            f"the rest of the deposit over one dense Hessian, {what}",
            (f"{one['making_over_hessian']:.1f}; beside it {', '.join(named)}"),
        )
    for varied, one in result.get("growth", {}).items():
        yield f"deletion with a deposit: exponent in {varied}", f"{one['processor_exponent']:.2f}, of processor time"
    if "process" in result:
        times = result["process"]
        yield (
            "`expunge unlearn --deposit`, whole process, small table",
            f"{times['seconds']:.1f} s, of processor time {times['processor_seconds']:.1f} s",
        )


def ridge(result: dict[str, Any]) -> Iterator[Line]:
    task, device = result["task"], result["environment"].get("device", "processor")
    what = f"ridge, {task['rows']:,} x {task['features']:,}, {task['classes']:,} classes ({device})"
    yield f"deposit of a head, {what}", f"{result['making']['seconds']:.1f} s"
    for one in result["deletions"]:
        told = f"{one['seconds']:.1f} s, {one['status']}; least squares anew {one['retraining_seconds']:.1f} s"
        yield f"deletion of {one['forget']:,} from it, {what}", told


def ledger(result: dict[str, Any]) -> Iterator[Line]:
    yield (
        f"ledger of {result['entries']:,} entries: status, verify",
        f"{result['status_s']:.3f} s, {result['verify_s']:.1f} s",
    )


def requests(result: dict[str, Any]) -> Iterator[Line]:
    for name in ("request", "run"):
        first, *_, last = result[f"{name}_processor_seconds"]
        yield (
            f"a {name} at a desk, first and last tenth of {result['requests']:,} requests with a run after each",
            f"{first:.3f} and {last:.3f} s of processor time",
        )
    memory = result["peak_mib"]
    yield (
        f"memory of the same, after a tenth and at the end of {result['requests']:,}",
        f"{memory[0]:.0f} and {memory[-1]:.0f} MiB",
    )


def starting(result: dict[str, Any]) -> Iterator[Line]:
    for command, one in result["commands"].items():
        times = f"{one['seconds_median']:.2f} s, of processor time {one['processor_seconds_median']:.2f} s"
        yield f"`{command}` as a process, small table", times


def tables(result: dict[str, Any]) -> Iterator[Line]:
    for one in result["runs"]:
        processor, wall, memory = one["ratios"].values()
        times = f"processor {processor} times, wall {wall}, peak memory {memory}"
        yield f"`expunge {one['command']}`, {result['rows']:,} rows of {one['file']}, over pandas and a Pipeline", times


def sparse(result: dict[str, Any]) -> Iterator[Line]:
    for one in result["cases"]:
        for name, step in one["steps"].items():
            what = f"sparse rows, {one['rows']:,} x {one['features']:,}: {name}"
            yield what, f"{step['processor_seconds']:.2f} processor s, {step['peak_megabytes']:,.0f} MB until then"


SOURCES: dict[str, Callable[[dict[str, Any]], Iterator[Line]]] = {
    "unlearn_against_retraining": retraining,
    "kernels": kernels,
    "naive": naive,
    "langevin": langevin,
    "growth": growth,
    "imagenet_head": imagenet,
    "streaming": streaming,
    "streaming-cuda": streaming,
    "ledger_at_scale": ledger,
    "many_requests": requests,
    "deposit": deposit,
    "deposit-cuda": deposit,
    "ridge_deposit": ridge,
    "starting": starting,
    "tables": tables,
    "sparse": sparse,
}


def main() -> None:
    lines = ["# Benchmarks", "", "| result | what | measured |", "|---|---|---|"]
    where = []
    for name, describe in SOURCES.items():
        path = RESULTS / f"{name}.json"
        if not path.exists():
            continue
        result = json.loads(path.read_text())
        lines += [f"| [{name}]({name}.json) | {what} | {value} |" for what, value in describe(result)]
        if "environment" in result:
            where.append(f"- {name}: " + ", ".join(f"{key} {value}" for key, value in result["environment"].items()))
    page = "\n".join([*lines, "", *where, ""])
    (RESULTS / "README.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
