"""Rows and labels as people have them: frames, sparse matrices, lists, labels of dtype object; made plain arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from expunge.errors import DataError
from expunge.rows.columns import order_of
from expunge.rows.features import as_features, as_labels
from expunge.rows.tables import frame_names, is_frame
from expunge.runtime.memory import room


def dense(values: Any, name: str) -> NDArray[np.float64]:
    """A table of float64; sparse rows are made dense where memory allows."""
    if scipy.sparse.issparse(values):
        count, width = values.shape
        size, free = 8 * count * width, room()
        if 2 * size > free:
            raise DataError(
                f"{name}: sparse rows, {count:,} x {width:,}",
                f"made dense they take {size / 1e6:,.0f} MB, and {free / 2e6:,.0f} MB may be used for them",
                "Use fewer features: TfidfVectorizer(max_features=2000), or TruncatedSVD before the classifier.",
            )
        values = values.toarray()
    if isinstance(values, np.ndarray) and values.dtype.kind == "O":
        try:
            values = values.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise DataError(
                f"{name}: features of dtype object ({error})",
                "numbers are needed where the classifier begins",
                "Put OneHotEncoder, or another step that makes numbers of them, before the classifier.",
            ) from error
    table: NDArray[np.float64] = as_features(values, name).double().cpu().numpy()
    return table


def plain_labels(values: Any, n_rows: int, name: str) -> NDArray[Any]:
    """Labels as whole numbers or text; of dtype object too, where all are of one kind."""
    array = np.asarray(values)
    if array.dtype.kind == "O" and array.ndim == 1:
        kinds = {str if isinstance(value, str) else type(value) for value in array.tolist()}
        if kinds <= {int, bool, np.int64, np.bool_} and kinds:
            array = array.astype(np.int64)
        elif kinds != {str}:
            odd = next(value for value in array.tolist() if not isinstance(value, (str, int)) or kinds > {str})
            raise DataError(
                f"{name}: label {odd!r} among labels of dtype object",
                "all must be whole numbers, or all text",
                "Fill labels that are missing, or leave their rows out, and write all in one way.",
            )
    return as_labels(array, n_rows, name)


def by_name(values: Any, wanted: Any, name: str) -> Any:
    """The columns of a data frame in the order that an estimator was fitted on; anything else as it is."""
    if wanted is None or not is_frame(values):
        return values
    names = tuple(str(each) for each in wanted)
    if order_of(frame_names(values), names, name) is None:
        return values
    return values.select(list(names)) if hasattr(values, "column_names") else values[list(wanted)]
