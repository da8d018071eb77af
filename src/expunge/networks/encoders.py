"""Encoders of examples, in front of a linear head: a classifier taken apart and put together, encoders as people keep
them, and the files of examples and of features."""

from __future__ import annotations

import copy
import hashlib
import importlib
import io
import json
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save
from torch import Tensor, nn

from expunge.errors import DataError, ExpungeError, FileError, ModelError, OptionError, said_by
from expunge.heads.network import require_running_statistics
from expunge.model import LinearModel, checked_model, one_row_a_class
from expunge.record import TRAINED_ON_SOURCE
from expunge.rows.arrays import DAMAGE, ENCODER, ENCODER_TRAINED, Array, damage_error, read_npz
from expunge.rows.features import as_features
from expunge.runtime.files import readable
from expunge.runtime.memory import file_bytes, out_of_memory, require_room
from expunge.runtime.progress import Progress, silent
from expunge.runtime.safetensors import read_safetensors
from expunge.runtime.values import LARGEST, choice

# A torch classifier taken apart into a frozen encoder and its linear head, and put together again -------------------


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
        with torch.no_grad(), _watch(module.get_submodule(self.name), seen):
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

    The head is computed in the dtype of its own weights, and its outputs have that of the features. A model of one
    weight vector for two classes has an output for each where the layer has. The copy is in evaluation mode; the model
    that was given is not changed.
    """
    replaced = _linear(module, head)
    _require_own_weights(module, head)
    if linear.n_features != replaced.in_features:
        raise ModelError(
            f"the head has {linear.n_features} features",
            f"{head!r} takes {replaced.in_features}",
            "Use the head that was trained on this encoder's features.",
        )
    if replaced.out_features > 1:
        linear = one_row_a_class(linear)  # else the first output, which is alone, would be the largest of all rows
    made, bound = copy.deepcopy(module).eval(), None if linear.record is None else linear.record.max_norm
    # what scales no row is left out: as a number of few bits it would be infinite, and every output none
    weight, offset = (None if part is None else torch.as_tensor(part) for part in (linear.weight, linear.bias))
    assert weight is not None
    bounded = BoundedLinear(weight, offset, None if bound is None or bound >= LARGEST else bound)
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
def _watch(head: nn.Module, seen: list[Tensor]) -> Iterator[None]:
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


def _unusable(part: Inputs, error: Exception, name: str = "the model") -> DataError:
    tensors: dict[str, Any] = dict(part) if isinstance(part, Mapping) else {"": part}
    shown = ", ".join(f"{each} {tuple(tensor.shape)} {tensor.dtype}".strip() for each, tensor in tensors.items())
    whole = any(not tensor.is_floating_point() for tensor in tensors.values())
    return DataError(
        f"{name} does not take {shown} ({said_by(error)})",
        "inputs as it was trained on, in batches of any size, are needed",
        "Convert whole numbers to floats, for example X / 255." if whole else "Check shape and dtype.",
    )


# Encoders as people keep them: a Python module by import path, with its weights in a safetensors file, or ONNX ------
# Both bring numbers and nothing that is run but what is installed here: the code of the module, the operators of
# onnxruntime. Programs of torch (`.pt`, `.pt2`) are code of whoever wrote the file: no such file is loaded. The digest
# of an encoder is that of its file, or of everything stored in the module (`module_digest`).

LOADED_WRONG = (
    RuntimeError, ValueError, TypeError, KeyError, OSError, EOFError, AttributeError, IndexError, AssertionError,
    NotImplementedError,
)  # fmt: skip


@dataclass(frozen=True)
class Encoder:
    """`run` maps a batch of inputs to rows x features on the same device; `digest` names what it is."""

    run: Callable[[Tensor], Tensor]
    digest: str
    name: str
    device: torch.device


def load_encoder(
    reference: str,
    *,
    head: str | None = None,
    weights: str | Path | None = None,
    device: torch.device | str = "cpu",
) -> Encoder:
    """An encoder from `module:function` or an .onnx file.

    `module:function` names a torch module or a function that returns one; `weights` is a safetensors file with its
    state, and with `head`, features are what enters the linear module of that name.
    """
    path, place = Path(reference), torch.device(device)
    if path.suffix.lower() == ".onnx":
        if head is not None or weights is not None:
            raise OptionError(f"head or weights with {path}", "a file is the encoder as it is", "Leave both out.")
        return Encoder(_onnx(path, place), _files_digest(path), str(path), place)
    if ":" not in reference:
        raise OptionError(
            f"encoder {reference!r}",
            "module:function or an .onnx file is needed: other files hold programs, which do what their author wished",
            "Write for example mypackage.encoders:resnet with --weights resnet.safetensors, or export it to .onnx.",
        )
    module = import_module(reference)
    if weights is not None:
        module = load_state(module, Path(weights), reference)
    return module_encoder(module, head=head, device=place, name=reference)


def load_state(module: nn.Module, path: Path, name: str) -> nn.Module:
    """The module with the state that a safetensors file holds: every tensor, of the same shape, and no other."""
    tensors, _ = read_safetensors(file_bytes(path, "the weights"), path)
    there = module.state_dict()
    wrong = sorted(there.keys() ^ tensors.keys()) or sorted(
        key for key in there if tuple(there[key].shape) != tensors[key].shape
    )
    if wrong:
        raise ModelError(
            f"{path} and {name} differ in {', '.join(wrong[:6])}"
            + (f" and {len(wrong) - 6} more" if wrong[6:] else ""),
            "the file must hold the module's state_dict(), all of it, of the same shapes",
            "Write it with safetensors.torch.save_file(module.state_dict(), path).",
        )
    made = copy.deepcopy(module)
    made.load_state_dict({key: torch.from_numpy(np.array(values)) for key, values in tensors.items()})
    return made


def module_encoder(
    module: nn.Module, *, head: str | None = None, device: torch.device | str = "cpu", name: str = "the encoder"
) -> Encoder:
    """A torch module as an encoder: its output, or what enters its head."""
    place = torch.device(device)
    if head is not None:
        split = split_head(module, head)
        placed = split.module.to(place)
        return Encoder(lambda part: split.encode(placed, part), split.digest, name, place)
    frozen = copy.deepcopy(module).eval().requires_grad_(False)
    digest = module_digest(frozen)
    return Encoder(frozen.to(place), digest, name, place)


def import_module(reference: str) -> nn.Module:
    """The torch module named `module:function`: found, or made by a function without arguments."""
    where, colon, what = reference.partition(":")
    if not colon:
        raise OptionError(
            f"network {reference!r}", "module:function is needed", "Write for example mypackage.nets:resnet."
        )
    remedy = "Install the module, or put its folder in PYTHONPATH; name a function without arguments."
    try:
        target: Any = importlib.import_module(where)
        for part in what.split("."):
            target = getattr(target, part)
        made = target if isinstance(target, nn.Module) else target()
    except ExpungeError:
        raise
    except Exception as error:  # whatever that code raises, it is not a result
        raise ModelError(
            f"{reference} cannot be used ({said_by(error)})", "a torch module is needed", remedy
        ) from error
    if not isinstance(made, nn.Module):
        raise ModelError(f"{reference} is a {type(made).__name__}", "a torch.nn.Module is needed", remedy)
    return made


def _weight_files(path: Path) -> list[Path]:
    """The files that the weights of an ONNX file are in, where it does not hold them itself: `NAME.onnx.data`, say."""
    return sorted(path.parent.glob(f"{path.name}[._]data*")) if path.suffix.lower() == ".onnx" else []


def _files_digest(path: Path) -> str:
    """SHA-256 of the file; where its weights are in others, of the digests of all of them."""
    digests = []
    for file in (path, *_weight_files(path)):
        with readable(file).open("rb") as stream:
            digests.append(hashlib.file_digest(stream, "sha256").hexdigest())
    return digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()


def _onnx(path: Path, device: torch.device) -> Callable[[Tensor], Tensor]:
    try:
        import onnxruntime
    except ImportError as error:
        raise ModelError(
            f"{path} is an ONNX file and onnxruntime is not installed",
            "it is needed to run ONNX files",
            "Run pip install 'expunge[onnx]', or give the encoder as module:function with --weights.",
        ) from error
    providers = [*(["CUDAExecutionProvider"] if device.type == "cuda" else []), "CPUExecutionProvider"]
    # in a folder of their own: weights from a file that the digest does not cover would be found nowhere
    with tempfile.TemporaryDirectory() as folder:
        for file in (readable(path), *_weight_files(path)):
            shutil.copyfile(file, Path(folder) / file.name)
        alone = str(Path(folder) / path.name)
        try:
            session = _translate_errors(lambda: onnxruntime.InferenceSession(alone, providers=providers))
        except RuntimeError as error:
            raise ModelError(
                f"{path} cannot be loaded ({error})", "a whole ONNX encoder is needed", "Export it again."
            ) from error
    inputs = session.get_inputs()
    if len(inputs) != 1:
        raise ModelError(f"{path} takes {len(inputs)} inputs", "one is needed", "Export the encoder alone.")

    def run(part: Tensor) -> Tensor:
        outputs = _translate_errors(lambda: session.run(None, {inputs[0].name: part.cpu().numpy()}))
        return torch.from_numpy(outputs[0])

    return run


def _translate_errors(work: Callable[[], Any]) -> Any:
    """onnxruntime's own errors, which derive from nothing but Exception, as RuntimeError: handled like torch's."""
    try:
        return work()
    except Exception as error:
        raise RuntimeError(said_by(error)) from error


@dataclass(frozen=True)
class Normalisation:
    """What is done to inputs before the encoder: bytes become floats from 0 to 1, then `(x - mean) / std` a channel."""

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        usable = all(np.isfinite(self.mean)) and all(0 < std < np.inf for std in self.std)
        if len(self.mean) != len(self.std) or not usable:
            raise OptionError(
                f"mean {self.mean}, std {self.std}",
                "as many finite numbers each, one a channel, std above 0",
                "Give both, for example --mean 0.49,0.48,0.45 --std 0.25,0.24,0.26.",
            )

    def apply(self, inputs: NDArray[Any]) -> Tensor:
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
class Embedding:
    """Features and labels, and the digest of encoder and preparation together."""

    features: NDArray[Any]
    labels: NDArray[Any]
    encoder: str


def pipeline_digest(encoder: str, preparation: Normalisation) -> str:
    """The encoder's own digest where nothing but bytes-to-floats precedes it, else one of both."""
    if not preparation.mean:
        return encoder
    described = json.dumps({"encoder": encoder, "mean": preparation.mean, "std": preparation.std}, sort_keys=True)
    return hashlib.sha256(described.encode()).hexdigest()


def embed(
    examples: EncoderInputs,
    encoder: Encoder,
    *,
    preparation: Normalisation | None = None,
    batch: int = 256,
    progress: Progress = silent,
) -> Embedding:
    """Features of all examples, through an encoder.

    Refuses an encoder that gives a row other features the second time (dropout) or in another batch (batch
    normalisation in training mode).
    """
    if type(batch) is not int or batch < 1:
        raise OptionError(f"batch {batch!r}", "a whole number, at least 1, is needed", "256 is the default.")
    prepared = preparation or Normalisation()
    first = _encode(encoder, prepared, examples.inputs[:batch])
    require_steady(lambda rows: _encode(encoder, prepared, examples.inputs[rows]), first)
    parts, count = [first], len(examples.inputs)
    for start in range(batch, count, batch):
        progress("Batches", start // batch, -(-count // batch))
        parts.append(_encode(encoder, prepared, examples.inputs[start : start + batch]))
    features = torch.cat(parts).numpy()
    as_features(features, "the features")
    return Embedding(features, examples.labels, pipeline_digest(encoder.digest, prepared))


def channel_numbers(text: str | None) -> tuple[float, ...]:
    """Numbers separated by commas.

    >>> channel_numbers("0.5, 0.25")
    (0.5, 0.25)
    """
    try:
        return () if text is None else tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise OptionError(f"{text!r}", "numbers separated by commas are needed", "Write 0.5,0.5,0.5.") from error


def _encode(encoder: Encoder, preparation: Normalisation, inputs: Sequence[Any] | NDArray[Any]) -> Tensor:
    values = preparation.apply(np.asarray(inputs))
    try:
        with torch.no_grad():
            encoded = encoder.run(values.to(encoder.device))
    except ExpungeError:
        raise
    except LOADED_WRONG as error:
        raise out_of_memory(error) or _unusable(values, error, encoder.name) from error
    real = isinstance(encoded, Tensor) and encoded.ndim == 2 and encoded.is_floating_point()
    if not real or len(encoded) != len(values):
        shown = f"{tuple(encoded.shape)} {encoded.dtype}" if isinstance(encoded, Tensor) else type(encoded).__name__
        raise ModelError(
            f"{encoder.name} gives {shown} for {len(values)} inputs",
            "one row of real features an input is needed",
            "Flatten or pool in the encoder, or name the head whose input is wanted (--head).",
        )
    encoded = encoded.detach().cpu()
    return encoded if encoded.dtype == torch.float64 else encoded.float()


FEATURE_FILES = (".npz", ".safetensors")


def feature_bytes(path: Path, features: Array, labels: Array, encoder: str, trained: str = "unknown") -> bytes:
    """The content of a feature file, by the ending of its name; `trained`: whether the encoder was, on the source."""
    if path.suffix.lower() not in FEATURE_FILES:
        raise FileError(
            f"{path}: unknown file type {path.suffix!r}",
            f"feature files end in {' or '.join(FEATURE_FILES)}",
            "Name it for example features.npz.",
        )
    extra = {ENCODER: encoder, ENCODER_TRAINED: choice(trained, TRAINED_ON_SOURCE, "trained on source")}
    if path.suffix.lower() == ".npz":
        stream = io.BytesIO()
        texts = {name: np.array(text) for name, text in extra.items()}
        np.savez(stream, allow_pickle=False, X=features, y=labels, **texts)
        return stream.getvalue()
    if labels.dtype.kind not in "iub":
        raise DataError(
            f"labels of dtype {labels.dtype}", "a .safetensors file holds whole numbers", "Write an .npz file."
        )
    return save({"X": np.ascontiguousarray(features), "y": np.ascontiguousarray(labels)}, metadata=extra)


# Examples before any encoder: arrays of any shape in an .npz file, and pictures in folders ----------------------------
#     .npz        arrays X (rows first, any shape) and y
#     a folder    class/name.png, one folder a class; the class is the folder's name
#
# Pictures come out as uint8, channels first (rows x channels x height x width). Nothing is allocated before its
# declared size has been checked.

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")


@dataclass(frozen=True)
class EncoderInputs:
    """Inputs of an encoder, rows first, and their labels."""

    inputs: Array
    labels: Array
    name: str

    def __post_init__(self) -> None:
        if self.inputs.ndim < 2 or len(self.inputs) == 0 or self.inputs.dtype.kind not in "fiub":
            raise DataError(
                f"{self.name}: inputs of shape {self.inputs.shape} and dtype {self.inputs.dtype}",
                "one or more examples made of numbers are needed, rows first",
                "Check how the file was written; convert to uint8 or float32.",
            )
        if self.labels.shape != (len(self.inputs),):
            raise DataError(
                f"{self.name}: labels of shape {self.labels.shape} for {len(self.inputs):,} examples",
                "one label an example is needed",
                "Check that X and y belong together.",
            )


def read_examples(path: str | Path, *, size: int | None = None) -> EncoderInputs:
    """Read inputs and labels; with a `size` pictures in folders become squares."""
    location = Path(path)
    if location.is_dir():
        return _read_folder(location, size)
    if size is not None:
        raise DataError(f"size {size} for {path}", "only folders of pictures are resized", "Leave the size out.")
    if readable(location).suffix.lower() != ".npz":
        raise FileError(
            f"{path}: unknown file type {location.suffix!r}",
            "a .npz file or a folder of pictures is needed",
            "Save the examples with numpy.savez(path, X=images, y=labels).",
        )
    try:
        arrays = read_npz(location, ("X", "y"))
    except DAMAGE as error:
        raise damage_error(location, error) from error
    return EncoderInputs(arrays["X"], arrays["y"], str(location))


def _read_folder(folder: Path, size: int | None) -> EncoderInputs:
    files = sorted(
        entry
        for entry in folder.glob("*/*")
        if entry.suffix.lower() in PICTURES and entry.is_file() and not entry.name.startswith(".")
    )
    if not files:
        raise DataError(
            f"{folder} holds no pictures",
            f"folders named after classes with {', '.join(PICTURES)} files are needed",
            "Arrange them as class/name.png.",
        )
    first = read_picture(files[0], size)
    require_room(first.nbytes * len(files), folder, f"{len(files):,} pictures")
    inputs = np.empty((len(files), *first.shape), dtype=np.uint8)
    for index, file in enumerate(files):
        picture = read_picture(file, size)
        if picture.shape != first.shape:
            raise DataError(
                f"{file} has shape {picture.shape}",
                f"{files[0].name} has {first.shape}, and all must be alike",
                "Resize and convert the pictures the way the encoder was trained.",
            )
        inputs[index] = picture
    return EncoderInputs(inputs, np.array([file.parent.name for file in files]), str(folder))


def read_picture(path: Path, size: int | None = None) -> Array:
    """One picture as channels x height x width: one channel if it is grey, else three.

    With a size: always three, the shorter side scaled to it, and the middle square cut out.
    """
    from PIL import Image

    readable(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of Pillow's size limit it is only a warning at first
        try:
            with Image.open(path) as image:
                require_room(3 * 4 * image.width * image.height, path, "the picture")
                grey = size is None and image.mode in ("1", "L", "LA")
                converted = image.convert("L" if grey else "RGB")
                values = np.asarray(converted if size is None else _square(converted, size))
        except (*DAMAGE, Image.DecompressionBombError, Image.DecompressionBombWarning, Warning) as error:
            raise FileError(
                f"{path} is not a whole picture ({type(error).__name__}: {error})",
                "a complete one of ordinary size is needed",
                "Write it again as .png.",
            ) from error
    return values[None] if grey else np.ascontiguousarray(values.transpose(2, 0, 1))


def _square(image: Any, size: int) -> Any:
    """The shorter side scaled to `size` (bilinear), the middle square."""
    from PIL import Image

    scale = size / min(image.size)
    width, height = (max(size, round(side * scale)) for side in image.size)
    left, top = (width - size) // 2, (height - size) // 2
    scaled = image.resize((width, height), Image.Resampling.BILINEAR)
    return scaled.crop((left, top, left + size, top + size))
