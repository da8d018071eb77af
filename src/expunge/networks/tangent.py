"""Tangent models: weights of a network linearised at fixed weights, trained, unlearned, certified, deposited.

The problem is ridge regression on Jacobian features (`heads/tangent.py`), so the identity behind the residual bound
holds word for word with phi_u(x) = s^2 J^T J u, and one Newton step, solved by conjugate gradients, is exact.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as safetensors_bytes
from torch import Tensor, nn

from expunge.bounds.calibration import Scale
from expunge.certificate.claim import Json
from expunge.deposit.file import Deposit
from expunge.deposit.make import NewDeposit, make_from_rows, require_possible
from expunge.distance import Distance
from expunge.door import ask, require_its_record
from expunge.errors import DataError, ModelError
from expunge.heads import LinearHead
from expunge.heads.tangent import JacobianRows, Tangent, TangentRows
from expunge.mechanism import Unlearned, carry_out
from expunge.model import from_matrix
from expunge.networks.encoders import module_digest
from expunge.record import METADATA_KEY, Label, TrainingRecord
from expunge.request.promise import Promise, computing_device
from expunge.request.request import Request, describe_model, describe_step
from expunge.rows import as_labels, encode
from expunge.runtime.arrays import Array
from expunge.runtime.files import readable
from expunge.runtime.memory import file_bytes
from expunge.runtime.progress import Progress, silent
from expunge.runtime.safetensors import read_safetensors
from expunge.runtime.strict_json import read_json
from expunge.runtime.values import positive
from expunge.solve.linear import Step
from expunge.solve.newton import TrainingEquation, newton_step


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
    """Digest of a network and of the names of the parameters that its tangent weights stand for."""
    return hashlib.sha256(f"{module_digest(network)}\n{chr(10).join(names)}".encode()).hexdigest()


def weights_digest(weights: Tensor) -> str:
    """Digest of the weights' bytes."""
    return hashlib.sha256(weights.contiguous().numpy().tobytes()).hexdigest()


# Training tangent weights to the optimum, while the source exists.


def train_tangent(
    network: nn.Module,
    inputs: Any,
    labels: Any,
    *,
    l2: float,
    max_norm: float,
    names: tuple[str, ...] | None = None,
    block: int = 64,
    device: str = "cpu",
    progress: Progress = silent,
) -> TangentModel:
    """Train tangent weights to the optimum, while the source exists.

    `names`: see `last_parameters`; None is all of them.
    """
    positive(l2, "l2", "Give the lambda of (lambda/2)||v||^2 added to the mean loss.")
    positive(max_norm, "max_norm", "Choose it before looking at the rows.")
    place = computing_device(device)
    objective = Tangent(network, l2=float(l2), max_norm=float(max_norm), names=names, block=block, device=place)
    examples = torch.as_tensor(inputs)
    values = as_labels(labels, len(examples), "the source")
    unique, counts = np.unique(values, return_counts=True)
    classes: tuple[Label, ...] = tuple(value.item() for value in unique)
    progress("Jacobian norms", 0, None)
    rows = objective.rows(examples, encode(values, classes, "the source"))
    if rows.offsets.shape[1] != len(classes):
        raise DataError(
            f"the network has {rows.offsets.shape[1]} outputs and the source {len(classes)} classes",
            "one output a class is needed",
            "Replace the network's last layer by one with as many outputs.",
        )
    weights, left = minimise_tangent(objective, rows, progress=progress)
    record = TrainingRecord(
        n_source=len(rows),
        classes=classes,
        class_counts=tuple(int(count) for count in counts),
        l2=float(l2),
        loss=Tangent.about.name,
        max_norm=float(max_norm),
        bias=False,
        residual=left + objective.rounding(weights, rows),
        weights_sha256=weights_digest(weights.cpu()),
        encoder=network_digest(network, objective.names),
    )
    return TangentModel(weights.cpu(), objective.names, record)


def minimise_tangent(
    objective: Tangent, rows: TangentRows, start: Tensor | None = None, progress: Progress = silent
) -> tuple[Tensor, float]:
    """The optimum for these rows, and the norm of the gradient there: Newton's steps until they no longer help."""
    if start is None:
        start = torch.zeros(objective.n_parameters, dtype=torch.float64, device=objective.device)
    step = newton_step(TrainingEquation(objective, start, rows), goal=0.0, progress=progress)
    return start + step.update, step.residual


# A deposit of tangent weights: what is kept of a source before it goes, and examples that leave it later.


SOURCE, FORGET = "the source", "the forget set"
REMEDY = "Give the examples the tangent weights were trained on, all of them, as they were given then."


@dataclass(frozen=True)
class TangentSubject:
    """Tangent weights and the network they belong to.

    With a deposit `head` is its least squares on rows of Jacobians, and `weights` its anchor, 1 x P; without, `head` is
    the objective itself.
    """

    model: TangentModel
    objective: Tangent
    head: Tangent | LinearHead
    weights: Tensor
    record: TrainingRecord
    notes: tuple[str, ...] = ()

    def rows(self, arrays: tuple[Any, Any], name: str) -> TangentRows | JacobianRows:
        made = jacobian_rows(self.objective, arrays, self.record, name)
        return made.examples if self.head is self.objective else made

    @property
    def n_features(self) -> int:
        return self.objective.n_parameters

    @property
    def sha256(self) -> str:
        return self.model.sha256()

    def published(self, noised: Array, record: TrainingRecord) -> TangentModel:
        weights = torch.as_tensor(noised).reshape(-1)
        return TangentModel(weights, self.model.names, replace(record, weights_sha256=weights_digest(weights)))

    def describe(self, published: TangentModel) -> Json:
        return describe_model(self.record, published.record, self.sha256, published.sha256(), torch.float64)

    def describe_step(self, step: Step, kind: str) -> Json:
        return describe_step(step, kind)


def deposit_tangent(
    network: nn.Module, model: TangentModel, inputs: Any, labels: Any, *, seed: int | None = None, **settings: Any
) -> Deposit:
    """Keep what later deletions from tangent weights need of their source, before it goes. PRIVATE.

    `inputs` and `labels` are the examples the weights were trained on. A matrix of as many rows and columns as there
    are weights is stored, so there may be a few thousand of them (`names` of `train_tangent`). `seed` fixes key and
    rehearsal for tests; `block`, `device` and `progress` are as for `train_tangent`.
    """
    return make_tangent_deposit(network, model, inputs, labels, seed=seed, **settings).deposit


def make_tangent_deposit(
    network: nn.Module,
    model: TangentModel,
    inputs: Any,
    labels: Any,
    *,
    block: int = 64,
    device: str = "cpu",
    progress: Progress = silent,
    seed: int | None = None,
) -> NewDeposit:
    """A deposit of tangent weights, with the rows and what single ones of them need to leave."""
    record, anchor = model.record, from_matrix(model.weights[None], bias=False, dtype=torch.float64)
    require_possible(anchor, record, computing_device(device))
    objective = objective_of(network, model, block, device)
    progress("Jacobian norms", 0, None)
    rows = jacobian_rows(objective, (inputs, labels), record, SOURCE)
    _require_trained_on(model, rows)
    given = (torch.as_tensor(inputs).flatten(1), as_labels(labels, len(rows), SOURCE))
    return make_from_rows(anchor, record, rows, given, progress=progress, seed=seed)


def jacobian_rows(objective: Tangent, arrays: tuple[Any, Any], record: TrainingRecord, name: str) -> JacobianRows:
    """Examples made ready, as rows of a linear head."""
    inputs = torch.as_tensor(arrays[0])
    labels = encode(as_labels(arrays[1], len(inputs), name), record.classes, name)
    return JacobianRows(objective, objective.rows(inputs, labels))


def _require_trained_on(model: TangentModel, rows: JacobianRows) -> None:
    """Refuse examples that are not those the record was made with, as far as that can be seen."""
    record, objective = model.record, rows.objective
    if len(rows) != record.n_source:
        raise DataError(f"{SOURCE} has {len(rows):,} rows", f"the model was trained on {record.n_source:,}", REMEDY)
    weights = model.weights.to(objective.device)
    size, lost = float(objective.gradient(weights, rows.examples).norm()), objective.rounding(weights, rows.examples)
    if size > (record.residual or 0.0) * (1.0 + 1e-6) + 2.0 * lost:
        raise DataError(
            f"on the examples given as the source the gradient has norm {size:.3g}",
            f"at training it was {record.residual:.3g}",
            REMEDY,
        )


def unlearn_tangent(
    network: nn.Module,
    model: TangentModel,
    forget: tuple[Any, Any],
    surrogate: tuple[Any, Any] | None = None,
    *,
    epsilon: float,
    delta: float,
    distance: Distance | str | None = None,
    deposit: Deposit | None = None,
    force: bool = False,
    noise: float | str | Scale | None = None,
    block: int = 64,
    device: str = "cpu",
    insecure_test_seed: int | None = None,
    progress: Progress = silent,
) -> Unlearned:
    """Remove the forget examples from tangent weights whose source is gone; a whole class by giving all its rows.

    What is known of the source is a surrogate with its distance, or a `deposit` that was made of it
    (`deposit_tangent`). `noise` is as for `unlearn`.
    """
    promise = Promise(epsilon, delta, distance, force=force, noise=noise)
    request = tangent_request(network, model, forget, surrogate, promise, deposit=deposit, block=block, device=device)
    result = carry_out(request, progress=progress, insecure_test_seed=insecure_test_seed)
    assert result is not None  # there is one process
    return result


def tangent_request(
    network: nn.Module,
    model: TangentModel,
    forget: tuple[Any, Any],
    surrogate: tuple[Any, Any] | None,
    promise: Promise,
    *,
    deposit: Deposit | None = None,
    block: int = 64,
    device: str = "cpu",
) -> Request:
    """A request about tangent weights, with everything checked that can be before any work is done.

    With a `deposit`, `model` may be the published one of a deletion before: the weights are the deposit's.
    """
    if deposit is not None:
        require_its_record(model.record, deposit.record)
    objective = objective_of(network, model, block, device)
    if deposit is None:
        subject = TangentSubject(model, objective, objective, model.weights.to(objective.device), model.record)
    else:
        subject = TangentSubject(model, objective, deposit.head, deposit.on(objective.device).anchor, deposit.record)
    return ask(subject, forget, surrogate, promise, deposit=deposit)
