"""Whether sets of rows have the columns that a model was trained on, and what is said of those that name none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from expunge.certificate.claim import PublicNote
from expunge.errors import DataError
from expunge.record import TrainingRecord
from expunge.rows.columns import names_of


def column_notes(record: TrainingRecord, sets: Mapping[str, Any]) -> tuple[str, ...]:
    """Which sets were matched by position, since they name no columns, or the model's record none."""
    named = {name: names for name, rows in sets.items() if (names := names_of(rows)) is not None}
    if record.features is None:
        if len(set(named.values())) > 1:
            raise DataError(
                f"{' and '.join(named)} have other columns, or the same in another order",
                "the model's record names no columns, so nobody can say which are right",
                "Give all sets the columns of training, in the order of training.",
            )
        said = "the model's record names no columns; those of the rows were matched to it by position"
        return (said,) if named else ()
    bare = [name for name in sets if name not in named]
    if not bare:
        return ()
    files = "this file names none" if len(bare) == 1 else "these files name none"
    note = PublicNote if bare == ["the surrogate set"] else str  # how a forget file was written is its sender's
    return (note(f"{' and '.join(bare)}: columns are matched by position: {files}"),)
