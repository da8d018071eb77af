"""Files in and out, and rows made ready for an objective."""

from __future__ import annotations

from expunge.data.files import EncodedRows, LabelledArrays, encoder_of, read_data
from expunge.data.matching import class_matched
from expunge.data.prepare import Prepared, as_features, as_labels, encode, prepare

__all__ = [
    "EncodedRows",
    "LabelledArrays",
    "Prepared",
    "as_features",
    "as_labels",
    "class_matched",
    "encode",
    "encoder_of",
    "prepare",
    "read_data",
]
