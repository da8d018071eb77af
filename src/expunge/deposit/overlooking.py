"""For the auditor who has the surrogate rows: what the door would have said to them.

It refuses rows that were copied, and with sampling `seen` such that the forget rows refute; where it refuses unless
somebody insists, the dossier has to say that somebody did.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import torch

from expunge.certificate.claim import Json, PublicNote
from expunge.certificate.rules import DEPOSIT, Check
from expunge.deposit.adding import FORGET, counted
from expunge.deposit.beside import Answer, require_seen
from expunge.deposit.contents import Deposit
from expunge.distance import Distance
from expunge.errors import VacuousClaim
from expunge.heads import Rows, RowSet
from expunge.heads.rows import in_memory
from expunge.request.multiplicities import Multiplicities
from expunge.request.rows import is_labelled, rows_of
from expunge.request.scaling import FORCED, SURROGATE, refuse_squashed
from expunge.request.survey import against_the_distance, survey


def looked_over(content: Json, distance: Distance, after: Deposit, surrogate: Any) -> tuple[RowSet, list[Check]]:
    """The surrogate rows made ready as they were then, and what is to be said of them."""
    record, labelled = after.record, is_labelled(surrogate)
    left = replace(record, n_source=after.numbers.n_rows, class_counts=after.numbers.class_counts)
    rows = rows_of(surrogate, after.model, record, torch.float64, after.device, SURROGATE)
    nobody = Rows(torch.zeros((0, rows.n_features), dtype=rows.dtype), torch.zeros(0, dtype=torch.int64))
    seen = survey(nobody, rows, len(record.classes), repeats=Multiplicities.of(distance))
    insisted: tuple[str, ...] = refuse_squashed(rows.scaling, SURROGATE, record.max_norm, force=True)
    if labelled:  # of what is left nobody is forgotten any more
        insisted += against_the_distance(Counter(), seen, left, distance, force=True)
    untold = [
        str(note)
        for note in insisted
        if note.startswith(FORCED) and note not in content["public_notes" if isinstance(note, PublicNote) else "notes"]
    ]
    compared = [
        _about("its rows were not copied", seen.copied, 0, "independent draws do not repeat as they do"),
        _about("what somebody had to insist on is noted", untold, []),
    ]
    return counted(rows, left, distance, labelled, None), compared


def seen_checks(distance: Distance, after: Deposit, answer: Answer, forget: Any) -> list[Check]:
    """With sampling `seen`: that no forget row shows more than the surrogate does."""
    if forget is None or not distance.samples_rows or distance.sampling != "seen":
        return []
    rows = in_memory(rows_of(forget, after.model, after.record, torch.float64, after.device, FORGET), "it")
    why = ""
    try:
        require_seen(after, answer, rows)
    except VacuousClaim as error:
        why = str(error)
    return [_about("no forget row is unlike what is seen", not why, True, why)]


def _about(name: str, claimed: Any, recomputed: Any, why: str = "") -> Check:
    return Check(f"surrogate: {name}", claimed, recomputed, why, DEPOSIT)
