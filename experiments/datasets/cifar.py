"""CIFAR-10's python batches: pickles of one known layout, read by the layout and never unpickled.

A pickle is a program: it may name any function and have it called. A batch needs very little of that, so what is here
goes over the opcodes itself, keeps plain values, and knows three calls by what they stand for, none of which it makes:

    _codecs.encode(text, "latin1")                            bytes, as Python 3 writes them where it must be read by 2
    numpy...multiarray._reconstruct(numpy.ndarray, (0,), b"b")   an array to come, filled by its state
    numpy.dtype("u1", ...)                                    the type of its entries

Every other opcode, name or argument is refused. What is made is never larger than the file.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.errors import FileError
from expunge.runtime.files import readable
from expunge.runtime.memory import file_bytes

WIDTH = 3072  # 3 colours x 32 x 32
N_CLASSES = 10
MOST_ROWS = 100_000
MOST_BYTES = 2 * WIDTH * MOST_ROWS  # a byte above 127 may take two
STEPS_A_ROW, OTHER_STEPS = 16, 1000  # opcodes: labels and file names take about ten a row
ENCODE, RECONSTRUCT, NDARRAY, DTYPE = "_codecs.encode", "_reconstruct", "numpy.ndarray", "numpy.dtype"
NAMES = {
    ("_codecs", "encode"): ENCODE,
    ("numpy.core.multiarray", "_reconstruct"): RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): RECONSTRUCT,
    ("numpy", "ndarray"): NDARRAY,
    ("numpy", "dtype"): DTYPE,
}
DTYPE_STATE = (3, "|", None, None, None, -1, -1, 0)
Array = NDArray[Any]


class NotABatch(ValueError):  # noqa: N818 - what it is said to be
    """The pickle is of another layout."""


@dataclass(frozen=True)
class _Name:
    known: str


class _Type:
    """The type u1; nothing else is one here."""


@dataclass(eq=False)
class _Pixels:
    """An array: its state comes after it was named."""

    values: Array | None = None


def read_batch(path: Path) -> tuple[Array, Array]:
    """Pixels (rows x 3072, uint8) and labels (0 to 9) of a batch."""
    size = readable(path).stat().st_size
    if size > MOST_BYTES:
        raise FileError(
            f"{path} has {size:,} bytes", f"a batch has at most {MOST_BYTES:,}", "Get it from its publisher again."
        )
    try:
        return _parts(_Opcodes(file_bytes(path, "the batch")).run())
    except (NotABatch, UnicodeError, struct.error) as error:
        raise FileError(
            f"{path} is not a CIFAR-10 batch ({error})",
            "the layout of CIFAR-10's own python batches is needed; a pickle is never run",
            "Get it from its publisher again.",
        ) from error


def _parts(content: Any) -> tuple[Array, Array]:
    if not isinstance(content, dict):
        raise NotABatch("it holds no table")
    named = {key.decode("ascii") if isinstance(key, bytes) else key: value for key, value in content.items()}
    pixels, labels = named.get("data"), named.get("labels")
    if not isinstance(pixels, _Pixels) or pixels.values is None:
        raise NotABatch(f"data is not rows x {WIDTH} bytes")
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < N_CLASSES for label in labels):
        raise NotABatch("labels are not whole numbers from 0 to 9")
    return np.array(pixels.values, order="C"), np.array(labels, dtype=np.int64)


class _Opcodes:
    """A stack of plain values and what each opcode that a batch has does with it."""

    def __init__(self, content: bytes) -> None:
        self.content, self.position, self.left = content, 0, len(content)
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.known: dict[int, Callable[[], None]] = _table(self)

    def run(self) -> Any:
        """What the batch holds; refuses whatever a batch does not have."""
        for _ in range(OTHER_STEPS + STEPS_A_ROW * (len(self.content) // WIDTH)):
            code = self.take(1)[0]
            if code == ord("."):
                if self.marks or len(self.stack) != 1 or self.position != len(self.content):
                    raise NotABatch("it ends before everything is used")
                return self.stack[0]
            step = self.known.get(code)
            if step is None:
                raise NotABatch(f"opcode {bytes([code])!r} at byte {self.position - 1:,}")
            step()
        raise NotABatch("it has more steps than a batch")

    # Bytes and values ---------------------------------------------------------------------------------------------

    def take(self, count: int) -> bytes:
        if count > len(self.content) - self.position:
            raise NotABatch("it ends too early")
        self.position += count
        return self.content[self.position - count : self.position]

    def skip(self, count: int) -> None:
        self.take(count)

    def number(self, form: str) -> int:
        return int(struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))[0])

    def pop(self) -> Any:
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise NotABatch("it takes a value that is not there")
        return self.stack.pop()

    def since_mark(self) -> list[Any]:
        if not self.marks:
            raise NotABatch("it takes values that are not there")
        start = self.marks.pop()
        values = self.stack[start:]
        del self.stack[start:]
        return values

    # Opcodes ------------------------------------------------------------------------------------------------------

    def put(self, value: Any) -> None:
        self.stack.append(value)

    def mark(self) -> None:
        self.marks.append(len(self.stack))

    def tuple_of(self, values: list[Any]) -> None:
        if any(isinstance(value, (list, dict)) for value in values) or len(values) > len(DTYPE_STATE):
            raise NotABatch("a tuple of something else than a batch has")
        self.put(tuple(values))

    def last(self, count: int) -> list[Any]:
        return [self.pop() for _ in range(count)][::-1]

    def remember(self, place: int) -> None:
        value = self.pop()
        self.memo[place] = value
        self.put(value)

    def recall(self, place: int) -> None:
        if place not in self.memo:
            raise NotABatch(f"value {place} is used before it is there")
        self.put(self.memo[place])

    def append(self, values: list[Any]) -> None:
        target = self.pop()
        if type(target) is not list or not all(type(value) in (int, bytes, str) for value in values):
            raise NotABatch("a list of something else than numbers and names")
        target += values
        self.put(target)

    def set_items(self, values: list[Any]) -> None:
        target = self.pop()
        keys, held = values[::2], values[1::2]
        if type(target) is not dict or len(keys) != len(held) or not all(type(key) in (bytes, str) for key in keys):
            raise NotABatch("a table whose keys are not names")
        if not all(type(value) in (list, bytes, str, _Pixels) for value in held):
            raise NotABatch("a table of something else than a batch has")
        target.update(zip(keys, held, strict=True))
        self.put(target)

    def proto(self) -> None:
        if self.position != 1 or self.number("B") not in (2, 3, 4):
            raise NotABatch("a pickle of another protocol than 2 to 4")

    def line(self) -> str:
        end = self.content.find(b"\n", self.position, self.position + 100)
        if end < 0:
            raise NotABatch("a name without an end")
        return self.take(end + 1 - self.position)[:-1].decode("ascii")

    def name(self, module: Any, what: Any) -> None:
        known = NAMES.get((module, what)) if isinstance(module, str) and isinstance(what, str) else None
        if known is None:
            raise NotABatch(f"it asks for {module}.{what}, which no batch does")
        self.put(_Name(known))

    def call(self) -> None:
        """One of the three calls, by what it stands for."""
        called, arguments = self.last(2)
        given = called.known if isinstance(called, _Name) and type(arguments) is tuple else None
        if given == ENCODE and len(arguments) == 2 and type(arguments[0]) is str and arguments[1] == "latin1":
            self.left -= len(arguments[0])
            if self.left < 0:
                raise NotABatch("it holds more than its own length")
            self.put(arguments[0].encode("latin-1"))
        elif given == RECONSTRUCT and arguments == (_Name(NDARRAY), (0,), b"b"):
            self.put(_Pixels())
        elif given == DTYPE and len(arguments) == 3 and _text(arguments[0]) == "u1" and arguments[1:] == (0, 1):
            self.put(_Type())
        else:
            raise NotABatch("a call with other arguments than a batch has")

    def fill(self) -> None:
        """The state of an array or of its type."""
        built, state = self.last(2)
        if isinstance(built, _Type) and type(state) is tuple and tuple(map(_text, state)) == DTYPE_STATE:
            self.put(built)
            return
        if not isinstance(built, _Pixels) or built.values is not None or type(state) is not tuple or len(state) != 5:
            raise NotABatch("the state of something else than an array")
        version, shape, kind, by_column, raw = state
        whole = type(shape) is tuple and len(shape) == 2 and all(type(size) is int for size in shape)
        if version != 1 or not whole or not isinstance(kind, _Type) or type(raw) is not bytes:
            raise NotABatch(f"data is not rows x {WIDTH} bytes")
        if shape[1] != WIDTH or not 0 <= shape[0] <= MOST_ROWS or len(raw) != shape[0] * WIDTH:
            raise NotABatch(f"data of shape {shape} in {len(raw):,} bytes is not rows x {WIDTH} bytes")
        built.values = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if by_column == 1 else "C")
        self.put(built)


def _text(value: Any) -> Any:
    """Text of Python 2 is bytes."""
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _table(at: _Opcodes) -> dict[int, Callable[[], None]]:
    """The opcodes a batch may have, by their byte."""

    def text(form: str) -> Callable[[], None]:
        return lambda: at.put(at.take(at.number(form)).decode())

    def raw(form: str) -> Callable[[], None]:
        return lambda: at.put(at.take(at.number(form)))

    known: dict[bytes, Callable[[], None]] = {
        b"\x80": at.proto,
        b"\x95": lambda: at.skip(8),
        b"}": lambda: at.put({}),
        b"]": lambda: at.put([]),
        b")": lambda: at.put(()),
        b"N": lambda: at.put(None),
        b"\x88": lambda: at.put(True),
        b"\x89": lambda: at.put(False),
        b"K": lambda: at.put(at.number("B")),
        b"M": lambda: at.put(at.number("H")),
        b"J": lambda: at.put(at.number("i")),
        b"U": raw("B"),
        b"T": raw("I"),
        b"C": raw("B"),
        b"B": raw("I"),
        b"X": text("I"),
        b"\x8c": text("B"),
        b"(": at.mark,
        b"t": lambda: at.tuple_of(at.since_mark()),
        b"\x85": lambda: at.tuple_of(at.last(1)),
        b"\x86": lambda: at.tuple_of(at.last(2)),
        b"\x87": lambda: at.tuple_of(at.last(3)),
        b"a": lambda: at.append(at.last(1)),
        b"e": lambda: at.append(at.since_mark()),
        b"s": lambda: at.set_items(at.last(2)),
        b"u": lambda: at.set_items(at.since_mark()),
        b"q": lambda: at.remember(at.number("B")),
        b"r": lambda: at.remember(at.number("I")),
        b"\x94": lambda: at.remember(len(at.memo)),
        b"h": lambda: at.recall(at.number("B")),
        b"j": lambda: at.recall(at.number("I")),
        b"c": lambda: at.name(at.line(), at.line()),
        b"\x93": lambda: at.name(*at.last(2)),
        b"R": at.call,
        b"b": at.fill,
    }
    return {code[0]: step for code, step in known.items()}
