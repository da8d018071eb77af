"""A deposit: what is kept of a source before it goes, and its file. No row is in it. PRIVATE.

It holds the anchor (weights near the optimum, with its record), the gradient and Hessian of the source's mean loss
there, of narrow tables the third derivatives, the exact second moments that the noise takes its shape from, gauges,
and keyed hashes of every row, so that a request can be checked. Rows leave all of it but the anchor and the gauges,
which have noise in them that was drawn when the deposit was made and is kept nowhere, and a few numbers that are
powers of two.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.bounds.calibration import power_of_four
from expunge.bounds.ellipsoid import Ellipsoid
from expunge.deposit.matrices import (
    Blocks,
    Gram,
    ellipsoid_by,
    inverse_of,
    not_definite,
    shape_of,
    too_small,
)
from expunge.deposit.region import Penalty, RetainedProblem, Setting
from expunge.deposit.sums import ERRORS, Gauge, Sums, folded_size, has_third, is_joint, n_lines
from expunge.errors import FileError, ModelError
from expunge.heads import LinearHead, Logistic, OneVsRest, Ridge, Softmax
from expunge.heads.tangent import JacobianRidge
from expunge.model import LinearModel, from_matrix
from expunge.record import TrainingRecord, loss_named
from expunge.request.request import head_of
from expunge.rows.features import to_engine
from expunge.rows.hashes import HASH_BYTES, KEY_BYTES, PRECISIONS, RowHashes
from expunge.runtime.arrays import Array, Device, Dtype, load_torch, norm, size, to_device, to_numpy
from expunge.runtime.memory import file_bytes, out_of_memory
from expunge.runtime.safetensors import read_safetensors, safetensors_parts
from expunge.runtime.strict_json import read_as, read_json

SCHEMA = "expunge/deposit/2"
METADATA = "expunge deposit"
LEVELS = 6  # sizes that noise may have: which of them a request took tells less than three bits
HARMLESS = 0.01  # of an output: what the first of them moves it by at most
KNOWN_HEADS = (Softmax, Logistic, OneVsRest, Ridge)  # by exact type; tangent weights are one of their own
TENSORS = ("weight", "gradient", "curvature", "moments", "support", "off", "third")


@dataclass(frozen=True, repr=False)
class Numbers:
    """What of a deposit is plain numbers. `row_bound` is of rows as the head sees them; `forgotten` counts rows gone.

    `anchor_noise` is the scale of the noise in the anchor, by the shape of the whole source. `longest_target` is of
    tangent weights alone (heads/tangent.py).
    """

    schema: str
    key: str = field(repr=False)
    n_rows: int
    forgotten: int
    generation: int
    class_counts: tuple[int, ...]
    row_bound: float
    anchor_noise: float
    kappas: tuple[float, ...]
    created: str
    longest_target: float = 0.0


@dataclass(frozen=True)
class Deposit:
    """What is left of a source; see the module. `model` is the anchor, in float64, with its record."""

    model: LinearModel
    numbers: Numbers
    sums: Sums
    gauges: tuple[Gauge, ...]
    hashes: RowHashes

    def __repr__(self) -> str:
        """What a notebook may show and keep: no key, no sums, no hashes."""
        left, gone = self.numbers.n_rows, self.numbers.forgotten
        return f"Deposit({self.record.loss}, {left:,} rows left, {gone:,} forgotten; private)"

    @cached_property
    def record(self) -> TrainingRecord:
        assert self.model.record is not None
        return self.model.record

    @cached_property
    def key(self) -> bytes:
        """The key of the row hashes: it never travels with a model."""
        return bytes.fromhex(self.numbers.key)

    @property
    def device(self) -> Device:
        """Where its sums are."""
        return self.sums.gradient.device

    @cached_property
    def anchor(self) -> Array:
        """The weights everything was summed at, K x d, where the sums are."""
        return self.model.matrix(self.device)

    @cached_property
    def reference_weights(self) -> Array:
        """The weights that outputs and accuracy are judged by, K x d: of a square the optimum of the rows that are
        left, since noise in its anchor may be long; else the anchor, whose noise moves no output by much."""
        exact = self.setting.quadratic and self.problem.solvable
        return self.anchor + self.problem.linear_step if exact else self.anchor

    def on(self, device: Device) -> Deposit:
        """With its matrices on a device: on `"cpu"` in the engine that computes there."""
        if device == self.device:
            return self
        gauges = tuple(replace(gauge, factor=to_device(gauge.factor, device)) for gauge in self.gauges)
        return replace(self, sums=self.sums.on(device), gauges=gauges)

    @cached_property
    def head(self) -> LinearHead:
        """What is minimised, rows bounded as they were."""
        head = replace(deposit_head(self.model, self.record), row_bound=self.numbers.row_bound)
        return replace(head, longest_target=self.numbers.longest_target) if isinstance(head, JacobianRidge) else head

    @cached_property
    def of_network(self) -> bool:
        """Whether its weights are the tangent weights of a network, without which no row of it can be formed."""
        return loss_named(self.record.loss).one_vector

    @cached_property
    def setting(self) -> Setting:
        head = self.head
        # what is added to the direction common to all classes: of the size of the Hessian, and of what is left alone
        stiff = float(self.sums.curvature.diagonal.mean())
        kind = isinstance(head, Ridge), isinstance(head, Softmax)
        return Setting(self.anchor, self.numbers.row_bound, self.gauges, *kind, stiff)

    def penalty(self, n_rows: int) -> Penalty:
        """The regulariser of so many rows: l2 stays as it is, a fixed C is shared by fewer."""
        record = self.record
        l2 = record.l2 if record.fixed_c is None else 1.0 / (record.fixed_c * n_rows)
        return Penalty(l2, bool(record.free_bias))

    @cached_property
    def problem(self) -> RetainedProblem:
        """What the step and the region of the rows that are left follow from."""
        return RetainedProblem(self.setting, self.sums, self.penalty(self.sums.count), self.shape)

    @property
    def gram(self) -> Gram:
        """The exact second moments of the rows that are left."""
        assert self.sums.gram is not None
        return self.sums.gram

    @cached_property
    def shape(self) -> Array:
        """The factor of the noise's `M_0`, 1 x d x d for all classes: of the rows that are left, and of nothing
        else."""
        factor = shape_of(self.head, self.gram, self.penalty(self.sums.count).diagonal(self.anchor)[0])
        if factor is None:
            raise not_definite()
        return factor

    def length(self, difference: Array) -> float:
        """How long a difference of weights is, in the norm of the noise's shape."""
        return norm(difference @ self.shape[0])

    @cached_property
    def _inverse(self) -> Array:
        """The inverse of the shape's factor."""
        return inverse_of(self.shape[0])

    @cached_property
    def ellipsoid(self) -> Ellipsoid:
        """The shape of the noise, with its matrix."""
        made = ellipsoid_by(self.shape, size(self.model.matrix()))
        if made is None:
            raise not_definite()
        return made

    @cached_property
    def output_noise(self) -> float:
        """The deviation that noise of scale 1 has on an output of a typical row: of the rows that are left alone."""
        squares = float(((self._inverse @ self.gram.mean) * self._inverse).sum())
        if squares == 0.0:
            raise too_small()
        return math.sqrt(squares / self._outputs)

    @cached_property
    def output_spread(self) -> float:
        """How far the model's own outputs are from zero on a typical row; a network's are what its targets are."""
        if self.of_network:
            return 1.0 / math.sqrt(self._outputs)
        centred = self.setting.centred(self.reference_weights)
        return math.sqrt(float((centred @ self.gram.mean * centred).sum()) / len(centred))

    @property
    def _outputs(self) -> int:
        """How many rows an example is: of a network one a class, else one."""
        return len(self.record.classes) if self.of_network else 1

    @cached_property
    def levels(self) -> tuple[float, ...]:
        """The scales that noise may have, powers of four: from what moves outputs by at most a hundredth to what drowns
        them. Made of the rows that are left alone: outputs are log-odds, or targets of 0 and 1, so theirs is 1."""
        first = power_of_four(HARMLESS / self.output_noise * (1.0 + 2.0**-40)) / 4.0
        return tuple(first * 4.0**step for step in range(LEVELS))

    def to_bytes(self) -> bytes:
        """The safetensors file, byte for byte."""
        return b"".join(self.to_parts())

    def to_parts(self) -> list[bytes | memoryview]:
        """The file in parts, one after the other: symmetric matrices by their lower half, all else as it is here."""
        tensors = {
            "weight": self.model.matrix(),
            "gradient": self.sums.gradient,
            "curvature": packed(self.sums.curvature.values),
            "moments": packed(self.gram.parts),
            "support": self.gram.support,
            "off": self.gram.off,
        }
        for index, gauge in enumerate(self.gauges):
            tensors[f"gauge.{index}"] = packed(gauge.factor[None])
            tensors[f"weighted.{index}"] = packed(self.sums.weighted[index].values)
        if self.sums.third is not None:
            tensors["third"] = self.sums.third
        for index, digests in enumerate(self.hashes.digests):
            tensors[f"hashes.{index}"] = digests
        content = {"numbers": asdict(self.numbers) | self.sums.errors, "record": json.loads(self.record.to_json())}
        text = json.dumps(content, sort_keys=True, allow_nan=False)
        return safetensors_parts({name: to_numpy(tensor) for name, tensor in tensors.items()}, {METADATA: text})


def deposit_head(model: LinearModel, record: TrainingRecord) -> LinearHead:
    """What weights minimise of which a deposit is kept: a linear head, or tangent weights as one.

    Its sums, errors and routes are written for these losses: another one, though made from one of them, is refused.
    """
    if loss_named(record.loss).one_vector:
        return JacobianRidge(record.l2, 1, model.n_features, record.row_bound, outputs=len(record.classes))
    head = head_of(model, record)
    if type(head) not in KNOWN_HEADS:
        raise ModelError(
            f"a deposit of a model with loss {record.loss!r}, which was registered from outside",
            f"a deposit has the formulas of {', '.join(sorted(known.about.name for known in KNOWN_HEADS))}",
            "Train with one of these losses, or unlearn with a surrogate and a distance, which ask the loss itself.",
        )
    return head


# The file -------------------------------------------------------------------------------------------------------------


def packed(matrices: Array) -> NDArray[np.float64]:
    """The lower half of each matrix, row by row: a mask of the whole takes many times as long as these parts."""
    matrices = to_numpy(matrices)
    width = matrices.shape[-1]
    halves = np.empty((len(matrices), width * (width + 1) // 2), matrices.dtype)
    for row in range(width):
        start = row * (row + 1) // 2
        halves[:, start : start + row + 1] = matrices[:, row, : row + 1]
    return halves


def unpacked(halves: NDArray[np.float64], *, symmetric: bool = True) -> NDArray[np.float64]:
    """Matrices from their lower halves; `symmetric`, or triangular."""
    width = int((2 * halves.shape[1]) ** 0.5)
    if width * (width + 1) // 2 != halves.shape[1]:
        raise ValueError(f"{halves.shape[1]} numbers are half of no matrix")
    filled = np.zeros((len(halves), width, width), dtype=halves.dtype)
    for row in range(width):
        start = row * (row + 1) // 2
        filled[:, row, : row + 1] = halves[:, start : start + row + 1]
        if symmetric:
            filled[:, : row + 1, row] = filled[:, row, : row + 1]
    return filled


def read_deposit(path: str | Path) -> Deposit:
    """A deposit from its file; refuses what is damaged or of another kind."""
    path = Path(path)
    return parse_deposit(file_bytes(path, "the deposit"), path)


def parse_deposit(content: bytes | bytearray, path: Path) -> Deposit:
    """A deposit from its file's bytes, which it may keep for its own where they can be written to."""
    tensors, metadata = read_safetensors(content, path)
    try:
        told = read_json(metadata[METADATA])
        errors = {name: told["numbers"].pop(name) for name in ERRORS}
        numbers = read_as(Numbers, told["numbers"])
        if numbers.schema != SCHEMA:
            raise ValueError(f"schema {numbers.schema!r}")
        names = {*TENSORS, *(f"{name}.{i}" for i in range(len(numbers.kappas)) for name in ("gauge", "weighted"))}
        names |= {f"hashes.{i}" for i in range(len(PRECISIONS))}
        more = sorted(tensors.keys() - names | told.keys() - {"numbers", "record"} | metadata.keys() - {METADATA})
        if more:  # nothing may travel in one unseen
            raise ValueError(f"it also has {', '.join(more[:3])}")
        record = TrainingRecord.from_json(json.dumps(told["record"]), str(path))
        return _assembled(numbers, errors, record, tensors)
    except (KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
        raise out_of_memory(error) or FileError(
            f"{path} is not a deposit ({type(error).__name__}: {error})",
            f"a file of schema {SCHEMA} is needed, whole",
            "Check the path, or restore the file from a copy.",
        ) from error


def _assembled(
    numbers: Numbers, errors: dict[str, Any], record: TrainingRecord, tensors: dict[str, NDArray[np.generic]]
) -> Deposit:
    """The deposit, whose parts belong together and whose numbers are possible."""
    stored, n_gauges = sum(values.nbytes for values in tensors.values()), len(numbers.kappas)
    engine: Dtype = load_torch("the deposit of a network").float64 if loss_named(record.loss).one_vector else None

    def finite(name: str) -> NDArray[np.float64]:
        values = tensors[name]
        if values.dtype != np.float64 or not np.isfinite(values).all():
            raise ValueError(f"{name} is not finite float64 numbers")
        return values  # type: ignore[return-value]

    def array(name: str) -> Array:
        """What is most of the file stays where it is; all else would keep the file in memory."""
        values = finite(name)
        shared = 2 * values.nbytes > stored and values.flags.writeable and values.flags.aligned
        return to_engine(values if shared else values.copy(), engine)

    def matrices(name: str, *, symmetric: bool = True) -> Array:
        return to_engine(unpacked(finite(name), symmetric=symmetric), engine)

    model = replace(from_matrix(array("weight"), bias=record.bias, dtype="float64"), record=record)
    head = deposit_head(model, record)
    joint, (classes, width) = is_joint(head), model.matrix().shape
    factors = (matrices(f"gauge.{index}", symmetric=False)[0] for index in range(n_gauges))
    gauges = tuple(map(Gauge, factors, numbers.kappas))
    sums = Sums(
        numbers.n_rows,
        array("gradient"),
        Blocks(matrices("curvature"), joint),
        tuple(Blocks(matrices(f"weighted.{index}"), joint) for index in range(n_gauges)),
        third=array("third") if "third" in tensors else None,
        gram=Gram(numbers.n_rows, matrices("moments"), array("support"), array("off")),
        **(errors | {"weighted_errors": tuple(errors["weighted_errors"])}),
    )
    first, second, third = (np.array(tensors[f"hashes.{index}"]) for index in range(len(PRECISIONS)))
    deposit = Deposit(model, numbers, sums, gauges, RowHashes((first, second, third)))
    of_third = [(n_lines(head, classes), folded_size(width))] if has_third(head) else []
    n_blocks = 1 if joint or isinstance(head, Ridge) else classes
    order = classes * width if joint else width
    counts = (numbers.n_rows - 1, numbers.forgotten, numbers.generation, *numbers.class_counts)
    bounds = (sums.gradient_error, sums.curvature_error, *sums.weighted_errors, sums.third_error, numbers.anchor_noise)
    fitting = (
        sums.gradient.shape == (classes, width)
        and all(each.values.shape == (n_blocks, order, order) for each in (sums.curvature, *sums.weighted))
        and deposit.gram.parts.shape == (3, width, width)
        and deposit.gram.support.shape == deposit.gram.off.shape == (width,)
        and deposit.gram.is_whole
        and all(each.factor.shape == (width, width) and bool((each.factor.diagonal() > 0).all()) for each in gauges)
        and (sums.third is None or sums.third.shape in of_third)
        and len(sums.weighted_errors) == n_gauges
        and all(
            each.shape == (numbers.n_rows, HASH_BYTES) and each.dtype == np.uint8 for each in deposit.hashes.digests
        )
        and bytes.fromhex(numbers.key).hex() == numbers.key
        and len(deposit.key) == KEY_BYTES
        and numbers.n_rows == sum(numbers.class_counts) == record.n_source
        and min(counts) >= 0
        and (numbers.generation == 0) == (numbers.forgotten == 0)
        and numbers.generation <= numbers.forgotten  # somebody left in each
        and all(0.0 <= each < math.inf for each in (*bounds, numbers.longest_target))
        and all(0.0 < each < math.inf for each in (numbers.row_bound, *numbers.kappas))
        and (numbers.longest_target > 0.0) == deposit.of_network
        and record.noised
    )
    if not fitting:
        raise ValueError("its parts do not fit together, or its numbers are none that a deposit has")
    if model.weights_sha256() != record.weights_sha256:
        raise ValueError("its weights are not those of its record")
    return deposit
