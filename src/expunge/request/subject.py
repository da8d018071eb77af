"""What is unlearned from: a trained model as the mechanism sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from expunge.certificate.claim import Json
from expunge.errors import ModelError
from expunge.heads import LinearHead, head_for
from expunge.model import LinearModel, from_matrix
from expunge.record import TrainingRecord
from expunge.request.series import Series
from expunge.solve.outcome import Step


class Subject(Protocol):
    """A model, and how it is published."""

    @property
    def head(self) -> Any:
        """What it minimises; see `heads/`."""

    @property
    def weights(self) -> Tensor:
        """In float64, on the device they are computed with."""

    @property
    def record(self) -> TrainingRecord:
        """What it says of its training."""

    @property
    def n_features(self) -> int:
        """What a certificate states as its features."""

    @property
    def sha256(self) -> str:
        """Digest of the model's file."""

    def published(self, noised: Tensor, record: TrainingRecord) -> Any:
        """The model to hand over, from weights on the cpu with their noise; `record` is what it says of itself."""

    def described(self, published: Any) -> Json:
        """What a certificate says of the model before and after."""

    def described_step(self, step: Step, kind: str) -> Json:
        """What a certificate says of the step."""


def require_not_noised(record: TrainingRecord) -> None:
    """Refuse the published result of an earlier unlearning."""
    if record.noised:
        raise ModelError(
            "this model is the noised result of an earlier unlearning",
            "the bound needs a model near its optimum, and the noise took this one away from it",
            "Unlearn both requests together from the model before noise, or retrain.",
        )


def head_of(model: LinearModel, record: TrainingRecord) -> LinearHead:
    """What a linear classifier minimises."""
    return head_for(
        record.loss,
        l2=record.l2,
        n_classes=model.n_classes,
        n_features=model.n_features + int(record.bias),
        row_bound=record.row_bound,
    )


@dataclass(frozen=True)
class LinearSubject:
    """A linear classifier. `dtype` is what its weights are published in."""

    model: LinearModel
    record: TrainingRecord
    head: LinearHead
    weights: Tensor
    sha256: str
    dtype: torch.dtype

    @staticmethod
    def of(
        model: LinearModel, record: TrainingRecord, device: torch.device, sha256: str | None, series: Series | None
    ) -> LinearSubject:
        """The model under this record; of a series, published in the type of its first."""
        head = head_of(model, record)
        kept = None if series is None or series.store is None else getattr(torch, series.store)
        dtype = model.weight.dtype if kept is None else kept
        return LinearSubject(model, record, head, model.matrix(device), sha256 or model.sha256(), dtype)

    @property
    def n_features(self) -> int:
        return self.model.n_features

    def published(self, noised: Tensor, record: TrainingRecord) -> LinearModel:
        model = from_matrix(noised, bias=self.record.bias, dtype=self.dtype)
        if not bool(torch.isfinite(model.matrix()).all()):
            raise ModelError(
                f"with its noise a weight leaves the range of {self.dtype}",
                "published weights must be finite",
                "Store the model in float32 or float64.",
            )
        return model.with_record(record)

    def described(self, published: LinearModel) -> Json:
        assert published.record is not None
        return described_model(self.record, published.record, self.sha256, published.sha256(), self.dtype)

    def described_step(self, step: Step, kind: str) -> Json:
        return described_step(step, kind)


def described_model(
    record: TrainingRecord, published: TrainingRecord, before: str, after: str, dtype: torch.dtype
) -> Json:
    """What a certificate says of a model with a norm bound on its rows, and its digests before and after.

    Under `published` what its record says now, which is all that a statement says of it.
    """
    model: Json = {
        "before": {"sha256": before},
        "after": {"sha256": after},
        "published": {"n_source": published.n_source, "l2": published.l2, "max_norm": published.max_norm},
        "loss": record.loss,
        "l2": record.l2,
        "max_norm": record.max_norm,
        "row_bound": record.row_bound,
        "bias": record.bias,
        "dtype": str(dtype).removeprefix("torch."),
        "record": record.provenance,
    }
    if record.free_bias:
        model["free_bias"] = True
    if record.fixed_c is not None:
        model["fixed_c"] = record.fixed_c
    if record.class_weights is not None:
        model["class_weights"] = list(record.class_weights)
    if record.preparation is not None:
        model["preparation"] = record.preparation
    if record.encoder is None:
        return model
    return model | {"encoder": record.encoder, "encoder_trained_on_source": record.encoder_trained or "unknown"}


def described_step(step: Step, kind: str) -> Json:
    """The evidence of a step, in JSON's terms (null for infinite)."""
    return {
        "kind": kind,
        "method": step.method,
        "iterations": step.iterations,
        "inner_iterations": step.inner_iterations,
        "residual": step.residual,
        "positive_definite": step.positive_definite,
        "damping": step.damping if step.damping < float("inf") else None,
        "converged": step.converged,
        "pull": step.pull if step.pull < float("inf") else None,
    }
