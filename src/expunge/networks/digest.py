"""Which encoder made these features: one digest of everything that is stored in it."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn


def module_digest(module: nn.Module, without: str | None = None) -> str:
    """SHA-256 of a module's class, structure, and names, types, shapes and bytes of its parameters and buffers.

    `without` names a submodule that does not count (the head). The code of `forward` is not covered: a class of the
    same name and structure that computes something else has the same digest.
    """
    prefix = None if without is None else without + "."
    digest = hashlib.sha256(f"{type(module).__module__}.{type(module).__qualname__}\n".encode())
    for name, part in module.named_modules():
        if without is None or (name != without and not name.startswith(str(prefix))):
            digest.update(f"{name}: {type(part).__qualname__}({part.extra_repr()})\n".encode())
    tensors = {
        **dict(module.named_parameters()),
        **dict(module.named_buffers()),
    }  # buffers that are not saved count too
    for name in sorted(tensors):
        if prefix is None or not name.startswith(prefix):
            digest.update(f"{name} {tensors[name].dtype} {list(tensors[name].shape)}\n".encode())
            digest.update(_bytes(tensors[name]))
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()
