"""The kinds of distance, one class each: what it allows the source to be, given moments on the surrogate.

same          the surrogate is a sample of the source's own distribution
tv:0.2        total variation between the feature distributions, in [0, 1]
chi2:0.3      chi-square of the source relative to the surrogate
kl:0.5        Kullback-Leibler divergence of the source relative to the surrogate
deposit       no rows stand in for the source: its gradient and Hessian were kept (deposit/)
source        the surrogate IS the source (the paper's Unlearn (+)); checked as far as its rows show it
means         only ever estimated: the difference of means that the residual bound needs, for one update

A new kind is one class and one call of `register_kind`; nothing outside this folder asks for a kind by its name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from expunge.distance.inequalities import (
    shift_chi_square,
    shift_kullback_leibler,
    shift_total_variation,
    tv_upper_from_chi_square,
    tv_upper_from_kl,
)
from expunge.errors import OptionError


class Kind(ABC):
    """What a distance of one kind means. All methods are given its value."""

    name: ClassVar[str]
    meaning: ClassVar[str]
    assumption: ClassVar[str | None] = None  # a further sentence for the certificate
    takes_value: ClassVar[bool] = True
    one_population: ClassVar[bool] = False  # rows of both sets are draws of one law
    largest_value: ClassVar[float | None] = None
    provenances: ClassVar[tuple[str, ...]] = ("declared", "estimated")  # the first is the usual one
    is_source: ClassVar[bool] = False  # the rows given are the source's own
    stands_in: ClassVar[bool] = True  # rows that are not the source's stand in for its
    between_samples: ClassVar[bool] = True  # whether it can be declared of two finite sets
    rows_unlike_any: ClassVar[bool] = False  # whether source rows may be unlike every surrogate row
    uses_deviation: ClassVar[bool] = False  # whether the shift needs the surrogate's covariance
    moves_moments: ClassVar[bool] = True  # whether the source's second moments differ from the surrogate's

    @abstractmethod
    def shift(self, value: float, deviation: float, supremum: float, centred_supremum: float) -> float:
        """Upper bound on `||E_rho f - E_nu f||` for any f with these moments under the surrogate."""

    @abstractmethod
    def tv_upper(self, value: float) -> float:
        """Upper bound on total variation that follows, for the paper's bound."""

    def mean_shift(self, value: float, deviation: float, supremum: float, centred_supremum: float) -> float:
        """Upper bound for the one f that the bound is about: the change of gradient at this update."""
        return self.shift(value, deviation, supremum, centred_supremum)


class Same(Kind):
    """Nothing is shifted."""

    name = "same"
    meaning = "the surrogate is an independent sample of the source's own distribution"
    takes_value = False
    one_population = True
    between_samples = False
    moves_moments = False

    def shift(self, value: float, deviation: float, supremum: float, centred_supremum: float) -> float:
        return 0.0

    def tv_upper(self, value: float) -> float:
        return 0.0


class TotalVariation(Kind):
    """`2 TV sup ||f||`; source rows may be unlike any surrogate row."""

    name = "tv"
    meaning = "total variation between the feature distributions of source and surrogate"
    largest_value = 1.0
    rows_unlike_any = True

    def shift(self, value: float, deviation: float, supremum: float, centred_supremum: float) -> float:
        return shift_total_variation(value, supremum)

    def tv_upper(self, value: float) -> float:
        return value


class ChiSquare(Kind):
    """`sqrt(chi2) sqrt(lambda_max(Cov f))`."""

    name = "chi2"
    meaning = "chi-square divergence of the source's feature distribution relative to the surrogate's"
    uses_deviation = True

    def shift(self, value: float, deviation: float, supremum: float, centred_supremum: float) -> float:
        return shift_chi_square(value, deviation)

    def tv_upper(self, value: float) -> float:
        return tv_upper_from_chi_square(value)


class KullbackLeibler(Kind):
    """`s sqrt(2 KL) + M KL / 3`."""

    name = "kl"
    meaning = "Kullback-Leibler divergence of the source's feature distribution relative to the surrogate's"
    uses_deviation = True

    def shift(self, value: float, deviation: float, supremum: float, centred_supremum: float) -> float:
        return shift_kullback_leibler(value, deviation, centred_supremum)

    def tv_upper(self, value: float) -> float:
        return tv_upper_from_kl(value)


class TheSource(Same):
    """The rows given are the source: nothing is shifted, and nothing was sampled."""

    name = "source"
    meaning = "the surrogate is the source itself"
    provenances = ("measured",)
    is_source = True
    between_samples = True


class FromDeposit(Same):
    """Nothing stands in for the source: what the bound needs of it was kept."""

    name = "deposit"
    meaning = "no rows stand in for the source: the gradient and the Hessian of its rows were kept in a deposit"
    provenances = ("measured",)
    stands_in = False
    between_samples = True


class Means(Kind):
    """The difference of means itself. Of anything else it says nothing; spreads are taken to be the surrogate's."""

    name = "means"
    meaning = "norm of the difference between source and surrogate in the mean change of gradient at this update"
    assumption = "The source's spread in the gradient's change is the surrogate's."
    provenances = ("estimated",)
    moves_moments = False

    def shift(self, value: float, deviation: float, supremum: float, centred_supremum: float) -> float:
        raise OptionError(
            "a difference of means", "it says how far one mean moves, and nothing of any other", "Declare a distance."
        )

    def mean_shift(self, value: float, deviation: float, supremum: float, centred_supremum: float) -> float:
        return value

    def tv_upper(self, value: float) -> float:
        raise OptionError(
            "a difference of means",
            "no total variation follows from it, and the paper's bound takes one",
            "Use --bound residual (bound='residual'), or an estimate by the route kl.",
        )


KINDS: dict[str, Kind] = {}


def register_kind(kind: Kind) -> None:
    """Make a kind known under its name; a name is taken once."""
    if type(KINDS.setdefault(kind.name, kind)) is not type(kind):
        raise OptionError(f"distance kind {kind.name!r} is taken", "a name stands for one kind", "Choose another name.")


def kind_named(name: object) -> Kind:
    """The kind of that name; whatever is unknown raises."""
    if not isinstance(name, str) or name not in KINDS:
        raise OptionError(
            f"distance kind {name!r} is not known",
            f"it must be one of {', '.join(KINDS)}",
            "Write for example chi2:0.1, tv:0.2, kl:0.5 or same.",
        )
    return KINDS[name]


for built_in in (Same(), TotalVariation(), ChiSquare(), KullbackLeibler(), TheSource(), FromDeposit(), Means()):
    register_kind(built_in)
