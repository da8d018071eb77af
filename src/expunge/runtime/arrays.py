"""Arrays of two engines: numpy, and torch where torch is at hand. One code serves both, by the array API standard.

A function takes arrays of either engine and gives back arrays of the same one, on the same device:

    xp = namespace(rows.features)                     # the standard's functions, as `array_api_compat` has them
    total = xp.zeros((k, d), dtype=xp.float64, device=rows.device)
    add_product(total, residuals.T, features)         # total += residuals.T @ features, without a copy where torch can
    size = norm(total)                                # a Python float

What both engines spell alike is written plainly: `+ - * / @`, `a += b` (on arrays of one's own), `.T`, `.mT`,
`.shape`, `.ndim`, `.dtype`, `.device`, `len(a)`, `abs(a)`, `a.reshape(..)`, `a.sum(axis=..)`, `a.any()`, `a.all()`,
`a.max()` of all, `a.tolist()`, indexing by slices, integers and masks. `xp.stack`, `xp.concat`, `xp.where`, `xp.exp`,
`xp.square`, `xp.sqrt`, `xp.log`, `xp.maximum`, `xp.clip(a, min, max)`, `xp.max(a, axis=..)`, `xp.argmax(a, axis=..)`,
`xp.nonzero` (a tuple), `xp.bincount(a, minlength=..)`, `xp.einsum`, `xp.kron`, `xp.outer`, `xp.arange`, `xp.eye`,
`xp.isfinite`, `xp.linalg.eigh`, `xp.linalg.matrix_norm(a, ord=2)`, `xp.take_along_axis` are the same in both. What is
not is a function here:

    torch alone                           here
    t.double(), t.to(dtype)               double(t), cast(t, dtype): themselves where nothing is to be done
    t.to(other)                           put(t, other): by other's engine, on its device; numpy arrays and lists too
    t.to(device)                          to_device(t, device)
    t.cpu().numpy()                       to_numpy(t)
    str(dtype), dtype == torch.float64    dtype_name(dtype), is_double(dtype)
    device.type == "cpu"                  on_cpu(device)
    t.clone(), t.contiguous()             copy(t), contiguous(t)
    t.numel()                             size(t)
    float(t.norm())                       norm(t)
    t.diagonal().add_(c)                  add_to_diagonal(t, c)
    total.addmm_(a, b)                    add_product(total, a, b)
    total.add_(b, alpha=c)                add_scaled(total, c, b)
    t.norm(dim=1)                         xp.linalg.vector_norm(t, axis=1), alike in both
    t.diagonal(dim1=-2, dim2=-1)          xp.linalg.diagonal(t), alike in both, to be read
    t.round_()                            xp.round(t, out=t), alike in both
    torch.index_select(t, 0, i, out=o)    take_into(o, t, i)
    torch.randn(.., generator=g)          put(g.standard_normal(shape), like), g a numpy Generator: alike in both
    torch.equal(a, b)                     equal(a, b)
    torch.softmax, sigmoid, logsigmoid    softmax(z), sigmoid(z), log_sigmoid(z), log_sum_exp(z): over the last axis
    torch.linalg.cholesky_ex              cholesky(a), None where not positive definite or not finite; of stacks too
    torch.cholesky_solve, _inverse        cholesky_solve(factor, b), cholesky_inverse(factor)
    torch.linalg.solve_triangular         solve_triangular(factor, b, upper=..); of stacks too

Two differences remain. A number out of a reduction is a numpy float64, which turns an array of float32 that it is
multiplied by into float64, where a tensor of no dimension does not: make it a `float` first. And torch's `max(axis=)`
gives two results: use `xp.max`. Nothing here imports torch but `load_torch(purpose)`, for what numpy cannot do.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import os
import sys
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from expunge.errors import OptionError

Array: TypeAlias = Any  # numpy.ndarray or torch.Tensor: a union of both would forbid what only one of them types;
# features may be a csr_array of scipy, with numpy alone: see `Sparse rows`
Dtype: TypeAlias = Any  # numpy's or torch's
Device: TypeAlias = Any  # "cpu", or a torch.device

TENSORS = False  # on the processor numpy computes; tests set it, and rows and weights are tensors there too

# Which engine, which type, which device -------------------------------------------------------------------------------


def is_tensor(value: object) -> bool:
    """Whether a value is a tensor of torch; imports nothing."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def load_torch(purpose: str) -> Any:
    """The module, for what only torch does: GPUs, groups of processes, networks; or how to get it."""
    try:
        import torch
    except ImportError as error:
        raise OptionError(
            f"{purpose}, and torch is not installed",
            "GPUs, groups of processes and networks are computed by torch",
            'Type: pip install "expunge[torch]". Without a GPU, type before it: pip install torch --index-url '
            "https://download.pytorch.org/whl/cpu, which is much smaller.",
        ) from error
    return torch


class LazyTorch:
    """Stands for the module where a file's functions need torch and its classes do not: loaded when first used."""

    def __init__(self, purpose: str) -> None:
        self.purpose = purpose

    def __getattr__(self, name: str) -> Any:
        return getattr(load_torch(self.purpose), name)


MUCH = 2e8  # multiplications of a pass over the rows, and weights of a dense Hessian, from which threads pay
MANY_WEIGHTS = 2_000


@contextlib.contextmanager
def few_threads(n_rows: int, n_weights: int) -> Iterator[None]:
    """One thread for small work, and for any work where more wants to run than there are cores: threads of numpy's BLAS
    wait for each other, on shared cores far longer than the work takes.

    Measured on two cores at a load of 14, two threads beside one: a pass of 1e7 multiplications took 25 times as long,
    one of 2.6e8 nine times, Cholesky's factorisation of 1,000 rows 27 and of 2,000 nine times; processor time alike. On
    quiet cores two threads can at most halve it, so what is small gives that up for certain.
    """
    if (n_rows * n_weights > MUCH or n_weights > MANY_WEIGHTS) and not _is_busy():
        yield
        return
    with _threads(tuple(name in sys.modules for name in WITH_THREADS)).limit(limits=1, user_api="blas"):
        yield


WITH_THREADS = ("scipy.linalg", "sklearn", "torch")  # each brings libraries of its own


@functools.cache
def _threads(_loaded: tuple[bool, ...]) -> Any:
    """What sets the threads of the libraries that are loaded; looking for them takes milliseconds."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def _is_busy() -> bool:
    """Whether more wanted to run in the last minute than there are cores and a thread or two of one's own."""
    if not hasattr(os, "getloadavg"):
        return False
    return os.getloadavg()[0] > (os.cpu_count() or 1) + 1.0


def namespace(*arrays: Array) -> Any:
    """The functions for these arrays, which are all of one engine.

    >>> namespace(np.zeros(2)).float64
    <class 'numpy.float64'>
    """
    name = f"array_api_compat.{'torch' if is_tensor(arrays[0]) else 'numpy'}"  # asked for often: by no search
    return sys.modules.get(name) or importlib.import_module(name)


@functools.cache
def dtype_name(dtype: Dtype) -> str:
    """The name that both engines have for a type.

    >>> dtype_name(np.float32), dtype_name(np.dtype("int64"))
    ('float32', 'int64')
    """
    if isinstance(dtype, str):
        return dtype
    text = str(dtype)
    return text.removeprefix("torch.") if text.startswith("torch.") else np.dtype(dtype).name


def is_double(dtype: Dtype) -> bool:
    """Whether a type, of either engine, is float64."""
    return dtype_name(dtype) == "float64"


def namespace_of(dtype: Dtype) -> Any:
    """The functions of the engine whose type this is."""
    if str(dtype).startswith("torch."):
        return importlib.import_module("array_api_compat.torch")
    return importlib.import_module("array_api_compat.numpy")


def engine_dtype(name: str, device: Device) -> Dtype:
    """The type of that name, of the engine that computes there."""
    if on_cpu(device) and not TENSORS:
        return np.dtype(name)
    return getattr(load_torch(f"device {device}"), name)


def on_cpu(device: Device) -> bool:
    """Whether a device is the processor, with its own memory."""
    return getattr(device, "type", device) == "cpu"


# From one type, device or engine to another ---------------------------------------------------------------------------


def cast(array: Array, dtype: Dtype) -> Array:
    """The array in this type (of its own engine, or by name); itself where it has it."""
    name = dtype if isinstance(dtype, str) else dtype_name(dtype)
    if dtype_name(array.dtype) == name:
        return array
    return array.to(getattr(sys.modules["torch"], name)) if is_tensor(array) else array.astype(name)


def double(array: Array) -> Array:
    """The array in float64; itself where it is."""
    return cast(array, "float64")


def put(values: Any, like: Array, dtype: Dtype = None) -> Array:
    """Values of either engine, or a list, as an array of `like`'s engine on its device; their own type without one.

    Shares memory where it can.
    """
    if not is_tensor(like):
        array = to_numpy(values)
    elif is_tensor(values):
        array = values.to(like.device)
    else:
        array = sys.modules["torch"].as_tensor(np.asarray(values), device=like.device)
    return array if dtype is None else cast(array, dtype)


def to_device(array: Array, device: Device) -> Array:
    """The array on this device: tensors where it is one of torch's; on `"cpu"` in the engine that computes there."""
    if isinstance(device, str) and on_cpu(device):
        return array if TENSORS else to_numpy(array)
    return load_torch("a GPU").as_tensor(array, device=device)


def to_numpy(values: Any) -> NDArray[Any]:
    """A numpy array of these values, which shares their memory where it can."""
    if is_tensor(values):
        values = values.detach().cpu().numpy()
    return np.asarray(values.toarray() if is_sparse(values) else values)


def copy(array: Array) -> Array:
    """A copy that may be written to, in one piece, row by row."""
    if is_tensor(array):  # one number alone would keep whatever stride it has
        return array.clone(memory_format=sys.modules["torch"].contiguous_format)
    return array.copy()


def zeros(like: Array, shape: tuple[int, ...] | None = None, dtype: Dtype = None) -> Array:
    """Zeros of `like`'s engine and device; of its shape and type where nothing else is said."""
    wanted = like.dtype if dtype is None else dtype
    return namespace(like).zeros(like.shape if shape is None else shape, dtype=wanted, device=like.device)


def contiguous(array: Array) -> Array:
    """The array in one piece, row by row; itself where it is."""
    return array.contiguous() if is_tensor(array) else np.ascontiguousarray(array)


# What the engines spell differently -----------------------------------------------------------------------------------


def size(array: Array) -> int:
    """How many entries an array has."""
    return math.prod(array.shape)


def equal(first: Array, second: Array) -> bool:
    """Whether shapes and all entries are the same."""
    return first.shape == second.shape and bool((first == second).all())


def norm(array: Array) -> float:
    """The root of the sum of squares of all entries."""
    return float(array.norm() if is_tensor(array) else np.linalg.norm(array.reshape(-1)))


def add_product(total: Array, left: Array, right: Array) -> Array:
    """`total += left @ right`, in place, and the total."""
    if is_tensor(total):
        return total.addmm_(left, right)
    total += left @ right
    return total


def add_scaled(total: Array, factor: float, other: Array) -> Array:
    """`total += factor * other`, in place, and the total."""
    if is_tensor(total):
        return total.add_(other, alpha=factor)
    alike = total.shape == other.shape and total.dtype == other.dtype == np.float64
    if alike and total.flags.c_contiguous and other.flags.c_contiguous:
        from scipy.linalg.blas import daxpy

        daxpy(other.reshape(-1), total.reshape(-1), a=factor)  # in one pass
    else:
        total += factor * other
    return total


def take_into(total: Array, values: Array, places: Array) -> Array:
    """The values at these places, of vectors in one piece, written into a third."""
    if is_tensor(total):
        return sys.modules["torch"].index_select(values, 0, places, out=total)
    return values.take(places, out=total, mode="clip")  # which needs no buffer; no place is outside


def add_to_diagonal(matrix: Array, value: Any) -> Array:
    """`value`, a number or one for each place, added to the diagonal of a matrix, or of each in a stack; in place."""
    if is_tensor(matrix):
        matrix.diagonal(dim1=-2, dim2=-1).add_(value)
    else:
        np.einsum("...ii->...i", matrix)[...] += value
    return matrix


def upper_triangle(order: int, like: Array) -> tuple[Array, Array]:
    """Rows and columns of the entries on and above the diagonal, row by row."""
    first, second = np.triu_indices(order)
    return put(first, like), put(second, like)


# Sparse rows: features that are a csr_array of scipy, with numpy. Slices, `@`, `.T`, `double` and `cast` are as ever;
# what is not is here, for dense rows too ------------------------------------------------------------------------------

PIECE = 1 << 20  # numbers of rows that are written out at a time: they stay in cache


def is_sparse(value: object) -> bool:
    """Whether a value is a sparse matrix of scipy; imports nothing."""
    sparse = sys.modules.get("scipy.sparse")
    return sparse is not None and bool(sparse.issparse(value))


def sparse_rows(values: Array, indices: Array, starts: Array, width: int) -> Array:
    """A csr_array of these stored values, which shares their memory; `starts` may begin anywhere."""
    from scipy.sparse import csr_array

    first, last = starts[0], starts[-1]
    return csr_array((values[first:last], indices[first:last], starts - first), shape=(len(starts) - 1, width))


def slice_rows(features: Array, part: slice) -> Array:
    """Some rows, one after another, in the memory of all."""
    if not is_sparse(features):
        return features[part]
    starts = features.indptr[part.start : part.stop + 1]
    return sparse_rows(features.data, features.indices, starts, features.shape[1])


def row_of_each(features: Array) -> Array:
    """The row of each stored value of sparse rows."""
    return np.repeat(np.arange(features.shape[0]), np.diff(features.indptr))


def written_out(features: Array) -> Iterator[tuple[slice, Array]]:
    """Dense rows, as many at a time as a cache holds, and which these are."""
    step = max(1, PIECE // max(1, features.shape[1]))
    for start in range(0, features.shape[0], step):
        part = slice(start, min(start + step, features.shape[0]))
        yield part, to_numpy(slice_rows(features, part)) if is_sparse(features) else features[part]


def row_lengths(features: Array) -> Array:
    """The length of each row."""
    if not is_sparse(features):
        return namespace(features).linalg.vector_norm(features, axis=1)
    squares = np.bincount(row_of_each(features), features.data * features.data, minlength=features.shape[0])
    return np.sqrt(squares)


def add_square(total: Array, features: Array, weights: Array | None = None) -> Array:
    """`total += features' diag(weights) features`, in place, and the total; of sparse rows by products of what is there
    alone."""
    if not is_sparse(features):
        return add_product(total, (features if weights is None else features * weights[:, None]).T, features)
    if weights is None:
        return add_sparse_product(total, features, features)
    return add_sparse_product(total, with_values(features, features.data * weights[row_of_each(features)]), features)


def with_values(features: Array, values: Array) -> Array:
    """Sparse rows with other values in the same places."""
    return sparse_rows(values, features.indices, features.indptr, features.shape[1])


def add_sparse_product(total: Array, left: Array, right: Array) -> Array:
    """`total += left' right` of sparse rows, in place, and the total; part by part, since it may be nearly dense."""
    columns, width = left.T.tocsr(), left.shape[1]
    step = max(1, PIECE // right.shape[1])
    for start in range(0, width, step):
        part = slice(start, min(start + step, width))
        total[part] += (slice_rows(columns, part) @ right).toarray()
    return total


# The links of the losses, over the last axis: fastest where the array is the transpose of one with classes first -----


def softmax(outputs: Array) -> Array:
    """`exp(z) / sum exp(z)` over the last axis."""
    if is_tensor(outputs):
        return outputs.softmax(-1)
    powers = np.exp(outputs - outputs.max(axis=-1, keepdims=True))
    powers /= powers.sum(axis=-1, keepdims=True)
    return powers


def log_sum_exp(outputs: Array) -> Array:
    """`log sum exp(z)` over the last axis."""
    if is_tensor(outputs):
        return outputs.logsumexp(-1)
    largest = outputs.max(axis=-1, keepdims=True)
    return np.log(np.exp(outputs - largest).sum(axis=-1)) + largest[..., 0]


def sigmoid(outputs: Array) -> Array:
    """`1 / (1 + exp(-z))`."""
    if is_tensor(outputs):
        return outputs.sigmoid()
    with np.errstate(over="ignore"):  # to infinity, whose inverse is the 0 that is wanted
        powers = np.exp(-outputs)
    powers += 1.0
    return np.reciprocal(powers, out=powers)


def log_sigmoid(outputs: Array) -> Array:
    """`-log(1 + exp(-z))`, without overflow."""
    if is_tensor(outputs):
        return sys.modules["torch"].nn.functional.logsigmoid(outputs)
    return np.minimum(outputs, 0.0) - np.log1p(np.exp(-np.abs(outputs)))


# Symmetric matrices ---------------------------------------------------------------------------------------------------


def cholesky(matrix: Array, *, in_place: bool = False) -> Array | None:
    """The lower factor L of `L L'`; None where the matrix is not positive definite, or has an entry that is no number.

    Of a stack of matrices a stack of factors, if all have one. `in_place`: the matrix may be used up, and above L
    anything may be left; for those who only ask whether there is one.

    >>> cholesky(np.array([[4.0, 2.0], [2.0, 5.0]])).tolist(), cholesky(np.array([[1.0, 2.0], [2.0, 1.0]]))
    ([[2.0, 0.0], [1.0, 2.0]], None)
    """
    if is_tensor(matrix):
        factor, failed = sys.modules["torch"].linalg.cholesky_ex(matrix)
        # its diagonal is looked at too: some builds of LAPACK go on where an entry is not a number
        finite = not bool(failed.any()) and bool(factor.diagonal(dim1=-2, dim2=-1).isfinite().all())
        return factor if finite else None
    if matrix.ndim > 2:
        factors = []
        for each in matrix:
            factors.append(cholesky(each, in_place=in_place))
            if factors[-1] is None:
                return None
        return _stacked(factors)
    from scipy.linalg import get_lapack_funcs

    # the other triangle of a symmetric matrix, read column by column, is this one: nothing is transposed
    (potrf,) = get_lapack_funcs(("potrf",), (matrix,))
    factor, failed = potrf(matrix.T, lower=True, clean=not in_place, overwrite_a=in_place)
    return None if failed or not np.isfinite(factor.diagonal()).all() else factor


def _stacked(matrices: list[Array]) -> Array:
    """As one array, column by column each, as LAPACK gives and takes them; one alone is not copied."""
    return matrices[0][None] if len(matrices) == 1 else np.stack([each.T for each in matrices]).mT


def cholesky_solve(factor: Array, right: Array) -> Array:
    """`(L L')^-1 right`, a column at a time."""
    if is_tensor(factor):
        return sys.modules["torch"].cholesky_solve(right, factor)
    from scipy.linalg import cho_solve

    return cho_solve((factor, True), right, check_finite=False)


def cholesky_inverse(factor: Array) -> Array:
    """`(L L')^-1`, symmetric to the last bit."""
    if is_tensor(factor):
        return sys.modules["torch"].cholesky_inverse(factor)
    from scipy.linalg import get_lapack_funcs

    (potri,) = get_lapack_funcs(("potri",), (factor,))
    lower, failed = potri(factor, lower=True)
    assert not failed
    return np.tril(lower) + np.tril(lower, -1).T


def solve_triangular(factor: Array, right: Array, *, upper: bool = False) -> Array:
    """`factor^-1 right` for a triangular factor, a column at a time."""
    if is_tensor(factor):
        return sys.modules["torch"].linalg.solve_triangular(factor, right, upper=upper)
    if factor.ndim > 2:
        return _stacked([solve_triangular(*each, upper=upper) for each in zip(factor, right, strict=True)])
    from scipy.linalg import get_blas_funcs

    if right.shape[-1] == 1:  # a routine for one column need not copy the factor
        (trsv,) = get_blas_funcs(("trsv",), (factor, right))
        own = factor if factor.flags.f_contiguous else factor.T
        return trsv(own, right[:, 0], lower=upper != (own is factor), trans=int(own is not factor))[:, None]
    (trsm,) = get_blas_funcs(("trsm",), (factor, right))
    if factor.flags.f_contiguous:  # else its transpose is, and nothing need be copied
        return trsm(1.0, factor, right, lower=not upper)
    return trsm(1.0, factor.T, right, lower=upper, trans_a=1)
