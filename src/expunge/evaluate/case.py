"""What methods are compared on: the splits of one data set, and the model trained on all of its source.

Unlike the mechanism, an evaluation sees the source. Nothing here is published.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.errors import DataError, ModelError
from expunge.heads import LinearHead, Rows
from expunge.model import LinearModel, table_of
from expunge.record import TrainingRecord
from expunge.request.promise import computing_device
from expunge.request.request import head_of
from expunge.request.sets import require_encoder
from expunge.rows import (
    EncodedRows,
    as_features,
    as_labels,
    bound_rows,
    encode,
    encoder_of,
    names_of,
    order_columns,
    read_data,
)
from expunge.rows.columns import match_record, prepare_frames, to_arrays
from expunge.rows.tables import is_table
from expunge.runtime.arrays import Array, Device, engine_dtype
from expunge.runtime.progress import Progress, silent
from expunge.train import minimise, train

Labelled = tuple[NDArray[Any], NDArray[Any]]


@dataclass(frozen=True)
class Splits:
    """Features and labels of each part. Source is retain and forget together; the surrogate may be missing."""

    retain: Labelled
    forget: Labelled
    test: Labelled
    surrogate: Labelled | None = None

    @property
    def source(self) -> Labelled:
        """Retain and forget set, in one order of columns."""
        names = names_of(self.retain)
        forget = order_columns(self.forget, names, self.retain[0].shape[1], "the forget set")
        known = names if names_of(forget) == names else None
        features, labels = (np.concatenate([self.retain[each], forget[each]]) for each in (0, 1))
        return EncodedRows(features, labels, encoder_of(self.retain), known)

    def named(self) -> dict[str, Labelled]:
        """The parts that are there, each as arrays, under what they are called."""
        return {name: part for name, part in vars(self).items() if part is not None}

    def prepared(self, record: TrainingRecord) -> Splits:
        """Splits with every part that is a frame made into features, where the record has a preparation."""
        return Splits(**{part: prepare_frames(rows, record, f"the {part} set") for part, rows in self.named().items()})

    def ordered(self, names: tuple[str, ...] | None, width: int) -> Splits:
        """Splits with every part's columns in the order of these names, or of the first part that has names."""
        known = {part: own for part, rows in self.named().items() if (own := names_of(rows)) is not None}
        if names is None and len(set(known.values())) > 1:
            raise DataError(
                f"{', '.join(f'the {part} set' for part in known)} differ in their columns or in the order of these",
                "the model's record names no columns, so nobody can say which are right",
                "Give all sets the columns of training, in the order of training.",
            )
        ordered = {}
        for part, given in self.named().items():
            rows = order_columns(given, names, width, f"the {part} set")
            rows = EncodedRows(rows[0], rows[1], encoder_of(rows), names_of(rows))
            ordered[part] = to_arrays(rows, f"the {part} set")
        return Splits(**ordered)


@dataclass(frozen=True)
class Case:
    """Splits, the trained model, and the same rows as the objective takes them.

    They are `train`, `retain`, `forget`, `test` and `surrogate`.
    """

    splits: Splits
    trained: LinearModel
    objective: LinearHead
    rows: Mapping[str, Rows]

    @property
    def record(self) -> TrainingRecord:
        assert self.trained.record is not None
        return self.trained.record

    @property
    def weights(self) -> Array:
        return self.trained.matrix(self.rows["train"].device)

    @property
    def surrogate(self) -> Labelled:
        if self.splits.surrogate is None:
            raise DataError(
                "no surrogate rows", "Unlearn (-) needs them", "Give a surrogate, or leave that method out."
            )
        return self.splits.surrogate

    def with_surrogate(self, surrogate: Labelled) -> Case:
        """The case with this surrogate."""
        if surrogate is self.splits.surrogate:
            return self
        rows = make_rows(surrogate, self.trained, self.record, "the surrogate set", self.rows["train"].device)
        return replace(self, splits=replace(self.splits, surrogate=surrogate), rows={**self.rows, "surrogate": rows})

    @cached_property
    def retrained(self) -> Array:
        """The optimum for the retain set. It is unique, so where the search starts does not matter."""
        return minimise(self.objective, self.rows["retain"], start=self.weights)


def make_case(
    splits: Splits,
    *,
    l2: float | None = None,
    max_norm: float | None = None,
    loss: str = "softmax",
    bias: bool = False,
    trained: LinearModel | None = None,
    device: str = "cpu",
    progress: Progress = silent,
) -> Case:
    """Train on the source, or take the model that was.

    With a model given, its record says l2, loss, norm bound and bias. Rows and weights are stored on `device`.
    """
    if trained is None:
        if l2 is None or max_norm is None:
            raise ModelError(
                "neither a model nor l2 and max_norm are given", "one of the two is needed", "Give l2 and max_norm."
            )
        splits = splits.ordered(names_of(splits.retain), np.shape(splits.retain[0])[1])
        names = names_of(splits.source)
        settings: dict[str, Any] = {"l2": l2, "max_norm": max_norm, "loss": loss, "bias": bias, "device": device}
        trained = train(*splits.source, **settings, feature_names=names, force=True, progress=progress)
    record = trained.record
    if record is None or record.noised:
        raise ModelError(
            "the model has no training record, or is the noised result of unlearning",
            "methods are compared from the model as it was trained",
            "Use the file that expunge train wrote.",
        )
    if record.free_bias or record.fixed_c is not None or record.class_weights is not None:
        raise ModelError(
            "a model with a free bias, a fixed C or class weights",
            "methods are compared on one objective, with one l2 on every weight and rows that count alike",
            "Compare one of expunge train without --free-bias; of this one, expunge score says what is left.",
        )
    splits = splits.prepared(record).ordered(record.features, trained.n_features)
    parts: dict[str, Labelled] = {"train": splits.source, **splits.named()}
    place = computing_device(device)
    rows = {name: make_rows(part, trained, record, f"the {name} set", place) for name, part in parts.items()}
    if len(rows["train"]) != record.n_source:
        raise DataError(
            f"retain and forget set have {len(rows['train']):,} rows together",
            f"the model was trained on {record.n_source:,}",
            "Give the rows it was trained on, split in two.",
        )
    return Case(splits, trained, head_of(trained, record), rows)


def read_part(path: Path, label: str | None, model: LinearModel) -> Labelled:
    """Rows of a file, a table prepared as the model's was."""
    return read_data(path, label if is_table(path) else None, preparation=table_of(model))


def make_rows(part: Labelled, model: LinearModel, record: TrainingRecord, name: str, device: Device = "cpu") -> Rows:
    """Rows as they are for training: scaled to the norm bound, bias column, labels as class indices.

    Features that say they were made by another encoder than the model's are refused, as are other columns.
    """
    require_encoder(part, record, name)
    part = match_record(part, record, model.n_features, name)
    features = as_features(part[0], name)
    return bound_rows(
        features,
        encode(as_labels(part[1], features.shape[0], name), record.classes, name),
        max_norm=record.max_norm,
        bias=record.bias,
        dtype=engine_dtype("float64", device),
        device=device,
        width=model.n_features,
        name=name,
    )
