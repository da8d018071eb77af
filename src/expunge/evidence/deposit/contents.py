"""A deposit: what is kept of a source before it goes. No row is in it. PRIVATE.

It holds the anchor (the optimum, with its record), the gradient and Hessian of the source's mean loss; of narrow
tables the third derivatives, the gauges and the shape that were frozen when it was made, the radii its
noise is taken from, and keyed hashes of every row, so that a request can be checked. Rows leave all of it but what is
frozen.
"""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from expunge.bounds.ellipsoid import Ellipsoid
from expunge.data.row_hashes import HASH_BYTES, KEY_BYTES, PRECISIONS, RowHashes
from expunge.errors import FileError
from expunge.evidence.deposit.blocks import Blocks
from expunge.evidence.deposit.drawing import DeviceEllipsoid
from expunge.evidence.deposit.setting import Penalty, Setting
from expunge.evidence.deposit.sums import Gauge, Sums, is_joint
from expunge.evidence.deposit.third import folded_size, has_third, n_lines
from expunge.heads import LinearHead, Ridge, Softmax
from expunge.heads.jacobians import JacobianRidge
from expunge.model import LinearModel, from_matrix
from expunge.record import TrainingRecord, loss_named
from expunge.request.subject import head_of
from expunge.runtime.memory import file_buffer, out_of_memory
from expunge.runtime.safetensors import read_safetensors, safetensors_parts
from expunge.runtime.strict_json import not_a_number, without_duplicates
from expunge.runtime.typed_json import read_as

SCHEMA = "expunge/deposit/1"
METADATA = "expunge deposit"
TILE = 256  # rows and columns of a matrix that stay in cache


@dataclass(frozen=True)
class Numbers:
    """What of a deposit is plain numbers. `row_bound` is of rows as the head sees them; `forgotten` counts rows gone.

    `shape_largest`, `shape_least` and `shape_inverse_trace` are of M_0; `output_noise` is the deviation that noise of
    scale 1 has on an output of a typical row, `output_spread` how far the model's own outputs are from zero there.
    `longest_target` is of tangent weights alone (heads/jacobians.py).
    """

    schema: str
    key: str = field(repr=False)
    n_rows: int
    forgotten: int
    generation: int
    class_counts: tuple[int, ...]
    row_bound: float
    stiff: float
    kappas: tuple[float, ...]
    gradient_error: float
    curvature_error: float
    weighted_errors: tuple[float, ...]
    third_error: float
    shape_largest: float
    shape_least: float
    shape_inverse_trace: float
    output_noise: float
    output_spread: float
    radii: tuple[float, ...]
    created: str
    longest_target: float = 0.0


@dataclass(frozen=True)
class Deposit:
    """What is left of a source; see the module. `model` is the anchor, in float64, with its record."""

    model: LinearModel
    numbers: Numbers
    sums: Sums
    gauges: tuple[Gauge, ...]
    shape: Tensor
    hashes: RowHashes

    def __repr__(self) -> str:
        """What a notebook may show and keep: no key, no sums, no hashes."""
        left, gone = self.numbers.n_rows, self.numbers.forgotten
        return f"Deposit({self.record.loss}, {left:,} rows left, {gone:,} forgotten; private)"

    @property
    def record(self) -> TrainingRecord:
        assert self.model.record is not None
        return self.model.record

    @property
    def key(self) -> bytes:
        """Of the row hashes: it never travels with a model."""
        return bytes.fromhex(self.numbers.key)

    @property
    def device(self) -> torch.device:
        """Where its sums are."""
        return self.sums.gradient.device

    @property
    def anchor(self) -> Tensor:
        """The weights everything was summed at, K x d, where the sums are."""
        return self.model.matrix(self.device)

    def on(self, device: torch.device) -> Deposit:
        """The same with its matrices on a device."""
        if device == self.device:
            return self
        sums = replace(
            self.sums,
            gradient=self.sums.gradient.to(device),
            curvature=self.sums.curvature.on(device),
            weighted=tuple(each.on(device) for each in self.sums.weighted),
            third=None if self.sums.third is None else self.sums.third.to(device),
        )
        gauges = tuple(replace(gauge, factor=gauge.factor.to(device)) for gauge in self.gauges)
        return replace(self, sums=sums, gauges=gauges, shape=self.shape.to(device))

    @property
    def head(self) -> LinearHead:
        """What is minimised, rows bounded as they were."""
        head = replace(kept_head(self.model, self.record), row_bound=self.numbers.row_bound)
        return replace(head, longest_target=self.numbers.longest_target) if isinstance(head, JacobianRidge) else head

    @property
    def of_network(self) -> bool:
        """Whether its weights are the tangent weights of a network, without which no row of it can be formed."""
        return loss_named(self.record.loss).one_vector

    @property
    def setting(self) -> Setting:
        head = self.head
        return Setting(
            self.anchor,
            self.numbers.row_bound,
            self.gauges,
            isinstance(head, Ridge),
            isinstance(head, Softmax),
            self.numbers.stiff,
        )

    def penalty(self, n_rows: int) -> Penalty:
        """The regulariser of so many rows: l2 stays as it is, a fixed C is shared by fewer."""
        record = self.record
        l2 = record.l2 if record.fixed_c is None else 1.0 / (record.fixed_c * n_rows)
        return Penalty(l2, bool(record.free_bias))

    @cached_property
    def ellipsoid(self) -> Ellipsoid:
        """The shape of the noise, with its matrix."""
        numbers = self.numbers
        known = (numbers.shape_largest, numbers.shape_least, numbers.shape_inverse_trace)
        if self.device.type == "cpu":
            return Ellipsoid(self.model.matrix().numel(), *known, factors=self.shape.numpy())
        return DeviceEllipsoid(self.model.matrix().numel(), *known, shape=self.shape)

    def to_bytes(self) -> bytes:
        """The safetensors file, byte for byte."""
        return b"".join(self.to_parts())

    def to_parts(self) -> list[bytes | memoryview]:
        """The same in parts, one after the other: symmetric matrices by their lower half, all else as it is here."""
        tensors = {
            "weight": self.model.matrix(),
            "gradient": self.sums.gradient,
            "curvature": packed(self.sums.curvature.values),
            "shape": packed(self.shape),
        }
        for index, gauge in enumerate(self.gauges):
            tensors[f"gauge.{index}"] = packed(gauge.factor[None])
            tensors[f"weighted.{index}"] = packed(self.sums.weighted[index].values)
        if self.sums.third is not None:
            tensors["third"] = self.sums.third
        for index, digests in enumerate(self.hashes.digests):
            tensors[f"hashes.{index}"] = torch.from_numpy(np.array(digests))
        content = {"numbers": asdict(self.numbers), "record": json.loads(self.record.to_json())}
        text = json.dumps(content, sort_keys=True, allow_nan=False)
        return safetensors_parts({name: tensor.cpu().numpy() for name, tensor in tensors.items()}, {METADATA: text})


def kept_head(model: LinearModel, record: TrainingRecord) -> LinearHead:
    """What weights minimise of which a deposit is kept: a linear head, or tangent weights as one."""
    if not loss_named(record.loss).one_vector:
        return head_of(model, record)
    return JacobianRidge(record.l2, 1, model.n_features, record.row_bound, outputs=len(record.classes))


def packed(matrices: Tensor) -> Tensor:
    """The lower half of each matrix, row by row."""
    size = matrices.shape[-1]
    halves = matrices.new_empty((len(matrices), size * (size + 1) // 2))
    for row, start in enumerate(_starts(size)):
        halves[:, start : start + row + 1] = matrices[:, row, : row + 1]
    return halves.cpu()


def unpacked(halves: NDArray[np.float64], *, symmetric: bool) -> Tensor:
    """Matrices from their lower halves; `symmetric`, or triangular. Tiles of rows side by side, by torch's threads."""
    size = int((2 * halves.shape[1]) ** 0.5)
    if size * (size + 1) // 2 != halves.shape[1]:
        raise ValueError(f"{halves.shape[1]} numbers are half of no matrix")
    matrices, starts = np.zeros((len(halves), size, size), dtype=halves.dtype), _starts(size)

    def filled(top: int) -> None:
        for row in range(top, min(top + TILE, size)):
            matrices[:, row, : row + 1] = halves[:, starts[row] : starts[row] + row + 1]

    for work in (filled, partial(_mirror, matrices)) if symmetric else (filled,):
        if size <= TILE:
            work(0)
            continue
        with ThreadPoolExecutor(torch.get_num_threads()) as threads:
            list(threads.map(work, range(0, size, TILE)))
    return torch.from_numpy(matrices)


def _mirror(matrices: NDArray[np.float64], top: int) -> None:
    """Copy what a tile of rows has below the diagonal above it, in tiles: whole columns would go in leaps."""
    rows = slice(top, top + TILE)
    for first in range(0, top, TILE):
        columns = slice(first, first + TILE)
        matrices[:, columns, rows] = matrices[:, rows, columns].swapaxes(1, 2)
    own = matrices[:, rows, rows]
    own += np.tril(own, -1).swapaxes(1, 2)  # above the diagonal there was nothing


def _starts(size: int) -> list[int]:
    """Where each row of a lower half begins: a mask of the whole matrix takes many times as long as these parts."""
    return [row * (row + 1) // 2 for row in range(size)]


def read_deposit(path: str | Path) -> Deposit:
    """A deposit from its file; refuses what is damaged or of another kind."""
    path = Path(path)
    return parse_deposit(file_buffer(path, "the deposit"), path)


def parse_deposit(content: bytes | bytearray, path: Path) -> Deposit:
    """The same from the file's bytes, which it may keep for its own where they can be written to."""
    tensors, metadata = read_safetensors(content, path)
    try:
        told = json.loads(metadata[METADATA], parse_constant=not_a_number, object_pairs_hook=without_duplicates)
        numbers = read_as(Numbers, told["numbers"])
        if numbers.schema != SCHEMA:
            raise ValueError(f"schema {numbers.schema!r}")
        _require_no_more(numbers, [*tensors], [*told, *(name for name in metadata if name != METADATA)])
        record = TrainingRecord.from_json(json.dumps(told["record"]), str(path))
        return _assembled(numbers, record, tensors)
    except (KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
        raise out_of_memory(error) or FileError(
            f"{path} is not a deposit ({type(error).__name__}: {error})",
            f"a file of schema {SCHEMA} is needed, whole",
            "Check the path, or restore the file from a copy.",
        ) from error


def _require_no_more(numbers: Numbers, tensors: list[str], told: list[str]) -> None:
    """Refuse what no deposit has: nothing may travel in one unseen."""
    gauged = [f"{name}.{index}" for index in range(len(numbers.kappas)) for name in ("gauge", "weighted")]
    hashed = [f"hashes.{index}" for index in range(len(PRECISIONS))]
    own = {"weight", "gradient", "curvature", "shape", "third", *gauged, *hashed, "numbers", "record"}
    more = sorted({*tensors, *told} - own)
    if more:
        raise ValueError(f"it also has {', '.join(more[:3])}")


def _assembled(numbers: Numbers, record: TrainingRecord, tensors: dict[str, NDArray[np.generic]]) -> Deposit:
    def finite(name: str) -> NDArray[np.float64]:
        values = tensors[name]
        if values.dtype != np.float64 or not np.isfinite(values).all():
            raise ValueError(f"{name} is not finite float64 numbers")
        return values  # type: ignore[return-value]

    stored = sum(values.nbytes for values in tensors.values())

    def tensor(name: str) -> Tensor:
        """What is most of the file stays where it is; all else would keep the file in memory."""
        values = finite(name)
        shared = 2 * values.nbytes > stored and values.flags.writeable and values.flags.aligned
        return torch.from_numpy(values if shared else values.copy())

    model = from_matrix(tensor("weight"), bias=record.bias, dtype=torch.float64)
    model = replace(model, record=record)
    joint, n_gauges = is_joint(kept_head(model, record)), len(numbers.kappas)
    gauges = tuple(
        Gauge(unpacked(finite(f"gauge.{index}"), symmetric=False)[0], numbers.kappas[index])
        for index in range(n_gauges)
    )
    sums = Sums(
        numbers.n_rows,
        tensor("gradient"),
        Blocks(unpacked(finite("curvature"), symmetric=True), joint),
        tuple(Blocks(unpacked(finite(f"weighted.{index}"), symmetric=True), joint) for index in range(n_gauges)),
        numbers.gradient_error,
        numbers.curvature_error,
        numbers.weighted_errors,
        tensor("third") if "third" in tensors else None,
        numbers.third_error,
    )
    shape = unpacked(finite("shape"), symmetric=False)
    digests = [np.array(tensors[f"hashes.{index}"]) for index in range(len(PRECISIONS))]
    _require_fit(model, numbers, sums, gauges, shape, digests)
    return Deposit(model, numbers, sums, gauges, shape, RowHashes((digests[0], digests[1], digests[2])))


def _require_fit(
    model: LinearModel,
    numbers: Numbers,
    sums: Sums,
    gauges: tuple[Gauge, ...],
    shape: Tensor,
    digests: list[NDArray[np.generic]],
) -> None:
    """Refuse parts that do not belong together."""
    classes, width = model.matrix().shape
    size = classes * width if sums.curvature.joint else width
    head = kept_head(model, model.record)  # type: ignore[arg-type]
    third = (n_lines(head, classes), folded_size(width)) if has_third(head) else None
    fitting = (
        sums.gradient.shape == (classes, width)
        and sums.curvature.size == size
        and shape.shape == sums.curvature.values.shape
        and all(each.size == size for each in sums.weighted)
        and all(gauge.factor.shape == (width, width) for gauge in gauges)
        and (sums.third is None or sums.third.shape == third)
        and len(numbers.weighted_errors) == len(numbers.kappas) == len(gauges)
        and all(each.shape == (numbers.n_rows, HASH_BYTES) and each.dtype == np.uint8 for each in digests)
        and len(numbers.key) == 2 * KEY_BYTES
        and bytes.fromhex(numbers.key).hex() == numbers.key
        and sum(numbers.class_counts) == numbers.n_rows
        and numbers.n_rows >= 1
    )
    if not fitting:
        raise ValueError("its parts do not fit together")
    _require_possible(numbers, model.record, [shape, *(gauge.factor for gauge in gauges)])  # type: ignore[arg-type]
    if model.weights_sha256() != model.record.weights_sha256:  # type: ignore[union-attr]
        raise ValueError("its weights are not those of its record")


def _require_possible(numbers: Numbers, record: TrainingRecord, factors: list[Tensor]) -> None:
    """Refuse numbers that no deposit has."""
    counted = (numbers.n_rows, numbers.forgotten, numbers.generation, *numbers.class_counts)
    of_sums = (numbers.gradient_error, numbers.curvature_error, *numbers.weighted_errors, numbers.third_error)
    errors = (numbers.stiff, *of_sums)
    sizes = (numbers.row_bound, *numbers.kappas, numbers.shape_inverse_trace, *numbers.radii)
    possible = (
        min(counted) >= 0
        and numbers.n_rows + numbers.forgotten == record.n_source
        and all(0.0 <= error < math.inf for error in errors)
        and all(0.0 < size < math.inf for size in sizes)
        and 0.0 < numbers.shape_least <= numbers.shape_largest < math.inf
        and list(numbers.radii) == sorted(numbers.radii)
        and 0.0 <= numbers.longest_target < math.inf
        and (numbers.longest_target > 0.0) == loss_named(record.loss).one_vector
        and all(bool((factor.diagonal(dim1=-2, dim2=-1) > 0.0).all()) for factor in factors)
    )
    if not possible:
        raise ValueError("its numbers cannot be those of a deposit")
