"""Files in and out, and rows made ready for an objective; loaded when asked for: writing a file needs no torch.

The way of a row of a table, from a cell of a CSV file to what is computed with:

    files.py         `read_source` reads what is trained on, `read_data` every later file, by the model's record
    tables.py        `open_table`, and of it the columns that are needed: numbers, or words as codes
    preparation.py   `learn` decides once what becomes of each column, `Preparation.features` does it, by column name
    features.py      `bound_rows`: finite, no longer than the norm bound, a column of ones for a bias

Data frames begin at tables.py (`frame_table`), arrays at features.py; columns.py puts columns into the model's order.
Sets that are read block by block are in streams.py.
"""

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
