"""A distance that somebody declares, and can be held to, or that was estimated, and then proves nothing.

same          the surrogate is a sample of the source's own distribution
tv:0.2        total variation between the feature distributions, in [0, 1]
chi2:0.3      chi-square of the source relative to the surrogate
kl:0.5        Kullback-Leibler divergence of the source relative to the surrogate
source        the surrogate IS the source (the paper's Unlearn (+)); checked, not believed

Only an estimate can be of the kind `means`: the norm of the difference of means that the residual bound needs, for one update.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from expunge.distance.inequalities import (
    shift_chi_square,
    shift_kullback_leibler,
    shift_total_variation,
    tv_upper_from_chi_square,
    tv_upper_from_kl,
)
from expunge.errors import OptionError

DECLARED_KINDS = ("same", "tv", "chi2", "kl", "source")
DISTANCE_KINDS = (*DECLARED_KINDS, "means")
BETWEEN = ("populations", "samples")
SAMPLING = ("seen", "strict")
PROVENANCES = dict.fromkeys(DISTANCE_KINDS, ("declared", "estimated")) | {
    "source": ("measured",),
    "means": ("estimated",),
}

_MEANING = {
    "same": "the surrogate is an independent sample of the source's own distribution",
    "tv": "total variation between the feature distributions of source and surrogate",
    "chi2": "chi-square divergence of the source's feature distribution relative to the surrogate's",
    "kl": "Kullback-Leibler divergence of the source's feature distribution relative to the surrogate's",
    "source": "the surrogate is the source itself",
    "means": "norm of the difference between source and surrogate in the mean change of gradient at this update",
}
MATCHED = "; the surrogate's rows weighted so that its classes have the source's proportions"


@dataclass(frozen=True)
class Distance:
    """A kind of distance and its value.

    `between` says what it is measured between: the `populations` both sets were drawn from (then a sampling term is
    added to the bound) or the two `samples` themselves, each row counted as often as it occurs. `sampling` says what is
    taken for rows unlike any surrogate row: nothing (`seen`: what was seen stands for the population) or the worst
    (`strict`: they are counted and charged the largest change there can be). `matched` says that the surrogate is taken with
    its rows weighted by class to the source's class counts; the distance is then the source's from that.
    """

    kind: str
    value: float
    between: str = "populations"
    provenance: str = ""
    sampling: str = "seen"
    matched: bool = False

    def __post_init__(self) -> None:
        if self.kind not in DISTANCE_KINDS:
            raise OptionError(
                f"distance kind {self.kind!r} is not known",
                f"it must be one of {', '.join(DISTANCE_KINDS)}",
                "Write for example chi2:0.1, tv:0.2, kl:0.5 or same.",
            )
        if not self.provenance:
            object.__setattr__(self, "provenance", PROVENANCES[self.kind][0])
        if self.between not in BETWEEN:
            raise OptionError(
                f"distance between {self.between!r}", f"it must be one of {', '.join(BETWEEN)}", "See Distance.between."
            )
        if not math.isfinite(self.value) or self.value < 0:
            raise OptionError(
                f"distance {self.kind}:{self.value}",
                "it must be a finite number, at least 0",
                "If the distance is unbounded, no certificate can be issued for this surrogate; choose one closer to the source.",
            )
        if self.kind == "tv" and self.value > 1:
            raise OptionError(
                f"total variation {self.value}",
                "it lies between 0 and 1",
                "Declare a smaller value, or another kind such as chi2.",
            )
        if self.provenance not in PROVENANCES[self.kind]:
            raise OptionError(
                f"a distance {self.kind!r} that is {self.provenance!r}",
                "'source' is measured, 'means' estimated; others are declared or estimated",
                "Leave the provenance out.",
            )
        if type(self.matched) is not bool:
            raise OptionError(f"matched {self.matched!r}", "it is True or False", "Leave it out, or write True.")
        if self.matched and self.kind == "source":
            raise OptionError(
                "matched classes with distance 'source'",
                "the source's classes are its own",
                "Leave --match-classes out.",
            )
        if self.kind == "same" and self.between == "samples":
            raise OptionError(
                "distance 'same' between samples",
                "two samples of one population are not the same set",
                "Leave --between out, or declare source if the surrogate is the source itself.",
            )
        if self.sampling not in SAMPLING:
            raise OptionError(
                f"sampling {self.sampling!r}", f"it must be one of {', '.join(SAMPLING)}", "See Distance.sampling."
            )
        if self.kind in ("same", "source") and self.value != 0:
            raise OptionError(
                f"distance {self.kind}:{self.value}", f"{self.kind!r} takes no value", f"Write {self.kind} alone."
            )

    @property
    def meaning(self) -> str:
        return _MEANING[self.kind] + (MATCHED if self.matched else "")

    @property
    def tv_upper(self) -> float:
        """Upper bound on total variation that follows, for the paper's bound; 1 where nothing follows."""
        if self.kind == "kl":
            return tv_upper_from_kl(self.value)
        if self.kind == "chi2":
            return tv_upper_from_chi_square(self.value)
        return {"same": 0.0, "source": 0.0, "tv": self.value}.get(self.kind, 1.0)

    @property
    def samples_rows(self) -> bool:
        """Whether source and surrogate are samples of populations, so that a sampling term is due."""
        return self.kind != "source" and self.between == "populations"

    def shift(self, deviation: float, supremum: float, centred_supremum: float) -> float:
        """Upper bound on `||E_rho f - E_nu f||` from moments of f under the surrogate."""
        if self.kind == "tv":
            return shift_total_variation(self.value, supremum)
        if self.kind == "chi2":
            return shift_chi_square(self.value, deviation)
        if self.kind == "kl":
            return shift_kullback_leibler(self.value, deviation, centred_supremum)
        return 0.0

    def __str__(self) -> str:
        return self.kind if self.kind in ("same", "source") else f"{self.kind}:{self.value:g}"


def parse_distance(text: str, *, between: str = "populations", sampling: str = "seen") -> Distance:
    """Read `same`, `source`, `tv:0.2`, `chi2:0.3` or `kl:0.5`."""
    kind, colon, value = text.strip().partition(":")
    if kind not in DECLARED_KINDS:
        raise OptionError(
            f"distance kind {kind!r} is not known",
            f"it must be one of {', '.join(DECLARED_KINDS)}, or estimate",
            "Write for example chi2:0.1, tv:0.2, kl:0.5 or same.",
        )
    if kind in ("same", "source"):
        if colon:
            raise OptionError(f"distance {text!r}", f"{kind!r} takes no value", f"Write {kind} alone.")
        return Distance(kind, 0.0, between, sampling=sampling)
    try:
        number = float(value)
    except ValueError:
        raise OptionError(
            f"distance {text!r} has no number after the colon", f"{kind} needs one", f"Write for example {kind}:0.1."
        ) from None
    return Distance(kind, number, between, sampling=sampling)
