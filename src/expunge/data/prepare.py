"""Rows made ready for an objective: checked, scaled to the norm bound, bias column appended, labels encoded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from expunge.errors import DataError
from expunge.objectives import Rows

Label = int | str
BLOCK = 8192


@dataclass(frozen=True)
class Prepared:
    """Rows ready for use, and what had to be done to them."""

    rows: Rows
    scaled: int


def as_features(values: Any, name: str) -> Tensor:
    """A rows x d tensor of finite real numbers; shares memory with the caller's array where it can."""
    if isinstance(values, Tensor):
        tensor = values.detach()
    else:
        try:
            array = np.asarray(values)
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
    for start in range(0, tensor.shape[0], BLOCK):
        bad = ~torch.isfinite(tensor[start : start + BLOCK])
        if bool(bad.any()):
            row, column = (int(value) for value in bad.nonzero()[0])
            raise DataError(
                f"{name}: row {start + row}, column {column} is {float(tensor[start + row, column])}",
                "every feature must be finite",
                "Remove or repair such rows, as was done for training.",
            )
    return tensor


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
        raise DataError(
            f"{name}: label {shown} is not a class of the model",
            f"the classes are {known}",
            "Map the labels the way they were mapped for training, or leave those rows out.",
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
    """Rows with `||x|| <= max_norm`, a column of ones appended where there is a bias. The caller's array is not touched."""
    if width is not None and features.shape[1] != width:
        raise DataError(
            f"{name}: rows have {features.shape[1]} features",
            f"the model takes {width}",
            "Use the same features, in the same order, as for training.",
        )
    norms = torch.cat([_norms(features[part].double()) for part in _parts(features.shape[0])])
    margin = 1.0 - 4 * torch.finfo(dtype).eps  # a row cast or scaled to dtype must not end up a hair too long
    long = (norms > (max_norm if dtype == torch.float64 else max_norm * margin)).nonzero().reshape(-1)
    wide = features.shape[1]
    if bias or len(long) or features.dtype != dtype or features.device != device:
        made = torch.empty((features.shape[0], wide + int(bias)), dtype=dtype, device=device)
        made[:, :wide] = features
        if bias:
            made[:, wide] = 1.0
        for part in _parts(len(long)):
            index = long[part]
            rows = features[index].double()
            rows = rows / rows.abs().amax(dim=1, keepdim=True)  # the norm of a row near float64's limit would overflow
            shrunk = rows / rows.norm(dim=1, keepdim=True) * max_norm
            made[index.to(device), :wide] = (shrunk * margin).to(dtype).to(device)
        features = made
    return Prepared(Rows(features, labels.to(device)), int((norms > max_norm * (1.0 + 1e-6)).sum()))


def _norms(rows: Tensor) -> Tensor:
    """Row norms without overflow: entries are scaled by the largest first."""
    largest = rows.abs().amax(dim=1).clamp(min=1e-300)
    scaled: Tensor = (rows / largest[:, None]).norm(dim=1)
    return scaled * largest


def _parts(count: int) -> Iterator[slice]:
    for start in range(0, count, BLOCK):
        yield slice(start, min(start + BLOCK, count))
