"""Everything that changes what is promised; what changes only how fast it is computed is in `execution.py`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from expunge.bounds.paper import SIZE_CONVENTIONS, PaperConstants
from expunge.bounds.scale import REHEARSAL, Scale, asked_scale, publishable
from expunge.certificate.claim import (
    LARGEST_EPSILON,
    MEANINGFUL_EPSILON,
    SMALLEST_DELTA,
    SMALLEST_EPSILON,
    STEPS,
    PublicNote,
)
from expunge.certificate.derive import BOUNDS, bound_named
from expunge.distance import Distance, Estimation, parse_distance, parse_route
from expunge.errors import OptionError, UselessModel
from expunge.record import one_digit
from expunge.request.series import Series
from expunge.runtime.checks import choice, positive
from expunge.runtime.options import option
from expunge.runtime.rounding import up
from expunge.runtime.strict_json import without_duplicates


def check_budget(epsilon: float, delta: float) -> None:
    """Refuse an epsilon or a delta that promises nothing."""
    positive(epsilon, "epsilon", "Values from 0.1 to 5 are usual; smaller protects more.")
    if epsilon < SMALLEST_EPSILON:
        raise OptionError(
            f"epsilon {epsilon}",
            f"below {SMALLEST_EPSILON:g} float64 no longer tells how much noise is enough",
            "Values from 0.1 to 5 are usual; so little privacy loss hides nothing that delta does not.",
        )
    if epsilon > LARGEST_EPSILON:
        raise OptionError(
            f"epsilon {epsilon}",
            f"above {LARGEST_EPSILON:g} it promises nothing",
            "Values from 0.1 to 5 are usual.",
        )
    if 0 < delta < SMALLEST_DELTA:
        raise OptionError(f"delta {delta}", f"it must be at least {SMALLEST_DELTA:g}", "Use for example 1/n.")
    if not 0 < delta < 1:
        raise OptionError(
            f"delta {delta}",
            "it must lie strictly between 0 and 1",
            "Use at most 1/n; with delta 1 every mechanism is certified and the certificate says nothing.",
        )


def require_meaning(epsilon: float, *, force: bool) -> None:
    """Refuse an epsilon that means nothing, unless forced; the certificate then says so first."""
    if epsilon > MEANINGFUL_EPSILON and not force:
        raise UselessModel(
            f"epsilon {epsilon:g}",
            f"above {MEANINGFUL_EPSILON:g} whoever guesses may be right more than 99.99 % of the time, which protects "
            "nobody",
            "Values from 0.1 to 5 are usual. Where they need too much noise: forget fewer rows at once, use a deposit "
            "or a closer surrogate, train with a larger l2, or retrain; or insist with --force (force=True).",
        )


def budget_notes(delta: float, n_retain: int) -> tuple[str, ...]:
    """What a large delta means, where it is one. It is handed out, so of the rows that are retained, to one digit."""
    count = one_digit(max(n_retain, 1))
    if delta * count <= 1.0:
        return ()
    said = (
        f"delta {up(delta)} is above 1/n ({1.0 / count:.3g}): publishing {up(delta * count, 3)} of {count:,} "
        "rows outright, picked at random, would be within it, so that on average more than one "
        "person's protection may fail altogether; 1/n or less is usual"
    )
    return (PublicNote(said),)


def parse_constants(text: str) -> PaperConstants | str:
    """`derived`, `paper`, or `alpha=1,beta=2,L=1,gamma=1`."""
    if "=" not in text:
        return text
    try:
        pairs = [part.split("=") for part in text.split(",")]
        by_name = without_duplicates([(name.strip(), float(value)) for name, value in pairs])
        constants = PaperConstants(by_name.pop("alpha"), by_name.pop("beta"), by_name.pop("L"), by_name.pop("gamma"))
        if by_name:
            raise KeyError(*by_name)
    except (ValueError, KeyError) as error:
        raise OptionError(
            f"constants {text!r}",
            "alpha, beta, L and gamma are needed, each a number",
            "Write alpha=0.01,beta=1,L=1,gamma=1.",
        ) from error
    return constants


@dataclass(frozen=True)
class Promise:
    """What is to be certified, and on what grounds.

    `distance` is declared, or how it is to be estimated; `estimate` is one that was made before. `step` None is
    `newton` for the paper's bound and `converged` for the residual bound. `sizes` and `constants` are the paper
    bound's. `force` lets a model through that is of little use. `series` is a place in a series of deletions. `noise`
    is what its scale is chosen by (`bounds/scale.py`): None or `request`, a number, `rows:10`, `exact`.
    """

    epsilon: float = option("Smaller protects more; 0.1 to 5 is usual.", section="Guarantee")
    delta: float = option("Probability that the guarantee fails; at most 1/n.")
    distance: Distance | Estimation = option(
        "How far the surrogate is from the source: same, tv:0.2, chi2:0.1, kl:0.5 (of the source relative to the "
        "surrogate); without a deposit also source, if it is the source itself. Where nobody knows, and there is no "
        "deposit: estimate.npz, written by expunge distance --out (the difference of means that the bound needs, at "
        "this update), or estimate.npz:kl (the paper's way). An estimate proves nothing and the certificate says so."
    )
    noise: Any = option(
        "The noise's standard deviation, which everybody sees: set before anybody asks, as a number or as for so many "
        "rows (rows:10, rehearsed on surrogate rows), and a request that needs more is refused; or request: it chooses "
        "a power of two, which says something of who left. expunge plan recommends a number.",
        "request",
        text=publishable,
    )
    force: bool = option(
        "Write the model even if it is of little use (noise above the weights, more than half forgotten, an epsilon "
        "above 10, which the statement then says first). Never overrides a vacuous claim.",
        False,
    )
    step: str | None = option(
        "converged (the default); newton: one step, the paper's Algorithm 1; balanced: the update, or none, that makes "
        "the bound smallest (slower, pays where the distance is large).",
        None,
        section="Step and bound",
    )
    bound: str = option("residual, or paper: Theorem 4.2 and Corollary 4.4.", "residual")
    constants: PaperConstants | str | None = option(
        "For --bound paper: derived (closed forms), paper (what its experiments set; false for any loss), or "
        "alpha=..,beta=..,L=..,gamma=..",
        None,
        text=parse_constants,
    )
    sizes: str = option(
        "For --bound paper: source (Algorithm 1) or surrogate (the appendix) as the weight of the surrogate's Hessian.",
        "source",
    )
    series: Series | None = None
    estimate: Any = None

    def __post_init__(self) -> None:
        check_budget(self.epsilon, self.delta)
        object.__setattr__(self, "noise", asked_scale(self.noise))
        bound_named(self.bound)
        paper = not BOUNDS[self.bound].provable
        require_meaning(self.epsilon, force=self.force or paper)  # of the paper's bound nothing is proven anyhow
        object.__setattr__(self, "step", choice(self.step or ("newton" if paper else "converged"), STEPS, "step"))
        choice(self.sizes, SIZE_CONVENTIONS, "sizes")
        if paper and self.step != "newton":
            raise OptionError(
                f"step {self.step!r}",
                "the paper's bound is for one Newton step",
                "Use --step newton (step='newton'), or --bound residual (bound='residual').",
            )
        if self.constants is not None and not paper:
            raise OptionError(
                "constants were given",
                "only the paper's bound uses them",
                "Leave them out, or choose --bound paper (bound='paper').",
            )
        if self.sizes != "source" and not paper:
            raise OptionError(
                f"sizes {self.sizes!r}",
                "only the paper's bound has a convention of sizes",
                "Leave --sizes (sizes) out, or choose --bound paper (bound='paper').",
            )
        if isinstance(self.distance, Distance) and not (self.distance.law.stands_in or BOUNDS[self.bound].kept):
            raise OptionError(
                f"distance {self.distance.kind!r} with bound {self.bound!r}",
                "without a deposit some rows stand in for the source, at some distance from it",
                "Give the deposit, or a surrogate and how far it is from the source.",
            )
        if self.series is not None and paper:
            raise OptionError(
                "a series with the paper's bound",
                "only the residual bound can be carried forward",
                "Use --bound residual (bound='residual').",
            )

    @property
    def scale(self) -> Scale:
        """How the noise's scale is chosen; one that is to be rehearsed must have been (`surrogate/rehearsal.py`)."""
        assert isinstance(self.noise, Scale)
        if self.noise.kind == REHEARSAL:
            raise OptionError(
                f"noise as for {self.noise.rows} rows was not rehearsed",
                "its scale has to be a number before anything is promised",
                "Hand the request through set_noise (surrogate/rehearsal.py) first, as carry_out does.",
            )
        return self.noise

    @property
    def averaged(self) -> bool:
        """Whether delta is an average over the drawing of the sets: for one model, of a step that leaves nothing.

        What another step leaves varies with the surrogate, as the deviation does that is averaged.
        """
        return self.step == "converged" and (self.series is None or self.series.planned == 1)

    @property
    def paper(self) -> bool:
        """Whether the region is the paper's, which nothing proves."""
        return not BOUNDS[self.bound].provable


def wanted_distance(distance: Any, match_classes: bool = False) -> tuple[Distance | Estimation, Any]:
    """A distance as the user gives it: words, a Distance, an Estimation, or an estimate that was made before.

    With `match_classes` surrogate rows are weighted to the source's class counts, and the distance is the source's from
    that.
    """
    estimate = None
    if isinstance(distance, str):
        route = parse_route(distance)
        distance = parse_distance(distance) if route is None else Estimation(route)
    elif isinstance(getattr(distance, "wanted", None), Estimation):
        distance, estimate = distance.wanted, distance
    if not isinstance(distance, (Distance, Estimation)):
        raise OptionError(
            f"distance {distance!r}",
            "words, a Distance or an Estimation is needed",
            "Write for example chi2:0.1 or same.",
        )
    return (replace(distance, matched=True) if match_classes else distance), estimate
