"""A surrogate larger than the memory limit: does it fit, how fast is a pass, what grows with the rows.

    python benchmarks/streaming.py [--rows N] [--memory 1.5GB] [--part rates|complete|growth|processes] [--device cpu]
    python benchmarks/streaming.py --rows 3000000 --part beyond --device cuda

rates      Hessian products from disk beside merely reading the same file, in one process, turn by turn
complete   `expunge unlearn --memory` as its own process: time, passes and peak resident size
growth     the same at a hundredth and a tenth of the rows, and with nothing kept: how time and memory grow
processes  one, two and four processes on this machine, a tenth of the rows
beyond     a GPU alone, and only if asked for: more bytes than it has memory, one file under so many names

Rows are written to a temporary folder that is removed afterwards. Each part adds its results to results/streaming.json,
on another device than the CPU to a file with its name; there processes share the GPU where they are more, --memory is
what may be kept on it too, and beside the rates stand those of copies to it.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from environment import RESULTS, as_computed, environment, seconds, synchronise, write
from safetensors.numpy import save_file

from expunge.heads import Curvature, head_for
from expunge.request.promise import computing_device
from expunge.rows import open_data
from expunge.rows.streams import Form, StreamedRows
from expunge.runtime.arrays import engine_dtype
from expunge.runtime.memory import Memory, parse_size
from expunge.train import train

WIDTH, CLASSES, SOURCE, FORGET = 512, 10, 20_000, 100
CHUNK = 20_000
PARTS = ("rates", "complete", "growth", "processes")
BEYOND = "beyond"
COLD = "read from disk"
WARM = "in the system's cache"


def draw(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows with a decaying spectrum around class means; norms near 0.7, of a bound of 1."""
    labels = rng.integers(0, CLASSES, count)
    scale = (np.arange(1, WIDTH + 1) ** -0.5).astype(np.float32)
    features = rng.standard_normal((count, WIDTH), dtype=np.float32) * scale
    features += (np.eye(CLASSES, WIDTH, dtype=np.float32) * 2.0)[labels]
    return features * np.float32(0.7 / math.sqrt(float(np.square(scale).sum()) + 4.0)), labels


def make(folder: Path, rows: int) -> Path:
    """A folder with X.npy and y.npy."""
    folder.mkdir(parents=True)
    features = np.lib.format.open_memmap(folder / "X.npy", mode="w+", dtype=np.float32, shape=(rows, WIDTH))
    labels = np.empty(rows, dtype=np.int64)
    for start in range(0, rows, CHUNK):
        part = slice(start, min(start + CHUNK, rows))
        features[part], labels[part] = draw(np.random.default_rng([7, start]), part.stop - part.start)
    features.flush()
    np.save(folder / "y.npy", labels)
    return folder


def in_one_file(folder: Path, path: Path) -> None:
    save_file({"X": np.load(folder / "X.npy", mmap_mode="r"), "y": np.load(folder / "y.npy")}, path)


def make_model(folder: Path) -> None:
    features, labels = draw(np.random.default_rng(1), SOURCE)
    model = train(features, labels, l2=1e-3, max_norm=1.0, dtype="float32")
    (folder / "model.safetensors").write_bytes(model.to_bytes())
    np.savez(folder / "forget.npz", X=features[:FORGET], y=labels[:FORGET])


def apart(work: Callable[..., object], *given: object) -> None:
    """In a process of its own: what it held would count as held by this one, and by those this one starts."""
    process = multiprocessing.get_context("spawn").Process(target=work, args=given)
    process.start()
    process.join()
    assert process.exitcode == 0


def forget_cache(path: Path) -> None:
    """Have the system read the file from disk again."""
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


def read_through(path: Path) -> float:
    """Seconds for reading the file once, into one buffer."""
    buffer = memoryview(bytearray(1 << 24))
    began = time.perf_counter()
    file = os.open(path, os.O_RDONLY)
    while os.readv(file, [buffer]):
        pass
    os.close(file)
    return time.perf_counter() - began


def peak_mb(process: int | str = "self") -> float:
    """Largest resident size of a process. Not getrusage's, which counts what the parent held when it forked."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next((line for line in lines if line.startswith("VmHWM")), "VmHWM: 0").split()[1]) * 1024 / 1e6


def largest_mb(process: int) -> float:
    """The same of a process and those it started, whichever is largest; what has ended counts as nothing."""
    try:
        started = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        return max([peak_mb(process), *(largest_mb(int(child)) for child in started)])
    except OSError:
        return 0.0


def streamed(folder: Path, memory: str, device: str) -> tuple[StreamedRows, Curvature]:
    """The rows of a folder, and the Hessian of a softmax head at random weights."""
    place = computing_device(device)
    form = Form(tuple(range(CLASSES)), 1.0, False, engine_dtype("float32", place), place, WIDTH, "the set")
    rows = StreamedRows(open_data(folder), form, Memory.of(memory))  # type: ignore[arg-type]
    head = head_for("softmax", l2=1e-3, n_classes=CLASSES, n_features=WIDTH, row_bound=1.0)
    weights = torch.randn(CLASSES, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return rows, Curvature(head, as_computed(weights.to(device)), rows)


def rates(folder: Path, memory: str, repeats: int, device: str) -> dict[str, Any]:
    """Turn by turn: reading alone, and a Hessian product that reads the same file."""
    path = folder / "X.npy"
    rows, curvature = streamed(folder, memory, device)
    direction = as_computed(torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(1)).to(device))
    curvature.product(direction)
    size, result = path.stat().st_size, {}
    for state in (WARM, COLD):
        alone: list[float] = []
        products: list[float] = []
        processor: list[float] = []
        for turn in range(repeats + 1):
            for times, work in ((alone, lambda: read_through(path)), (products, lambda: curvature.product(direction))):
                if state == COLD:
                    forget_cache(path)
                began, used = time.perf_counter(), time.process_time()
                work()
                synchronise(device)
                if turn:
                    times.append(time.perf_counter() - began)
                    processor.append(time.process_time() - used)
        result[state] = {
            "read_gb_per_s": size / median(alone) / 1e9,
            "product_gb_per_s": size / median(products) / 1e9,
            "share": median(alone) / median(products),
            "rows_per_s": len(rows) / median(products),
            "read_processor_seconds": median(processor[::2]),
            "product_processor_seconds": median(processor[1::2]),
        }
    flops = 4 * len(rows) * CLASSES * WIDTH
    result["product_gflop_per_s_warm"] = flops * result[WARM]["rows_per_s"] / len(rows) / 1e9
    result["rows"] = len(rows)
    result["predictions_kept"] = curvature.predicted.keep
    result["rows_kept"] = rows._held.values is not None
    result["peak_mb"] = peak_mb()
    if device.startswith("cuda"):
        result["limit_mb"] = parse_size(memory) / 1e6
        result["device_peak_mb"] = torch.cuda.max_memory_allocated() / 1e6
        result["copies_gb_per_s"] = copies(device)
    return result


def beyond(base: Path, folder: Path, memory: str, device: str) -> dict[str, Any]:
    """A Hessian product over more rows than the GPU's memory holds.

    They are one file under many names, so they need no more disk than that file, and their mean is its own.
    """
    sets = {name: base / name for name in ("one", "many")}
    for each in sets.values():
        each.mkdir()
    first = sets["one"] / "0.safetensors"
    apart(in_one_file, folder, first)
    capacity, size = torch.cuda.get_device_properties(device).total_memory, first.stat().st_size
    names = capacity // size + 1
    for number in range(names):
        os.link(first, sets["many"] / f"{number}.safetensors")
    direction = as_computed(torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(1)).to(device))
    products, result = {}, {"names": names, "gb": names * size / 1e9, "device_gb": capacity / 1e9}
    for name, each in sets.items():
        rows, curvature = streamed(each, memory, device)
        torch.cuda.reset_peak_memory_stats()
        for turn in ("first", "next"):
            began = time.perf_counter()
            products[name] = curvature.product(direction)
            synchronise(device)
            result[f"{name}_{turn}_seconds"] = time.perf_counter() - began
    away = float((products["many"] - products["one"]).norm() / products["one"].norm())
    peaks = {"device_peak_mb": torch.cuda.max_memory_allocated() / 1e6, "peak_mb": peak_mb()}
    return result | peaks | {"rows": len(rows), "away": away, "limit_mb": parse_size(memory) / 1e6}


def copies(device: str, n_bytes: int = 1 << 30) -> dict[str, float]:
    """GB/s from the machine's memory to the device's, from pages that may be moved and from such that may not."""
    found = {}
    for name in ("pageable", "pinned"):
        values = torch.zeros(n_bytes, dtype=torch.uint8, pin_memory=name == "pinned")
        found[name] = n_bytes / seconds(lambda values=values: values.to(device), 3, 1, device) / 1e9  # type: ignore[misc]
    return found


def unlearn(
    folder: Path, surrogate: Path, memory: str, device: str, processes: int = 1, launched: bool = False
) -> dict[str, Any]:
    """The command, as its own process or as a group: its time and its largest resident size."""
    with tempfile.TemporaryDirectory() as out:
        launcher = [sys.executable]
        if launched:
            launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        command = [
            *launcher, "-m", "expunge", "unlearn", "--model", str(folder / "model.safetensors"),
            "--forget", str(folder / "forget.npz"), "--surrogate", str(surrogate), "--epsilon", "1", "--delta", "1e-5",
            "--distance", "same", "--dtype", "float32", "--memory", memory, "--force", "--json", "--quiet",
            "--device", device, "--out", f"{out}/result",
        ]  # fmt: skip
        told = Path(out) / "told.json"
        with told.open("w") as stream:
            began, peak = time.perf_counter(), 0.0
            process = subprocess.Popen(command, stdout=stream)
            while process.poll() is None:
                peak = max(peak, largest_mb(process.pid))
                time.sleep(0.02)
            seconds = time.perf_counter() - began
        assert process.returncode == 0, told.read_text()
        content = json.loads(Path(json.loads(told.read_text())["dossier_file"]).read_text())
    return {
        "rows": content["sizes"]["n_surrogate"],
        "seconds": seconds,
        "peak_mb": peak,
        "limit_mb": parse_size(memory) / 1e6,
        "newton_iterations": content["step"]["iterations"],
        "conjugate_gradient_iterations": content["step"]["inner_iterations"],
        "sigma": content["sigma"],
        "processes": processes,
        **({"launched": True} if launched else {}),
    }


def exponent(points: list[dict[str, Any]], of: str) -> float:
    """Slope of log(of) against log(rows), least squares."""
    x, y = (np.log([point[name] for point in points]) for name in ("rows", of))
    return float(np.polyfit(x, y, 1)[0])


def passes(folder: Path, repeats: int = 3) -> dict[str, Any]:
    """One Hessian product and one gradient over a streamed set of which nothing is kept, in its own process."""
    program = f"""
import json, sys, time, numpy as np
sys.path.insert(0, {str(Path(__file__).parent)!r})
import streaming as s
from expunge.runtime.memory import WORKING, resident_bytes
form = s.Form(tuple(range(s.CLASSES)), 1.0, False, np.dtype("float32"), "cpu", s.WIDTH, "the set")
memory = s.Memory(resident_bytes() + WORKING, resident_bytes())
rows = s.StreamedRows(s.open_data({str(folder)!r}), form, memory)
head = s.head_for("softmax", l2=1e-3, n_classes=s.CLASSES, n_features=s.WIDTH, row_bound=1.0)
curvature = s.Curvature(head, np.zeros((s.CLASSES, s.WIDTH)), rows)
direction = np.ones((s.CLASSES, s.WIDTH), dtype=np.float32)
curvature.product(direction)
times = []
for _ in range({repeats}):
    began = time.perf_counter()
    curvature.product(direction)
    times.append(time.perf_counter() - began)
peak = s.peak_mb()
print(json.dumps({{"rows": len(rows), "seconds": sorted(times)[len(times) // 2], "peak_mb": peak}}))
"""
    process = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return dict(json.loads(process.stdout))


def page(result: dict[str, Any]) -> str:
    lines = ["# Streaming", ""]
    if "rates" in result:
        lines += ["Hessian products beside merely reading the same file, float32, one pass each:", ""]
        lines += ["| the file is | read, GB/s | product, GB/s | share | rows/s | processor seconds, read and product |"]
        lines += ["|---|---|---|---|---|---|"]
        for state in (WARM, COLD):
            part = result["rates"][state]
            lines.append(
                f"| {state} | {part['read_gb_per_s']:.2f} | {part['product_gb_per_s']:.2f} | "
                f"{100 * part['share']:.0f} % | {part['rows_per_s']:,.0f} | {part['read_processor_seconds']:.2f} and "
                f"{part['product_processor_seconds']:.2f} |"
            )
        part = result["rates"]
        lines += ["", f"{part['rows']:,} rows; peak of that process: {part['peak_mb']:,.0f} MB.", ""]
        if "copies_gb_per_s" in part:
            size, kept = part["rows"] * WIDTH * 4 / 1e9, "kept" if part["rows_kept"] else "not kept"
            rates_of = " and ".join(f"{value:.1f} GB/s ({name})" for name, value in part["copies_gb_per_s"].items())
            lines += [
                f"{size:.1f} GB of rows, {kept} on the GPU, with a limit of {part['limit_mb']:,.0f} MB; peak there "
                f"{part['device_peak_mb']:,.0f} MB. Copies to it alone: {rates_of}.",
                "",
            ]
    for name, title in (("complete", "`expunge unlearn --memory`, whole process"), ("processes", "Several processes")):
        if name in result:
            lines += [
                f"{title}:",
                "",
                "| rows | processes | limit, MB | peak of a process, MB | s |",
                "|---|---|---|---|---|",
            ]
            lines += [
                f"| {part['rows']:,} | {part['processes']}{' by torchrun' if 'launched' in part else ''} | "
                f"{part['limit_mb']:,.0f} | {part['peak_mb']:,.0f} | {part['seconds']:.0f} |"
                for part in result[name]
            ]
            lines.append("")
    if "growth" in result:
        growth = result["growth"]
        lines += ["One Hessian product, nothing kept between passes:", "", "| rows | s | peak, MB |", "|---|---|---|"]
        lines += [f"| {part['rows']:,} | {part['seconds']:.3f} | {part['peak_mb']:,.0f} |" for part in growth["passes"]]
        lines += [
            "",
            f"Time grows as rows to the power {growth['exponent']:.3f}; memory by {growth['memory_mb']:.0f} MB.",
            "",
        ]
    if BEYOND in result:
        part = result[BEYOND]
        lines += [
            f"Beyond the GPU's memory: {part['gb']:.1f} GB, {part['rows']:,} rows, where the GPU has "
            f"{part['device_gb']:.1f} GB ({part['names']} names of one file, which the system has in its cache). A "
            f"Hessian product takes {part['many_next_seconds']:.1f} s, {part['gb'] / part['many_next_seconds']:.1f} "
            f"GB/s; one over that file alone {part['one_next_seconds']:.2f} s, "
            f"{part['gb'] / part['names'] / part['one_next_seconds']:.1f} GB/s. The two differ by {part['away']:.1e} "
            f"of their length. With a limit of {part['limit_mb']:,.0f} MB the peak on the GPU is "
            f"{part['device_peak_mb']:,.0f} MB, that of the process {part['peak_mb']:,.0f}.",
            "",
        ]
    lines.append(", ".join(f"{name} {value}" for name, value in result["environment"].items()))
    load = ", ".join(f"{part} {value}" for part, value in result.get("load_average", {}).items())
    lines += ["", f"Load average of the machine after each part: {load}."] if load else []
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--memory", default="1.5GB")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--part", choices=[*PARTS, BEYOND], action="append")
    parser.add_argument("--device", default="cpu", help="not for growth")
    parser.add_argument("--folder", type=Path, help="Keep the rows here, and use those that are there.")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    name = "streaming" if given.device == "cpu" else f"streaming-{given.device}"
    existing = given.out / f"{name}.json"
    result = json.loads(existing.read_text()) if existing.exists() else {}
    result |= {"environment": environment(given.device), "columns": WIDTH, "classes": CLASSES}
    with tempfile.TemporaryDirectory() as temporary:
        base = given.folder or Path(temporary)
        base.mkdir(parents=True, exist_ok=True)
        sets = {rows: base / str(rows) for rows in (given.rows, given.rows // 10, given.rows // 100)}
        for rows, folder in sets.items():
            if not folder.exists():
                apart(make, folder, rows)
        if not (base / "model.safetensors").exists():
            apart(make_model, base)
        large, middle = sets[given.rows], sets[given.rows // 10]
        for part in given.part or PARTS:
            if part == "rates":
                result[part] = rates(large, given.memory, given.repeats, given.device)
            elif part == BEYOND:
                result[part] = beyond(base, large, given.memory, given.device)
            elif part == "complete":
                result[part] = [unlearn(base, large, given.memory, given.device)]
            elif part == "processes":
                result[part] = [unlearn(base, middle, given.memory, given.device)]
                # on a GPU a group of one talks through NCCL, which refuses two processes on one
                for count in (2, 4) if given.device == "cpu" else (1, 2, 4):
                    result[part].append(unlearn(base, middle, given.memory, given.device, count, launched=True))
            else:
                points = [passes(folder) for folder in reversed(sets.values())]
                result[part] = {
                    "passes": points,
                    "exponent": exponent(points, "seconds"),
                    "memory_mb": points[-1]["peak_mb"] - points[0]["peak_mb"],
                }
            result.setdefault("load_average", {})[part] = round(os.getloadavg()[0], 1)
            write(name, result, page(result), given.out)


if __name__ == "__main__":
    main()
