"""A place in a series of deletions from one model (docs/theory.md, section 16).

Every deletion is counted from the trained weights, with all rows forgotten so far (`past.py`), so no bound is carried.
What all published models say together holds if every one of their bounds does; each fails with a probability f spent
out of
delta. All `planned` steps get the same f from the start, and every certificate of the series spends `planned f`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from expunge.certificate.claim import MOST_PLANNED
from expunge.errors import OptionError


@dataclass(frozen=True)
class Series:
    """`position` counts from 1; `past` is what was forgotten before (`request.past.Past`), None for the first.

    `store` is the type weights are published in (the private weights stay float64); `head` names the ledger this step
    is recorded in, as it stood before. `others` of the rows forgotten so far equal rows that were asked for before, and
    were declared to be another person's.
    """

    planned: int
    position: int = 1
    past: Any = None
    store: str | None = None
    head: dict[str, int | str] | None = None
    others: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.planned <= MOST_PLANNED:
            raise OptionError(
                f"{self.planned} planned models",
                f"from 1 to {MOST_PLANNED:,} can be planned",
                "Count the models to be published before the next training.",
            )
        if not 1 <= self.position <= self.planned:
            raise OptionError(
                f"model {self.position} of {self.planned} planned", "no more than planned can follow", "Retrain."
            )

    @property
    def note(self) -> str | None:
        """What a certificate of a later step says of the earlier ones."""
        if self.past is None or self.past.n_rows == 0:
            return None
        return (
            f"{self.past.n_rows:,} rows were forgotten before, in {self.position - 1} earlier "
            f"{'deletion' if self.position == 2 else 'deletions'} of this sequence; the bound is that of all of them "
            "together, counted from the trained weights"
        )

    def described(self) -> dict[str, object]:
        """What a certificate tells about its place."""
        place: dict[str, object] = {"planned": self.planned, "position": self.position, "ledger_head": self.head}
        return place | ({"another_person": self.others} if self.others else {})
