"""The processes that share the rows of one set out among them; mostly there is one.

Each process goes over its own rows, sums are added up over all, and the small algebra is done alike by each. What is
drawn at random, and what is written, is the first process's alone.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from expunge.errors import GroupError
from expunge.runtime.arrays import Array, load_torch, put

VARIABLE = "WORLD_SIZE"
TIMEOUT = 600.0  # seconds that one process waits for the others


def launched_as_group() -> bool:
    """Whether torchrun, or something like it, started several of this process; an empty variable says nothing."""
    said = os.environ.get(VARIABLE, "").strip()
    if said and not (said.isascii() and said.isdigit()):
        raise GroupError(
            f"{VARIABLE} is {said[:40]!r}",
            "it is the number of processes that torchrun started",
            f"Unset {VARIABLE}, or start all processes with torchrun.",
        )
    return int(said or 1) > 1


@dataclass(frozen=True)
class Group:
    """This process's place among `size` processes; they talk from `sent_from`, cpu by gloo or cuda by NCCL."""

    rank: int = 0
    size: int = 1
    sent_from: str = "cpu"

    @property
    def first(self) -> bool:
        return self.rank == 0

    def total(self, part: Array) -> Array:
        """The sum of all processes' parts, the same bits in each."""
        return self._exchange(part, lambda sent, work: work.all_reduce(sent))

    def each(self, part: float) -> list[float]:
        """The parts of all processes, in order."""
        parts = np.zeros(self.size)
        parts[self.rank] = part
        sums: list[float] = self.total(parts).tolist()
        return sums

    def before(self, part: int) -> int:
        """The sum of the parts of the processes before this one."""
        return int(sum(self.each(part)[: self.rank]))

    def largest(self, part: float) -> float:
        """The largest of all processes' parts."""
        return float(np.max(self.each(part)))

    def agreed(self, value: Array) -> Array:
        """What the first process has."""
        return self._exchange(value, lambda sent, work: work.broadcast(sent, src=0))

    def _exchange(self, value: Array, carry_out: Callable[[Any, Any], object]) -> Array:
        """What becomes of a value that all processes work on together."""
        if self.size == 1:
            return value
        torch = load_torch("a group of processes")
        sent = torch.as_tensor(value).clone(memory_format=torch.contiguous_format).to(self.sent_from)
        with _together():
            carry_out(sent, torch.distributed)
        return put(sent, value)

    def require_alike(self, content: bytes, what: str) -> None:
        """Refuse where the processes do not all have the same."""
        digest = int.from_bytes(hashlib.sha256(content).digest()[:6], "big")  # 48 bits: a float64 holds them exactly
        if len(set(self.each(float(digest)))) > 1:
            raise GroupError(
                f"{what} differ between the processes of the group",
                "all of them must be given the same",
                "Nothing was written. Give every host the same files and the same command.",
            )


ALONE = Group()


@contextmanager
def joined_group(device: str, timeout: float = TIMEOUT) -> Iterator[Group]:
    """The group that torchrun started this process in; alone, if it was started alone.

    Gloo on CPUs, NCCL on GPUs where every process of every host has one to itself: NCCL refuses two on one.
    """
    if not launched_as_group():
        yield ALONE
        return
    torch = load_torch("a group of processes")
    cuda = torch.device(device).type == "cuda"
    if cuda:
        torch.cuda.set_device(device)
    with _together():
        backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
        torch.distributed.init_process_group(backend, timeout=datetime.timedelta(seconds=timeout))
    # told to end because another process died: what is being written is taken back first
    before = signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    try:
        group = Group(torch.distributed.get_rank(), torch.distributed.get_world_size())
        here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        shared = group.largest(float(cuda and here > torch.cuda.device_count()))
        yield replace(group, sent_from="cuda") if cuda and not shared else group
    finally:
        torch.distributed.destroy_process_group()
        signal.signal(signal.SIGTERM, before)


def local_device(name: str) -> str:
    """The GPU of this process: each process of a group on one host has its own, or shares one if there are fewer."""
    local = os.environ.get("LOCAL_RANK")
    if not launched_as_group() or name != "cuda" or local is None:
        return name
    torch = load_torch("device cuda")
    return f"cuda:{int(local) % max(1, torch.cuda.device_count())}"


@contextmanager
def _together() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError, OSError) as error:
        raise GroupError(
            f"another process of the group is gone or waits elsewhere ({type(error).__name__}: {error})",
            "all of them must work together to the end",
            "Nothing was written. Look for the first error among the processes, and start all of them again.",
        ) from error
