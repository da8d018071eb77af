"""Rows made ready for an objective: checked, scaled to the norm bound, bias column appended, labels encoded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from expunge.errors import DataError
from expunge.heads import Rows
from expunge.heads.scaling import scaling_of
from expunge.record import Label
from expunge.rows.names import frame_values, is_frame
from expunge.runtime.checks import SMALLEST
from expunge.runtime.memory import require_room

BLOCK = 8192
IN_CACHE = 1 << 20  # numbers that are doubled at a time, into the same place: a processor's cache has them still
SQUARED = (1e-140, 1e140)  # a norm between these had squares float64 can hold
QUICK = 1e30  # rows shorter than this have entries float32 can hold


@dataclass(frozen=True)
class Prepared:
    """Rows ready for use, and what had to be done to them."""

    rows: Rows
    scaled: int


def as_features(values: Any, name: str) -> Tensor:
    """A rows x d tensor of finite real numbers; shares memory with the caller's array where it can."""
    tensor = as_table(values, name)
    require_finite(tensor, name)
    return tensor


def as_table(values: Any, name: str) -> Tensor:
    """The same, without looking whether they are finite."""
    if isinstance(values, Tensor):
        tensor = values.detach()
    else:
        try:
            array = frame_values(values, name) if is_frame(values) else np.asarray(_dense(values, name))
        except ValueError as error:
            raise DataError(
                f"{name}: rows of different lengths ({error})", "a table is needed", "Give every row as many features."
            ) from error
        if array.dtype.kind not in "fiub":
            raise DataError(
                f"{name}: features of dtype {array.dtype}",
                "real numbers are needed",
                "Convert them to float64 or float32.",
            )
        if array.dtype.itemsize > 8 or (array.dtype.kind == "u" and array.dtype.itemsize > 1):
            array = array.astype(np.float64)
        odd_strides = any(step < 0 or step % array.dtype.itemsize for step in array.strides)
        if odd_strides or not array.flags.writeable or not array.flags.aligned or array.dtype.byteorder == ">":
            array = array.astype(array.dtype.newbyteorder("="), copy=True)
        tensor = torch.from_numpy(array)
    if tensor.is_complex():
        raise DataError(
            f"{name}: features of dtype {tensor.dtype}", "real numbers are needed", "Convert them to float64."
        )
    if tensor.ndim != 2:
        raise DataError(
            f"{name}: features of shape {tuple(tensor.shape)}",
            "a table of rows x features is needed",
            "Reshape to two dimensions, one row per example.",
        )
    if tensor.shape[0] == 0:
        raise DataError(f"{name}: no rows", "at least one row is needed", "Check how the file was written.")
    if tensor.shape[1] == 0:
        raise DataError(f"{name}: no feature columns", "at least one is needed", "Check how the file was written.")
    return tensor.contiguous()  # the same values column by column would be added up in another order


def _dense(values: Any, name: str) -> Any:
    """A sparse matrix written out, if there is room for it; anything else as it is."""
    if not hasattr(values, "tocsr"):
        return values
    require_room(8 * int(np.prod(values.shape)), Path(name), "a sparse matrix, written out,")
    return values.toarray()


def require_finite(tensor: Tensor, name: str, before: int = 0) -> None:
    """Refuse features that are not finite; `before` counts the rows that came before these."""
    for start in range(0, tensor.shape[0], BLOCK):
        rows = tensor[start : start + BLOCK]
        if not bool(torch.isfinite(torch.stack(rows.aminmax())).all()):  # both are nan where one entry is
            row, column = (int(value) for value in (~torch.isfinite(rows)).nonzero()[0])
            raise DataError(
                f"{name}: row {before + start + row}, column {column} is {float(tensor[start + row, column])}",
                "every feature must be finite",
                "Remove or repair such rows, as was done for training.",
            )


def as_labels(values: Any, n_rows: int, name: str) -> NDArray[Any]:
    """One label a row: integers, integral floats, or strings."""
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise DataError(
            f"{name}: labels of shape {array.shape}",
            "one label a row is needed",
            "Turn one-hot labels into class numbers with argmax.",
        )
    if len(array) != n_rows:
        raise DataError(
            f"{name}: {len(array):,} labels for {n_rows:,} rows",
            "one label a row is needed",
            "Check that X and y belong together.",
        )
    if array.dtype.kind == "O" and all(isinstance(value, str) for value in array.tolist()):
        array = array.astype(str)  # text of a data frame
    if array.dtype.kind == "U":
        return array
    if array.dtype.kind == "f":
        if not np.all(np.isfinite(array)):
            odd = array[~np.isfinite(array)][0]
            raise DataError(
                f"{name}: label {odd}", "labels are whole numbers or strings", "Remove rows without a label."
            )
        if not np.all(array == np.rint(array)):
            odd = array[array != np.rint(array)][0]
            raise DataError(
                f"{name}: label {odd}",
                "labels are whole numbers or strings",
                "A classifier needs classes; give class numbers.",
            )
        if np.any(np.abs(array) >= 2.0**63):
            odd = array[np.abs(array) >= 2.0**63][0]
            raise DataError(
                f"{name}: label {odd}", "labels are whole numbers of 64 bits or strings", "Number the classes."
            )
        return array.astype(np.int64)
    if array.dtype.kind == "u" and np.any(array > np.iinfo(np.int64).max):
        raise DataError(
            f"{name}: label {array.max()}", "labels are whole numbers of 64 bits or strings", "Number the classes."
        )
    if array.dtype.kind not in "iub":
        raise DataError(
            f"{name}: labels of dtype {array.dtype}", "labels are whole numbers or strings", "Convert them to int64."
        )
    return array.astype(np.int64)


def encode(labels: NDArray[Any], classes: Sequence[Label], name: str) -> Tensor:
    """Class indices of the labels."""
    table = {value: index for index, value in enumerate(classes)}
    unique, inverse = np.unique(labels, return_inverse=True)
    unknown = [value.item() for value in unique if value.item() not in table]
    if unknown:
        shown = ", ".join(repr(value) for value in unknown[:5])
        known = ", ".join(repr(value) for value in list(classes)[:12]) + (" ..." if len(classes) > 12 else "")
        one = "label {} is not a class" if len(unknown) == 1 else "labels {} are not classes"
        folded = {value.strip().casefold() for value in classes if isinstance(value, str)}
        alike = all(isinstance(value, str) and value.strip().casefold() in folded for value in unknown)
        raise DataError(
            f"{name}: {one.format(shown)} of the model",
            f"the classes are {known}",
            ("They differ in capitals or blanks only, and have to be written alike. " if alike else "")
            + "Map the labels the way they were mapped for training, or leave those rows out.",
        )
    mapping = np.array([table[value.item()] for value in unique], dtype=np.int64)
    return torch.from_numpy(mapping[inverse.reshape(-1)])


def prepare(
    features: Tensor,
    labels: Tensor,
    *,
    max_norm: float,
    bias: bool,
    dtype: torch.dtype,
    device: torch.device,
    width: int | None = None,
    name: str,
) -> Prepared:
    """Rows with `||x|| <= max_norm`, a column of ones appended where there is a bias.

    The caller's array is not touched.
    """
    require_width(features.shape[1], width, name)
    norms = row_norms(features)
    require_range(norms, bias=bias, name=name)
    made = made_ready(features, norms, max_norm=max_norm, bias=bias, dtype=dtype, device=device)
    scaling = scaling_of(norms, max_norm)
    scaled = scaling.n_scaled
    return Prepared(Rows(made, labels.to(device), n_scaled=scaled, scaling=scaling), scaled)


def require_width(features: int, width: int | None, name: str) -> None:
    """Refuse rows of another width than the model takes."""
    if width is not None and features != width:
        raise DataError(
            f"{name}: rows have {features} features",
            f"the model takes {width}",
            "Use the same features, in the same order, as for training.",
        )


def require_range(norms: Tensor, *, bias: bool, name: str, before: int = 0) -> None:
    """Refuse rows so short that products of several of their entries vanish in float64, and what is proven with them.

    A row of zeros is none, and one with a bias has a 1 in it. Long rows are scaled down to a bound that is checked.
    """
    if bias:
        return
    short = ((norms > 0.0) & (norms < SMALLEST)).nonzero().reshape(-1)
    if len(short):
        row = int(short[0])
        raise DataError(
            f"{name}: row {before + row} has length {float(norms[row]):.3g}",
            f"rows are zero or at least {SMALLEST:g} long: of shorter ones float64 loses squares and cubes, so that "
            "bounds on what it loses would be false",
            "Scale the features, for example by standardising them, before training.",
        )


def row_norms(features: Tensor) -> Tensor:
    """Row norms in float64, without overflow: where squares might, entries are scaled by the largest first."""
    count, wide = features.shape
    size = max(1, IN_CACHE // wide)
    norms = torch.empty(count, dtype=torch.float64, device=features.device)
    place = norms.new_empty((0 if features.dtype == norms.dtype else min(size, count), wide))
    for start in range(0, count, size):
        rows = features[start : start + size]
        doubled = place[: len(rows)].copy_(rows) if len(place) else rows
        torch.linalg.vector_norm(doubled, dim=1, out=norms[start : start + size])
    odd = (~((norms > SQUARED[0]) & (norms < SQUARED[1]))).nonzero().reshape(-1)
    for part in _parts(len(odd)):
        norms[odd[part]] = _scaled_norms(features[odd[part]].double())
    return norms


def _scaled_norms(rows: Tensor) -> Tensor:
    largest = rows.abs().amax(dim=1).clamp(min=1e-300)
    scaled: Tensor = (rows / largest[:, None]).norm(dim=1)
    return scaled * largest


def _limit(max_norm: float, dtype: torch.dtype) -> float:
    """Rows longer than this are scaled: a row cast or scaled to dtype must not end up a hair too long."""
    return max_norm if dtype == torch.float64 else max_norm * _margin(dtype)


def _margin(dtype: torch.dtype) -> float:
    return 1.0 - 4 * torch.finfo(dtype).eps


def any_too_long(norms: Tensor, max_norm: float, dtype: torch.dtype) -> bool:
    """Whether `made_ready` has a row to scale."""
    return bool((norms > _limit(max_norm, dtype)).any())


def made_ready(
    features: Tensor,
    norms: Tensor | None,
    *,
    max_norm: float,
    bias: bool,
    dtype: torch.dtype,
    device: torch.device,
    out: Tensor | None = None,
    owned: bool = False,
) -> Tensor:
    """The features in dtype and on device, long rows scaled, bias column appended.

    Themselves where nothing is to be done.

    `norms` are None where no row is too long. `out` is where the result goes, if there is to be another one than
    `features`. Features that are `owned` may be written on.
    """
    no_rows = torch.empty(0, dtype=torch.int64)
    long = no_rows if norms is None else (norms > _limit(max_norm, dtype)).nonzero().reshape(-1)
    wide = features.shape[1]
    fitting = not bias and features.dtype == dtype and features.device == device
    if fitting and not len(long):
        return features
    shape = (features.shape[0], wide + int(bias))
    if fitting and owned:
        made = features
    else:
        made = torch.empty(shape, dtype=dtype, device=device) if out is None else out[: shape[0]]
        made[:, :wide].copy_(features)
    if bias:
        made[:, wide] = 1.0
    if norms is not None and len(long) and dtype == torch.float32:
        # within the margin of float32 one factor a row will do, unless the cast itself overflowed
        quick = long[norms[long] < QUICK]
        factors = (max_norm * _margin(dtype) / norms[quick]).to(dtype).to(device)[:, None]
        places = quick.to(device)
        if len(quick) == shape[0]:
            made[:, :wide].mul_(factors)
        else:
            made[places, :wide] = made[places, :wide] * factors
        long = long[norms[long] >= QUICK]
    for part in _parts(len(long)):
        index = long[part]
        rows = features[index].double()
        rows = rows / rows.abs().amax(dim=1, keepdim=True)  # the norm of a row near float64's limit would overflow
        shrunk = rows / rows.norm(dim=1, keepdim=True) * max_norm
        made[index.to(device), :wide] = (shrunk * _margin(dtype)).to(dtype).to(device)
    return made


def _parts(count: int) -> Iterator[slice]:
    for start in range(0, count, BLOCK):
        yield slice(start, min(start + BLOCK, count))
