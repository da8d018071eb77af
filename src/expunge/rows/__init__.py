"""Files in and out, and rows made ready for an objective; loaded when asked for: writing a file needs no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from expunge.runtime.lazy import load_lazily

if TYPE_CHECKING:
    from expunge.rows.files import EncodedRows, LabelledArrays, encoder_of, read_data
    from expunge.rows.matching import class_matched
    from expunge.rows.names import names_of
    from expunge.rows.opening import open_data
    from expunge.rows.ordered import in_order
    from expunge.rows.prepare import Prepared, as_features, as_labels, encode, prepare
    from expunge.rows.streams import Stream, stream

__all__ = [
    "EncodedRows",
    "LabelledArrays",
    "Prepared",
    "Stream",
    "as_features",
    "as_labels",
    "class_matched",
    "encode",
    "encoder_of",
    "in_order",
    "names_of",
    "open_data",
    "prepare",
    "read_data",
    "stream",
]

load_lazily(
    __name__,
    {
        "EncodedRows": "files",
        "LabelledArrays": "files",
        "Prepared": "prepare",
        "Stream": "streams",
        "as_features": "prepare",
        "as_labels": "prepare",
        "class_matched": "matching",
        "encode": "prepare",
        "encoder_of": "files",
        "in_order": "ordered",
        "names_of": "names",
        "open_data": "opening",
        "prepare": "prepare",
        "read_data": "files",
        "stream": "streams",
    },
)
