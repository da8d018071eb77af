"""Examples through an encoder, batch by batch, into features; a run that was stopped continues where it was."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from expunge.data.images import Examples
from expunge.data.partial import open_partial
from expunge.data.prepare import as_features
from expunge.errors import DataError, ExpungeError, ModelError, OptionError, said_by
from expunge.networks.head import require_same
from expunge.networks.programs import LOADED_WRONG, Encoder
from expunge.runtime.memory import out_of_memory
from expunge.runtime.progress import Progress, silent

UNIT_BATCHES = 16  # batches that are kept together: what a kill can cost


@dataclass(frozen=True)
class Preparation:
    """What is done to inputs before the encoder: bytes become floats from 0 to 1, then `(x - mean) / std` a channel."""

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if (
            len(self.mean) != len(self.std)
            or not all(np.isfinite(self.mean))
            or not all(0 < s < np.inf for s in self.std)
        ):
            raise OptionError(
                f"mean {self.mean}, std {self.std}",
                "as many finite numbers each, one a channel, std above 0",
                "Give both, for example --mean 0.49,0.48,0.45 --std 0.25,0.24,0.26.",
            )

    def applied(self, inputs: NDArray[Any]) -> Tensor:
        """One batch, as the encoder takes it."""
        if inputs.dtype == np.uint8:
            values = torch.from_numpy(inputs.astype(np.float32) / np.float32(255))
        else:
            values = torch.from_numpy(np.array(inputs, dtype=inputs.dtype.newbyteorder("=")))
        if not self.mean:
            return values
        if values.ndim < 2 or values.shape[1] != len(self.mean):
            raise DataError(
                f"inputs of shape {tuple(values.shape)}",
                f"{len(self.mean)} channels, in the second dimension, go with this mean",
                "Give one mean and std a channel; arrays are rows x channels x height x width.",
            )
        shape = [1, -1] + [1] * (values.ndim - 2)
        kind = values.dtype if values.is_floating_point() else torch.float32
        mean, std = (torch.tensor(channels, dtype=kind).reshape(shape) for channels in (self.mean, self.std))
        return (values - mean) / std


@dataclass(frozen=True)
class Embedded:
    """Features and labels, and the digest of encoder and preparation together."""

    features: NDArray[Any]
    labels: NDArray[Any]
    encoder: str


def pipeline_digest(encoder: str, preparation: Preparation) -> str:
    """The encoder's own digest where nothing but bytes-to-floats precedes it, else one of both.

    Other means, other features.
    """
    if not preparation.mean:
        return encoder
    described = json.dumps({"encoder": encoder, "mean": preparation.mean, "std": preparation.std}, sort_keys=True)
    return hashlib.sha256(described.encode()).hexdigest()


def embed(
    examples: Examples,
    encoder: Encoder,
    *,
    preparation: Preparation | None = None,
    batch: int = 256,
    partial: Path | None = None,
    progress: Progress = silent,
) -> Embedded:
    """Features of all examples.

    Finished parts are kept in the folder `partial`, to be removed once the result is stored.

    Refuses an encoder that gives a row other features the second time (dropout) or in another batch (batch
    normalisation in training mode).
    """
    if type(batch) is not int or batch < 1:
        raise OptionError(f"batch {batch!r}", "a whole number, at least 1, is needed", "256 is the default.")
    prepared = preparation or Preparation()
    digest = pipeline_digest(encoder.digest, prepared)
    count, unit = len(examples.inputs), batch * UNIT_BATCHES
    _check_encoder(examples, encoder, prepared, batch)
    kept = None if partial is None else open_partial(partial, _setting(examples, encoder, digest, batch))
    parts: list[NDArray[Any]] = []
    with contextlib.nullcontext() if kept is None else kept.gone_if_refused():
        for start in range(0, count, unit):
            name = f"rows-{start:012d}"
            part = None if kept is None else kept.load_array(name)
            stop = min(start + unit, count)
            if part is None or len(part) != stop - start:
                rows = []
                for first in range(start, stop, batch):
                    progress("Batches", first // batch, -(-count // batch))
                    rows.append(_encode(encoder, prepared, examples.inputs[first : min(first + batch, stop)]))
                part = torch.cat(rows).numpy()
                as_features(part, "the features")
                if kept is not None:
                    kept.save_array(name, part)
            parts.append(part)
    return Embedded(np.concatenate(parts), examples.labels, digest)


def channel_numbers(text: str | None) -> tuple[float, ...]:
    """Numbers separated by commas.

    >>> channel_numbers("0.5, 0.25")
    (0.5, 0.25)
    """
    try:
        return () if text is None else tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise OptionError(f"{text!r}", "numbers separated by commas are needed", "Write 0.5,0.5,0.5.") from error


def _setting(examples: Examples, encoder: Encoder, digest: str, batch: int) -> dict[str, Any]:
    inputs = hashlib.sha256()
    for values in (examples.inputs, examples.labels):
        inputs.update(f"{values.dtype.str} {values.shape}\n".encode())
        for start in range(0, len(values), 4096):
            inputs.update(np.ascontiguousarray(values[start : start + 4096]).tobytes())
    return {"encoder": digest, "inputs": inputs.hexdigest(), "batch": batch, "device": str(encoder.device)}


def _check_encoder(examples: Examples, encoder: Encoder, preparation: Preparation, batch: int) -> None:
    first = _encode(encoder, preparation, examples.inputs[:batch])
    require_same(first, _encode(encoder, preparation, examples.inputs[:batch]), "a second time")
    if len(first) > 1:
        half = (len(first) + 1) // 2
        require_same(
            first[:half], _encode(encoder, preparation, examples.inputs[:half]), "without the rest of its batch"
        )


def _encode(encoder: Encoder, preparation: Preparation, inputs: Sequence[Any] | NDArray[Any]) -> Tensor:
    values = preparation.applied(np.asarray(inputs))
    try:
        with torch.no_grad():
            encoded = encoder.run(values.to(encoder.device))
    except ExpungeError:
        raise
    except LOADED_WRONG as error:
        if ended := out_of_memory(error):
            raise ended from error
        whole = "" if values.is_floating_point() else " Convert whole numbers to floats, for example X / 255."
        raise DataError(
            f"{encoder.name} does not take {tuple(values.shape)} {values.dtype} ({said_by(error)})",
            "inputs as it was trained on, in batches of any size, are needed",
            f"Check shape and dtype; export programs with a dynamic batch dimension.{whole}",
        ) from error
    if (
        not isinstance(encoded, Tensor)
        or encoded.ndim != 2
        or len(encoded) != len(values)
        or not encoded.is_floating_point()
    ):
        shown = f"{tuple(encoded.shape)} {encoded.dtype}" if isinstance(encoded, Tensor) else type(encoded).__name__
        raise ModelError(
            f"{encoder.name} gives {shown} for {len(values)} inputs",
            "one row of real features an input is needed",
            "Flatten or pool in the encoder, or name the head whose input is wanted (--head).",
        )
    encoded = encoded.detach().cpu()
    return encoded if encoded.dtype == torch.float64 else encoded.float()
