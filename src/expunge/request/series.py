"""A place in a series of deletions from one model (docs/theory.md, section 16).

The next deletion starts at the un-noised weights v of the last one, with `n - m` rows and training residual
`G = l2 Delta`, where Delta is the last bound without its grid term: `G` bounds `||g_R(v)||`, so bounds add up and no
data is needed. A bound that is carried forward holds only if those before it did; each fails with a probability f spent
out of delta. All `planned` steps get the same f from the start, and every certificate of the series spends `planned f`.
"""

from __future__ import annotations

from dataclasses import dataclass

from expunge.errors import OptionError

MOST_PLANNED = 1_000_000
# what a carried residual is, by the status of the certificate it comes from
PROVENANCE = {"proven": "derived", "conditional": "declared", "estimated": "estimated"}


@dataclass(frozen=True)
class Series:
    """`position` counts from 1.

    `carried` is the provenance of a residual carried from earlier steps, None for the first.

    `store` is the type weights are published in (the private weights stay float64); `head` names the ledger this step
    is recorded in, as it stood before.
    """

    planned: int
    position: int = 1
    carried: str | None = None
    store: str | None = None
    head: dict[str, int | str] | None = None

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
        if self.carried is None:
            return None
        return (
            f"training_residual is the bound carried from {self.position - 1} earlier "
            f"{'deletion' if self.position == 2 else 'deletions'} of this sequence; it holds if what their "
            "certificates assume does, and the distance is about the rows that were still left"
        )

    def described(self) -> dict[str, object]:
        """What a certificate tells about its place."""
        return {"planned": self.planned, "position": self.position, "ledger_head": self.head}


def spread_failures(failures: dict[str, float], planned: int) -> dict[str, float]:
    """The failure probabilities of one step of `planned`, with what the other steps spend under `sequence`.

    >>> spread_failures({"sampling": 0.4}, 4)
    {'sampling': 0.1, 'sequence': 0.30000000000000004}
    """
    if planned == 1 or not failures:
        return failures
    own = {name: value / planned for name, value in failures.items()}
    return {**own, "sequence": (planned - 1) * sum(own.values())}
