"""A head of ImageNet's size, unlearned and certified on one device.

    python benchmarks/imagenet_head.py --device cuda
    python benchmarks/imagenet_head.py --device cpu --rows 20000 --features 64 --classes 10 --forget 20  # small

1,281,167 x 2,048 rows, 1,000 classes, two million weights. Rows are made on the device: unit norm, second moment with
eigenvalues falling like j^-power in a random basis (the condition number is measured), labels drawn from a teacher's
softmax. The head is trained there to a stated gradient norm, which is not counted. Then, from rows on the device:
`expunge.unlearn` as a whole, and the same stage by stage; the rate of Hessian products beside that of the plain matrix
products they consist of, interleaved; peak memory. Writes JSON and a page.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from environment import RESULTS, environment, markdown, seconds, synchronise, write

import expunge
from expunge.door import ask
from expunge.heads import Curvature, Rows, head_for
from expunge.mechanism import certify, measure
from expunge.model import from_matrix
from expunge.record import TrainingRecord
from expunge.request.promise import Execution, Promise
from expunge.train import minimise, residual_upper

EPSILON = 1.0
CHUNK = 1 << 16


def basis(width: int, device: str) -> torch.Tensor:
    """A random orthogonal matrix."""
    drawn = torch.randn(width, width, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return torch.linalg.qr(drawn.to(device))[0]


def made_up(
    n: int, classes: int, spectrum: torch.Tensor, rotation: torch.Tensor, sharpness: float, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit-norm rows and their labels, on the device of the rotation."""
    device, width = rotation.device, len(spectrum)
    generator = torch.Generator(device).manual_seed(seed)
    shared = torch.Generator().manual_seed(0)
    teacher = torch.randn(classes, width, dtype=torch.float64, generator=shared).to(device) * sharpness
    x = torch.empty((n, width), dtype=torch.float64, device=device)
    y = torch.empty(n, dtype=torch.int64, device=device)
    for start in range(0, n, CHUNK):
        part = slice(start, min(start + CHUNK, n))
        drawn = torch.randn((part.stop - start, width), dtype=torch.float64, generator=generator, device=device)
        drawn = (drawn * spectrum.sqrt()) @ rotation
        x[part] = drawn / (drawn.norm(dim=1, keepdim=True) * (1 + 1e-12))
        uniform = torch.rand((part.stop - start, classes), dtype=torch.float64, generator=generator, device=device)
        y[part] = (x[part] @ teacher.T - uniform.log_().neg_().log_()).argmax(dim=1)
    return x, y


def rates(curvature: Curvature, direction: torch.Tensor, device: str, repeats: int) -> dict[str, float]:
    """TFLOP/s of Hessian products, and of the two plain matrix products over all rows at once, interleaved."""
    rows = curvature.rows
    assert isinstance(rows, Rows)
    inner = torch.randn((len(direction), len(rows)), dtype=direction.dtype, device=direction.device)
    out = torch.empty_like(direction)

    def plain() -> None:
        torch.mm(direction, rows.features.T, out=inner)
        torch.mm(inner, rows.features, out=out)

    runs: dict[str, list[float]] = {"product": [], "plain": []}
    for _ in range(repeats):
        runs["product"].append(seconds(lambda: curvature.product(direction), device=device, warm=1))
        runs["plain"].append(seconds(plain, device=device, warm=1))
    side = 8192 if device.startswith("cuda") else 1024
    square = torch.randn((side, side), dtype=direction.dtype, device=direction.device)
    squared = 2.0 * side**3 / seconds(lambda: square @ square, 5, 2, device)
    flops = 4.0 * len(rows) * direction.numel()
    best = {name: sorted(values)[len(values) // 2] for name, values in runs.items()}
    return {
        "hessian_product_seconds": best["product"],
        "hessian_product_tflops": flops / best["product"] / 1e12,
        "matrix_product_tflops": flops / best["plain"] / 1e12,
        "ratio": best["plain"] / best["product"],
        "square_matrix_tflops": squared / 1e12,
        "ratio_to_square": flops / best["product"] / squared,
    }


class Stages:
    """Wall time of each stage, from what the library itself reports."""

    def __init__(self, device: str) -> None:
        self.device, self.seconds, self.counts = device, {}, {}
        self.stage, self.began = "before the first report", time.perf_counter()

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        self.counts[stage] = max(self.counts.get(stage, 0), done)
        if stage != self.stage:
            self.end(stage)

    def end(self, following: str = "") -> None:
        synchronise(self.device)
        now = time.perf_counter()
        self.seconds[self.stage] = self.seconds.get(self.stage, 0.0) + now - self.began
        self.stage, self.began = following, now


def staged(model: Any, forget: Any, surrogate: Any, promise: Promise, device: str) -> tuple[Any, dict[str, Any]]:
    """`expunge.unlearn`, stage by stage."""
    synchronise(device)
    began = time.perf_counter()
    request = ask(model, forget, surrogate, promise, execution=Execution(device=device))
    synchronise(device)
    checked = time.perf_counter()
    watch = Stages(device)
    measured = measure(request, progress=watch)
    watch.end()
    middle = time.perf_counter()
    result = certify(request, measured)
    ended = time.perf_counter()
    stages = {"checking the request": checked - began, **watch.seconds, "bound, noise, certificate": ended - middle}
    return result, {"seconds": stages, "counts": watch.counts, "total": ended - began}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_281_167)
    parser.add_argument("--features", type=int, default=2048)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--forget", type=int, default=1281)
    parser.add_argument("--l2", type=float, default=1e-4)
    parser.add_argument("--power", type=float, default=1.0)
    parser.add_argument("--sharpness", type=float, default=8.0)
    parser.add_argument("--trained", type=float, default=1e-7, help="gradient norm to train to")
    parser.add_argument("--distance", default="same")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args()


def trained(given: argparse.Namespace, x: torch.Tensor, y: torch.Tensor) -> tuple[Any, dict[str, Any]]:
    """The model, and what is to be said of it and of the speed of its Hessian."""
    head = head_for("softmax", l2=given.l2, n_classes=given.classes, n_features=given.features, row_bound=1.0)
    rows = Rows(x, y)
    began = time.perf_counter()
    zero = torch.zeros((given.classes, given.features), dtype=torch.float64, device=given.device)
    weights = minimise(
        head, rows, start=zero, tolerance=given.trained,
        progress=lambda stage, done, _: print(stage, done, f"{time.perf_counter() - began:.1f} s", flush=True),
    )  # fmt: skip
    record = TrainingRecord(
        n_source=given.rows,
        classes=tuple(range(given.classes)),
        class_counts=tuple(torch.bincount(y, minlength=given.classes).tolist()),
        l2=given.l2,
        loss="softmax",
        max_norm=1.0,
        bias=False,
        residual=residual_upper(head, weights, rows),
    )
    model = from_matrix(weights, bias=False, dtype=torch.float64).with_record(record)
    synchronise(given.device)
    predicted = torch.cat([(x[s : s + CHUNK] @ weights.T).argmax(dim=1) for s in range(0, len(x), CHUNK)])
    said = {
        "seconds_training": time.perf_counter() - began,
        "training_residual": record.residual,
        "training_accuracy": float((predicted == y).double().mean()),
        "weights_norm": float(weights.norm()),
    }
    print("trained", said["seconds_training"], record.residual, said["training_accuracy"], flush=True)
    speed = rates(Curvature(head, weights, rows), torch.randn_like(weights), given.device, 5)
    print("rates", speed, flush=True)
    return model, said | {"rates": speed}


def table_of(given: argparse.Namespace, result: dict[str, Any]) -> list[tuple[str, str]]:
    step, speed, bound = result["step"], result["rates"], result["bound"]
    residual = result["training_residual"]
    return [
        ("rows x features, classes", f"{given.rows:,} x {given.features:,}, {given.classes:,}"),
        ("condition number of the second moment", f"{result['condition_number_of_second_moment']:,.0f}"),
        ("l2, rows forgotten", f"{given.l2:g}, {given.forget:,}"),
        ("training (not counted)", f"{result['seconds_training']:.1f} s, to a gradient norm of {residual:.2g}"),
        ("`expunge.unlearn`, rows on the device to certificate", f"{result['unlearn_seconds']:.1f} s"),
        *((f"of a second run: {key}", f"{value:.2f} s") for key, value in result["stages"]["seconds"].items()),
        ("Newton and conjugate-gradient iterations", f"{step['iterations']} and {step['inner_iterations']}"),
        (
            "Hessian products",
            f"{speed['hessian_product_tflops']:.3g} TFLOP/s, {speed['hessian_product_seconds']:.3f} s each",
        ),
        ("plain matrix products", f"{speed['matrix_product_tflops']:.3g} TFLOP/s"),
        ("ratio", f"{speed['ratio']:.2f}"),
        (
            "a square matrix product, and Hessian products beside it",
            f"{speed['square_matrix_tflops']:.3g} TFLOP/s, {speed['ratio_to_square']:.2f}",
        ),
        ("peak device memory", f"{result.get('peak_device_bytes', 0) / 1e9:.1f} GB"),
        ("status, Delta, sigma", f"{result['status']}, {bound['total']:.3g}, {result['sigma']:.3g}"),
        ("norm of the noise, of the weights", f"{result['noise_norm']:.3g}, {result['weights_norm']:.3g}"),
    ]


def unlearned(given: argparse.Namespace, model: Any, forget: Any, surrogate: Any) -> dict[str, Any]:
    """Seconds and memory of one `expunge.unlearn`, and what its certificate says."""
    cuda = given.device.startswith("cuda")
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    certificate = expunge.unlearn(
        model,
        forget,
        surrogate,
        epsilon=EPSILON,
        delta=1.0 / given.rows,
        distance=given.distance,
        force=True,
        device=given.device,
    ).certificate
    seconds = time.perf_counter() - began
    print("unlearned in", seconds, flush=True)
    content = certificate.content
    return {
        "unlearn_seconds": seconds,
        **({"peak_device_bytes": torch.cuda.max_memory_allocated()} if cuda else {}),
        "status": content["status"],
        "step": content["step"],
        "bound": content["bound"]["terms"] | {"total": content["bound"]["total"]},
        "sigma": content["sigma"],
        "noise_norm": content["sigma"] * (given.classes * given.features) ** 0.5,
        "notes": content["notes"],
    }


def main() -> None:
    given = arguments()
    device = given.device
    name = "imagenet_head" if device.startswith("cuda") else "imagenet_head-small"
    spectrum = torch.arange(1, given.features + 1, dtype=torch.float64, device=device) ** -given.power
    rotation = basis(given.features, device)

    began = time.perf_counter()
    x, y = made_up(given.rows, given.classes, spectrum, rotation, given.sharpness, 1)
    synchronise(device)
    eigenvalues = torch.linalg.eigvalsh(x[:CHUNK].T @ x[:CHUNK] / min(CHUNK, len(x)))
    result: dict[str, Any] = {
        "task": {key: value for key, value in vars(given).items() if key != "out"},
        "environment": environment(device),
        "seconds_making_rows": time.perf_counter() - began,
        "condition_number_of_second_moment": float(eigenvalues[-1] / eigenvalues[0]),
        "parameters": given.classes * given.features,
    }
    print(
        "rows made",
        result["seconds_making_rows"],
        "condition number",
        result["condition_number_of_second_moment"],
        flush=True,
    )
    model, of_training = trained(given, x, y)
    result |= of_training
    write(name, result, out=given.out)

    forget = x[: given.forget].clone(), y[: given.forget].clone()
    del x, y
    surrogate = made_up(given.rows, given.classes, spectrum, rotation, given.sharpness, 2)
    synchronise(device)
    result |= unlearned(given, model, forget, surrogate)
    write(name, result, out=given.out)
    distance = expunge.parse_distance(given.distance)
    promise = Promise(epsilon=EPSILON, delta=1.0 / given.rows, distance=distance, force=True)
    _, result["stages"] = staged(model, forget, surrogate, promise, device)
    page = markdown("A head of ImageNet's size", ("", "measured"), table_of(given, result), result["environment"])
    write(name, result, page, given.out)


if __name__ == "__main__":
    main()
