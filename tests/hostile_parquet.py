"""Parquet files made byte by byte, so that they can say anything: what pyarrow writes tells the truth."""

from __future__ import annotations

import struct as packing
import zlib
from dataclasses import dataclass, field

INT32, DOUBLE, BYTE_ARRAY = 1, 5, 6
PLAIN, RLE, RLE_DICTIONARY = 0, 3, 8
UNCOMPRESSED, GZIP = 0, 2
UTF8, LIST = 0, 3
Field = tuple[int, str, object]


def varint(value: int) -> bytes:
    made = b""
    while value > 127:
        made, value = made + bytes([value & 127 | 128]), value >> 7
    return made + bytes([value])


def zigzag(value: int) -> bytes:
    return varint(value << 1 if value >= 0 else (-value << 1) - 1)


def written(kind: str, value: object) -> bytes:
    if kind in "il":
        return zigzag(int(str(value)))
    if kind == "b":
        assert isinstance(value, bytes)
        return varint(len(value)) + value
    if kind[0] == "L":
        assert isinstance(value, list)
        code = {"i": 5, "b": 8, "s": 12}[kind[1]]
        head = bytes([len(value) << 4 | code]) if len(value) < 15 else bytes([0xF0 | code]) + varint(len(value))
        return head + b"".join(written(kind[1], each) for each in value)
    assert isinstance(value, bytes)
    return value


def thrift(*fields: Field) -> bytes:
    """A struct in Thrift's compact protocol; fields in order."""
    made, last = b"", 0
    for number, kind, value in fields:
        code = {"i": 5, "l": 6, "b": 8, "L": 9, "s": 12}[kind[0]]
        made += bytes([(number - last) << 4 | code]) if number - last < 16 else bytes([code]) + zigzag(number)
        made += written(kind, value)
        last = number
    return made + b"\0"


def run(count: int, value: int = 0) -> bytes:
    """So many equal values of up to eight bits, by run length."""
    return varint(count << 1) + bytes([value])


@dataclass
class Page:
    """A page: what its header says, and what follows it."""

    content: bytes
    count: int
    encoding: int = RLE_DICTIONARY
    dictionary: bool = False
    inflated: int | None = None  # what the header says of it, where that is a lie

    def made(self, codec: int) -> bytes:
        if codec == GZIP:
            squeezer = zlib.compressobj(9, zlib.DEFLATED, 31)
            stored = squeezer.compress(self.content) + squeezer.flush()
        else:
            stored = self.content
        size = len(self.content) if self.inflated is None else self.inflated
        head: list[Field] = [(1, "i", 2 if self.dictionary else 0), (2, "i", size), (3, "i", len(stored))]
        if self.dictionary:
            head.append((7, "s", thrift((1, "i", self.count), (2, "i", PLAIN))))
        else:
            about = thrift((1, "i", self.count), (2, "i", self.encoding), (3, "i", RLE), (4, "i", RLE))
            head.append((5, "s", about))
        return thrift(*head) + stored


@dataclass
class Column:
    """A column of one row group."""

    name: str
    kind: int
    pages: list[Page]
    values: int  # that the footer speaks of
    lists: bool = False
    codec: int = UNCOMPRESSED
    offset: int | None = None  # that the footer speaks of, where that is a lie
    length: int | None = None
    text: bool = field(default=False)

    def schema(self) -> list[bytes]:
        leaf: list[Field] = [(1, "i", self.kind), (3, "i", 0)]
        end: list[Field] = [(6, "i", UTF8)] if self.text else []
        if not self.lists:
            return [thrift(*leaf, (4, "b", self.name.encode()), *end)]
        outer = thrift((3, "i", 0), (4, "b", self.name.encode()), (5, "i", 1), (6, "i", LIST))
        return [outer, thrift((3, "i", 2), (4, "b", b"list"), (5, "i", 1)), thrift(*leaf, (4, "b", b"element"), *end)]


def parquet(columns: list[Column], rows: int, *, schema: list[bytes] | None = None) -> bytes:
    """A file with one row group that says it has so many rows."""
    body, chunks = b"PAR1", []
    for column in columns:
        start = len(body)
        pages = [page.made(column.codec) for page in column.pages]
        body += b"".join(pages)
        has_dictionary = bool(column.pages) and column.pages[0].dictionary
        first = start if column.offset is None else column.offset
        path = [column.name.encode(), *([b"list", b"element"] if column.lists else [])]
        length = len(body) - start if column.length is None else column.length
        facts: list[Field] = [
            (1, "i", column.kind), (2, "Li", sorted({page.encoding for page in column.pages} | {PLAIN, RLE})),
            (3, "Lb", path), (4, "i", column.codec), (5, "l", column.values), (6, "l", length), (7, "l", length),
            (9, "l", first + (len(pages[0]) if has_dictionary else 0)),
        ]  # fmt: skip
        facts += [(11, "l", first)] if has_dictionary else []
        chunks.append(thrift((2, "l", first), (3, "s", thrift(*facts))))
    group = thrift((1, "Ls", chunks), (2, "l", len(body)), (3, "l", rows))
    elements = [part for column in columns for part in column.schema()] if schema is None else schema
    root = thrift((4, "b", b"schema"), (5, "i", len(columns) if schema is None else len(schema)))
    footer = thrift((1, "i", 2), (2, "Ls", [root, *elements]), (3, "l", rows), (4, "Ls", [group]))
    return body + footer + packing.pack("<I", len(footer)) + b"PAR1"


def constant(name: str, rows: int, kind: int = INT32, **said: object) -> Column:
    """One number, so many times, in a few bytes."""
    entry = packing.pack("<i", 1) if kind == INT32 else packing.pack("<d", 0.5)
    pages = [Page(entry, 1, PLAIN, dictionary=True), Page(b"\x01" + run(rows), rows)]
    return Column(name, kind, pages, rows, **said)  # type: ignore[arg-type]


def one_word(name: str, word: bytes, rows: int, codec: int = GZIP) -> Column:
    """One word, so many times."""
    entry = packing.pack("<I", len(word)) + word
    pages = [Page(entry, 1, PLAIN, dictionary=True), Page(b"\x01" + run(rows), rows)]
    return Column(name, BYTE_ARRAY, pages, rows, codec=codec, text=True)


def one_list(name: str, lengths: list[int]) -> Column:
    """Lists of these lengths, all of one number."""
    total = sum(lengths)
    repeated = b"".join(run(1, 0) + (run(length - 1, 1) if length > 1 else b"") for length in lengths)
    defined = run(total, 1)
    levels = b"".join(packing.pack("<I", len(part)) + part for part in (repeated, defined))
    pages = [Page(packing.pack("<i", 1), 1, PLAIN, dictionary=True), Page(levels + b"\x01" + run(total), total)]
    return Column(name, INT32, pages, total, lists=True)


def double(name: str, page: Page, rows: int = 10, codec: int = GZIP) -> Column:
    """Numbers in one page."""
    return Column(name, DOUBLE, [page], rows, codec=codec)
