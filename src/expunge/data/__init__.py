"""Files in and out, and rows made ready for an objective."""

from __future__ import annotations

from expunge.data.files import EncodedRows, LabelledArrays, encoder_of, read_data
from expunge.data.matching import class_matched
from expunge.data.names import names_of
from expunge.data.opening import open_data
from expunge.data.ordered import in_order
from expunge.data.prepare import Prepared, as_features, as_labels, encode, prepare
from expunge.data.streams import Stream, stream

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
