"""A limit on the memory of this process, and what of it is left for keeping things."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from expunge.errors import FileError, OptionError

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
WORKING = 160 << 20  # read-ahead, the block at hand in two precisions, threads' stacks and matrix products' own buffers
KEPT_SHARE = 0.6  # of what is left: freed memory does not always go back to the system at once


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
    """A limit in bytes; `used` was taken when it was set."""

    limit: int
    used: int

    @classmethod
    def of(cls, limit_wanted: str | int | None) -> Memory:
        """The limit given, or half the machine's memory; refuses one in which nothing can be done."""
        limit = memory_limit() if limit_wanted is None else parse_size(str(limit_wanted))
        memory = cls(limit, resident_bytes())
        return memory if limit_wanted is None else memory.less(0)

    def less(self, n_bytes: int) -> Memory:
        """The same, with that much more in use; refuses if nothing is left."""
        less = Memory(self.limit, self.used + n_bytes)
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
