"""Options that several stages take: what each may be, and the errors for what it may not."""

from __future__ import annotations

import torch

from expunge.errors import OptionError

DTYPES = {"float64": torch.float64, "float32": torch.float32}


def computing_device(name: str) -> torch.device:
    """The torch device of that name, if it can be used here."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()
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
    return device
