"""A deposit of tangent weights: what is kept of a source before it goes, and examples that leave it later.

Tangent weights are a linear head on Jacobian rows (heads/jacobians.py) with a square for a loss. So their deposit is a
ridge head's: the Gram matrix of the rows, one exact step, and nothing unknown but rounding. What a pass through the
network loses of that is declared, so certificates are conditional on it. The examples themselves are hashed as they are
given, and must be given the same again: how far a copy's Jacobian is from its original's is not known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from expunge.certificate.facts import Json
from expunge.data import as_labels, encode
from expunge.errors import DataError, ModelError
from expunge.evidence.deposit.asking import notes_on, require_its_record, require_some_left
from expunge.evidence.deposit.contents import Deposit, kept_head
from expunge.evidence.deposit.keeping import Kept
from expunge.evidence.deposit.leaving import Membership, look_up, require_members
from expunge.evidence.deposit.making import make_deposit, require_size
from expunge.heads import LinearHead
from expunge.heads.jacobians import JacobianRows
from expunge.heads.tangent import Tangent
from expunge.model import from_matrix
from expunge.networks.tangent_model import TangentModel, objective_of, weights_digest
from expunge.record import TrainingRecord
from expunge.request.door import Request
from expunge.request.execution import computing_device
from expunge.request.guarantee import Guarantee, budget_notes
from expunge.request.subject import described_model, described_step
from expunge.runtime.progress import Progress, silent
from expunge.solve.outcome import Step

SOURCE, FORGET = "the source", "the forget set"
REMEDY = "Give the examples the tangent weights were trained on, all of them, as they were given then."


@dataclass(frozen=True)
class KeptTangentSubject:
    """The anchor of a deposit of tangent weights, 1 x P, and the model that was given with it."""

    model: TangentModel
    head: LinearHead
    weights: Tensor
    record: TrainingRecord

    @property
    def n_features(self) -> int:
        return self.head.n_features

    @property
    def sha256(self) -> str:
        return self.model.sha256()

    def published(self, noised: Tensor, record: TrainingRecord) -> TangentModel:
        weights = noised.reshape(-1)
        return TangentModel(weights, self.model.names, replace(record, weights_sha256=weights_digest(weights)))

    def described(self, published: TangentModel) -> Json:
        return described_model(self.record, published.record, self.sha256, published.sha256(), torch.float64)

    def described_step(self, step: Step, kind: str) -> Json:
        return described_step(step, kind)


def deposit_tangent(
    network: nn.Module,
    model: TangentModel,
    inputs: Any,
    labels: Any,
    *,
    block: int = 64,
    device: str = "cpu",
    progress: Progress = silent,
    seed: int | None = None,
) -> Deposit:
    """Keep what later deletions from tangent weights need of their source, before it goes. PRIVATE.

    `inputs` and `labels` are the examples the weights were trained on. A matrix of as many rows and columns as there
    are weights is kept, so there may be a few thousand of them (`names` of `train_tangent`). `seed` fixes key and
    rehearsal for tests.
    """
    return keep_tangent(
        network, model, inputs, labels, block=block, device=device, progress=progress, seed=seed
    ).deposit


def keep_tangent(
    network: nn.Module,
    model: TangentModel,
    inputs: Any,
    labels: Any,
    *,
    block: int = 64,
    device: str = "cpu",
    progress: Progress = silent,
    seed: int | None = None,
) -> Kept:
    """The same with what was rehearsed and the rows."""
    record, anchor = model.record, from_matrix(model.weights[None], bias=False, dtype=torch.float64)
    if record.noised:
        raise ModelError(
            "the model is an unlearned, noised one",
            "a deposit is of a model as it was trained",
            "Give the model from before the deletion.",
        )
    require_size(kept_head(anchor, record), computing_device(device))
    objective = objective_of(network, model, block, device)
    progress("Jacobian norms", 0, None)
    rows = jacobian_rows(objective, (inputs, labels), record, SOURCE)
    _require_trained_on(model, rows)
    given = (torch.as_tensor(inputs).flatten(1), as_labels(labels, len(rows), SOURCE))
    return Kept(make_deposit(anchor, record, rows, given, progress=progress, seed=seed), rows)


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


def ask_tangent_deposit(
    network: nn.Module,
    model: TangentModel,
    deposit: Deposit,
    forget: tuple[Any, Any],
    guarantee: Guarantee,
    *,
    block: int = 64,
    device: str = "cpu",
) -> Request:
    """A request to take these examples out, with everything checked that can be before any work is done.

    `model` may be the published one of a deletion before: the weights are the deposit's.
    """
    record = deposit.record
    require_its_record(model.record, record)
    objective = objective_of(network, model, block, device)
    rows = jacobian_rows(objective, forget, record, FORGET)
    inputs = torch.as_tensor(forget[0]).flatten(1)
    membership = look_up(deposit, inputs, as_labels(forget[1], len(inputs), FORGET))
    require_members(membership)
    _require_the_same(membership)
    require_some_left(deposit, len(rows))
    placed = deposit.on(objective.device)
    notes = budget_notes(guarantee.delta, deposit.numbers.n_rows - len(rows)) + notes_on(membership, deposit)
    subject = KeptTangentSubject(model, deposit.head, placed.anchor, record)
    return Request(subject, rows, None, guarantee, None, notes, placed, membership)


def _require_the_same(membership: Membership) -> None:
    copies = [int(row) + 1 for row in np.flatnonzero(membership.found.precision > 0)]
    if copies:
        raise DataError(
            f"{len(copies):,} examples (row {', '.join(map(str, copies[:5]))}) are rounded copies of source examples",
            "how far a network's Jacobian changes with its input is not known",
            "Give them to the last digit as they were trained on.",
        )
