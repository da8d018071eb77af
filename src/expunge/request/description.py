"""What a certificate says of a request beside its facts: sizes, data, software, and the record of what is published."""

from __future__ import annotations

import datetime
import platform
from dataclasses import replace

import numpy as np
import torch

from expunge import __version__
from expunge.certificate.claim import Json
from expunge.distance import Distance
from expunge.record import TrainingRecord, one_digit
from expunge.request.door import Request
from expunge.request.past import left_over, without
from expunge.runtime.checks import LARGEST


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
    left = request.record if request.past is None else left_over(request.record, request.past)
    if request.deposit is not None:
        left = replace(left, class_counts=request.deposit.numbers.class_counts)
    return list(without(left, request.forget).class_counts or ())


def described_sizes(request: Request, distance: Distance | None = None) -> Json:
    """Of the sets and of the model; `distance` is the one that was used, and may do without a surrogate."""
    return {
        "n_source": request.n_source,
        "n_forget": request.n_forget,
        "n_surrogate": 0 if distance is not None and not distance.law.stands_in else request.n_surrogate,
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
    scaled = 0 if not given else request.surrogate.n_scaled
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
    return {
        "expunge": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def timestamp() -> str:
    """Now, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
