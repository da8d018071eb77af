"""Mixed-linear networks: tangent weights of a network linearised at fixed weights, trained, unlearned, certified.

The problem is ridge regression on Jacobian features (`heads/tangent.py`), so the identity behind the residual bound
holds word for word with phi_u(x) = s^2 J^T J u, and one Newton step, solved by conjugate gradients, is exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from expunge.bounds.scale import Scale
from expunge.certificate.facts import Json
from expunge.data import as_labels, encode
from expunge.distance import Distance
from expunge.errors import DataError, OptionError
from expunge.evidence.deposit.asking import deposit_guarantee, require_alone
from expunge.evidence.deposit.contents import Deposit
from expunge.heads import Rows
from expunge.heads.scaling import FEW
from expunge.heads.tangent import Tangent, TangentRows, last_parameters
from expunge.mechanism import Unlearned, carry_out
from expunge.networks.tangent_deposit import ask_tangent_deposit, deposit_tangent
from expunge.networks.tangent_model import TangentModel, objective_of, read_tangent, weights_digest
from expunge.networks.tangent_training import train_tangent
from expunge.record import TrainingRecord
from expunge.request.door import Request
from expunge.request.guarantee import Guarantee, budget_notes, wanted_distance
from expunge.request.multiplicities import Multiplicities
from expunge.request.rows import check_sizes, require_enough
from expunge.request.scaling import scaling_words
from expunge.request.subject import described_model, described_step, require_not_noised
from expunge.request.survey import class_notes, notes_on, survey
from expunge.runtime.progress import Progress, silent
from expunge.solve.outcome import Step

__all__ = [
    "TangentModel",
    "deposit_tangent",
    "last_parameters",
    "read_tangent",
    "tangent_request",
    "train_tangent",
    "unlearn_tangent",
]


@dataclass(frozen=True)
class TangentSubject:
    """Tangent weights and the network they belong to."""

    model: TangentModel
    head: Tangent

    @property
    def weights(self) -> Tensor:
        return self.model.weights.to(self.head.device)

    @property
    def record(self) -> TrainingRecord:
        return self.model.record

    @property
    def n_features(self) -> int:
        return self.head.n_parameters

    @property
    def sha256(self) -> str:
        return self.model.sha256()

    def published(self, noised: Tensor, record: TrainingRecord) -> TangentModel:
        return TangentModel(noised, self.model.names, replace(record, weights_sha256=weights_digest(noised)))

    def described(self, published: TangentModel) -> Json:
        return described_model(self.record, published.record, self.sha256, published.sha256(), torch.float64)

    def described_step(self, step: Step, kind: str) -> Json:
        return described_step(step, kind)


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

    What is known of the source is a surrogate with its distance, or a `deposit` that was kept of it
    (`deposit_tangent`). `noise` is as for `unlearn`.
    """
    if deposit is not None:
        require_alone(surrogate=surrogate, distance=distance)
        promised = deposit_guarantee(epsilon, delta, force=force, noise=noise)
        request = ask_tangent_deposit(network, model, deposit, forget, promised, block=block, device=device)
    elif surrogate is None or distance is None:
        raise OptionError(
            "no surrogate, or no distance", "without a deposit both are needed", "Give them, or a deposit."
        )
    else:
        guarantee = Guarantee(epsilon, delta, wanted_distance(distance)[0], force=force, noise=noise)
        request = tangent_request(network, model, forget, surrogate, guarantee, block=block, device=device)
    result = carry_out(request, progress=progress, insecure_test_seed=insecure_test_seed)
    assert result is not None  # there is one process
    return result


def tangent_request(
    network: nn.Module,
    model: TangentModel,
    forget: tuple[Any, Any],
    surrogate: tuple[Any, Any],
    guarantee: Guarantee,
    *,
    block: int = 64,
    device: str = "cpu",
) -> Request:
    """A request about tangent weights, with everything checked that can be before any work is done."""
    record, distance = model.record, guarantee.distance
    if not isinstance(distance, Distance):
        raise OptionError(
            "distance estimate", "for tangent models a distance must be declared", "Write for example chi2:0.1 or same."
        )
    head = objective_of(network, model, block, device)
    require_not_noised(record)
    if distance.matched:
        raise DataError("matched classes", "tangent models do not know them", "Declare the distance without matching.")
    forget_rows = _rows(head, forget, record, "the forget set")
    surrogate_rows = _rows(head, surrogate, record, "the surrogate set")
    check_sizes(len(forget_rows), record, guarantee.force)
    if distance.samples_rows:
        require_enough(surrogate_rows)
    flat_forget, flat_surrogate = (Rows(part.inputs.flatten(1), part.labels) for part in (forget_rows, surrogate_rows))
    # whatever they are kept in, all is computed in float64
    kept = replace(record, rows_dtype=str(surrogate_rows.inputs.dtype).removeprefix("torch."))
    seen = survey(flat_forget, flat_surrogate, len(record.classes), repeats=Multiplicities.of(distance))
    notes = notes_on(flat_forget, flat_surrogate, seen, kept, distance, has_labels=True, force=guarantee.force)
    notes += budget_notes(guarantee.delta, record.n_source - len(forget_rows))
    for rows, name in ((surrogate_rows, "the surrogate set"), (forget_rows, "the forget set")):
        # only said: Jacobians are scaled to one length on purpose
        notes += (scaling_words(rows.scaling, name),) if rows.scaling.share > FEW else ()
    notes += class_notes(flat_forget, seen, record, None, distance, has_labels=True)
    return Request(TangentSubject(model, head), forget_rows, surrogate_rows, guarantee, notes=notes)


def _rows(head: Tangent, arrays: tuple[Any, Any], record: TrainingRecord, name: str) -> TangentRows:
    inputs = torch.as_tensor(arrays[0])
    return head.rows(inputs, encode(as_labels(arrays[1], len(inputs), name), record.classes, name))
