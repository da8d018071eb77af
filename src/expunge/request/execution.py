"""What changes only speed and memory, never what is promised."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from expunge.errors import OptionError
from expunge.runtime.options import option
from expunge.runtime.progress import Progress, silent
from expunge.runtime.values import choice

if TYPE_CHECKING:  # the command line shows these options, and torch takes a second to load
    import torch

    from expunge.runtime.group import Group

DTYPES = ("float64", "float32")


def dtype_named(name: str) -> torch.dtype:
    """The torch type of a name of `DTYPES`."""
    import torch

    return {"float64": torch.float64, "float32": torch.float32}[name]


def _alone() -> Group:
    from expunge.runtime.group import ALONE

    return ALONE


@dataclass(frozen=True)
class Execution:
    """How it is computed.

    `dtype` is what surrogate rows are kept in (evidence is summed in float64 either way), `memory` (`1.5GB`) a limit
    for this process: a stream that does not fit is read anew in each pass. In a `group` each process goes over its own
    share of the surrogate.
    """

    dtype: str = option(
        "What surrogate rows are kept in: float64 or float32. Evidence is summed in float64 either way.",
        "float64",
        section="Speed",
    )
    device: str = option("Any torch device.", "cpu", section="Speed")
    memory: str | int | None = option(
        "A limit for each process, e.g. 1.5GB (default: half the machine's memory). A surrogate that does not fit is "
        "read anew in each pass.",
        None,
        section="Speed",
        kind=str,
    )
    group: Group = field(default_factory=_alone)
    progress: Progress = silent

    def __post_init__(self) -> None:
        choice(self.dtype, DTYPES, "dtype")

    @property
    def rows_dtype(self) -> torch.dtype:
        return dtype_named(self.dtype)

    @property
    def place(self) -> torch.device:
        """The device, if it can be used here."""
        return computing_device(self.device)


HERE = Execution()


def computing_device(name: str) -> torch.device:
    """The torch device of that name, as tensors there call it (`cuda:0` for `cuda`), if it can be used here."""
    import torch

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
