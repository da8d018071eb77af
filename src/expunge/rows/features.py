"""What a row is to an objective: finite numbers, no longer than the norm bound, with a bias and a class index.

Readers make numpy arrays; `to_engine` is the one place where these become what is computed with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.errors import DataError
from expunge.heads import Rows, RowSet
from expunge.heads.rows import scaling_of
from expunge.record import Label
from expunge.rows.tables import frame_values, is_frame
from expunge.runtime import arrays
from expunge.runtime.arrays import (
    Array,
    Device,
    Dtype,
    cast,
    contiguous,
    double,
    is_double,
    is_sparse,
    is_tensor,
    load_torch,
    namespace,
    namespace_of,
    put,
    row_of_each,
    slice_rows,
    sparse_rows,
    to_numpy,
)
from expunge.runtime.memory import require_room
from expunge.runtime.values import SMALLEST

BLOCK = 8192
IN_CACHE = 1 << 20  # numbers that are doubled at a time: a processor's cache has them still
SQUARED = (1e-140, 1e140)  # a norm between these had squares float64 can hold
QUICK = 1e30  # rows shorter than this have entries float32 can hold
SPARSE_SHARE = 1 / 16  # of all entries: of sparse rows with more of them products are no faster than of dense ones
LABELS = "labels are whole numbers or strings"


def to_engine(array: Array, dtype: Dtype = None) -> Array:
    """The array in the engine that computes, or the one of `dtype`; shares its memory where it can."""
    tensor = arrays.TENSORS or is_tensor(array) if dtype is None else str(dtype).startswith("torch.")
    if is_tensor(array) == tensor:
        return array
    if is_sparse(array):
        array = _write_out(array, "sparse rows as tensors")
    return load_torch("rows as tensors").from_numpy(array) if tensor else to_numpy(array)


def as_features(values: Any, name: str, *, sparse: bool = False) -> Array:
    """A rows x d array of finite real numbers; shares memory with the caller's array where it can. See `as_table`."""
    table = as_table(values, name, sparse=sparse)
    require_finite(table, name)
    return table


def as_table(values: Any, name: str, *, sparse: bool = False) -> Array:
    """A rows x d array of real numbers, finite or not.

    A sparse matrix is written out, if there is room for it; unless whoever asks can go over `sparse` rows too, and they
    are: then it becomes a csr_array without zeros, each row's columns in order and none twice.
    """
    array = values.detach() if is_tensor(values) else _as_array(values, name, sparse)
    if "bfloat16" in str(array.dtype):
        array = cast(array, "float32")  # which holds the same; numpy has no such type
    if "complex" in str(array.dtype):
        raise DataError(
            f"{name}: features of dtype {array.dtype}", "real numbers are needed", "Convert them to float64."
        )
    if array.ndim != 2:
        raise DataError(
            f"{name}: features of shape {tuple(array.shape)}",
            "a table of rows x features is needed",
            "Reshape to two dimensions, one row per example.",
        )
    if 0 in array.shape:
        what = "rows" if array.shape[0] == 0 else "feature columns"
        raise DataError(f"{name}: no {what}", "at least one is needed", "Check how the file was written.")
    if is_sparse(array):
        return array
    return to_engine(contiguous(array))  # the same values column by column would be added up in another order


def _write_out(values: Any, name: str) -> NDArray[Any]:
    require_room(8 * math.prod(values.shape), Path(name), "a sparse matrix, written out,")
    return np.asarray(values.toarray())


def _as_csr(values: Any) -> Any:
    """A csr_array as sparse rows are kept; the caller's stays as it is."""
    from scipy.sparse import csr_array

    rows = csr_array(values)
    if not rows.has_canonical_format:
        rows = rows.copy()
        rows.sum_duplicates()
    if not rows.data.all():
        rows = rows.copy()
        rows.eliminate_zeros()
    return rows if rows.dtype.kind == "f" and rows.dtype.itemsize in (4, 8) else rows.astype(np.float64)


def _as_array(values: Any, name: str, sparse: bool) -> Any:
    """Numbers that both engines can share."""
    if hasattr(values, "tocsr"):
        few = 0 not in values.shape and values.nnz <= SPARSE_SHARE * math.prod(values.shape)
        if sparse and few and values.dtype.kind in "fiub" and not arrays.TENSORS:
            return _as_csr(values)
        values = _write_out(values, name)
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


def require_finite(table: Array, name: str, before: int = 0) -> None:
    """Refuse features that are not finite; `before` counts the rows that came before these."""
    if is_sparse(table):
        if np.isfinite(table.data).all():
            return
        first = int(row_of_each(table)[~np.isfinite(table.data)][0])
        table, before = to_numpy(slice_rows(table, slice(first, first + 1))), before + first
    for start in range(0, table.shape[0], BLOCK):
        rows = table[start : start + BLOCK]
        ends = rows.aminmax() if is_tensor(rows) else (rows.min(), rows.max())  # both are nan where one entry is
        if not all(math.isfinite(float(end)) for end in ends):
            row, column = np.argwhere(~np.isfinite(to_numpy(double(rows))))[0].tolist()
            raise DataError(
                f"{name}: row {before + start + row}, column {column} is {float(rows[row, column])}",
                "every feature must be finite",
                "Remove or repair such rows, as was done for training.",
            )


def as_labels(values: Any, n_rows: int, name: str) -> NDArray[Any]:
    """One label a row: integers, integral floats, or strings."""
    array = to_numpy(values)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise DataError(
            f"{name}: labels of shape {array.shape}",
            "one label a row is needed",
            "Turn one-hot labels into class numbers with argmax.",
        )
    require_label_each(len(array), n_rows, name)
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


def require_label_each(n_labels: int, n_rows: int, name: str) -> None:
    """Refuse labels that are not as many as the rows."""
    if n_labels != n_rows:
        raise DataError(
            f"{name}: {n_labels:,} labels for {n_rows:,} rows",
            "one label a row is needed",
            "Check that X and y belong together.",
        )


def encode(labels: NDArray[Any], classes: Sequence[Label], name: str) -> Array:
    """Class indices of the labels."""
    table = {value: index for index, value in enumerate(classes)}
    unique, inverse = np.unique(labels, return_inverse=True)
    unknown = [value for value in unique.tolist() if value not in table]
    if unknown:
        shown = ", ".join(map(repr, unknown[:5]))
        known = ", ".join(map(repr, list(classes)[:12])) + (" ..." if len(classes) > 12 else "")
        one = "label {} is not a class" if len(unknown) == 1 else "labels {} are not classes"
        folded = {value.strip().casefold() for value in classes if isinstance(value, str)}
        alike = all(isinstance(value, str) and value.strip().casefold() in folded for value in unknown)
        raise DataError(
            f"{name}: {one.format(shown)} of the model",
            f"the classes are {known}",
            ("They differ in capitals or blanks only, and have to be written alike. " if alike else "")
            + "Map the labels the way they were mapped for training, or leave those rows out.",
        )
    mapping = np.array([table[value] for value in unique.tolist()], dtype=np.int64)
    return to_engine(mapping[inverse.reshape(-1)])


def bound_rows(
    features: Array,
    labels: Array,
    *,
    max_norm: float,
    bias: bool,
    dtype: Dtype,
    device: Device,
    width: int | None = None,
    name: str,
) -> Rows:
    """Rows with `||x|| <= max_norm`, a column of ones appended where there is a bias; `n_scaled` of them were longer.

    They are arrays of the engine that has `dtype`. The caller's array is not touched.
    """
    require_width(features.shape[1], width, name)
    features = to_engine(features, dtype)
    norms = row_norms(features)
    require_range(norms, bias=bias, name=name)
    bounded = bound_features(features, norms, max_norm=max_norm, bias=bias, dtype=dtype, device=device)
    scaling = scaling_of(norms, max_norm)
    return Rows(bounded, put(labels, bounded), n_scaled=scaling.n_scaled, scaling=scaling)


def require_width(features: int, width: int | None, name: str) -> None:
    """Refuse rows of another width than the model takes."""
    if width is not None and features != width:
        raise DataError(
            f"{name}: rows have {features} features",
            f"the model takes {width}",
            "Use the same features, in the same order, as for training.",
        )


def require_range(norms: Array, *, bias: bool, name: str, before: int = 0) -> None:
    """Refuse rows so short that products of several of their entries vanish in float64, and what is proven with them.

    A row of zeros is none, and one with a bias has a 1 in it. Long rows are scaled down to a bound that is checked.
    """
    short = [] if bias else namespace(norms).nonzero((norms > 0.0) & (norms < SMALLEST))[0]
    if len(short):
        row = int(short[0])
        raise DataError(
            f"{name}: row {before + row} has length {float(norms[row]):.3g}",
            f"rows are zero or at least {SMALLEST:g} long: of shorter ones float64 loses squares and cubes, so that "
            "bounds on what it loses would be false",
            "Scale the features, for example by standardising them, before training.",
        )


def row_norms(features: Array) -> Array:
    """Row norms in float64, without overflow: where squares might, entries are scaled by the largest first."""
    if is_sparse(features):
        values, rows, norms = double(features).data, row_of_each(features), np.zeros(features.shape[0])
        np.maximum.at(norms, rows, np.abs(values))
        shares = values / norms[rows]
        with np.errstate(over="ignore"):
            return np.sqrt(np.bincount(rows, shares * shares, minlength=len(norms))) * norms
    xp, (count, wide) = namespace(features), features.shape
    size = max(1, IN_CACHE // wide)
    norms = xp.empty(count, dtype=xp.float64, device=features.device)
    with np.errstate(over="ignore"):
        for start in range(0, count, size):
            norms[start : start + size] = xp.linalg.vector_norm(double(features[start : start + size]), axis=1)
    odd = xp.nonzero(~((norms > SQUARED[0]) & (norms < SQUARED[1])))[0]
    for start in range(0, len(odd), BLOCK):
        places = odd[start : start + BLOCK]
        entries = double(features[places])
        largest = xp.clip(xp.max(xp.abs(entries), axis=1), 1e-300)
        with np.errstate(over="ignore"):  # a row may be longer than any number
            norms[places] = xp.linalg.vector_norm(entries / largest[:, None], axis=1) * largest
    return norms


def norm_limit(max_norm: float, dtype: Dtype) -> float:
    """Rows longer than this are scaled: a row cast or scaled to dtype must not end up a hair too long."""
    return max_norm if is_double(dtype) else max_norm * _margin(dtype)


def _margin(dtype: Dtype) -> float:
    return 1.0 - 4 * float(namespace_of(dtype).finfo(dtype).eps)


def bound_features(
    features: Array,
    norms: Array | None,
    *,
    max_norm: float,
    bias: bool,
    dtype: Dtype,
    device: Device,
    out: Array | None = None,
) -> Array:
    """The features in dtype and on device, long rows scaled, bias column appended; themselves if nothing is to be done.

    `norms` are None where no row is too long. `out` is where the result goes, if there is to be another one than
    `features`.
    """
    if is_sparse(features):
        return _bound_sparse(features, norms, max_norm, bias, dtype)
    xp, margin = namespace_of(dtype), _margin(dtype)
    long = [] if norms is None else xp.nonzero(norms > norm_limit(max_norm, dtype))[0]
    if not bias and not len(long) and features.dtype == dtype and features.device == device:
        return features
    count, wide = features.shape
    bounded = xp.empty((count, wide + int(bias)), dtype=dtype, device=device) if out is None else out[:count]
    with np.errstate(over="ignore"):  # what float32 cannot hold is among the rows that are scaled
        bounded[:, :wide] = features
    if bias:
        bounded[:, wide] = 1.0
    if norms is None or not len(long):
        return bounded
    values = bounded[:, :wide]
    if not is_double(dtype):
        # within the margin of float32 one factor a row will do, unless the cast itself overflowed
        quick = long[norms[long] < QUICK]
        factors = put(max_norm * margin / norms[quick], bounded, dtype)[:, None]
        if len(quick) == count:
            values *= factors
        else:
            values[put(quick, bounded)] *= factors
        long = long[norms[long] >= QUICK]
    for start in range(0, len(long), BLOCK):
        places = long[start : start + BLOCK]
        rows = double(features[places])
        rows = rows / xp.max(xp.abs(rows), axis=1, keepdims=True)  # a norm near float64's limit would overflow
        shrunk = rows / xp.linalg.vector_norm(rows, axis=1, keepdims=True) * max_norm
        values[put(places, bounded)] = put(cast(shrunk * margin, dtype), bounded)
    return bounded


def _bound_sparse(features: Any, norms: Any, max_norm: float, bias: bool, dtype: Dtype) -> Any:
    """Sparse rows as `bound_features` makes dense ones."""
    long = norms > norm_limit(max_norm, dtype)
    if not bias and not long.any() and features.dtype == dtype:
        return features
    values, each = features.data, row_of_each(features)
    if long.any():
        values, scaled = double(features).data.copy(), long[each]
        rows = each[scaled]
        largest = np.zeros(len(norms))
        np.maximum.at(largest, rows, np.abs(values[scaled]))
        shares = values[scaled] / largest[rows]  # a norm near float64's limit would overflow
        lengths = np.sqrt(np.bincount(rows, shares * shares, minlength=len(norms)))
        values[scaled] = shares / lengths[rows] * max_norm * _margin(dtype)
    values, indices, starts, wide = values.astype(dtype), features.indices, features.indptr, features.shape[1]
    if bias:  # the last stored value of each row
        ends = starts[1:]
        values, indices = np.insert(values, ends, 1.0), np.insert(indices, ends, wide)
        starts = starts + np.arange(len(starts), dtype=starts.dtype)
    return sparse_rows(values, indices, starts, wide + int(bias))


def weight_classes(
    rows: RowSet, counts: Sequence[int], classes: Sequence[Label], surrogate_counts: Sequence[int] | None = None
) -> RowSet:
    """The surrogate's rows, weighted (mean 1) so that it has the source's class proportions.

    A row of class k gets `(n_k / n) / (s_k / s)`, with n_k of `counts` and s_k of `surrogate_counts`, which are counted
    where they are not given: weighted means are then means over classes in the source's proportions. Where source and
    surrogate differ in those alone, this removes the difference. Rows of classes the source had none of are left out.
    """
    present = np.zeros(len(counts)) if surrogate_counts is None else np.asarray(surrogate_counts, float)
    if surrogate_counts is None:
        for block in rows.blocks():
            present += np.bincount(to_numpy(block.labels), minlength=len(counts))
        present = to_numpy(rows.total(to_engine(present, rows.dtype)))
    wanted = np.asarray(counts, float)
    absent = [classes[index] for index in np.flatnonzero((wanted > 0) & (present == 0)).tolist()]
    if absent:
        raise DataError(
            "the surrogate has no rows of class " + ", ".join(map(repr, absent)),
            "every class of the source must occur in it for its proportions to be matched",
            "Add rows of these classes; without --match-classes (match_classes) the distance must cover what is "
            "missing.",
        )
    present = np.where(wanted > 0, present, 0.0)
    share = (wanted / wanted.sum()) / np.maximum(present / present.sum(), 1.0 / present.sum())
    return rows.of_classes(to_engine(share, rows.dtype), to_engine(present, rows.dtype))
