"""What the models of a desk have spent, as counts of equal ones: adding one takes as long after a thousand as at first.

Every model counts with the mu that its policy allows, so there are very few different ones. The last model's entry has
the counts; a desk of an earlier version, whose entries have none, is gone over once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from expunge.desk.ledger import Ledger
from expunge.errors import FileError


@dataclass(frozen=True)
class Spent:
    """How often each pair of mu and sigma was published."""

    pairs: Counter[tuple[float, float]]

    @property
    def mus(self) -> Counter[float]:
        return self._of(0)

    @property
    def sigmas(self) -> Counter[float]:
        return self._of(1)

    def _of(self, place: int) -> Counter[float]:
        found: Counter[float] = Counter()
        for pair, count in self.pairs.items():
            found[pair[place]] += count
        return found

    @property
    def written(self) -> dict[str, int]:
        """As an entry has it: the shortest digits that give the same floats back."""
        return {f"{mu!r} {sigma!r}": count for (mu, sigma), count in sorted(self.pairs.items())}


def read_spent(written: dict[str, int]) -> Spent:
    """What an entry says; ValueError where it is none of ours."""
    pairs: Counter[tuple[float, float]] = Counter()
    for key, count in written.items():
        mu, sigma = map(float, key.split(" "))
        pairs[(mu, sigma)] += count
    return Spent(pairs)


def spent_so_far(ledger: Ledger) -> Spent:
    """What all models of the ledger have spent."""
    last = ledger.last_model()
    if last is None:
        return Spent(Counter())
    if last.facts.spent is not None:
        try:
            return read_spent(last.facts.spent)
        except ValueError as error:
            raise FileError(
                f"{ledger.path}: what model {last.number} says was spent cannot be read",
                "a ledger as it was written is needed",
                "Check it with expunge desk verify; restore a copy.",
            ) from error
    return Spent(Counter((model.facts.mu, model.facts.sigma) for model in ledger.models()))


def spent_with(ledger: Ledger, mu: float, sigma: float) -> Spent:
    """The same with one model more."""
    return Spent(spent_so_far(ledger).pairs + Counter([(mu, sigma)]))
