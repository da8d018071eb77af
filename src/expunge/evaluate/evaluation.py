"""Methods side by side: every metric on every method, for one seed or several, as one table."""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from expunge.distance import parse_distance, parse_route
from expunge.errors import OptionError
from expunge.evaluate.case import Case, Splits, make_case, read_part
from expunge.evaluate.methods import (
    CertifiedNoise,
    GivenModel,
    Method,
    MethodResult,
    Original,
    Retrain,
    UnlearnDeposit,
    UnlearnMinus,
    UnlearnPlus,
)
from expunge.evaluate.metrics import (
    FEWEST_ROWS,
    Score,
    accuracies,
    confidences,
    forget_score,
    membership,
    relearn_time,
)
from expunge.model import read_model
from expunge.noise import Noise
from expunge.request.promise import check_budget
from expunge.runtime.arrays import norm
from expunge.runtime.progress import Progress, silent

N_MODELS = 512
COLUMNS = {  # title, whether it is a percentage, meaning
    "train": ("Train", True, "accuracy on all source rows"),
    "test": ("Test", True, "accuracy on rows that were never trained on"),
    "retain": ("Retain", True, "accuracy on the source rows that stay"),
    "forget": ("Forget", True, "accuracy on the forgotten rows; after forgetting about that of Test"),
    "mia": (
        "MIA",
        True,
        "membership inference: how often an attacker tells forgotten from test rows; 50 % is guessing",
    ),
    "rt": ("RT", False, "relearn time: iterations until the forgotten rows fit as before; as many as Retrain is good"),
    "fs1": (
        "FS1",
        False,
        "forget score under the method's own noise: 1 if its models look retrained, 0 if they do not",
    ),
    "fs2": ("FS2", False, "forget score under the noise of Unlearn (+)"),
    "sigma": ("sigma", False, "standard deviation of the noise on each weight"),
    "distance": ("distance", False, "of the weights before noise from the retrained ones"),
}
METRICS = tuple(COLUMNS)
TITLES = {name: title for name, (title, _, _) in COLUMNS.items()}
PERCENT = tuple(name for name, (_, percent, _) in COLUMNS.items() if percent)
PUBLISHED_ONCE = "one published model: no more can be drawn from where it came from"


@dataclass(frozen=True)
class MethodScores:
    """One line of the table, for one seed."""

    method: str
    scores: dict[str, Score]
    notes: tuple[str, ...] = ()


def evaluate(
    case: Case, methods: Sequence[Method], seed: int, *, n_models: int = N_MODELS, progress: Progress = silent
) -> list[MethodScores]:
    """All metrics of METRICS for each method. `n_models` 0 leaves out the forget score.

    `fs1` compares a method's models with retrained ones under the method's own noise, `fs2` under that of Unlearn (+).
    `Retrain` and other methods without noise get that of Unlearn (+); for `Retrain` both sides then have one
    distribution, so its score is the ceiling. `sigma` is the noise, `distance` that of the weights before noise from
    the retrained ones.
    """
    outcomes = []
    for number, method in enumerate(methods):
        progress("Methods", number, len(methods))
        outcomes.append(method.run(case))
    plus = [outcome.noise for method, outcome in zip(methods, outcomes, strict=True) if isinstance(method, UnlearnPlus)]
    rows = []
    for number, (method, outcome) in enumerate(zip(methods, outcomes, strict=True)):
        progress("Metrics", number, len(methods))
        generator = np.random.default_rng([seed, number])
        weights = outcome.published(generator)
        scores = accuracies(weights, case)
        scores["mia"] = membership(weights, case, seed)
        scores["rt"] = relearn_time(weights, case, seed)
        if n_models:
            scores |= _model_scores(case, method, outcome, plus[0] if plus else None, n_models, generator)
        scores["sigma"] = Score(outcome.sigma) if outcome.drawn else Score.meaningless(PUBLISHED_ONCE)
        scores["distance"] = Score(norm(outcome.updated - case.retrained))
        rows.append(MethodScores(method.name, scores, outcome.notes))
    progress("Metrics", len(methods), len(methods))
    return rows


def _model_scores(
    case: Case, method: Method, outcome: MethodResult, plus: Noise | None, n_models: int, generator: np.random.Generator
) -> dict[str, Score]:
    """The forget score, under the method's own noise and, without the source, under that of Unlearn (+)."""
    noise = outcome.noise or plus
    if not outcome.drawn:
        return {"fs1": Score.meaningless(PUBLISHED_ONCE)}
    if noise is None:
        return {"fs1": Score.meaningless("no noise to compare under; evaluate Unlearn (+) with it")}
    forget = case.rows["forget"]
    flags = () if len(forget) >= FEWEST_ROWS else (f"only {len(forget)} forget rows",)
    retrained = MethodResult(case.retrained, None)

    def both(under: Noise) -> tuple[np.ndarray[tuple[int, int], np.dtype[np.float64]], ...]:
        return tuple(confidences(one.ensemble(n_models, generator, under), forget) for one in (outcome, retrained))

    scores = {"fs1": forget_score(*both(noise))}
    if isinstance(method, UnlearnMinus) and plus is not None:
        scores["fs2"] = forget_score(*both(plus))
    return {name: Score(score.value, score.error, score.flags + flags) for name, score in scores.items()}


# The table ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """Mean over seeds, sample standard deviation (None for one seed), how many had a value, and what is flagged."""

    mean: float | None
    spread: float | None
    seeds: int
    flags: tuple[str, ...]


@dataclass(frozen=True)
class ScoreTable:
    """`cells[method][metric]`."""

    seeds: int
    cells: dict[str, dict[str, Cell]]
    notes: dict[str, tuple[str, ...]]

    @property
    def metrics(self) -> list[str]:
        """Metrics that any method has, in order."""
        return [name for name in METRICS if any(name in row for row in self.cells.values())]


def summarise(results: Sequence[Sequence[MethodScores]]) -> ScoreTable:
    """One list of method scores a seed, to means and spreads; a method without a value in some seed is flagged."""
    cells: dict[str, dict[str, Cell]] = {}
    notes: dict[str, tuple[str, ...]] = {}
    for name in dict.fromkeys(row.method for seed in results for row in seed):
        rows = [row for seed in results for row in seed if row.method == name]
        notes[name] = tuple(dict.fromkeys(note for row in rows for note in row.notes))
        cells[name] = {}
        for metric in METRICS:
            if scores := [row.scores[metric] for row in rows if metric in row.scores]:
                values = [score.value for score in scores if score.value is not None]
                mean = math.fsum(values) / len(values) if values else None
                spread = statistics.stdev(values) if len(values) > 1 else None
                flags = tuple(dict.fromkeys(flag for score in scores for flag in score.flags))
                cells[name][metric] = Cell(mean, spread, len(values), flags)
    return ScoreTable(len(results), cells, notes)


def format_cell(metric: str, cell: Cell | None) -> str:
    """A cell as text: percent with one decimal, counts with one, scores with three; `--` where there is no value.

    >>> format_cell("test", Cell(0.7234, 0.0051, 5, ())), format_cell("mia", None)
    ('72.3 ± 0.5', '--')
    """
    if cell is None or cell.mean is None:
        return "--"
    factor = 100.0 if metric in PERCENT else 1.0
    form = "{:.1f}" if metric in (*PERCENT, "rt") else "{:.3f}" if metric.startswith("fs") else "{:.3g}"
    text = form.format(factor * cell.mean)
    return text if cell.spread is None else f"{text} ± {form.format(factor * cell.spread)}"


def to_markdown(table: ScoreTable) -> str:
    """The table with its flags and notes below it."""
    metrics = table.metrics
    titles = (TITLES[metric] + (" %" if metric in PERCENT else "") for metric in metrics)
    lines = [f"| Method | {' | '.join(titles)} |", "|---|" + "---:|" * len(metrics)]
    for name, row in table.cells.items():
        lines.append(f"| {name} | " + " | ".join(format_cell(metric, row.get(metric)) for metric in metrics) + " |")
    lines += ["", f"Mean ± standard deviation over {table.seeds} seed{'s' if table.seeds != 1 else ''}.", ""]
    lines += [f"- {line}" for line in legend(table)]
    said = [f"- {remark}" for remark in remarks(table)]
    return "\n".join(lines + ([""] if said else []) + said) + "\n"


def legend(table: ScoreTable) -> list[str]:
    """What each column means, in the order of the columns."""
    return [f"{TITLES[metric]}: {COLUMNS[metric][2]}" for metric in table.metrics]


def remarks(table: ScoreTable) -> list[str]:
    """What is flagged or noted, each sentence once, with the methods and metrics it is said of."""
    said_of: dict[str, dict[str, list[str]]] = {}
    for name, row in table.cells.items():
        for metric, cell in row.items():
            for flag in cell.flags:
                said_of.setdefault(flag, {}).setdefault(name, []).append(TITLES[metric])
    for name, notes in table.notes.items():
        for note in notes:
            said_of.setdefault(note, {}).setdefault(name, [])
    lines = []
    for sentence, methods in said_of.items():
        metrics = list(dict.fromkeys(title for titles in methods.values() for title in titles))
        where = f" ({', '.join(metrics)})" if metrics else ""
        lines.append(f"{', '.join(methods)}{where}: {sentence}")
    return lines


def to_json(table: ScoreTable) -> dict[str, Any]:
    """The table with its notes, as JSON takes it."""
    return {
        "seeds": table.seeds,
        "methods": {
            name: {"metrics": {metric: asdict(cell) for metric, cell in row.items()}, "notes": list(table.notes[name])}
            for name, row in table.cells.items()
        },
    }


def evaluate_files(
    model_file: Path | None,
    parts: Mapping[str, Path | None],
    candidates: Sequence[str],
    *,
    label: str | None,
    epsilon: float,
    delta: float,
    distance: str,
    match_classes: bool = False,
    with_deposit: bool = False,
    n_models: int,
    seeds: int,
    progress: Progress = silent,
) -> tuple[ScoreTable, dict[str, Any]]:
    """The table of a user's own model and splits, and the setting it belongs to.

    Seeds differ in the noise, the attack's splits and the relearning's order.
    """
    files = {name: path for name, path in parts.items() if path is not None}
    missing = [name for name in ("retain", "forget", "test") if name not in files]
    missing += [] if model_file else ["model"]
    if model_file is None or missing:
        found = "no " + ", ".join(f"--{name}" for name in missing)
        raise OptionError(found, "--model, --retain, --forget and --test are needed", "Give them.")
    check_budget(epsilon, delta)
    if parse_route(distance) is None:
        parse_distance(distance)
    model, digest = read_model(model_file)
    case = make_case(Splits(**{name: read_part(path, label, model) for name, path in files.items()}), trained=model)
    noise = CertifiedNoise(epsilon, delta, distance, match_classes=match_classes)
    methods: list[Method] = [Original(), Retrain(), UnlearnPlus(noise)]
    methods += [UnlearnMinus(noise)] if case.splits.surrogate is not None else []
    methods += [UnlearnDeposit(epsilon, delta)] if with_deposit else []
    brought: dict[str, str] = {}
    for text in candidates:
        name, equals, file = text.partition("=")
        if not equals or not name or name in brought:
            raise OptionError(f"candidate {text!r}", "each needs a name of its own", "Write NAME=model.safetensors.")
        other, brought[name] = read_model(file)
        methods.append(GivenModel(name, other))
    setting = {
        "model": digest,
        "parts": {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()},
        "candidates": brought,
        "epsilon": epsilon,
        "delta": delta,
        "distance": distance,
        "match_classes": match_classes,
        "with_deposit": with_deposit,
        "models": n_models,
    }
    results = [evaluate(case, methods, seed, n_models=n_models, progress=progress) for seed in range(seeds)]
    return summarise(results), setting
