"""Real data, Dirichlet splits (Tables 2 and 3, Figure 2), at the paper's constants, epsilon 5 e^3 and delta 1.

Three kinds of cases. `table`: the paper's columns for one data set and concentration. `scan`: the same at other row
lengths, which the paper does not state. `estimate`: KL of the surrogate from the source by the paper's heuristic,
beside its exact value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.datasets.folder import DataFolder
from experiments.protocol.experiment import Case, Config, Record, Table, grouped, spread
from experiments.shared.checks import paper_delta
from experiments.shared.comparison import ACCURACIES, PAPER_METRICS, Scores, comparison
from experiments.shared.figures import COLOURS, new_figure, png
from experiments.shared.gaps import METHODS, Group, by_group, gap_table
from experiments.shared.mixture import distance_checks, mixture, paper_scores, sizes, trained
from experiments.shared.paper_noise import PAPER_DELTA, PAPER_EPSILON
from expunge.bounds.calibration import sigma_classical
from expunge.distance import Estimation
from expunge.estimate.source import estimate_source
from expunge.runtime.progress import Progress, silent

BARS = (
    ("FS1 (+)", "Unlearn (+)", "fs1", "#1b5e8c"),
    ("FS1 (-)", "Unlearn (-)", "fs1", "#b4480f"),
    ("FS2 (-)", "Unlearn (-)", "fs2", "#8a8a8a"),
)
SCANNED_AT = 100
MATCHED = "ours, classes matched"


def cases(config: Config, seeds: int) -> list[Case]:
    wanted = config["run"]
    planned = []
    for seed in range(seeds):
        for data, length in wanted["lengths"].items():
            for xi in wanted["concentrations"]:
                options = {"kind": "table", "data": data, "xi": xi, "length": length}
                planned.append(Case(f"{data}/xi={xi}", seed, options))
                if seed < wanted["estimate"]["seeds"]:
                    planned.append(Case(f"{data}/xi={xi}/estimate", seed, {**options, "kind": "estimate"}))
    for data in wanted["lengths"]:
        for length in wanted["scan"]["lengths"]:
            options = {"kind": "scan", "data": data, "xi": SCANNED_AT, "length": length}
            planned.append(Case(f"{data}/length={length:g}", 0, options))
    return sorted(planned, key=lambda case: ("table", "scan", "estimate").index(case.options["kind"]))


def run(
    case: Case, config: Config, data: DataFolder, *, device: str = "cpu", progress: Progress = silent
) -> dict[str, Any]:
    wanted, options = config["run"], case.options
    xi, length = options["xi"], options["length"]
    generator = np.random.default_rng([case.seed, xi])
    parts = mixture(data.load(options["data"]), xi, wanted["forget_ratio"], length, generator)
    task = trained(parts, wanted["l2"], length, progress)
    known = sizes(task, parts)
    if options["kind"] == "estimate":
        return known | _estimated(task, wanted["estimate"], case.seed, progress)
    models = wanted["models"] if options["kind"] == "table" else 0
    result = known | {"scores": paper_scores(task, parts.kl, case.seed, models, progress)}
    return result | {"checks": distance_checks(task, parts)} if options["kind"] == "table" else result


def _estimated(task: Any, wanted: Mapping[str, Any], seed: int, progress: Progress) -> dict[str, Any]:
    """KL by Langevin samples of the model's density and Donsker-Varadhan; the paper's Delta and sigma from it."""
    options = {name: wanted[name] for name in ("chains", "steps", "epochs")}
    rows = task.rows["surrogate"]
    estimate = estimate_source(
        task.objective,
        task.weights,
        task.record,
        rows,
        Estimation(route="kl", support="gaussian", seed=seed, **options),
        progress=progress,
    )
    assert estimate.kl is not None
    delta = paper_delta(task, estimate.kl.value, len(rows))
    return {
        "estimated_kl": estimate.kl.value,
        "standard_error": estimate.kl.standard_error,
        "conditional": estimate.kl.conditional.value,
        "r_hat": estimate.sampled.diagnostics.r_hat,
        "estimated_delta": delta,
        "estimated_sigma": sigma_classical(delta, PAPER_EPSILON, PAPER_DELTA),
    }


# Tables ---------------------------------------------------------------------------------------------------------


def tables(config: Config, records: Sequence[Record]) -> list[Table]:
    paper = config["paper"]
    main = [record for record in records if record["options"]["kind"] == "table"]
    titles = paper["titles"]
    ours: dict[Group, dict[str, list[Scores]]] = {
        (titles.get(data, data), str(xi)): {name: [one["result"]["scores"][name] for one in group] for name in METHODS}
        for (data, xi), group in grouped(_in_order(config, main), "data", "xi").items()
    }
    theirs: dict[Group, dict[str, list[float]]] = {}
    for data in config["run"]["lengths"]:
        theirs |= by_group(paper.get(data, {}), (titles.get(data, data),))
    rows: dict[Group, list[Scores]] = {
        (*group, name): scores for group, methods in ours.items() for name, scores in methods.items()
    }
    values = {(*group, name): row for group, methods in theirs.items() for name, row in methods.items()}
    attacks = {name: row[len(ACCURACIES) :] for name, row in values.items()}
    lead = ("data", "xi", "method")
    return [
        comparison("Table 2", lead, rows, values, metrics=ACCURACIES),
        gap_table("Table 2: the gaps between the methods", lead[:2], ours, theirs),
        comparison(
            "Table 3",
            lead,
            rows,
            attacks,
            metrics=PAPER_METRICS[len(ACCURACIES) :],
            notes=(
                "MIA on as many forget as test rows of every class: their class proportions differ, and the attack "
                "would tell classes.",
            ),
        ),
        _deltas(config, records),
        _forget_scores(rows),
        _scanned(config, records),
    ]


def _in_order(config: Config, records: Sequence[Record]) -> list[Record]:
    """By data set as the config lists them, then by concentration."""
    names = list(config["run"]["lengths"])
    return sorted(records, key=lambda one: (names.index(one["options"]["data"]), one["options"]["xi"], one["seed"]))


def _deltas(config: Config, records: Sequence[Record]) -> Table:
    estimates = {
        (record["options"]["data"], record["options"]["xi"]): record["result"]
        for record in records
        if record["options"]["kind"] == "estimate" and record["seed"] == 0
    }
    rows = []
    main = [record for record in records if record["options"]["kind"] == "table"]
    for (data, xi), group in grouped(_in_order(config, main), "data", "xi").items():
        checks = {
            one["what"]: [r["result"]["checks"][k] for r in group] for k, one in enumerate(group[0]["result"]["checks"])
        }
        guess = estimates.get((data, xi))
        printed = config["paper"].get("delta", {}).get(str(xi)) if data == "stanford-dogs" else None
        rows.append(
            (
                config["paper"]["titles"].get(data, data),
                str(xi),
                *(spread([r["result"][key] for r in group]) for key in ("kl", "chi2")),
                *(spread([one["true"] for one in checks[what]]) for what in ("Unlearn (-)", MATCHED)),
                *(spread([one["residual"] for one in checks[what]]) for what in ("Unlearn (-)", MATCHED)),
                spread([one["paper"] for one in checks["Unlearn (-)"]]),
                "--" if guess is None else f"{guess['estimated_kl']:.3g}",
                "--" if guess is None else f"{guess['estimated_delta']:.3g}",
                "--" if printed is None else f"{printed[0]:g}, {printed[1]:g}",
            )
        )
    return Table(
        "Delta, exact and estimated",
        (
            "data",
            "xi",
            "KL, exact",
            "chi2, exact",
            "true distance",
            "classes matched",
            "residual Delta, chi2",
            "classes matched",
            "paper's theorem, exact KL",
            "KL, estimated",
            "paper's theorem, estimated KL",
            "the paper prints (exact, estimated)",
        ),
        tuple(rows),
        (
            "KL is of the surrogate relative to the source, chi-square of the source relative to the surrogate, both "
            "between class mixtures.",
            "Residual Deltas are at delta = 1/n, that of matched classes for the converged step, the others for the "
            "paper's single Newton step.",
            "Estimates are of seed 0, from the model and the surrogate alone, with shorter chains and training than "
            "the paper's.",
        ),
    )


def _forget_scores(by_method: Mapping[Group, Sequence[Scores]]) -> Table:
    rows = []
    for (data, xi, method), scores in by_method.items():
        cells = [spread([one.get(metric) for one in scores], ".3f") for metric in ("fs1", "fs2")]
        cells.append(spread([one.get("sigma") for one in scores]))
        rows.append((data, xi, method, *cells))
    return Table(
        "Figure 2: noise and forget scores",
        ("data", "xi", "method", "FS1", "FS2", "sigma"),
        tuple(rows),
        ("Retrain's forget score against itself is the ceiling.",),
    )


def _scanned(config: Config, records: Sequence[Record]) -> Table:
    rows = []
    scans = [record for record in records if record["options"]["kind"] == "scan"]
    scans.sort(key=lambda one: one["options"]["length"] or np.inf)  # as they come: the longest
    for record in _in_order(config, scans):
        data, length, scores = record["options"]["data"], record["options"]["length"], record["result"]["scores"]
        goal = config["paper"].get(data, {}).get(f"{SCANNED_AT} Retrain")
        gaps = [100.0 * (scores["Unlearn (-)"][metric] - scores["Retrain"][metric]) for metric in ("test", "forget")]
        taken = " (taken)" if length == config["run"]["lengths"][data] else ""
        rows.append(
            (
                config["paper"]["titles"].get(data, data),
                ("as they come" if length == 0 else f"{length:g}") + taken,
                *(f"{100.0 * scores['Retrain'][metric]:.1f}" for metric in ("train", "test", "forget")),
                "--" if goal is None else f"{goal[0]:g}",
                *(f"{gap:+.1f}" for gap in gaps),
                f"{scores['Unlearn (-)']['distance']:.2g} of {scores['Original']['distance']:.2g}",
            )
        )
    return Table(
        "The length of the rows (xi = 100, one seed)",
        (
            "data",
            "row length",
            "Retrain: Train %",
            "Test %",
            "Forget %",
            "the paper's Train %",
            "Unlearn (-) less Retrain: Test",
            "Forget",
            "distance left by Unlearn (-)",
        ),
        tuple(rows),
        (
            "The longer the rows, the weaker the same regularisation, and the less a surrogate tells about the "
            "source's Hessian: with rows as they come, models of many classes nearly interpolate and Unlearn (-) no "
            "longer follows Retrain.",
            "The last column is the distance from retraining after the step, and of the original model.",
        ),
    )


# The figure -----------------------------------------------------------------------------------------------------


def figures(config: Config, records: Sequence[Record]) -> dict[str, bytes]:
    """Figure 2: (a) required noise against xi, a line a data set; (b) forget scores as bars."""
    main = [record for record in records if record["options"]["kind"] == "table"]
    groups = grouped(_in_order(config, main), "data", "xi")
    figure, (left, right) = new_figure(2, 4.2, width=12.0)
    titles, concentrations = config["paper"]["titles"], config["run"]["concentrations"]
    guesses = [record for record in records if record["options"]["kind"] == "estimate"]
    for number, data in enumerate(config["run"]["lengths"]):
        known = [xi for xi in concentrations if (data, xi) in groups]
        noise = [[r["result"]["scores"]["Unlearn (-)"]["sigma"] for r in groups[data, xi]] for xi in known]
        colour = COLOURS[number]
        spreads = [float(np.std(values)) for values in noise]
        means = [float(np.mean(values)) for values in noise]
        left.errorbar(known, means, yerr=spreads, fmt="-o", color=colour, capsize=3, label=titles.get(data, data))
        mine = sorted(
            (r["options"]["xi"], r["result"]["estimated_sigma"]) for r in guesses if r["options"]["data"] == data
        )
        if mine:
            left.plot(
                *zip(*mine, strict=True),
                ":x",
                color=colour,
                label="dotted: with the estimated KL" if number == 0 else None,
            )
    left.set(xlabel="concentration xi", ylabel="required noise sigma", title="(a) required noise of Unlearn (-)")
    left.grid(alpha=0.3)
    left.legend(frameon=False, fontsize=8)
    _bars(right, groups, titles)
    return {"dirichlet-figure2.png": png(figure)}


def _bars(axis: Any, groups: Mapping[tuple[Any, ...], Sequence[Record]], titles: Mapping[str, str]) -> None:
    for number, (label, method, metric, colour) in enumerate(BARS):
        values = [[r["result"]["scores"][method].get(metric) or 0.0 for r in group] for group in groups.values()]
        axis.bar(
            [place + (number - 1) * 0.27 for place in range(len(groups))],
            [float(np.mean(one)) for one in values],
            0.25,
            yerr=[float(np.std(one)) for one in values],
            color=colour,
            label=label,
            capsize=2,
        )
    names = [f"{titles.get(data, data).split(' (')[0]}\nxi {xi}" for data, xi in groups]
    axis.set_xticks(range(len(groups)), names, rotation=60, fontsize=8)
    axis.set(ylabel="forget score", title="(b) forget scores")
    axis.set_ylim(0.0, 1.25 * axis.get_ylim()[1])
    axis.legend(frameon=False, ncols=3, loc="upper center")
