"""Files in and out, and rows made ready for an objective; loaded when asked for: writing a file needs no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from expunge.runtime import load_lazily

if TYPE_CHECKING:
    from expunge.rows.columns import names_of, order_columns
    from expunge.rows.features import as_features, as_labels, bound_rows, encode, weight_classes
    from expunge.rows.files import EncodedRows, encoder_of, open_data, read_data
    from expunge.rows.streams import Stream, stream

__all__ = [
    "EncodedRows",
    "Stream",
    "as_features",
    "as_labels",
    "bound_rows",
    "encode",
    "encoder_of",
    "names_of",
    "open_data",
    "order_columns",
    "read_data",
    "stream",
    "weight_classes",
]  # fmt: skip

load_lazily(
    __name__,
    dict.fromkeys(["names_of", "order_columns"], "columns")
    | dict.fromkeys(["as_features", "as_labels", "encode", "bound_rows", "weight_classes"], "features")
    | dict.fromkeys(["EncodedRows", "encoder_of", "open_data", "read_data"], "files")
    | dict.fromkeys(["Stream", "stream"], "streams"),
)
