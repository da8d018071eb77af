"""The same rows as a stream of every kind."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import torch
from safetensors.numpy import save_file

from expunge.heads import Rows
from expunge.rows import open_data, stream
from expunge.rows.streams import Form, Stream, StreamedRows
from expunge.runtime.arrays import copy
from expunge.runtime.memory import Memory

ROWS, WIDTH = 1000, 7
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, WIDTH)).astype(np.float32)
Y = RNG.integers(0, 3, ROWS)
PLENTY = Memory(1 << 40, 0)
NOTHING = Memory(0, 0)


def npy(folder: Path) -> Stream:
    np.save(folder / "trainX.npy", X)
    np.save(folder / "trainy.npy", Y)
    return opened(folder / "trainX.npy")


def npy_folder(folder: Path) -> Stream:
    np.save(folder / "X.npy", X)
    np.save(folder / "y.npy", Y[:, None])
    return opened(folder)


def one_safetensors(folder: Path) -> Stream:
    save_file({"X": X, "y": Y}, folder / "rows.safetensors")
    return opened(folder / "rows.safetensors", memory=NOTHING)


def safetensors(folder: Path) -> Stream:
    for index, part in enumerate((slice(0, 300), slice(300, 301), slice(301, None))):
        save_file({"X": X[part], "y": Y[part]}, folder / f"{index}.safetensors")
    return opened(folder)


def columns() -> dict[str, Any]:
    return {"text": ["a"] * ROWS, **{f"x{i}": X[:, i] for i in range(WIDTH)}, "y": Y}


def parquet(folder: Path) -> Stream:
    table = pa.table(columns())
    pa.parquet.write_table(table.slice(0, 400), folder / "a.parquet", row_group_size=90)
    pa.parquet.write_table(table.slice(400), folder / "b.parquet", row_group_size=333)
    (folder / "_SUCCESS").touch()
    return opened(folder, columns=[f"x{i}" for i in range(WIDTH)])


def iterator(folder: Path) -> Stream:
    return stream(lambda: ((X[start : start + 130], Y[start : start + 130]) for start in range(0, ROWS, 130)))


def opened(path: Path, **options: Any) -> Stream:
    found = open_data(path, **options)
    assert isinstance(found, Stream)
    return found


FILES: tuple[Callable[[Path], Stream], ...] = (npy, npy_folder, one_safetensors, safetensors, parquet)
SOURCES = (*FILES, iterator)


def form(dtype: torch.dtype = torch.float64, *, bias: bool = False, max_norm: float = 2.5) -> Form:
    return Form((0, 1, 2), max_norm, bias, dtype, torch.device("cpu"), WIDTH, "the set")


def gathered(rows: StreamedRows) -> Rows:
    blocks = [(copy(block.features), copy(block.labels), block.start) for block in rows.blocks()]
    assert [start for _, _, start in blocks] == [0, *np.cumsum([len(part) for part, _, _ in blocks])[:-1].tolist()]
    return Rows(torch.cat([part for part, _, _ in blocks]), torch.cat([part for _, part, _ in blocks]))
