"""What changes only speed and memory, never what is promised."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from expunge.errors import OptionError
from expunge.runtime.checks import choice
from expunge.runtime.group import ALONE, Group
from expunge.runtime.progress import Progress, silent

DTYPES = {"float64": torch.float64, "float32": torch.float32}


@dataclass(frozen=True)
class Execution:
    """How it is computed.

    `dtype` is what surrogate rows are kept in (evidence is summed in float64 either way), `memory` (`1.5GB`) a limit
    for this process: a stream that does not fit is read anew in each pass. In a `group` each process goes over its own
    share of the surrogate.
    """

    dtype: str = "float64"
    device: str = "cpu"
    memory: str | int | None = None
    group: Group = ALONE
    progress: Progress = silent

    def __post_init__(self) -> None:
        choice(self.dtype, tuple(DTYPES), "dtype")

    @property
    def rows_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    @property
    def place(self) -> torch.device:
        """The device, if it can be used here."""
        return computing_device(self.device)


def computing_device(name: str) -> torch.device:
    """The torch device of that name, as tensors there call it (`cuda:0` for `cuda`), if it can be used here."""
    try:
        tried = torch.zeros(1, device=torch.device(name))
        tried.cpu()
    except (
        RuntimeError,
        AssertionError,
        NotImplementedError,
        ImportError,
        AttributeError,
        TypeError,
        ValueError,
    ) as error:
        raise OptionError(
            f"device {name!r} ({type(error).__name__})", "a device torch can use here is needed", "Use cpu."
        ) from error
    return tried.device
