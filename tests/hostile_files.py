"""Files made to hurt whoever reads them, each with the command that does; the same ones every time.

Even a file that a change has left whole is no use to its command (another width, another head), so that none succeeds.
"""

from __future__ import annotations

import io
import json
import pickle
import sqlite3
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import hostile_parquet as made
from hostile_making import DESK, MILLION, OF_ROWS, Case, Make, case, changed, fuzzed, plain

# Tables of text -----------------------------------------------------------------------------------------------------


def wide(columns: int, labels: str = "01") -> Make:
    def make(_: Path) -> bytes:
        header = ",".join(["y", *(f"c{place}" for place in range(columns))])
        return "\n".join([header, *(",".join([label, *["0"] * columns]) for label in labels), ""]).encode()

    return make


def csv_cases() -> Iterator[Case]:
    yield case("a million columns", "bad.csv", "forget", wide(MILLION))
    yield case("200,000 columns", "bad.csv", "forget", wide(199_999))
    yield case("200,000 columns to train on", "bad.csv", "train", wide(199_999, "00"), quick=False)
    yield case("10,000 columns", "bad.csv", "member", wide(10_000))
    longest = b"a,y\n0," + b"x" * 500_000 + b"\n" + b"0,k\n" * 2_000
    yield case("a label of 500 kB", "bad.csv", "forget", plain(longest))
    yield case("the same for training", "bad.csv", "train", plain(longest))
    yield case("labels of 999", "bad.csv", "forget", lambda _: b"a,y\n0," + b"x" * 999 + b"\n" + b"0,k\n" * 400_000)
    yield case("separators", "bad.csv", "surrogate", lambda _: b"," * (40 * MILLION))
    yield case("empty lines", "bad.csv", "surrogate", lambda _: b"\n" * (40 * MILLION), quick=False)
    yield case("short values", "bad.csv", "surrogate", lambda _: b"a,b,y\n" + b"0,0,1\n" * (8 * MILLION), quick=False)
    yield case("a row of many", "bad.csv", "forget", lambda _: b"a,y\n" + b"0," * (5 * MILLION) + b"0\n")
    yield case("one open quote", "bad.csv", "forget", lambda _: b'a,b,y\n1,"' + b"x" * (20 * MILLION), quick=False)
    yield case("quotes", "bad.csv", "forget", lambda _: b"a,b,y\n" + b'"' * (10 * MILLION + 1))
    yield case("zeros", "bad.csv", "forget", lambda _: bytes(10 * MILLION))
    yield case("names", "bad.csv", "forget", lambda _: b"x" * (30 * MILLION) + b",y\n1,2\n")
    yield case("digits", "bad.csv", "forget", lambda _: b"a,y\n" + b"9" * (20 * MILLION) + b",1\n")
    for seed in range(12):
        yield case(f"changed {seed}", "bad.csv", OF_ROWS[seed % 4], fuzzed("five.csv", seed))


# Parquet ------------------------------------------------------------------------------------------------------------


def parquet_cases() -> Iterator[Case]:
    def columns(*given: made.Column, count: int) -> Make:
        return plain(made.parquet(list(given), count))

    many = 100 * MILLION
    page = made.Page(bytes(80), 10, 0, inflated=2**31 - 1)
    bombs: dict[str, Make] = {
        "rows": columns(made.constant("a", many), made.constant("y", many), count=many),
        "a list": columns(made.one_list("a", [150 * MILLION]), made.constant("y", 1), count=1),
        "a word": columns(made.constant("a", 2000), made.one_word("y", b"x" * MILLION, 2000), count=2000),
        "a page that says it inflates": columns(made.double("a", page), made.constant("y", 10), count=10),
        "beyond the file": columns(made.constant("a", 9, offset=10**9), made.constant("y", 9), count=9),
    }
    for number, (name, make) in enumerate(bombs.items()):
        yield case(name, "bad.parquet", OF_ROWS[number % 4], make)
    element = made.thrift((1, "i", 1), (3, "i", 0), (4, "b", b"c"))
    schema = [element] * 400_000
    yield case(
        "columns", "bad.parquet", "forget", lambda _: made.parquet([made.constant("y", 9)], 9, schema=schema), False
    )
    for seed in range(10):
        source = ("five.parquet", "words.parquet")[seed % 2]
        where = {"first": -700} if seed % 3 else {"last": 120}  # the footer, or the first pages' headers
        yield case(f"changed {seed}", "bad.parquet", OF_ROWS[seed % 4], fuzzed(source, seed, **where))


# Arrays -------------------------------------------------------------------------------------------------------------


def npy(shape: object, kind: str, data: bytes = b"") -> bytes:
    text = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape!r}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + data


def archive(compression: int = zipfile.ZIP_DEFLATED, **members: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return stream.getvalue()


def zeros(shape: tuple[int, ...], kind: str, squeezed: int = zipfile.ZIP_DEFLATED) -> Make:
    """An array of zeros, squeezed; its labels too."""

    def make(_: Path) -> bytes:
        size = int(np.prod(shape)) * np.dtype(kind).itemsize
        return archive(squeezed, X=npy(shape, kind, bytes(size)), y=npy((shape[0],), "<i8", bytes(8 * shape[0])))

    return make


def npz_cases() -> Iterator[Case]:
    good_y = npy((2,), "<i8", bytes(16))
    yield case("zeros beyond the limit", "bad.npz", "forget", zeros((20 * MILLION, 4), "<f8"), quick=False)
    yield case("bytes that widen", "bad.npz", "forget", zeros((25 * MILLION, 8), "|u1"), quick=False)
    yield case("bytes that widen, to train on", "bad.npz", "train", zeros((25 * MILLION, 8), "|u1"), quick=False)
    yield case("bits that widen", "bad.npz", "surrogate", zeros((25 * MILLION, 8), "|b1"), quick=False)
    yield case("halves that widen", "bad.npz", "member", zeros((20 * MILLION, 4), "<f2"), quick=False)
    yield case("one feature", "bad.npz", "surrogate", zeros((20 * MILLION, 1), "|u1"), quick=False)
    yield case("one row", "bad.npz", "forget", zeros((1, 200 * MILLION), "|u1"), quick=False)
    yield case("by bzip2", "bad.npz", "forget", zeros((60 * MILLION, 4), "|u1", zipfile.ZIP_BZIP2), quick=False)
    yield case("by lzma", "bad.npz", "forget", zeros((60 * MILLION, 4), "|u1", zipfile.ZIP_LZMA), quick=False)
    for name, header in {
        "a header of gigabytes": npy((10**9, 4), "<f8"),
        "a header beyond numbers": npy((2**62, 2**62), "<f8"),
        "a negative shape": npy((-2, -4), "<f8", bytes(64)),
        "objects": npy((2, 4), "|O", pickle.dumps([None] * 8)),
        "no width": npy((10**9,), "<U0"),
        "deep": b"\x93NUMPY\x01\x00" + struct.pack("<H", 60_000) + b"(" * 60_000,
        "long": b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31) + b"{",
        "dates": npy((2, 4), "<M8[s]", bytes(64)),
    }.items():
        yield case(name, "bad.npz", "forget", plain(archive(X=header, y=good_y)))
    yield case(
        "long labels",
        "bad.npz",
        "forget",
        lambda _: archive(
            X=npy((1000, 4), "<f8", bytes(32_000)), y=npy((1000,), "<U500000", bytes(2000 * MILLION // 4))
        ),
        quick=False,
    )
    yield case("many members", "bad.npz", "forget", lambda _: archive(**{f"a{n}": b"" for n in range(30_000)}), False)
    yield case("one row", "bad-X.npy", "surrogate", plain(npy((1, 40 * MILLION), "<f8")), size=128 + 320 * MILLION)
    yield case("more than there is", "bad-X.npy", "surrogate", plain(npy((1, 10**9), "<f8")))
    for seed in range(10):
        yield case(f"changed {seed}", "bad.npz", OF_ROWS[seed % 4], fuzzed("five.npz", seed))


def tensors(**entries: object) -> bytes:
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text


def _tables(_: Path) -> bytes:
    text = b'{"a":{},' + b",".join(b'"%d":{}' % number for number in range(2 * MILLION)) + b"}"
    return struct.pack("<Q", len(text)) + text


def safetensors_cases() -> Iterator[Case]:
    yield case("a header of tables", "bad.safetensors", "forget", _tables, quick=False)
    yield case("the same for a model", "bad.safetensors", "model", _tables, quick=False)
    lists = b'{"a":' + b"[" * MILLION
    yield case("a deep header", "bad.safetensors", "forget", plain(struct.pack("<Q", len(lists)) + lists))
    yield case("a header beyond the file", "bad.safetensors", "forget", plain(struct.pack("<Q", 2**62) + b"{}"))
    huge = {"dtype": "F64", "shape": [2**47, 2**47], "data_offsets": [0, 64]}
    yield case("a shape beyond numbers", "bad.safetensors", "model", plain(tensors(weight=huge) + bytes(64)))
    bytes_ = {"dtype": "U8", "shape": [25 * MILLION, 4], "data_offsets": [0, 100 * MILLION]}
    labels = {"dtype": "U8", "shape": [25 * MILLION], "data_offsets": [100 * MILLION, 125 * MILLION]}
    yield case("bytes that widen", "bad.safetensors", "forget",
               lambda _: tensors(X=bytes_, y=labels) + bytes(125 * MILLION), False)  # fmt: skip
    for seed in range(8):
        yield case(f"changed {seed}", "bad.safetensors", OF_ROWS[seed % 4], fuzzed("five.safetensors", seed, last=150))
    for seed in range(6):
        yield case(f"changed {seed}", "bad.safetensors", "model", fuzzed("model.safetensors", seed, last=900))
    for seed in range(10):
        yield case(f"changed {seed}", "bad.deposit", "kept", fuzzed("model.deposit", seed, last=2500))
    for seed in range(8):
        yield case(f"changed {seed}", "bad.safetensors", "weights", fuzzed("state.safetensors", seed, last=300))


# Images -------------------------------------------------------------------------------------------------------------


class Runs:
    """A pickle that would write a file."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("new"),)


def image_cases() -> Iterator[Case]:
    for seed in range(4):
        yield case(f"changed {seed}", "pictures/a/x.png", "images", plain(changed(_picture(Path()), seed, 0, 400)))
    yield case("no picture", "pictures/a/x.png", "images", plain(pickle.dumps(Runs(), 2)))
    yield case("pixels", "pictures/a/x.png", "images", _picture, quick=False)
    yield case("zeros", "bad.npz", "images", zeros((10**5, 80, 80), "|u1"), quick=False)


def _picture(_: Path) -> bytes:
    stream = io.BytesIO()
    Image.new("1", (9_000, 9_000)).save(stream, "png")
    return stream.getvalue()


# Certificates, ledgers, encoders ------------------------------------------------------------------------------------


def certificate_cases() -> Iterator[Case]:
    deep = b'{"a":' * 200_000
    wide_ = b'{"a":[' + b"{}," * 3 * MILLION + b"{}]}"
    for name, content in {
        "deep": deep,
        "wide": wide_,
        "long": b"[" + b"1" * 9 * MILLION + b"]",
        "null": b"null",
    }.items():
        yield case(name, "bad.json", "verify", plain(content))
    yield case("too long", "bad.json", "verify", lambda _: b" " * (300 * MILLION), quick=False)
    for seed in range(9):
        yield case(f"changed {seed}", "bad.json", "verify", fuzzed("result/statement.json", seed))
    for seed in range(9):
        yield case(f"changed {seed}", "bad.json", "dossier", fuzzed("result/private/dossier.json", seed))


def ledger_cases() -> Iterator[Case]:
    for seed in range(10):
        yield case(f"ledger changed {seed}", DESK, "desk", fuzzed("desk/ledger.sqlite", seed))
    yield case("ledger of a long entry", DESK, "desk", _long_entry, quick=False)
    yield case("ledger that is text", DESK, "desk", plain(b"not a database, " * 1000))


def _long_entry(folder: Path) -> bytes:
    copy = folder / "copy.sqlite"
    copy.write_bytes((folder / "desk/ledger.sqlite").read_bytes())
    with sqlite3.connect(copy) as connection:
        connection.execute("UPDATE entries SET body = ?", ('{"a":[' + "{}," * 20 * MILLION + "{}]}",))
    connection.close()
    content = copy.read_bytes()
    copy.unlink()
    return content


def encoder_cases() -> Iterator[Case]:
    for end in (".pt", ".pth", ".pt2"):
        yield case("not trusted", f"bad{end}", "encoder", plain(b"anything"))
    yield case("not a model", "bad.onnx", "encoder", plain(b"\x08\x08" * 1000))


CASES = [
    *csv_cases(), *parquet_cases(), *npz_cases(), *safetensors_cases(), *image_cases(), *certificate_cases(),
    *ledger_cases(), *encoder_cases(),
]  # fmt: skip
