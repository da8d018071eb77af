"""A limit on the memory of this process, and what of it is left for keeping things."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from expunge.errors import FileError, OptionError, OutOfMemory
from expunge.runtime.files import readable

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
WORKING = 160 << 20  # read-ahead, the block at hand in two precisions, threads' stacks and matrix products' own buffers
KEPT_SHARE = 0.6  # of what is left: freed memory does not always go back to the system at once

# What libraries say that have no error of their own for it; torch's on a CPU is a plain RuntimeError.
NO_MEMORY = re.compile(
    "can.?t allocate memory|cannot allocate memory|out of memory|not enough memory|failed to allocate|bad.alloc"
    "|can't start new thread|std::length_error|storage size .* overflow",
    re.IGNORECASE,
)


def out_of_memory(error: BaseException) -> OutOfMemory | None:
    """The error to show where this one says that memory ran out: of Python, numpy, Arrow or torch, CPU or GPU."""
    named = any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__)  # torch's on a GPU
    said = isinstance(error, (RuntimeError, OSError)) and NO_MEMORY.search(str(error)) is not None
    if not (isinstance(error, MemoryError) or named or said):
        return None
    return OutOfMemory(
        f"out of memory ({type(error).__name__}: {error})",
        "less at once, or more memory, is needed",
        "Use fewer rows or features, --dtype float32 (dtype='float32'), or --memory (memory=) where the command "
        "has it.",
    )


def memory_limit() -> int:
    """Bytes one array may take: half the machine's memory, or EXPUNGE_MAX_BYTES."""
    override = os.environ.get("EXPUNGE_MAX_BYTES")
    if override is not None:
        if not re.fullmatch("[0-9]{1,18}", override):
            raise FileError(
                f"EXPUNGE_MAX_BYTES={override!r}", "it must be a number of bytes", "Unset it, or give digits only."
            )
        return int(override)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def require_fits(declared: int, path: Path, what: str) -> None:
    """Refuse an array whose declared size is over the limit, before it is allocated."""
    limit = memory_limit()
    if declared > limit:
        raise FileError(
            f"{path}: {what} declares {declared:,} bytes",
            f"the limit is {limit:,}",
            "Use fewer rows or float32, or set EXPUNGE_MAX_BYTES if the machine can hold it.",
        )


def room() -> int:
    """Bytes that may be taken now, so that this process stays near its limit."""
    return max(0, memory_limit() - resident_bytes()) + WORKING


def require_room(needed: int, path: Path, what: str) -> None:
    """Refuse to read what would take this process far over the limit, before anything is allocated.

    `needed` is all that is held at once; a little over the limit, where little of it is left, is allowed.
    """
    if needed > room():
        limit = memory_limit()
        raise FileError(
            f"{path}: {what} takes {needed:,} bytes in memory",
            f"the limit is {limit:,}, and {resident_bytes():,} are in use",
            "Use fewer rows or columns, or set EXPUNGE_MAX_BYTES if the machine can hold it.",
        )


def file_bytes(path: Path, what: str, copies: int = 3) -> bytearray:
    """All of a file, to be written to; refused before it is read where so many copies of it would not fit."""
    size = readable(path).stat().st_size
    require_fits(size, path, what)
    require_room(copies * size, path, what)
    buffer = bytearray(size)
    with path.open("rb") as file:
        if file.readinto(buffer) < size:
            raise FileError(f"{path} became shorter while it was read", f"{what} is needed whole", "Try it again.")
    return buffer


def parse_size(text: str) -> int:
    """A number of bytes, from `1.5GB`, `800M`, `1GiB` or digits.

    >>> parse_size("1.5GB")
    1500000000
    >>> parse_size("2 MiB")
    2097152
    """
    parts = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(I?)(B?)\s*", text.upper())
    if parts is None or (parts[3] and not parts[2]):
        raise OptionError(f"memory {text!r}", "a number of bytes is needed", "Write for example 1.5GB, 800MB or 1GiB.")
    unit = UNITS[parts[2]] if not parts[3] else 1024 ** list(UNITS).index(parts[2])
    return int(float(parts[1]) * unit)


def resident_bytes() -> int:
    """What this process holds of the machine's memory now; 0 where the system does not say."""
    try:
        fields = Path("/proc/self/statm").read_text().split()
    except OSError:
        return 0
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Memory:
    """A limit in bytes; `used` was taken when it was set. `on_device` is a GPU's own, where one was asked for."""

    limit: int
    used: int
    on_device: int | None = None

    @classmethod
    def of(cls, limit_wanted: str | int | None) -> Memory:
        """The limit given, or half the machine's memory; refuses one in which nothing can be done."""
        limit = memory_limit() if limit_wanted is None else parse_size(str(limit_wanted))
        memory = cls(limit, resident_bytes(), None if limit_wanted is None else limit)
        return memory if limit_wanted is None else memory.less(0)

    def less(self, n_bytes: int) -> Memory:
        """This memory with so much more of it in use; refuses if nothing is left."""
        less = replace(self, used=self.used + n_bytes)
        if less.spare <= 0:
            raise OptionError(
                f"memory limit of {self.limit / 1e6:,.0f} MB",
                f"the program takes {self.used / 1e6:,.0f} MB, its vectors {n_bytes / 1e6:,.0f} MB, "
                f"and {WORKING / 1e6:,.0f} MB are needed to work in",
                f"Give at least {(less.used + 2 * WORKING) / 1e6:,.0f}MB.",
            )
        return less

    @property
    def spare(self) -> int:
        """What may be kept beside what is needed to work."""
        return int(KEPT_SHARE * (self.limit - self.used - WORKING))
