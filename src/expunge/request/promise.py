"""What changes a promise, what changes only speed and memory, and the results that are refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from expunge.bounds.calibration import REHEARSAL, Scale, asked_scale, publishable
from expunge.bounds.curvature import EVIDENCE_SHARE
from expunge.bounds.ellipsoid import drawing_delta
from expunge.bounds.paper import SIZE_CONVENTIONS, PaperConstants
from expunge.certificate.claim import (
    LARGEST_EPSILON,
    MEANINGFUL_EPSILON,
    MOST_PLANNED,
    SMALLEST_DELTA,
    SMALLEST_EPSILON,
    STEPS,
    Claim,
    PublicNote,
)
from expunge.certificate.derive import BOUNDS, Conclusion, bound_named
from expunge.distance import Distance, Estimation, parse_distance, parse_route
from expunge.errors import BeyondPolicy, DataError, OptionError, UselessModel, VacuousClaim
from expunge.record import SOFTMAX, Label, TrainingRecord, one_digit
from expunge.runtime import arrays
from expunge.runtime.arrays import Array, Device, Dtype, engine_dtype, load_torch, norm
from expunge.runtime.group import ALONE, Group
from expunge.runtime.progress import Progress, silent
from expunge.runtime.strict_json import without_duplicates
from expunge.runtime.values import choice, option, positive, up

if TYPE_CHECKING:
    from expunge.estimate.source import SourceEstimate
    from expunge.heads import LinearHead
    from expunge.request.request import Past

# Everything that changes what is promised -------------------------------------------------------------------------

DEPOSIT, CURVATURE = "deposit", "curvature"  # bounds
AUTO = "auto"  # of a curvature: half of what the surrogate's halves show
NO_SURROGATE = Distance(DEPOSIT, 0.0)  # with a deposit no rows stand in for any
WITHOUT_THE_DEPOSIT = "ask with rows that resemble the source instead of the deposit (--surrogate, --distance)"


@dataclass(frozen=True)
class Series:
    """A place in a series of deletions from one model (docs/theory.md, section 16).

    Every deletion is counted from the trained weights, with all rows forgotten so far (`past`), so no bound is carried.
    What all published models say together holds if every one of their bounds does; each fails with a probability f
    spent out of delta. All `planned` steps get the same f from the start, and every certificate spends `planned f`.

    `position` counts from 1; `past` is what was forgotten before, None for the first. `store` is the type weights are
    published in (the private weights stay float64); `head` names the ledger this step is recorded in, as it stood
    before. `others` of the rows forgotten so far equal rows that were asked for before, and were declared to be another
    person's.
    """

    planned: int
    position: int = 1
    past: Past | None = None
    store: str | None = None
    head: dict[str, int | str] | None = None
    others: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.planned <= MOST_PLANNED or not 1 <= self.position <= self.planned:
            raise OptionError(
                f"model {self.position} of {self.planned} planned",
                f"from 1 to {MOST_PLANNED:,} can be planned, and no more than planned can follow",
                "Count the models to be published before the next training, or retrain.",
            )

    @property
    def notes(self) -> tuple[str, ...]:
        """What a certificate of a later step says of the earlier ones."""
        if self.past is None or self.past.n_rows == 0:
            return ()
        return (
            f"{self.past.n_rows:,} rows were forgotten before, in {self.position - 1} earlier "
            f"{'deletion' if self.position == 2 else 'deletions'} of this sequence; the bound is that of all of them "
            "together, counted from the trained weights",
        )

    def describe(self) -> dict[str, object]:
        """What a certificate says of its place in the series."""
        place: dict[str, object] = {"planned": self.planned, "position": self.position, "ledger_head": self.head}
        return place | ({"another_person": self.others} if self.others else {})


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


def parse_curvature(given: Any) -> float | str | None:
    """`none`, `auto`, or a number above 0 and at most 0.5.

    >>> parse_curvature("0.25"), parse_curvature("none")
    (0.25, None)
    """
    if given in (None, "none", AUTO):
        return AUTO if given == AUTO else None
    try:
        share = math.nan if isinstance(given, bool) else float(given)
    except (TypeError, ValueError):
        share = math.nan
    if not 0.0 < share <= EVIDENCE_SHARE:
        raise OptionError(
            f"curvature {given!r}",
            f"it is none, auto, or a number above 0 and at most {EVIDENCE_SHARE:g}",
            "Write auto, or for example 0.3.",
        )
    return share


@dataclass(frozen=True)
class Declared:
    """What somebody states of a model that has no record; the certificate marks it as declared."""

    n_source: int | None = option("Number of training rows.", None, section="A model without a record")
    l2: float | None = option("The lambda of (lambda/2)||w||^2 beside the mean loss.", None)
    loss: str | None = option("softmax or ridge.", None)
    max_norm: float | None = option("Largest norm of a training row.", None)
    training_residual: float | None = option("Norm of the training gradient at these weights.", None)
    classes: Sequence[Label] | None = None
    class_counts: Sequence[int] | None = option("Training rows of each class, e.g. 120,80.", None)


NOTHING_DECLARED = Declared()


@dataclass(frozen=True)
class Promise:
    """What is to be certified, and on what grounds.

    `distance` is declared, in words or as a Distance; or how it is to be estimated; or an estimate that was made before
    (`estimate`). With `match_classes` surrogate rows are weighted to the source's class counts, and the distance is the
    source's from that. `step` None is what suits: `newton` for the paper's bound and for a deposit, else `converged`.
    `sizes` and `constants` are the paper bound's. `force` lets a model through that is of little use. `series` is a
    place in a series of deletions. `noise` is what its scale is chosen by (`bounds/calibration.py`): None or `request`,
    a number, `rows:10`, `exact`.
    """

    epsilon: float = option("Smaller protects more; 0.1 to 5 is usual.", section="Guarantee")
    delta: float = option("Probability that the guarantee fails; at most 1/n.")
    distance: Any = option(
        "How far the surrogate is from the source: same, tv:0.2, chi2:0.1, kl:0.5 (of the source relative to the "
        "surrogate), or source, if it is the source itself. Where nobody knows: estimate.npz, written by expunge "
        "distance --out (the difference of means that the bound needs, at this update), or estimate.npz:kl (the "
        "paper's way). An estimate proves nothing and the certificate says so.",
        None,
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
    curvature: float | str | None = option(
        "What a small l2 needs: how much the retained rows curve the loss at least, in every direction, relative to "
        "the surrogate rows. A number such as 0.3 (refused above half of what random halves of the surrogate show), "
        "auto (that half) or none, the default. The certificate names it first among its assumptions.",
        None,
        text=parse_curvature,
    )
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
    match_classes: bool = False
    series: Series | None = None
    estimate: SourceEstimate | None = None

    def __post_init__(self) -> None:
        bound_named(self.bound)
        # of the paper's bound nothing is proven anyhow
        check_budget(self.epsilon, self.delta, force=self.force or self.paper)
        object.__setattr__(self, "noise", asked_scale(self.noise))
        object.__setattr__(self, "curvature", parse_curvature(self.curvature))
        if self.distance is not None:
            self._read_distance()
        choice(self.step or "newton", STEPS, "step")
        choice(self.sizes, SIZE_CONVENTIONS, "sizes")
        if not self.paper:
            return
        if (self.step or "newton") != "newton":
            raise OptionError(
                f"step {self.step!r}",
                "the paper's bound is for one Newton step",
                "Use --step newton (step='newton'), or --bound residual (bound='residual').",
            )
        if self.series is not None:
            raise OptionError(
                "a series with the paper's bound",
                "only the residual bound can be carried forward",
                "Use --bound residual (bound='residual').",
            )

    def _read_distance(self) -> None:
        """The distance from what was given: words, a Distance, an Estimation, or an estimate that was made before."""
        distance, estimate = self.distance, self.estimate
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
        object.__setattr__(self, "distance", replace(distance, matched=True) if self.match_classes else distance)
        object.__setattr__(self, "estimate", estimate)

    def complete(self, *, deposit: bool, surrogate: bool) -> Promise:
        """With everything that was left to what suits the evidence; what does not apply to it is refused."""
        if deposit:
            usual = {"step": None, "bound": "residual", "constants": None, "sizes": "source", "distance": None}
            usual |= {"curvature": None}
            chosen = {name: getattr(self, name) for name in usual if getattr(self, name) != usual[name]}
            require_none_with_deposit({"surrogate": surrogate, **chosen, "match_classes": self.match_classes})
            if self.noise.kind == REHEARSAL:
                raise OptionError(
                    f"noise as for {self.noise.rows} rows with a deposit",
                    "there are no rows to rehearse with",
                    "Give a number, one of those that expunge plan shows, or leave --noise (noise) out.",
                )
            return replace(self, distance=NO_SURROGATE, step="newton", bound=DEPOSIT)
        if self.deposit:
            raise OptionError(f"bound {self.bound!r}", "it is a deposit's, and none was given", "Give the deposit.")
        if self.bound == CURVATURE and self.curvature is None:
            raise OptionError(
                f"bound {self.bound!r}", "it takes a curvature", "Give --curvature auto (curvature='auto')."
            )
        if not surrogate or self.distance is None:
            raise OptionError(
                "no surrogate, or no distance", "without a deposit both are needed", "Give them, or a deposit."
            )
        if not self.paper and (self.constants is not None or self.sizes != "source"):
            raise OptionError(
                "constants were given" if self.constants is not None else f"sizes {self.sizes!r}",
                "only the paper's bound uses constants and has a convention of sizes",
                "Leave --constants and --sizes (constants, sizes) out, or choose --bound paper (bound='paper').",
            )
        if isinstance(self.distance, Distance) and not self.distance.law.stands_in:
            raise OptionError(
                f"distance {self.distance.kind!r} with bound {self.bound!r}",
                "without a deposit some rows stand in for the source, at some distance from it",
                "Give the deposit, or a surrogate and how far it is from the source.",
            )
        step = self.step or ("newton" if self.paper else "converged")
        if self.curvature is None:
            return replace(self, step=step)
        declared = isinstance(self.distance, Distance) and self.distance.provenance == "declared"
        if self.paper or step == "balanced" or not declared:
            raise OptionError(
                f"curvature with bound {self.bound}, step {step} and distance {self.distance}",
                "it goes with the residual bound, a declared distance, and a step that does not hang on the bound",
                "Use --curvature none (curvature='none'), or a declared distance and the usual bound and step.",
            )
        return replace(self, step=step, bound=CURVATURE)

    @property
    def scale(self) -> Scale:
        """How the noise's scale is chosen; one that is to be rehearsed must have been (`surrogate.py`)."""
        assert isinstance(self.noise, Scale)
        if self.noise.kind == REHEARSAL:
            raise OptionError(
                f"noise as for {self.noise.rows} rows was not rehearsed",
                "its scale has to be a number before anything is promised",
                "Hand the request through set_noise (surrogate.py) first, as carry_out does.",
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

    @property
    def deposit(self) -> bool:
        """Whether the region is a deposit's."""
        return BOUNDS[self.bound].kept


def require_none_with_deposit(chosen: dict[str, Any]) -> None:
    """Refuse choices, by name, that a deposit makes by itself."""
    given = [name for name, value in chosen.items() if value is not None and value is not False]
    if "surrogate" in given or "distance" in given:
        raise OptionError(
            "a surrogate, or a distance, with a deposit",
            "a deposit is used alone: if rows that stand in for the source could have a part beside it, the published "
            "status would say whether they had, and so tell of who left",
            "Leave --surrogate and --distance (surrogate, distance) out; or, where the deposit refuses, leave the "
            "deposit out.",
        )
    if given:
        raise OptionError(
            f"{', '.join('--' + name.replace('_', '-') for name in given)} with a deposit",
            "the deposit has what these options are about",
            "Leave them out.",
        )


def check_budget(epsilon: float, delta: float, *, force: bool = True) -> None:
    """Refuse an epsilon or a delta that promises nothing and, unless forced, an epsilon that means nothing."""
    usual = "Values from 0.1 to 5 are usual; smaller protects more."
    positive(epsilon, "epsilon", usual)
    if not SMALLEST_EPSILON <= epsilon <= LARGEST_EPSILON:
        raise OptionError(
            f"epsilon {epsilon}",
            f"below {SMALLEST_EPSILON:g} float64 no longer tells how much noise is enough, and above "
            f"{LARGEST_EPSILON:g} it promises nothing",
            usual,
        )
    if not SMALLEST_DELTA <= delta < 1:
        raise OptionError(
            f"delta {delta}",
            f"it must lie strictly between 0 and 1, and be at least {SMALLEST_DELTA:g}",
            "Use at most 1/n; with delta 1 every mechanism is certified and the certificate says nothing.",
        )
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


def require_estimable(wanted: Estimation, record: TrainingRecord, labelled: bool, paper: bool = False) -> None:
    """Refuse what cannot be estimated before any chain is run."""
    if record.loss != SOFTMAX.name:
        raise OptionError(
            f"distance {wanted} for loss {record.loss}",
            "only softmax implies a density over features and probabilities of labels",
            "Declare a distance.",
        )
    if paper and wanted.route != "kl":
        raise OptionError(
            f"distance {wanted} with the paper's bound",
            "it takes a total variation",
            "Use --distance estimate.npz:kl (distance='estimate:kl').",
        )
    if wanted.route == "kl" and not labelled:
        raise DataError(
            "the surrogate has no labels",
            "the conditional part of the KL needs them",
            "Give labels, or use --distance estimate.npz (distance='estimate'), which needs none.",
        )


def paper_constants(promise: Promise, head: LinearHead, record: TrainingRecord) -> PaperConstants | None:
    """The paper bound's constants: given, the paper's own (`paper`), or the objective's closed forms (`derived`)."""
    constants = promise.constants
    if not promise.paper:
        return None
    if isinstance(constants, PaperConstants):
        for name, value in zip(("alpha", "beta", "L", "gamma"), vars(constants).values(), strict=False):
            if name != "gamma" or value != 0:
                positive(value, name, "Give constants of every example, or --constants derived (constants='derived').")
        return constants
    if constants == "paper":
        return PaperConstants.of_the_experiments(record.l2)
    if constants in (None, "derived"):
        at_most = 2.0 * math.log(head.n_classes) if record.loss == SOFTMAX.name else head.n_classes
        closed = head.constants(math.sqrt(at_most / record.l2))
        return PaperConstants(closed.strong_convexity, closed.smoothness, closed.lipschitz, closed.hessian_lipschitz)
    raise OptionError(f"constants {constants!r}", "they are 'derived', 'paper' or a PaperConstants", "Use derived.")


# What changes only speed and memory, never what is promised ---------------------------------------------------------

DTYPES = ("float64", "float32")


@dataclass(frozen=True)
class Execution:
    """How a deletion is computed: what changes only speed and memory.

    `dtype` is what surrogate rows are kept in (evidence is summed in float64 either way), `memory` (`1.5GB`) a limit
    for this process: a stream that does not fit is read anew in each pass. In a `group` each process goes over its own
    share of the surrogate.
    """

    dtype: str = option(
        "What surrogate rows are kept in: float64 or float32. Evidence is summed in float64 either way.",
        "float64",
        section="Speed",
    )
    device: str = option("The processor, or any torch device.", "cpu", section="Speed")
    memory: str | int | None = option(
        "A limit for each process, e.g. 1.5GB (default: half the machine's memory). Rows that do not fit are read anew "
        "in each pass.",
        None,
        section="Speed",
        kind=str,
    )
    group: Group = ALONE
    progress: Progress = silent

    def __post_init__(self) -> None:
        choice(self.dtype, DTYPES, "dtype")

    @property
    def rows_dtype(self) -> Dtype:
        return engine_dtype(self.dtype, self.place)

    @property
    def place(self) -> Device:
        """The device, if it can be used here."""
        return computing_device(self.device)


HERE = Execution()


def computing_device(name: str) -> Device:
    """The device of that name, as arrays there call it (`cuda:0` for `cuda`), if it can be used here."""
    if name == "cpu" and not arrays.TENSORS:
        return name
    torch = load_torch(f"device {name!r}")
    unusable = (RuntimeError, AssertionError, NotImplementedError, ImportError, AttributeError, TypeError, ValueError)
    try:
        tried = torch.zeros(1, device=torch.device(name))
        tried.cpu()
    except unusable as error:
        raise OptionError(
            f"device {name!r} ({type(error).__name__})", "a device torch can use here is needed", "Use cpu."
        ) from error
    return tried.device


# Results that are refused: a claim that says nothing, a model that is of no use -------------------------------------


def refuse_unsound(claim: Claim, derived: Conclusion, weights: Array, force: bool) -> None:
    """Refuse a claim that says nothing and, unless forced, noise that swamps the weights or the outputs."""
    if derived.noise is None or not math.isfinite(derived.noise.scale):
        terms = ", ".join(name for name, value in derived.region.terms.items() if not math.isfinite(value))
        raise VacuousClaim(
            f"the bound is infinite ({terms})",
            "a certificate needs a finite one",
            "For the paper's bound n alpha must exceed m beta; use --bound residual, a smaller forget set or a larger "
            "l2.",
        )
    if not derived.enough:
        raise BeyondPolicy(
            "this request needs more noise than was set beforehand",
            "the noise is the same for everybody, since its size would tell who left",
            "Retrain without the rows; for the next model set more noise, as for more rows (see expunge plan).",
        )
    if derived.delta_at_sigma > claim.delta:
        raise VacuousClaim(
            f"at the classical formula's sigma the true delta is {derived.delta_at_sigma:.3g}",
            f"{claim.delta:g} is to be certified",
            "The formula is proved for epsilon < 1 only; use --bound residual, which calibrates exactly.",
        )
    if bound_named(claim.bound).shape is not None:
        lost, spent = drawing_delta(claim.n_parameters, claim.epsilon), claim.failures["arithmetic"]
        if lost > spent:
            raise VacuousClaim(
                f"float64 may make {lost:.3g} of delta {claim.delta:g} when the noise is drawn",
                f"at most {spent:.3g} may go there",
                "Raise delta, or lower epsilon.",
            )
        noise, spread = derived.sigma * claim.facts["output_noise"].value, claim.facts["output_spread"].value
        instead = WITHOUT_THE_DEPOSIT if bound_named(claim.bound).kept else "use a larger surrogate"
        if noise > spread and not force:  # its weights may be long where no output sees them
            raise UselessModel(
                f"the noise would move a typical output by {noise:.3g}, and the outputs themselves are about "
                f"{spread:.3g}",
                "more noise than signal is of no use",
                f"Forget fewer rows at once, {instead}, train with a larger l2 next time, see with "
                "expunge plan what other epsilons cost, or insist with --force (force=True).",
            )
        return
    size, length = norm(weights), derived.noise.length
    if length > size and not force:
        largest = max(derived.region.terms, key=lambda name: derived.region.terms[name])
        raise UselessModel(
            f"the noise (norm {length:.3g}) would swamp the weights (norm {size:.3g})",
            f"more noise than weights is of no use; the largest term of the bound is {largest}",
            "Forget fewer rows at once, declare the surrogate's curvature (--curvature auto, curvature='auto'), use a "
            "closer or larger surrogate, try --step balanced (step='balanced'), train with a larger l2, keep a deposit "
            "of the next source (expunge deposit), see with expunge plan what other epsilons and noise cost, or insist "
            "with --force (force=True).",
        )
