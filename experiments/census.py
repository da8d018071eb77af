"""A natural case from end to end: the census employment model of 2015, forgotten from with rows of 2016 to 2018.

Two kinds of cases. `rehearsal`, on later years alone, is what somebody without the source can do: which l2, and how far
apart years are. `forget` is the real thing, beside the truth that only an experiment has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from experiments.datasets.census import People, read_census
from experiments.datasets.folder import DataFolder
from experiments.datasets.splits import random_split
from experiments.protocol.experiment import Case, Config, Record, Table, percent, spread
from experiments.shared.checks import check
from experiments.shared.figures import COLOURS, STYLES, new_figure, png
from experiments.shared.mixture import ROUNDING
from expunge.certificate.derive import held_region
from expunge.door import ask
from expunge.evaluate.case import Labelled, Splits, make_case
from expunge.evaluate.methods import MethodResult
from expunge.evidence import build_claim, foresee
from expunge.mechanism import measure
from expunge.model import LinearModel
from expunge.request.promise import Promise
from expunge.runtime.arrays import Array, norm, to_numpy
from expunge.runtime.progress import Progress, silent
from expunge.train import train

DRIFT_L2 = 1e-4
MARKED = " *"


def cases(config: Config, seeds: int) -> list[Case]:
    count = min(seeds, config["run"]["seeds"])
    return [Case("rehearsal", 0, {"kind": "rehearsal"})] + [
        Case("forget", seed, {"kind": "forget"}) for seed in range(count)
    ]


def run(
    case: Case, config: Config, data: DataFolder, *, device: str = "cpu", progress: Progress = silent
) -> dict[str, Any]:
    census = read_census(data.paths("employment"))
    wanted = config["run"]
    if case.options["kind"] == "rehearsal":
        return _rehearsal(census.source, census.later, wanted)
    return _forget(census.source, census.later, wanted, case.seed, progress)


def _forget(source: People, later: People, wanted: Mapping[str, Any], seed: int, progress: Progress) -> dict[str, Any]:
    kept, held = random_split(len(source.y), wanted["held_out"], np.random.default_rng([seed, 15]))
    test = (source.X[held], source.y[held])
    forget, retain = kept[: wanted["forget"]], kept[wanted["forget"] :]
    splits = Splits((source.X[retain], source.y[retain]), (source.X[forget], source.y[forget]), test)
    case = make_case(splits, l2=wanted["l2"], max_norm=ROUNDING)
    n_source = len(kept)
    lines, checks = [], []
    ways = [(text, False) for text in wanted["distances"]] + [(text, True) for text in wanted["matched"]]
    for number, (text, matched) in enumerate(ways):
        progress("Distances", number, len(ways))
        outlook = _outlooks(
            case.trained, splits.forget, (later.X, later.y), 1.0 / n_source, text, matched, test, wanted
        )
        distance = norm(outlook.pop("updated") - case.retrained)
        name = text + (", classes matched" if matched else "")
        lines.append({"declared": name, "true": distance, **outlook})
        checks.append(check(f"ten people, {name}", distance, outlook["residual"], None))
    return {
        "n_source": n_source,
        "n_surrogate": len(later.y),
        "features": int(source.X.shape[1]),
        "moved": norm(case.weights - case.retrained),
        "before": {"2015": _accuracy(case.trained.matrix(), test), **_by_year(case.trained.matrix(), later)},
        "lines": lines,
        "checks": checks,
    }


def _outlooks(
    model: LinearModel,
    forget: Labelled,
    surrogate: Labelled,
    delta: float,
    text: str,
    matched: bool,
    test: Labelled,
    wanted: Mapping[str, Any],
) -> dict[str, Any]:
    """Delta for this declared distance, and noise and mean accuracy at every epsilon."""
    promise = Promise(1.0, delta, text, match_classes=matched, force=True, noise="exact")
    request = ask(model, forget, surrogate, promise)
    measured = measure(request, seed=0)
    updated = request.weights + measured.step.update
    region = held_region(build_claim(request, measured))
    generator, outcomes = np.random.default_rng(0), []
    for epsilon in wanted["epsilons"]:
        _, derived = foresee(replace(request, promise=replace(request.promise, epsilon=epsilon)), measured)
        assert derived.noise is not None  # the region of a finite distance is finite
        share = derived.noise.length / norm(request.weights)
        published = MethodResult(updated, derived.noise).ensemble(wanted["draws"], generator)
        after = float(np.mean([_accuracy(weights, test) for weights in published]))
        outcomes.append(
            {
                "epsilon": epsilon,
                "sigma": derived.sigma,
                "accuracy": after,
                "noise_share": share,
                "refused": share > 1.0,
            }
        )
    return {"residual": region.radius, "terms": dict(region.terms), "outcomes": outcomes, "updated": updated}


def _accuracy(weights: Array, rows: Labelled) -> float:
    return float(np.mean((rows[0] @ to_numpy(weights).T).argmax(axis=1) == rows[1]))


def _by_year(weights: Array, people: People) -> dict[str, float]:
    years = np.unique(people.year).tolist()
    return {
        str(year): _accuracy(weights, (people.X[people.year == year], people.y[people.year == year])) for year in years
    }


def _rehearsal(source: People, later: People, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """What later years tell: accuracy by l2 a year on, before and after unlearning; how far years are apart."""
    trial = wanted["rehearsal"]
    first, second = (later.year == trial[part] for part in ("source", "surrogate"))
    rows = (later.X[first], later.y[first])
    test = (later.X[second], later.y[second])
    forget = (rows[0][: wanted["forget"]], rows[1][: wanted["forget"]])
    lines = []
    for l2 in trial["l2"]:
        model = train(*rows, l2=l2, max_norm=ROUNDING)
        outlook = _outlooks(model, forget, test, 1.0 / len(rows[1]), trial["distance"], False, test, wanted)
        outlook.pop("updated")
        lines.append({"l2": l2, "before": _accuracy(model.matrix(), test), **outlook})
    years = np.unique(later.year).tolist()
    drifts = {str(year): drift(later.X[later.year == year], later.X[later.year != year]) for year in years}
    return {"lines": lines, "drifts": drifts, "drift_of_2015": drift(source.X, later.X)}


def drift(rows: np.ndarray[Any, Any], others: np.ndarray[Any, Any]) -> float:
    """Chi-square of `rows` relative to `others` as a linear classifier sees it.

    An estimate, and of what such a classifier misses it says nothing.

    The classifier's odds on one half of both, divided by the ratio of sizes, are a density ratio r; on the other half
    of `others`, rescaled to mean 1, chi-square is the mean of (r - 1)^2.
    """
    generator = np.random.default_rng(0)
    halves = [np.array_split(part[generator.permutation(len(part))], 2) for part in (rows, others)]
    known = np.concatenate([halves[0][0], halves[1][0]])
    kind = np.repeat([1, 0], [len(halves[0][0]), len(halves[1][0])])
    weights = train(known, kind, l2=DRIFT_L2, max_norm=ROUNDING).matrix()
    ratio = np.exp(halves[1][1] @ (weights[1] - weights[0]))
    return float(np.mean((ratio / ratio.mean() - 1.0) ** 2))


# Tables and figure ----------------------------------------------------------------------------------------------


def tables(config: Config, records: Sequence[Record]) -> list[Table]:
    rehearsal = next((record["result"] for record in records if record["options"]["kind"] == "rehearsal"), None)
    real = [record["result"] for record in records if record["options"]["kind"] == "forget"]
    rehearsed = [] if rehearsal is None else [_rehearsed(config, rehearsal), _drifts(rehearsal)]
    return [*rehearsed, *([_certified(config, real)] if real else [])]


def _rehearsed(config: Config, result: Mapping[str, Any]) -> Table:
    trial, epsilons = config["run"]["rehearsal"], config["run"]["epsilons"]
    rows = [
        (f"{line['l2']:g}", f"{100.0 * line['before']:.1f}", *(_cell([one]) for one in line["outcomes"]))
        for line in result["lines"]
    ]
    return Table(
        f"Rehearsal on later years: trained on {trial['source']}, ten forgotten, surrogate {trial['surrogate']}, "
        f"declared {trial['distance']}",
        ("l2", "accuracy before %", *(f"eps {epsilon:g}" for epsilon in epsilons)),
        tuple(rows),
        (
            f"Accuracy on the {trial['surrogate']} rows. The model of 2015 is trained with l2 = "
            f"{config['run']['l2']:g}.",
        ),
    )


def _drifts(result: Mapping[str, Any]) -> Table:
    rows = [(f"{year} against the other later years", f"{value:.3g}") for year, value in result["drifts"].items()]
    rows.append(("2015 against 2016 to 2018 (known to the experiment alone)", f"{result['drift_of_2015']:.3g}"))
    return Table(
        "How far years are apart: chi-square as a linear classifier sees it",
        ("rows", "chi-square, estimated"),
        tuple(rows),
        ("An estimate, from below where the classifier misses something: a margin is due on top of it.",),
    )


def _cell(outcomes: Sequence[Mapping[str, Any]]) -> str:
    refused = any(one["refused"] for one in outcomes)
    return percent([one["accuracy"] for one in outcomes]) + (MARKED if refused else "")


def _certified(config: Config, real: Sequence[Mapping[str, Any]]) -> Table:
    rows = []
    for number, line in enumerate(real[0]["lines"]):
        lines = [one["lines"][number] for one in real]
        cells = [_cell([one["outcomes"][k] for one in lines]) for k in range(len(config["run"]["epsilons"]))]
        deltas = [spread([one[key] for one in lines], ".2g") for key in ("true", "residual")]
        rows.append((line["declared"], *deltas, *cells))
    before = real[0]["before"]
    years = ", ".join(f"{percent([one['before'][year] for one in real])} % on {year}" for year in before)
    return Table(
        "Ten people of 2015 forgotten: what each declaration costs",
        ("declared", "true distance", "Delta", *(f"eps {epsilon:g}" for epsilon in config["run"]["epsilons"])),
        tuple(rows),
        (
            f"n = {real[0]['n_source']:,}, surrogate {real[0]['n_surrogate']:,} rows of 2016 to 2018, delta = 1/n; "
            "accuracy in percent on rows of 2015 that were never trained on.",
            f"Before: {years}. Forgetting the ten by retraining moves the weights by "
            f"{spread([one['moved'] for one in real], '.2g')}.",
            "`same` stands here for comparison: years differ, so nobody may declare it.",
            "Noise is what the bound needs; expunge unlearn rounds it up to a power of two.",
            "* marks noise that outweighs the weights even before that, which expunge unlearn refuses without --force.",
        ),
    )


def figures(config: Config, records: Sequence[Record]) -> dict[str, bytes]:
    """Accuracy against epsilon, a line a declared distance."""
    real = [record["result"] for record in records if record["options"]["kind"] == "forget"]
    figure, (axis,) = new_figure(1, 4.2, width=6.5)
    for number, line in enumerate(real[0]["lines"] if real else []):
        values = [
            [one["lines"][number]["outcomes"][k]["accuracy"] for one in real] for k in range(len(line["outcomes"]))
        ]
        axis.plot(
            [one["epsilon"] for one in line["outcomes"]],
            [100.0 * float(np.mean(one)) for one in values],
            STYLES[number % len(STYLES)],
            marker="o",
            markersize=4,
            color=COLOURS[number % len(COLOURS)],
            label=line["declared"],
        )
    if real:
        before = 100.0 * float(np.mean([one["before"]["2015"] for one in real]))
        axis.axhline(before, color="#4a4a4a", linewidth=0.8, linestyle=":")
    axis.set(xscale="log", xlabel="epsilon (smaller protects more)", ylabel="accuracy on held-out rows of 2015, %")
    axis.grid(alpha=0.3)
    if real:
        axis.legend(title="declared distance", frameon=False, fontsize=8)
    return {"census.png": png(figure)}
