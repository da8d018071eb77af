"""A torch classifier taken apart into a frozen encoder and its linear head, and put together again."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from expunge.errors import DataError, ModelError, said_by
from expunge.heads.network import require_running_statistics
from expunge.model import LinearModel, checked_model
from expunge.runtime.memory import out_of_memory
from expunge.runtime.progress import Progress, silent


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
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())  # buffers that are not saved count too
    for name in sorted(tensors):
        if prefix is None or not name.startswith(prefix):
            add_tensor(digest, name, tensors[name])
    return digest.hexdigest()


def add_tensor(digest: Any, name: str, value: Tensor) -> None:
    """A tensor's name, type, shape and bytes, into a digest."""
    digest.update(f"{name} {value.dtype} {list(value.shape)}\n".encode())
    digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


Inputs = Tensor | Mapping[str, Tensor]
BATCH = 256
SAME = 1e-4  # of the largest feature: what another batch size may change by rounding


class BoundedLinear(nn.Linear):
    """A linear head that scales rows longer than `max_norm` down to it first, as was done for training.

    The bound is a buffer: a state dict has it, so that a strict load into a plain linear layer, which would not scale,
    fails.
    """

    max_norm: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None, max_norm: float | None) -> None:
        super().__init__(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=weight.dtype)
        bound = None if max_norm is None else torch.tensor(max_norm, dtype=torch.float64)
        self.register_buffer("max_norm", bound)
        with torch.no_grad():
            self.weight.copy_(weight)
            if bias is not None:
                self.bias.copy_(bias)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, max_norm={None if self.max_norm is None else float(self.max_norm)}"

    def forward(self, input: Tensor) -> Tensor:
        rows = input.to(self.weight.dtype)
        if self.max_norm is not None:
            bound = self.max_norm.to(rows.dtype)
            rows = rows * (bound / rows.norm(dim=-1, keepdim=True).clamp(min=bound))
        return super().forward(rows).to(input.dtype)


@dataclass(frozen=True)
class SplitModel:
    """A copy of a model in evaluation mode, its head's name, the head as a `LinearModel`, the encoder's digest."""

    module: nn.Module
    name: str
    head: LinearModel
    digest: str

    def features(
        self, inputs: Inputs, *, batch: int = BATCH, device: str | torch.device = "cpu", progress: Progress = silent
    ) -> Tensor:
        """What enters the head, rows x features, on the cpu; `inputs` is a tensor, or tensors by argument name."""
        count = _count(inputs)
        module = self.module.to(device)
        parts = []
        for start in range(0, count, batch):
            progress("Batches", start // batch, -(-count // batch))
            parts.append(self.encode(module, _part(inputs, slice(start, start + batch), device)).cpu())
        require_steady(lambda rows: self.encode(module, _part(inputs, rows, device)).cpu(), parts[0])
        return torch.cat(parts)

    def encode(self, module: nn.Module, part: Inputs) -> Tensor:
        """Features of one batch; refuses a head that is not used exactly once, or on something that is not a row."""
        seen: list[Tensor] = []
        with torch.no_grad(), _watched(module.get_submodule(self.name), seen):
            try:
                module(**part) if isinstance(part, Mapping) else module(part)
            except (RuntimeError, TypeError, ValueError, IndexError) as error:
                raise out_of_memory(error) or _unusable(part, error) from error
        if len(seen) != 1:
            raise ModelError(
                f"the head {self.name!r} is used {len(seen)} times for one input",
                "one linear map from features to outputs is needed",
                "Name the last layer, the one that makes the class scores.",
            )
        rows = seen[0]
        if rows.ndim != 2 or len(rows) != _count(part):
            raise DataError(
                f"what enters the head {self.name!r} has shape {tuple(rows.shape)} for {_count(part)} inputs",
                "one row of features an input is needed",
                "Pool over positions before the head, or name another head.",
            )
        return rows


def require_steady(encode: Callable[[slice], Tensor], first: Tensor) -> None:
    """Refuse an encoder whose features of a row change from once to again, or with the other rows of its batch.

    `first` are those of the first batch, and `encode` makes features of some of the first rows.
    """
    half = (len(first) + 1) // 2
    finite = torch.isfinite(first)  # what is not finite is refused elsewhere, under its own name
    largest = float(first[finite].abs().max()) if bool(finite.any()) else 0.0
    for count, how in ((len(first), "a second time"), (half, "without the rest of its batch")):
        again, known = encode(slice(0, count)), finite[:count]
        same = first[:count].shape == again.shape
        if not same or not torch.allclose(first[:count][known], again[known], rtol=0.0, atol=SAME * largest):
            raise ModelError(
                f"a row's features differ when it is encoded {how}",
                "an encoder must give a row the same features always",
                "Put it in evaluation mode: dropout off, batch normalisation on its stored statistics.",
            )


def split_head(module: nn.Module, head: str = "fc") -> SplitModel:
    """Take a classifier apart at the linear module called `head` (`fc`, `classifier`, `classifier.6`, `head`, ...).

    Works on a copy in evaluation mode: dropout is off and batch normalisation uses its stored statistics. Refused: a
    head that is missing, is not linear, or shares its weights, and batch normalisation that stores no statistics.
    """
    layer = _linear(module, head)
    _require_own_weights(module, head)
    require_running_statistics(module)
    frozen = copy.deepcopy(module).eval().requires_grad_(False)
    bias = None if layer.bias is None else layer.bias.detach().clone()
    linear = checked_model(layer.weight.detach().clone(), bias, name=f"head {head!r}")
    return SplitModel(frozen, head, linear, module_digest(frozen, head))


def with_head(module: nn.Module, linear: LinearModel, head: str = "fc") -> nn.Module:
    """A copy of the model with these weights for a head; rows are scaled to the record's norm bound, as in training.

    The head is computed in the dtype of its own weights, and its outputs have that of the features. The copy is in
    evaluation mode; the model that was given is not changed.
    """
    replaced = _linear(module, head)
    _require_own_weights(module, head)
    if linear.n_features != replaced.in_features:
        raise ModelError(
            f"the head has {linear.n_features} features",
            f"{head!r} takes {replaced.in_features}",
            "Use the head that was trained on this encoder's features.",
        )
    made = copy.deepcopy(module).eval()
    bounded = BoundedLinear(linear.weight, linear.bias, None if linear.record is None else linear.record.max_norm)
    parent, _, own = head.rpartition(".")
    setattr(made.get_submodule(parent), own, bounded.to(replaced.weight.device).eval())
    return made


def _linear(module: nn.Module, head: str) -> nn.Linear:
    linear = [name for name, part in module.named_modules() if isinstance(part, nn.Linear)]
    shown = ", ".join(linear[-5:]) or "none"
    remedy = f"Name the last linear module; those in this model are: {shown}."
    try:
        layer = module.get_submodule(head) if head else None
    except AttributeError:
        layer = None
    if layer is None:
        raise ModelError(f"the model has no module {head!r}", "the head must be one of its modules", remedy)
    if not isinstance(layer, nn.Linear):
        raise ModelError(f"{head!r} is a {type(layer).__name__}", "the head must be a torch.nn.Linear", remedy)
    return layer


def _require_own_weights(module: nn.Module, head: str) -> None:
    """A head whose weights are also used elsewhere cannot be changed alone."""
    own = {id(tensor) for tensor in module.get_submodule(head).parameters()}
    shared = [
        name
        for name, tensor in module.named_parameters(remove_duplicate=False)
        if id(tensor) in own and not name.startswith(head + ".")
    ]
    if shared:
        raise ModelError(
            f"the head {head!r} shares its weights with {', '.join(shared)}",
            "a head of its own is needed: changing it would change the encoder",
            "Untie the weights: give the head a copy of them.",
        )


@contextmanager
def _watched(head: nn.Module, seen: list[Tensor]) -> Iterator[None]:
    handle = head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    try:
        yield
    finally:
        handle.remove()


def _count(inputs: Inputs) -> int:
    tensors = list(inputs.values()) if isinstance(inputs, Mapping) else [inputs]
    counts = {len(tensor) if tensor.ndim else 0 for tensor in tensors}
    if len(counts) != 1 or 0 in counts:
        raise DataError(
            f"inputs of {', '.join(map(str, sorted(counts))) or 'no'} rows",
            "one or more rows are needed, as many for each input",
            "Give tensors whose first dimension counts the examples.",
        )
    return counts.pop()


def _part(inputs: Inputs, rows: slice, device: str | torch.device) -> Inputs:
    if isinstance(inputs, Mapping):
        return {name: tensor[rows].to(device) for name, tensor in inputs.items()}
    return inputs[rows].to(device)


def _unusable(part: Inputs, error: Exception) -> DataError:
    tensors: dict[str, Any] = dict(part) if isinstance(part, Mapping) else {"the input": part}
    shown = ", ".join(f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in tensors.items())
    whole = any(not tensor.is_floating_point() for tensor in tensors.values())
    return DataError(
        f"the model does not take {shown} ({said_by(error)})",
        "inputs as it was trained on are needed",
        "Convert whole numbers to floats, for example x.float() / 255." if whole else "Check shape and dtype.",
    )
