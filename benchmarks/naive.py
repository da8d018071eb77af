"""The fast forms beside what a reader of the paper would write, in one run.

    python benchmarks/naive.py [--rows 13500 --features 50 --classes 10]

Hessian products: by autograd, twice, over a DataLoader, against `Curvature.product`; the naive one on batches of 256 (a
usual size) and of all rows at once. Dense Hessian: the mean of each row's Kronecker product `C(p) kron x x^T`, with
torch and with NumPy, against `Curvature.dense`; on a part of the rows, scaled.
Langevin: benchmarks/langevin.py. All results are compared with each other first.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from environment import environment, markdown, seconds, write
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from expunge.heads import Curvature, Rows, head_for
from expunge.runtime.arrays import to_numpy

L2 = 1e-3
REPEATS = 10
PART = 270  # rows the per-example Hessian is timed on


def autograd_product(weights: Tensor, direction: Tensor, loader: DataLoader[tuple[Tensor, ...]], n: int) -> Tensor:
    """Mean over batches of the derivative of `<gradient, direction>`."""
    total = L2 * direction
    for x, y in loader:
        at = weights.clone().requires_grad_(True)
        loss = torch.nn.functional.cross_entropy(x @ at.T, y, reduction="sum") / n
        (gradient,) = torch.autograd.grad(loss, at, create_graph=True)
        (image,) = torch.autograd.grad((gradient * direction).sum(), at)
        total = total + image
    return total


def per_example_hessian(weights: Tensor, x: Tensor) -> Tensor:
    """Mean of `C(p) kron x x^T`, one row at a time."""
    size = weights.numel()
    total = torch.zeros((size, size), dtype=x.dtype)
    for row in x:
        p = torch.softmax(weights @ row, dim=0)
        total += torch.kron(torch.diag(p) - torch.outer(p, p), torch.outer(row, row))
    return total / len(x) + L2 * torch.eye(size, dtype=x.dtype)


def per_example_numpy(weights: Tensor, x: Tensor) -> Tensor:
    """The same with NumPy."""
    head, size = weights.numpy(), weights.numel()
    total = np.zeros((size, size))
    for row in x.numpy():
        scores = head @ row
        p = np.exp(scores - scores.max())
        p /= p.sum()
        total += np.kron(np.diag(p) - np.outer(p, p), np.outer(row, row))
    return torch.from_numpy(total / len(x) + L2 * np.eye(size))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=13_500)
    parser.add_argument("--features", type=int, default=50)
    parser.add_argument("--classes", type=int, default=10)
    return parser.parse_args()


def main() -> None:
    given = arguments()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((given.rows, given.features), dtype=torch.float64, generator=generator)
    x /= x.norm(dim=1, keepdim=True)
    y = torch.randint(given.classes, (given.rows,), generator=generator)
    shape = (given.classes, given.features)
    weights, direction = (torch.randn(shape, dtype=torch.float64, generator=generator) for _ in range(2))
    head = head_for("softmax", l2=L2, n_classes=given.classes, n_features=given.features, row_bound=1.0)
    rows, at, along = Rows(to_numpy(x), to_numpy(y)), to_numpy(weights), to_numpy(direction)  # as Expunge has them
    curvature = Curvature(head, at, rows)
    image = torch.from_numpy(curvature.product(along))
    ours = seconds(lambda: curvature.product(along), REPEATS, 2)
    fresh = seconds(lambda: Curvature(head, at, Rows(rows.features, rows.labels)).product(along), REPEATS, 2)
    result: dict[str, Any] = {
        "task": vars(given) | {"l2": L2},
        "environment": environment(),
        "product_seconds": ours,
        "product_with_predictions_seconds": fresh,
    }
    table = [
        ("Hessian product, ours", f"{ours * 1e3:.2f} ms", ""),
        ("the first one, predictions included", f"{fresh * 1e3:.2f} ms", f"{ours / fresh:.2g}"),
    ]
    for size in (256, given.rows):
        loader: DataLoader[tuple[Tensor, ...]] = DataLoader(TensorDataset(x, y), batch_size=size)
        error = float((autograd_product(weights, direction, loader, given.rows) - image).norm() / image.norm())
        assert error < 1e-10, error
        naive = seconds(lambda loader=loader: autograd_product(weights, direction, loader, given.rows), REPEATS)
        row = {"seconds": naive, "times_slower": naive / ours, "relative_error": error}
        result[f"autograd_batches_of_{size}"] = row
        table.append((f"autograd over a DataLoader, batches of {size}", f"{naive * 1e3:.1f} ms", f"{naive / ours:.0f}"))
    once = seconds(
        lambda: (
            torch.func.hvp(lambda at: torch.nn.functional.cross_entropy(x @ at.T, y), (weights,), (direction,))
            if hasattr(torch.func, "hvp")
            else torch.autograd.functional.vhp(
                lambda at: torch.nn.functional.cross_entropy(x @ at.T, y), weights, direction
            )
        ),
        REPEATS,
        1,
    )
    result["autograd_all_rows_no_loader"] = {"seconds": once, "times_slower": once / ours}
    table.append(("autograd on all rows at once, without a DataLoader", f"{once * 1e3:.1f} ms", f"{once / ours:.1f}"))

    dense = seconds(curvature.dense, REPEATS, 1)
    part = torch.from_numpy(Curvature(head, at, Rows(rows.features[:PART], rows.labels[:PART])).dense())
    result["dense"] = {"seconds": dense, "measured_on_rows": PART}
    table.append(("dense Hessian, ours", f"{dense * 1e3:.0f} ms", ""))
    for name, form in (("torch", per_example_hessian), ("numpy", per_example_numpy)):
        error = float((form(weights, x[:PART]) - part).norm() / part.norm())
        assert error < 1e-10, error
        slow = seconds(lambda form=form: form(weights, x[:PART]), REPEATS) * given.rows / PART
        result["dense"] |= {name: {"seconds": slow, "times_slower": slow / dense}}
        what = f"one Kronecker product a row, {name} ({PART} rows measured, scaled)"
        table.append((what, f"{slow:.1f} s", f"{slow / dense:.0f}"))
    title = f"Against the naive forms: {given.rows:,} x {given.features}, {given.classes} classes"
    write("naive", result, markdown(title, ("", "measured", "times slower"), table, environment()))


if __name__ == "__main__":
    main()
