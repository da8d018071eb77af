"""Tangent weights of a network as a file: the weights, the parameters they belong to, the training record."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as safetensors_bytes
from torch import Tensor, nn

from expunge.errors import ModelError
from expunge.heads.tangent import Tangent
from expunge.networks.digest import module_digest
from expunge.record import METADATA_KEY, TrainingRecord
from expunge.request.execution import computing_device
from expunge.runtime.memory import file_bytes
from expunge.runtime.paths import readable
from expunge.runtime.safetensors import read_safetensors
from expunge.runtime.strict_json import read_json


@dataclass(frozen=True)
class TangentModel:
    """Tangent weights (float64, length P), the names of the parameters they belong to, and the training record."""

    weights: Tensor
    names: tuple[str, ...]
    record: TrainingRecord

    def to_bytes(self) -> bytes:
        """The safetensors file: tensor `tangent`, record and names in its metadata."""
        # one key: safetensors writes several in any order, and the file's digest would not be one
        metadata = json.dumps({"record": self.record.to_json(), "parameters": self.names})
        return safetensors_bytes({"tangent": self.weights.contiguous()}, metadata={METADATA_KEY: metadata})

    def sha256(self) -> str:
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def predict(self, network: nn.Module, inputs: Any, *, block: int = 64, device: str = "cpu") -> np.ndarray[Any, Any]:
        """Predicted labels of the linearised network."""
        objective = objective_of(network, self, block, device)
        examples = torch.as_tensor(inputs)
        rows = objective.rows(examples, torch.zeros(len(examples), dtype=torch.int64))
        outputs = objective.predictions(self.weights.to(objective.device), rows)
        labels: np.ndarray[Any, Any] = np.asarray(self.record.classes)[outputs.argmax(dim=1).cpu().numpy()]
        return labels


def read_tangent(path: str | Path) -> TangentModel:
    """A model from its file."""
    location = readable(Path(path))
    tensors, metadata = read_safetensors(file_bytes(location, "the model"), location)
    try:
        content = read_json(metadata[METADATA_KEY])
        names, text = tuple(map(str, content["parameters"])), str(content["record"])
        weights = torch.from_numpy(np.array(tensors["tangent"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelError(
            f"{location} holds no tangent weights ({type(error).__name__}: {error})",
            "tensor tangent, its record and the names of its parameters are needed",
            "Use the file as it was written.",
        ) from error
    model = TangentModel(weights, names, TrainingRecord.from_json(text, str(location)))
    if weights.dtype != torch.float64 or weights.ndim != 1 or not bool(torch.isfinite(weights).all()):
        raise ModelError(
            f"{location}: tangent {weights.dtype} {tuple(weights.shape)}", "finite float64", "Write it again."
        )
    if model.record.loss != Tangent.about.name or model.record.weights_sha256 != weights_digest(weights):
        raise ModelError(
            f"{location}: the weights are not those the record was made for", "they must agree", "Use the original."
        )
    return model


def objective_of(network: nn.Module, model: TangentModel, block: int, device: str) -> Tangent:
    """What the tangent weights minimise; refuses a network that they were not trained on."""
    record = model.record
    objective = Tangent(
        network,
        l2=record.l2,
        max_norm=record.max_norm,
        names=model.names,
        block=block,
        device=computing_device(device),
    )
    if len(model.weights) != objective.n_parameters or network_digest(network, model.names) != record.encoder:
        raise ModelError(
            "this network is not the one the tangent weights were trained on",
            "their digests must agree",
            "Load the network with the weights it was linearised at.",
        )
    return objective


def network_digest(network: nn.Module, names: tuple[str, ...]) -> str:
    """Of a network and of the parameters that its tangent weights stand for."""
    return hashlib.sha256(f"{module_digest(network)}\n{chr(10).join(names)}".encode()).hexdigest()


def weights_digest(weights: Tensor) -> str:
    """Of the weights' bytes."""
    return hashlib.sha256(weights.contiguous().numpy().tobytes()).hexdigest()
