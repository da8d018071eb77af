"""Whether this process is one of several that were started together. No torch."""

from __future__ import annotations

import os

from expunge.errors import GroupError

VARIABLE = "WORLD_SIZE"


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
