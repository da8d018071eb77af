"""What a row is to an objective: finite numbers, no longer than the norm bound, with a bias and a class index."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from expunge.errors import DataError
from expunge.heads import Rows, RowSet
from expunge.heads.rows import scaling_of
from expunge.record import Label
from expunge.rows.tables import frame_values, is_frame
from expunge.runtime.memory import require_room
from expunge.runtime.values import SMALLEST

BLOCK = 8192
IN_CACHE = 1 << 20  # numbers that are doubled at a time, into the same place: a processor's cache has them still
SQUARED = (1e-140, 1e140)  # a norm between these had squares float64 can hold
QUICK = 1e30  # rows shorter than this have entries float32 can hold
LABELS = "labels are whole numbers or strings"


def as_features(values: Any, name: str) -> Tensor:
    """A rows x d tensor of finite real numbers; shares memory with the caller's array where it can."""
    tensor = as_table(values, name)
    require_finite(tensor, name)
    return tensor


def as_table(values: Any, name: str) -> Tensor:
    """A rows x d tensor of real numbers, finite or not."""
    tensor = values.detach() if isinstance(values, Tensor) else torch.from_numpy(_as_array(values, name))
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
    if 0 in tensor.shape:
        what = "rows" if tensor.shape[0] == 0 else "feature columns"
        raise DataError(f"{name}: no {what}", "at least one is needed", "Check how the file was written.")
    return tensor.contiguous()  # the same values column by column would be added up in another order


def _as_array(values: Any, name: str) -> NDArray[Any]:
    """Numbers as torch can share them; a sparse matrix is written out, if there is room for it."""
    if hasattr(values, "tocsr"):
        require_room(8 * int(np.prod(values.shape)), Path(name), "a sparse matrix, written out,")
        values = values.toarray()
    try:
        array = frame_values(values, name) if is_frame(values) else np.asarray(values)
    except ValueError as error:
        raise DataError(
            f"{name}: rows of different lengths ({error})", "a table is needed", "Give every row as many features."
        ) from error
    if array.dtype.kind not in "fiub":
        raise DataError(
            f"{name}: features of dtype {array.dtype}", "real numbers are needed", "Convert them to float64 or float32."
        )
    if array.dtype.itemsize > 8 or (array.dtype.kind == "u" and array.dtype.itemsize > 1):
        array = array.astype(np.float64)
    odd_strides = any(step < 0 or step % array.dtype.itemsize for step in array.strides)
    if odd_strides or not array.flags.writeable or not array.flags.aligned or array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("="), copy=True)
    return array


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
    if array.dtype.kind not in "fiub":
        raise DataError(f"{name}: labels of dtype {array.dtype}", LABELS, "Convert them to int64.")
    if array.dtype.kind in "fu":
        beyond = np.abs(array) >= 2.0**63 if array.dtype.kind == "f" else array > np.iinfo(np.int64).max
        refusals = (
            (~np.isfinite(array), LABELS, "Remove rows without a label."),
            (array != np.rint(array), LABELS, "A classifier needs classes; give class numbers."),
            (beyond, "labels are whole numbers of 64 bits or strings", "Number the classes."),
        )
        for odd, required, remedy in refusals:
            if odd.any():
                raise DataError(f"{name}: label {array[odd][0]}", required, remedy)
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


def bound_rows(
    features: Tensor,
    labels: Tensor,
    *,
    max_norm: float,
    bias: bool,
    dtype: torch.dtype,
    device: torch.device,
    width: int | None = None,
    name: str,
) -> Rows:
    """Rows with `||x|| <= max_norm`, a column of ones appended where there is a bias; `n_scaled` of them were longer.

    The caller's array is not touched.
    """
    require_width(features.shape[1], width, name)
    norms = row_norms(features)
    require_range(norms, bias=bias, name=name)
    bounded = bound_features(features, norms, max_norm=max_norm, bias=bias, dtype=dtype, device=device)
    scaling = scaling_of(norms, max_norm)
    return Rows(bounded, labels.to(device), n_scaled=scaling.n_scaled, scaling=scaling)


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
    short = ((norms > 0.0) & (norms < SMALLEST)).nonzero().reshape(-1)
    if len(short) and not bias:
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
    for odd in (~((norms > SQUARED[0]) & (norms < SQUARED[1]))).nonzero().reshape(-1).split(BLOCK):  # type: ignore[no-untyped-call]
        entries = features[odd].double()
        largest = entries.abs().amax(dim=1).clamp(min=1e-300)
        norms[odd] = (entries / largest[:, None]).norm(dim=1) * largest
    return norms


def norm_limit(max_norm: float, dtype: torch.dtype) -> float:
    """Rows longer than this are scaled: a row cast or scaled to dtype must not end up a hair too long."""
    return max_norm if dtype == torch.float64 else max_norm * (1.0 - 4 * torch.finfo(dtype).eps)


def bound_features(
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
    """The features in dtype and on device, long rows scaled, bias column appended; themselves if nothing is to be done.

    `norms` are None where no row is too long. `out` is where the result goes, if there is to be another one than
    `features`. Features that are `owned` may be written on.
    """
    margin = 1.0 - 4 * torch.finfo(dtype).eps
    no_rows = torch.empty(0, dtype=torch.int64)
    long = no_rows if norms is None else (norms > norm_limit(max_norm, dtype)).nonzero().reshape(-1)
    wide = features.shape[1]
    fitting = not bias and features.dtype == dtype and features.device == device
    if fitting and not len(long):
        return features
    shape = (features.shape[0], wide + int(bias))
    if fitting and owned:
        bounded = features
    else:
        bounded = torch.empty(shape, dtype=dtype, device=device) if out is None else out[: shape[0]]
        bounded[:, :wide].copy_(features)
    if bias:
        bounded[:, wide] = 1.0
    if norms is not None and len(long) and dtype == torch.float32:
        # within the margin of float32 one factor a row will do, unless the cast itself overflowed
        quick = long[norms[long] < QUICK]
        factors = (max_norm * margin / norms[quick]).to(dtype).to(device)[:, None]
        places = quick.to(device)
        if len(quick) == shape[0]:
            bounded[:, :wide].mul_(factors)
        else:
            bounded[places, :wide] = bounded[places, :wide] * factors
        long = long[norms[long] >= QUICK]
    for places in long.split(BLOCK):  # type: ignore[no-untyped-call]
        rows = features[places].double()
        rows = rows / rows.abs().amax(dim=1, keepdim=True)  # the norm of a row near float64's limit would overflow
        shrunk = rows / rows.norm(dim=1, keepdim=True) * max_norm
        bounded[places.to(device), :wide] = (shrunk * margin).to(dtype).to(device)
    return bounded


def weight_classes(
    rows: RowSet, counts: Sequence[int], classes: Sequence[Label], surrogate_counts: Sequence[int] | None = None
) -> RowSet:
    """The surrogate's rows, weighted (mean 1) so that it has the source's class proportions.

    A row of class k gets `(n_k / n) / (s_k / s)`, with n_k of `counts` and s_k of `surrogate_counts`, which are counted
    where they are not given: weighted means are then means over classes in the source's proportions. Where source and
    surrogate differ in those alone, this removes the difference. Rows of classes the source had none of are left out.
    """
    if surrogate_counts is None:
        counted = torch.zeros(len(counts), dtype=torch.float64)
        for block in rows.blocks():
            counted += torch.bincount(block.labels, minlength=len(counts)).cpu()
        present = rows.total(counted)
    else:
        present = torch.tensor(surrogate_counts, dtype=torch.float64)
    wanted = torch.tensor(counts, dtype=torch.float64)
    absent = [classes[index] for index in torch.nonzero((wanted > 0) & (present == 0)).reshape(-1).tolist()]
    if absent:
        raise DataError(
            "the surrogate has no rows of class " + ", ".join(repr(value) for value in absent),
            "every class of the source must occur in it for its proportions to be matched",
            "Add rows of these classes; without --match-classes (match_classes) the distance must cover what is "
            "missing.",
        )
    present = torch.where(wanted > 0, present, torch.zeros_like(present))
    share = (wanted / wanted.sum()) / (present / present.sum()).clamp(min=1.0 / float(present.sum()))
    return rows.of_classes(share, present)
