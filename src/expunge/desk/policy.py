"""What a desk promises, fixed when it is opened, and where things are in its folder."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from expunge.bounds.calibration import ON_LADDER, POLICY, Scale
from expunge.distance import Distance, parse_distance, parse_route
from expunge.errors import FileError, OptionError
from expunge.request.promise import Series
from expunge.runtime.values import option

if TYPE_CHECKING:
    from expunge.request.promise import Execution, Promise

# Where things are in a desk's folder --------------------------------------------------------------------------------
# desk/
#   ledger.sqlite, ledger.seal      private (0600): what was asked and done, without rows
#   private/                        private (0700): nothing in it may leave
#     key                             HMAC key of row digests; destroy it and they say nothing
#     lock                            one writer at a time
#     surrogate.npz                   what stands in for the source
#     rows/000001.npz                 rows of a pending request; removed once forgotten
#     states/0001.safetensors         weights before noise; the last one only
#     dossiers/0001.json              every number behind a published model, for the auditor: it tells who left
#     staging/                        a run that is not finished
#   published/0001/                 may be handed out: model, statement, signed statement, report

MODEL, STATEMENT, SIGNED, REPORT = "model.safetensors", "statement.json", "statement.signed.json", "report.html"


class Layout:
    """The paths of one desk."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.published = folder, folder / "published"
        self.ledger, self.seal = folder / "ledger.sqlite", folder / "ledger.seal"
        self.private = private = folder / "private"
        self.key, self.lock, self.surrogate = private / "key", private / "lock", private / "surrogate.npz"
        self.rows, self.states = private / "rows", private / "states"
        self.dossiers, self.staging = private / "dossiers", private / "staging"

    def rows_of(self, request: int) -> Path:
        return self.rows / f"{request:06d}.npz"

    def state_of(self, number: int) -> Path:
        return self.states / f"{number:04d}.safetensors"

    def dossier_of(self, number: int) -> Path:
        return self.dossiers / f"{number:04d}.json"

    def published_model(self, number: int) -> Path:
        return self.published / f"{number:04d}"

    def inside(self, path: Path) -> Path:
        """A path of this desk, which somebody else may have made: nothing on the way to it leads out of the folder."""
        for folder in path.parents:
            if folder == self.folder:
                break
            if folder.is_symlink():
                raise FileError(f"{folder} is a link", "a desk's folders are its own", "Do not rely on it.")
        return path


# What a desk promises, fixed when it is opened: every published model is held to it ---------------------------------

DEPOSIT = "deposit"  # the distance of a desk whose state is a deposit
DEFAULT_PLANNED = 50
DEFAULT_FACTOR = 10.0


@dataclass(frozen=True)
class Policy:
    """(epsilon, delta) of each published model, the distance declared, and how much all models together may say.

    `planned` models share the probability that a bound fails; `total_epsilon` limits the composed epsilon of all of
    them at the same delta; `days` is how long a request may wait; with `match_classes` surrogate rows are weighted to
    the class counts of the rows still left. `noise` is the standard deviation of every model's noise, set when the
    desk is opened, and `noise_rows` what it was rehearsed with; None: each request chooses a power of two. With a
    deposit the distance is `deposit`, and noise without a value set follows from public numbers alone
    (`create.default_noise`).
    """

    epsilon: float = option("Of each published model; smaller protects more.", section="Guarantee of each model")
    delta: float = option("Probability that the promise fails; at most 1/n.")
    distance: str = option(
        "Without a deposit: how far the surrogate is from the source: same, tv:0.2, chi2:0.1 or kl:0.5."
    )
    between: str = option("What the distance is between: populations or samples.", "populations")
    sampling: str = option("strict, within:2 or seen; see expunge unlearn.", "strict")
    step: str = option("converged, newton or balanced.", "converged")
    force: bool = option("Publish models of little use too; see expunge unlearn.", False)
    match_classes: bool = option("Weight surrogate rows to the source's class counts; see expunge unlearn.", False)
    planned: int = option(
        "Models to be published before the next training; they share the probability that a bound fails.",
        DEFAULT_PLANNED,
        section="Over time",
    )
    total_epsilon: float | None = option(
        "Of all published models together, at the same delta (default: 10 x epsilon).", None
    )
    days: int = option("How long a request may wait.", 30)
    dtype: str = "float64"
    device: str = "cpu"
    noise: float | None = None
    noise_rows: int | None = None

    def check(self) -> None:
        """Refuse what no desk can be opened for."""
        from expunge.certificate.claim import STEPS
        from expunge.request.promise import check_budget
        from expunge.runtime.values import choice, positive

        check_budget(self.epsilon, self.delta, force=self.force)
        if not self.with_deposit:
            if parse_route(self.distance) is not None:
                raise OptionError(
                    f"distance {self.distance}",
                    "what a desk promises for years needs a distance that somebody declares",
                    "Declare one, or use expunge unlearn for a single estimated certificate.",
                )
            if self.declared.is_source:
                raise OptionError(
                    "distance source",
                    "a desk keeps no source: it would have to shrink with every deletion",
                    "Use expunge unlearn with --distance source, or retrain.",
                )
            choice(self.step, STEPS, "step")
        Series(self.planned)
        _ = self.scale
        positive(self.limit, "total_epsilon", "Ten times epsilon is the default.")
        if type(self.days) is not int or not 0 <= self.days <= 36_500:
            raise OptionError(
                f"{self.days!r} days", "from 0 to 36500 is possible", "30 days is what the GDPR's one month means."
            )
        if self.limit < self.epsilon:
            raise OptionError(
                f"total epsilon {self.limit:g}", f"one model alone has {self.epsilon:g}", "Raise it, or lower epsilon."
            )

    @property
    def with_deposit(self) -> bool:
        """Whether the desk's state is a deposit of the source."""
        return self.distance == DEPOSIT

    @property
    def declared(self) -> Distance:
        return parse_distance(self.distance, between=self.between, sampling=self.sampling)

    @property
    def scale(self) -> Scale:
        """How every model's noise is chosen."""
        return ON_LADDER if self.noise is None else Scale(POLICY, self.noise, self.noise_rows)

    @property
    def limit(self) -> float:
        """The composed epsilon that is not exceeded."""
        return DEFAULT_FACTOR * self.epsilon if self.total_epsilon is None else self.total_epsilon

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def promise(self, series: Series) -> Promise:
        """What every run promises, at this place of the series."""
        from expunge.request.promise import Promise

        known: dict[str, Any] = {"force": self.force, "noise": self.scale, "series": series}
        if not self.with_deposit:
            known |= {"distance": self.declared, "step": self.step, "match_classes": self.match_classes}
        return Promise(self.epsilon, self.delta, **known)

    def execution(self) -> Execution:
        """How every run computes."""
        from expunge.request.promise import Execution  # loads torch, which looking at a desk does not need

        return Execution(self.dtype, self.device)
