"""The synthetic task (Tables 1 and 8, Figure 1): on the paper's own data set, and on one of its own for each seed.

Three kinds of cases. `published`: the paper's data set and forget set, rebuilt from its authors' seed; surrogates,
noise, the attack's splits and the relearning's order differ by seed. `fresh`: a data set of its own for each seed.
`printed`: the first again under the noise of the Deltas that the paper's appendix prints, which are larger than its
theorem gives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.datasets.folder import DataFolder
from experiments.datasets.synthetic import L2, MAX_NORM, N_FEATURES, surrogate_covariance, surrogate_kl
from experiments.protocol.experiment import Case, Config, Record, Table, spread
from experiments.shared.checks import checked
from experiments.shared.closed_forms import gaussian_chi_square
from experiments.shared.comparison import Scores, comparison, scores_of
from experiments.shared.figures import new_figure, png
from experiments.shared.paper_task import paper_methods, paper_splits, published_splits
from expunge.distance import Distance
from expunge.evaluate.case import make_case
from expunge.evaluate.evaluation import evaluate
from expunge.evaluate.methods import UnlearnMinus
from expunge.runtime.progress import Progress, silent

KINDS = ("published", "fresh", "printed")
BARS = (("FS1 (+)", "#1b5e8c"), ("FS1 (-)", "#b4480f"), ("FS2 (-)", "#8a8a8a"))


def cases(config: Config, seeds: int) -> list[Case]:
    return [Case(kind, seed, {"kind": kind}) for seed in range(seeds) for kind in KINDS]


def run(
    case: Case, config: Config, data: DataFolder, *, device: str = "cpu", progress: Progress = silent
) -> dict[str, Any]:
    wanted, kind = config["run"], case.options["kind"]
    splits = paper_splits(case.seed, wanted["rows"]) if kind == "fresh" else published_splits()
    task = make_case(splits, l2=L2, max_norm=MAX_NORM, progress=progress)
    methods = paper_methods(case.seed, wanted["zetas"], wanted["rows"], printed=kind == "printed")
    models = 0 if kind == "fresh" else wanted["models"]
    scores = scores_of(evaluate(task, methods, case.seed, n_models=models, progress=progress))
    if kind == "printed":  # the same steps as `published`, so nothing new to check
        return {"scores": scores}
    checks = [checked("Unlearn (+)", task, distance="source", with_source=True)]
    surrogates = [method for method in methods if isinstance(method, UnlearnMinus)]
    for zeta, method in zip(wanted["zetas"], surrogates, strict=True):
        assert method.surrogate is not None
        own = task.with_surrogate(method.surrogate)
        checks.append(checked(method.name, own, distance=source_chi_square(zeta), kl=surrogate_kl(zeta)))
    return {"scores": scores, "checks": checks}


def source_chi_square(zeta: float) -> Distance:
    """Of N(0, I) relative to the surrogate's Gaussian, in closed form."""
    zero = np.zeros(N_FEATURES)
    return Distance("chi2", gaussian_chi_square(zero, np.eye(N_FEATURES), zero, surrogate_covariance(zeta)))


def tables(config: Config, records: Sequence[Record]) -> list[Table]:
    paper, within = config["paper"], config["paper"]["within"]
    by_kind = {kind: _scores([r for r in records if r["options"]["kind"] == kind]) for kind in KINDS}
    comparisons = [
        comparison(
            "Table 1, on the paper's own data set",
            ("method",),
            {name: rows for name, rows in by_kind["published"].items() if name != ("Original",)},
            _named(paper["table1"]),
            within=within,
        ),
        comparison(
            "Table 8, on the paper's own data set",
            ("method",),
            by_kind["published"],
            _named(paper["table8"]),
            within=within,
        ),
        comparison(
            "Table 8, on a data set of its own for each seed",
            ("method",),
            by_kind["fresh"],
            _named(paper["table8"]),
            within=within,
            notes=("The paper's table spreads less over seeds than drawing data and forget set anew does.",),
        ),
    ]
    return [*comparisons, _deltas(config, records), _forget_scores(by_kind)]


def _scores(records: Sequence[Record]) -> dict[tuple[str, ...], list[Scores]]:
    names = dict.fromkeys(name for record in records for name in record["result"]["scores"])
    return {(name,): [record["result"]["scores"][name] for record in records] for name in names}


def _named(rows: Mapping[str, Sequence[float]]) -> dict[tuple[str, ...], Sequence[float | str]]:
    return {(name,): values for name, values in rows.items()}


def _deltas(config: Config, records: Sequence[Record]) -> Table:
    """Table 8's Delta column: the theorem's value, what the appendix prints, the residual bound's and the truth."""
    printed = [config["paper"]["delta_plus"], *config["paper"]["delta"]]
    fresh = [record["result"]["checks"] for record in records if record["options"]["kind"] == "fresh"]
    rows = []
    for number, value in enumerate(printed):
        checks = [one[number] for one in fresh]
        if not checks:
            continue
        rows.append(
            (
                checks[0]["what"],
                checks[0]["distance"],
                *(spread([one[key] for one in checks]) for key in ("true", "known", "residual", "paper")),
                f"{value:g}",
            )
        )
    return Table(
        "Table 8's Delta: the true distance to retraining, and three bounds",
        (
            "method",
            "declared",
            "true distance",
            "residual Delta, difference of means known",
            "residual Delta",
            "Delta of the paper's theorem",
            "Delta the paper prints",
        ),
        tuple(rows),
        (
            "The residual Delta is at delta = 1/n with the exact chi-square between the two Gaussians, for the same "
            "single Newton step.",
            "With the constants the paper names, its theorem gives less than its appendix prints.",
        ),
    )


def _forget_scores(by_kind: Mapping[str, Mapping[tuple[str, ...], Sequence[Scores]]]) -> Table:
    rows = []
    for name, scores in by_kind["published"].items():
        printed = by_kind["printed"].get(name, [])
        if name[0] != "Original":
            rows.append(
                (
                    name[0],
                    *(
                        spread([one.get(metric) for one in values], ".3f")
                        for values in (scores, printed)
                        for metric in ("fs1", "fs2")
                    ),
                )
            )
    return Table(
        "Figure 1 (b): forget scores",
        ("method", "FS1", "FS2", "FS1, printed Deltas", "FS2, printed Deltas"),
        tuple(rows),
        ("Retrain's score against itself is the ceiling.",),
    )


def figures(config: Config, records: Sequence[Record]) -> dict[str, bytes]:
    """Figure 1: (a) noise against zeta, (b) forget scores as bars, with the noise of the Deltas the paper prints."""
    zetas = config["run"]["zetas"]
    figure, (left, right) = new_figure(2, 4.2, width=10.0)
    for kind, colour, label in (
        ("printed", "#b4480f", "Deltas as the paper prints them"),
        ("published", "#1b5e8c", "Deltas of the paper's theorem"),
    ):
        scores = _scores([record for record in records if record["options"]["kind"] == kind])
        if not scores:
            continue
        means = [_mean([one["sigma"] for one in scores[(f"Unlearn (-) zeta {zeta:g}",)]]) for zeta in zetas]
        left.plot(zetas, means, "-o", color=colour, label=label)
    left.set(xlabel="zeta", ylabel="required noise sigma", yscale="log", title="(a) required noise")
    left.grid(alpha=0.3)
    left.legend(frameon=False)
    scores = _scores([record for record in records if record["options"]["kind"] == "printed"])
    if scores:
        _bars(right, zetas, scores)
    return {"synthetic-figure1.png": png(figure)}


def _bars(axis: Any, zetas: Sequence[float], scores: Mapping[tuple[str, ...], Sequence[Scores]]) -> None:
    for number, (label, colour) in enumerate(BARS):
        values = []
        for zeta in zetas:
            name, metric = f"Unlearn (-) zeta {zeta:g}", "fs2" if label.startswith("FS2") else "fs1"
            values.append([one.get(metric) for one in scores[("Unlearn (+)" if "+" in label else name,)]])
        axis.bar(
            [place + (number - 1) * 0.27 for place in range(len(zetas))],
            [_mean(one) for one in values],
            0.25,
            yerr=[float(np.std([v for v in one if v is not None])) for one in values],
            color=colour,
            label=label,
            capsize=2,
        )
    axis.set_xticks(range(len(zetas)), [f"{zeta:g}" for zeta in zetas])
    axis.set(xlabel="zeta", ylabel="forget score", title="(b) forget scores, Deltas as the paper prints them")
    axis.set_ylim(0.0, 1.25 * axis.get_ylim()[1])
    axis.legend(frameon=False, ncols=3, loc="upper center")


def _mean(values: Sequence[float | None]) -> float:
    return float(np.mean([value for value in values if value is not None]))
