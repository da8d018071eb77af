"""Files of rows, as bytes of every format."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from expunge.rows.files import EncodedRows, read_data
from expunge.rows.tables import Table, open_table


def as_csv(features: np.ndarray, labels: np.ndarray) -> bytes:
    lines = [",".join([*(f"f{index}" for index in range(features.shape[1])), "y"])]
    lines += [
        ",".join([*(repr(float(value)) for value in row), str(label)])
        for row, label in zip(features, labels, strict=True)
    ]
    return ("\n".join(lines) + "\n").encode()


def as_parquet(features: np.ndarray, labels: np.ndarray, **options: Any) -> bytes:
    stream = io.BytesIO()
    columns = {f"f{index}": features[:, index] for index in range(features.shape[1])}
    pq.write_table(pa.table({**columns, "y": pa.array(labels)}), stream, **options)
    return stream.getvalue()


def read_table(path: Path, **known: Any) -> Table:
    """All of a table; see `open_table`."""
    return open_table(path, **known).read()


def read(folder: Path, content: bytes, kind: str, label: str | None = None) -> EncodedRows:
    path = folder / f"data.{kind}"
    path.write_bytes(content)
    return read_data(path, label)
