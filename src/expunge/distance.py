"""How far the surrogate is from the source: what is declared, and what follows for a difference of means."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from expunge.errors import OptionError
from expunge.runtime.values import choice, option

# From a distance between two distributions to a bound on a difference of means. Plain float64 -----------------------
# Throughout, rho is the source, nu the surrogate, f a vector-valued function; the result bounds `||E_rho f - E_nu f||`.
# `deviation` is the square root of the largest eigenvalue of f's covariance under nu.


def shift_total_variation(tv: float, supremum: float) -> float:
    """`2 TV sup||f||`.

    >>> shift_total_variation(0.25, 2.0)
    1.0
    """
    return 2.0 * tv * supremum


def shift_chi_square(chi2: float, deviation: float) -> float:
    """`sqrt(chi2(rho, nu)) * deviation`: Cauchy-Schwarz on `(d rho/d nu - 1) v.(f - E_nu f)` for every unit v.

    >>> shift_chi_square(0.25, 2.0)
    1.0
    """
    return math.sqrt(chi2) * deviation


def shift_kullback_leibler(kl: float, deviation: float, centred_supremum: float) -> float:
    """`deviation sqrt(2 KL) + M KL/3`, KL = KL(rho || nu), `M = sup||f - E_nu f||`.

    Gibbs' variational principle with Bernstein's bound on the moment generating function of `v.(f - E_nu f)` under nu.

    >>> shift_kullback_leibler(0.5, 1.0, 3.0)
    1.5
    """
    return deviation * math.sqrt(2.0 * kl) + centred_supremum * kl / 3.0


def bretagnolle_huber(kl: float) -> float:
    """Upper bound on total variation: `sqrt(1 - exp(-KL))`.

    >>> bretagnolle_huber(0.0)
    0.0
    """
    return math.sqrt(-math.expm1(-kl))


def tv_upper_from_kl(kl: float) -> float:
    """The smaller of Pinsker's and Bretagnolle and Huber's bounds; KL in either direction.

    >>> tv_upper_from_kl(0.02), round(tv_upper_from_kl(4.0), 4)
    (0.1, 0.9908)
    """
    return min(math.sqrt(0.5 * kl), bretagnolle_huber(kl))


def tv_upper_from_chi_square(chi2: float) -> float:
    """Upper bound on total variation: `sqrt(chi2)/2` (Cauchy-Schwarz), or by `KL <= ln(1 + chi2)`.

    >>> tv_upper_from_chi_square(0.04), tv_upper_from_chi_square(math.inf)
    (0.1, 1.0)
    """
    if math.isinf(chi2):
        return 1.0
    return min(0.5 * math.sqrt(chi2), math.sqrt(chi2 / (1.0 + chi2)))


# The kinds of distance, one class each: what it allows the source to be, given moments on the surrogate -------------
# same          the surrogate is a sample of the source's own distribution
# tv:0.2        total variation between the feature distributions, in [0, 1]
# chi2:0.3      chi-square of the source relative to the surrogate
# kl:0.5        Kullback-Leibler divergence of the source relative to the surrogate
# deposit       no rows stand in for the source: its gradient and Hessian were kept (deposit/)
# source        the surrogate IS the source (the paper's Unlearn (+)); checked as far as its rows show it
# means         only ever estimated: the difference of means that the residual bound needs, for one update
#
# A new kind is one class and its place in `KINDS`. What follows is asked of a kind's attributes and methods, never of
# its name (but for tv in request/sets.py, whose value may cover a missing class).


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


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (Same(), TotalVariation(), ChiSquare(), KullbackLeibler(), TheSource(), FromDeposit(), Means())
}


def kind_named(name: object) -> Kind:
    """The kind of that name; whatever is unknown raises."""
    if not isinstance(name, str) or name not in KINDS:
        raise OptionError(
            f"distance kind {name!r} is not known",
            f"it must be one of {', '.join(KINDS)}",
            "Write for example chi2:0.1, tv:0.2, kl:0.5 or same.",
        )
    return KINDS[name]


# A distance that somebody declares, and can be held to, or that was estimated, and then proves nothing --------------

BETWEEN = ("populations", "samples")
WITHIN = "within:"  # a value of sampling, with a factor after it
MOST_WITHIN = 1e6
MATCHED = "; the surrogate's rows weighted so that its classes have the source's proportions"


@dataclass(frozen=True)
class Distance:
    """A kind of distance and its value.

    `between` says what it is measured between: the `populations` both sets were drawn from (then a sampling term is
    added to the bound) or the two `samples` themselves, each row counted as often as it occurs. `sampling` says what is
    taken for rows unlike any surrogate row: the worst (`strict`: they are counted and charged the largest change that
    there can be; `within:2`: they are counted and charged twice the largest that was seen) or nothing (`seen`: what was
    seen stands for the population; false for categorical rows). `matched`
    says that the surrogate is taken with its rows weighted by class to the source's class counts; the distance is then
    the source's from that.
    """

    kind: str
    value: float
    between: str = "populations"
    provenance: str = ""
    sampling: str = "strict"
    matched: bool = False

    def __post_init__(self) -> None:
        law = kind_named(self.kind)
        if not self.provenance:
            object.__setattr__(self, "provenance", law.provenances[0])
        choice(self.between, BETWEEN, "between")
        factor_within(self.sampling)
        most, named = law.largest_value, f"distance {self.kind}:{self.value}"
        if not math.isfinite(self.value) or self.value < 0:
            raise OptionError(
                named, "it must be a finite number, at least 0", "If it is unbounded, choose a surrogate closer to it."
            )
        if not law.takes_value and self.value != 0:
            raise OptionError(named, f"{self.kind!r} takes no value", f"Write {self.kind} alone.")
        if most is not None and self.value > most:
            raise OptionError(named, f"it lies between 0 and {most:g}", "Declare less, or another kind such as chi2.")
        if self.provenance not in law.provenances:
            raise OptionError(
                f"a distance {self.kind!r} that is {self.provenance!r}",
                f"it is {' or '.join(law.provenances)}",
                "Leave the provenance out.",
            )
        if type(self.matched) is not bool:
            raise OptionError(f"matched {self.matched!r}", "it is True or False", "Leave it out, or write True.")
        if self.matched and (law.is_source or not law.stands_in):
            raise OptionError(
                f"matched classes with distance {law.name!r}",
                "the source's classes are its own",
                "Leave --match-classes (match_classes) out.",
            )
        if self.between == "samples" and not law.between_samples:
            raise OptionError(
                f"distance {self.kind!r} between samples",
                "two samples of one population are not the same set",
                "Leave --between (between) out, or declare source if the surrogate is the source itself.",
            )

    @property
    def counts_unlike(self) -> bool:
        """Whether rows unlike any surrogate row are counted and charged, and moments raised to their populations'."""
        return self.sampling != "seen"

    @property
    def within(self) -> float | None:
        """How many times as much as the largest change seen a row unlike any changes at most, where that is stated."""
        return factor_within(self.sampling)

    @cached_property
    def law(self) -> Kind:
        """What a distance of this kind means."""
        return kind_named(self.kind)

    @cached_property
    def meaning(self) -> str:
        return self.law.meaning + (MATCHED if self.matched else "")

    @property
    def tv_upper(self) -> float:
        """Upper bound on total variation that follows, for the paper's bound; raises where nothing follows."""
        return self.law.tv_upper(self.value)

    @property
    def is_source(self) -> bool:
        """Whether the rows given are the source's own."""
        return self.law.is_source

    @cached_property
    def samples_rows(self) -> bool:
        """Whether source and surrogate are samples of populations, so that a sampling term is due."""
        return not self.law.is_source and self.law.stands_in and self.between == "populations"

    @property
    def needs_eigenvalue(self) -> bool:
        """Whether the largest eigenvalue of the change's covariance enters the bound."""
        return self.samples_rows or self.law.uses_deviation

    def shift(self, deviation: float, supremum: float, centred_supremum: float) -> float:
        """Upper bound on `||E_rho f - E_nu f||` from moments of f under the surrogate, whatever f is."""
        return self.law.shift(self.value, deviation, supremum, centred_supremum)

    def mean_shift(self, deviation: float, supremum: float, centred_supremum: float) -> float:
        """Upper bound on the difference of means of the change of gradient at this update."""
        return self.law.mean_shift(self.value, deviation, supremum, centred_supremum)

    def moment_shift(self, deviation: float, supremum: float, centred_supremum: float) -> float:
        """Upper bound for squares of the change's deviation, and for the share of rows beyond any.

        0 where they stay as they are.
        """
        return self.shift(deviation, supremum, centred_supremum) if self.law.moves_moments else 0.0

    def __str__(self) -> str:
        return f"{self.kind}:{self.value:g}" if self.law.takes_value else self.kind


def factor_within(sampling: str) -> float | None:
    """The factor of `within:2`; None for `strict` and `seen`, and whatever else is refused.

    >>> factor_within("within:2"), factor_within("strict")
    (2.0, None)
    """
    if sampling in ("strict", "seen"):
        return None
    try:
        factor = float(sampling.removeprefix(WITHIN)) if sampling.startswith(WITHIN) else math.nan
    except ValueError:
        factor = math.nan
    if not 1.0 <= factor <= MOST_WITHIN:
        raise OptionError(
            f"sampling {sampling!r}",
            f"it is strict, seen, or within: with a factor from 1 to {MOST_WITHIN:g}",
            "Write strict, seen, or for example within:2.",
        )
    return factor


def parse_distance(text: str, *, between: str = "populations", sampling: str = "strict") -> Distance:
    """Read `same`, `source`, `tv:0.2`, `chi2:0.3` or `kl:0.5`."""
    kind, colon, value = text.strip().partition(":")
    declarable = [name for name, law in KINDS.items() if law.stands_in and law.provenances != ("estimated",)]
    if kind not in declarable:
        raise OptionError(
            f"distance kind {kind!r} is not known",
            f"it must be one of {', '.join(declarable)}, or estimate",
            "Write for example chi2:0.1, tv:0.2, kl:0.5 or same.",
        )
    takes_value = kind_named(kind).takes_value
    if colon and not takes_value:
        raise OptionError(f"distance {text!r}", f"{kind!r} takes no value", f"Write {kind} alone.")
    try:
        number = float(value) if takes_value else 0.0
    except ValueError:
        raise OptionError(
            f"distance {text!r} has no number after the colon", f"{kind} needs one", f"Write for example {kind}:0.1."
        ) from None
    return Distance(kind, number, between, sampling=sampling)


# How a distance that nobody knows is to be estimated from the model and the surrogate alone.


ROUTES = {"means": "means", "kl": "tv"}  # what is estimated, and the kind of distance it gives
MOST = 10_000_000
SMALLEST, LARGEST = 1e-30, 1e30
SUPPORTS = ("ball", "gaussian")


@dataclass(frozen=True)
class Estimation:
    """Options of an estimate; its result makes a certificate `estimated`, whatever they are.

    `route` says what enters the bound: `means`, the difference of means that the residual bound needs, or `kl`, the
    paper's KL of the surrogate relative to the source, turned into total variation. `support` makes the model's density
    over features integrable: a ball of radius max_norm, or a Gaussian reference with `mean` and `covariance`, by
    default the surrogate's own. `step_size` None is 0.02, the paper's, in units of the support's variance per feature.
    """

    route: str = "means"
    support: str = option(
        "What makes the model's density over features integrable: ball (radius max_norm), or gaussian (a reference "
        "density with --moments, or with the surrogate's own mean and covariance, which pulls the estimate toward the "
        "surrogate: good for a look, refused by unlearn).",
        "ball",
        section="The estimate",
    )
    chains: int = option("Langevin chains, one sample each.", 1000)
    steps: int = option("Steps of each chain.", 4000)
    step_size: float | None = option("Step (default: 0.02 in units of the support's variance per feature).", None)
    mean: NDArray[np.float64] | None = None
    covariance: NDArray[np.float64] | None = None
    epochs: int = option("Epochs of the variational network.", 500)
    seed: int = option(
        "Seed of chains and network. It protects nothing, and has nothing to do with the noise.",
        0,
        names=("--chain-seed",),
    )
    sampling: str = "strict"
    matched: bool = False

    def __post_init__(self) -> None:
        choice(self.route, tuple(ROUTES), "route")
        choice(self.support, SUPPORTS, "support")
        factor_within(self.sampling)
        for name, number, least, most, usual in (
            ("chains", self.chains, 100, MOST, "The paper uses 1,000."),
            ("steps", self.steps, 8, MOST, "The paper uses 4,000."),
            ("epochs", self.epochs, 1, math.inf, "The paper uses 500."),
            ("chain seed", self.seed, 0, 2**62 - 1, "Use a small number."),
            ("step size", self.step_size, SMALLEST, LARGEST, "Leave it out."),
        ):
            if number is not None and not least <= number <= most:
                raise OptionError(f"{name} {number}", f"from {least:g} to {most:g} is possible", usual)
        if (self.mean is None) != (self.covariance is None):
            raise OptionError("one of mean and covariance is missing", "both are needed", "Give both, or neither.")
        if self.mean is not None and self.support != "gaussian":
            raise OptionError(
                f"moments with support {self.support}", "they go with support gaussian", "Use support gaussian."
            )

    @property
    def is_source(self) -> bool:
        """An estimate is for those who have no source."""
        return False

    @cached_property
    def samples_rows(self) -> bool:
        """An estimate is of a distance between populations, so a sampling term is always due."""
        return True

    def __str__(self) -> str:
        return f"estimate:{self.route}"


def parse_route(text: str) -> str | None:
    """`means` for `estimate` and `estimate:means`, `kl` for `estimate:kl`, None for anything that is declared."""
    kind, colon, route = text.strip().partition(":")
    if kind != "estimate":
        return None
    return route if colon else next(iter(ROUTES))
