"""A request, checked (door.py), and what a certificate says of it: sizes, data, software, and the published record."""

from __future__ import annotations

import datetime
import platform
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from expunge import __version__
from expunge.bounds.paper import PaperConstants
from expunge.certificate.claim import Json
from expunge.distance import Distance, Estimation
from expunge.record import TrainingRecord, one_digit
from expunge.request.promise import Promise
from expunge.request.subject import Past, Subject, record_without
from expunge.runtime.values import LARGEST

if TYPE_CHECKING:
    from expunge.deposit.file import Deposit
    from expunge.deposit.membership import Membership


@dataclass(frozen=True)
class Request:
    """A model, what to forget, what is known of the source, and the promise wanted. There is no field for the source.

    `deposit` is what was kept of the source, and `membership` where the forget rows are in it.
    """

    subject: Subject
    forget: Any = field(repr=False)
    surrogate: Any = field(repr=False)
    promise: Promise
    constants: PaperConstants | None = None
    notes: tuple[str, ...] = ()
    deposit: Deposit | None = field(default=None, repr=False)
    membership: Membership | None = field(default=None, repr=False)

    @property
    def record(self) -> TrainingRecord:
        return self.subject.record

    @property
    def head(self) -> Any:
        return self.subject.head

    @property
    def weights(self) -> Tensor:
        return self.subject.weights

    @property
    def distance(self) -> Distance | Estimation:
        distance: Distance | Estimation = self.promise.distance
        return distance

    @property
    def n_source(self) -> int:
        """Rows of the source at training."""
        return self.record.n_source + (0 if self.deposit is None else self.deposit.numbers.forgotten)

    @property
    def past(self) -> Past | None:
        """What was forgotten before, in a series."""
        series = self.promise.series
        return None if series is None or series.past is None or series.past.n_rows == 0 else series.past

    def next_past(self) -> Past:
        """PRIVATE: what has been forgotten once these rows are gone too, for the next of a series."""
        counts = torch.bincount(self.forget.labels.cpu(), minlength=len(self.record.classes)).tolist()
        past = self.past or Past(torch.zeros_like(self.weights.cpu()), (0,) * len(counts))
        return past.with_rows(len(self.forget) * self.head.gradient(self.weights, self.forget), tuple(counts))

    @property
    def n_forget(self) -> int:
        """All rows forgotten since training, these included."""
        earlier = 0 if self.past is None else self.past.n_rows
        return len(self.forget) + (earlier if self.deposit is None else self.deposit.numbers.forgotten)

    @cached_property
    def forgotten(self) -> Tensor:
        """`sum m_j g_{U_j}(w)`: the gradients of all of them at the trained weights, regulariser included."""
        gradients: Tensor = len(self.forget) * self.head.gradient(self.weights, self.forget)
        return gradients if self.past is None else gradients + self.past.gradients.to(gradients.device)

    @property
    def n_surrogate(self) -> int:
        return 0 if self.surrogate is None else len(self.surrogate)


def record_after(request: Request) -> TrainingRecord:
    """The record of the published model: what retraining on the retained rows would have written, coarsely.

    Rows are counted to one digit, rounded down, so that models of a series do not tell how many left; a fixed C has its
    l2 by that count. No class counts or class weights, no residual, no norm bound that was a row's length.
    """
    record = request.record
    n_rows = one_digit(request.n_source - request.n_forget)
    return replace(
        record,
        n_source=n_rows,
        class_counts=None,
        class_weights=None,
        residual=None,
        noised=True,
        l2=record.l2 if record.fixed_c is None else 1.0 / (record.fixed_c * n_rows),
        max_norm=LARGEST if record.norm_measured else record.max_norm,
        weights_sha256="",
    )


def retained_counts(request: Request) -> list[int]:
    """PRIVATE: rows of each class that are left, where that is known."""
    left = request.record if request.past is None else record_without(request.record, request.past.counts)
    if request.deposit is not None:
        left = replace(left, class_counts=request.deposit.numbers.class_counts)
    return list(record_without(left, request.forget.labels).class_counts or ())


def described_sizes(request: Request, distance: Distance) -> Json:
    """Of the sets and of the model; `distance` is the one that was used, and may do without a surrogate."""
    return {
        "n_source": request.n_source,
        "n_forget": request.n_forget,
        "n_surrogate": request.n_surrogate if distance.law.stands_in else 0,
        "n_retain": request.n_source - request.n_forget,
        "parameters": request.head.n_parameters,
        "classes": len(request.record.classes),
        "features": request.subject.n_features,
    }


def described_data(request: Request, distance: Distance) -> Json:
    """Of the rows; nothing where the loss is not convex, since no bound follows from them."""
    if not request.head.about.convex:
        return {}
    given = request.surrogate is not None and distance.law.stands_in
    scaled = request.surrogate.n_scaled if given else 0
    described: Json = {"rows_scaled_to_max_norm": {"forget": request.forget.n_scaled, "surrogate": scaled}}
    if given:
        described["surrogate_dtype"] = str(request.surrogate.dtype).removeprefix("torch.")
        described["effective_surrogate_rows"] = request.surrogate.effective
    if distance.matched:
        described["class_counts"] = retained_counts(request)
    if request.promise.series is not None:
        earlier = request.n_forget - len(request.forget)
        described["sequence"] = request.promise.series.described() | {"forgotten_before": earlier}
    return described


def described_software() -> Json:
    """Versions of what computed the numbers."""
    versions = {"torch": torch.__version__, "numpy": np.__version__}
    return {"expunge": __version__, "python": platform.python_version(), **versions}


def timestamp() -> str:
    """Now, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
