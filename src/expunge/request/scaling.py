"""What is said of rows that were scaled down to the norm bound, and when there are too many of them."""

from __future__ import annotations

import math

from expunge.certificate.claim import PublicNote
from expunge.errors import UselessModel
from expunge.heads.scaling import FEW, Scaling
from expunge.runtime.rounding import up

SURROGATE = "the surrogate set"  # what is said of it would be the same whoever had left
FORCED = "FORCED: "  # how a note begins that would have been a refusal
MOST = 0.5  # of a set's rows: beyond this their lengths, and with them most of what a table says, are gone
FEWEST_TO_JUDGE = 20  # rows: of fewer, a share says little, and a person whose rows are unusual may ask too


def scaling_words(scaling: Scaling, name: str) -> str:
    """How many rows were scaled, and by how much."""
    percent = min(100 * scaling.share, 100.0)
    return (
        f"{name}: {scaling.n_scaled:,} of {scaling.n_rows:,} rows ({percent:.3g} %) were longer than the norm bound "
        f"and were scaled down to it, half of them to {up(100 * scaling.factor, 2)} % of their length or less"
    )


def refuse_squashed(scaling: Scaling | None, name: str, max_norm: float, force: bool) -> tuple[str, ...]:
    """A note where more than one row in a hundred was scaled; more than half are refused, unless forced."""
    if scaling is None or not math.isfinite(scaling.share) or scaling.share <= FEW:
        return ()
    said = scaling_words(scaling, name)
    note = PublicNote if name == SURROGATE else str
    if scaling.share <= MOST or scaling.n_rows < FEWEST_TO_JUDGE:
        return (note(said),)
    if not force:
        raise UselessModel(
            said,
            f"a norm bound ({max_norm:g}) that scales more than half of the rows leaves only their directions, which "
            "for a table of raw numbers is next to nothing",
            f"Standardise the features, as was done for training; a --max-norm of {up(scaling.bound_for_few, 2)} would "
            "scale one row in a hundred; or insist with --force (force=True) where all are to have one length.",
        )
    return (note(f"{FORCED}{said}; with more than half it would have been refused"),)
