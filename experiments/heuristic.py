"""The paper's heuristic beside the truth: estimated against exact KL and Delta (Figures 3 and 4, Table 9).

`synthetic`: source N(0, I), surrogate N(0, (1 - zeta) I + zeta 1 1^T). Features of the source are sampled from the
model by Langevin dynamics on three supports; KL by its conditional part and Donsker-Varadhan; beside it the closed
form. `many`: more chains. `dogs`: Dirichlet splits of Stanford Dogs; the reference is, as in the paper,
Donsker-Varadhan with the source's own rows, and beside it the KL of the class mixtures. Delta is the paper's, with the
constants of its experiments (which no loss has). What the residual bound needs instead, the difference of means of
phi_u, is estimated directly, beside its true value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.datasets.catalogue import CATALOGUE
from experiments.datasets.folder import DataFolder
from experiments.datasets.synthetic import L2, N_FEATURES, source_rows, surrogate_kl, surrogate_rows
from experiments.protocol.experiment import Case, Config, Record, Table, grouped, spread
from experiments.shared.checks import checked, mean_difference, paper_delta
from experiments.shared.comparison import comparison
from experiments.shared.figures import new_figure, png
from experiments.shared.gaps import by_group
from experiments.shared.mixture import distance_checks, mixture, paper_scores, sizes, trained
from experiments.shared.paper_noise import PAPER_DELTA, PAPER_EPSILON
from experiments.synthetic import source_chi_square
from expunge.bounds.calibration import sigma_classical
from expunge.distance import Estimation, shift_total_variation
from expunge.estimate.comparison import compare
from expunge.estimate.source import KullbackLeiblerEstimate, estimate_source
from expunge.evaluate.case import Case as Task
from expunge.evaluate.case import Splits, make_case
from expunge.heads.rows import in_memory
from expunge.request.promise import computing_device
from expunge.request.sets import rows_of
from expunge.runtime.arrays import Array, engine_dtype, to_device
from expunge.runtime.progress import Progress, silent
from expunge.solve.newton import SurrogateEquation, newton_step

FORGET_SHARE = 0.1
SUPPORTS = ("ball", "gaussian, surrogate's moments", "gaussian, source's moments")
MANY = "gaussian, source's moments, many chains"
COLOURS = dict(zip((*SUPPORTS, MANY), ("#c03028", "#d08000", "#2060b0", "#209060"), strict=True))


def cases(config: Config, seeds: int) -> list[Case]:
    wanted, planned = config["run"], []
    for seed in range(seeds):
        for xi in wanted["dogs"]["concentrations"]:
            planned.append(Case(f"dogs/xi={xi}", seed, {"kind": "dogs", "xi": xi}))
        for zeta in wanted["zetas"]:
            planned.append(Case(f"synthetic/zeta={zeta:g}", seed, {"kind": "synthetic", "zeta": zeta}))
            planned.append(Case(f"many/zeta={zeta:g}", seed, {"kind": "many", "zeta": zeta}))
    return planned


def run(
    case: Case, config: Config, data: DataFolder, *, device: str = "cpu", progress: Progress = silent
) -> dict[str, Any]:
    if case.options["kind"] == "dogs":
        return _dogs(case, config["run"], data, device, progress)
    return _synthetic(case, config["run"], device, progress)


# The synthetic family -------------------------------------------------------------------------------------------


def _synthetic(case: Case, wanted: Mapping[str, Any], device: str, progress: Progress) -> dict[str, Any]:
    zeta, many = case.options["zeta"], case.options["kind"] == "many"
    X, y = source_rows(np.random.default_rng([case.seed, 1]), wanted["rows"])
    surrogate = surrogate_rows(np.random.default_rng([case.seed, 2, round(1000 * zeta)]), zeta, wanted["rows"])
    m = int(FORGET_SHARE * len(X))
    splits = Splits((X[m:], y[m:]), (X[:m], y[:m]), (X[:1], y[:1]), surrogate)
    task = make_case(splits, l2=L2, max_norm=wanted["max_norm"], progress=progress)
    rows = task.rows["surrogate"]
    update = newton_step(
        SurrogateEquation(task.objective, task.weights, task.rows["forget"], rows, len(task.rows["train"])),
        single=False,
    ).update
    result: dict[str, Any] = {
        "kl": surrogate_kl(zeta),
        "delta": paper_delta(task, surrogate_kl(zeta), len(rows)),
        "means": mean_difference(task, update, rows),
        "estimates": {
            name: _sampled(task, update, _estimation(name, wanted, case.seed), device, progress)
            for name in ((MANY,) if many else SUPPORTS)
        },
    }
    check = checked("Unlearn (-)", task, distance=source_chi_square(zeta), kl=surrogate_kl(zeta))
    return result if many else result | {"checks": [check]}


def _estimation(name: str, wanted: Mapping[str, Any], seed: int) -> Estimation:
    options: dict[str, Any] = {"support": "ball"} if name == "ball" else {"support": "gaussian"}
    if "source's" in name:
        options |= {"mean": np.zeros(N_FEATURES), "covariance": np.eye(N_FEATURES)}
    chains = wanted["many"] if name == MANY else wanted["chains"]
    return Estimation(route="kl", chains=chains, steps=wanted["steps"], epochs=wanted["epochs"], seed=seed, **options)


def _sampled(task: Task, update: Array, estimation: Estimation, device: str, progress: Progress) -> dict[str, Any]:
    """One estimate, from the model and the surrogate alone."""
    place = computing_device(device)
    rows = in_memory(
        rows_of(task.surrogate, task.trained, task.record, engine_dtype("float64", place), place, "the surrogate"),
        "an estimate",
    )
    weights, moved = to_device(task.weights, place), to_device(update, place)
    estimate = estimate_source(task.objective, weights, task.record, rows, estimation, progress=progress)
    assert estimate.kl is not None
    means = estimate.means(task.objective, weights, moved, rows)
    return _described(task, estimate.kl, len(rows)) | {
        "r_hat": estimate.sampled.diagnostics.r_hat,
        "means": means.value,
        "means_upper": means.upper,
        "means_from_tv": shift_total_variation(estimate.kl.tv_upper, task.objective.change_sup(update)),
    }


def _described(task: Task, kl: KullbackLeiblerEstimate, n_surrogate: int) -> dict[str, Any]:
    delta = paper_delta(task, kl.value, n_surrogate)
    return {
        "conditional": kl.conditional.value,
        "marginal": kl.marginal.value,
        "kl": kl.value,
        "saturated": bool(kl.marginal.saturated),
        "delta": delta,
        "sigma": sigma_classical(delta, PAPER_EPSILON, PAPER_DELTA),
    }


# Stanford Dogs --------------------------------------------------------------------------------------------------


def _dogs(case: Case, wanted: Mapping[str, Any], data: DataFolder, device: str, progress: Progress) -> dict[str, Any]:
    dogs, xi = wanted["dogs"], case.options["xi"]
    generator = np.random.default_rng([case.seed, xi])
    parts = mixture(data.load("stanford-dogs"), xi, dogs["forget_ratio"], dogs["length"], generator)
    task = trained(parts, dogs["l2"], dogs["length"], progress)
    estimation = Estimation(
        route="kl",
        support="gaussian",
        chains=wanted["chains"],
        steps=wanted["steps"],
        epochs=wanted["epochs"],
        seed=case.seed,
    )
    compared = compare(
        task.trained,
        task.surrogate,
        record=task.record,
        wanted=estimation,
        reference=task.splits.source,
        device=device,
        progress=progress,
    )
    assert compared.reference_kl is not None
    n_surrogate = len(task.rows["surrogate"])
    return sizes(task, parts) | {
        "delta": paper_delta(task, parts.kl, n_surrogate),
        "reference": _described(task, compared.reference_kl, n_surrogate),
        "estimate": _described(task, compared.kl, n_surrogate) | {"r_hat": compared.sampled.diagnostics.r_hat},
        "scores": paper_scores(task, parts.kl, case.seed, 0, progress),
        "checks": distance_checks(task, parts),
    }


# Tables ---------------------------------------------------------------------------------------------------------


def tables(config: Config, records: Sequence[Record]) -> list[Table]:
    return [_zeta_table(config, records), *_dogs_tables(config, records)]


def _estimates(records: Sequence[Record]) -> dict[tuple[float, str], list[tuple[Record, dict[str, Any]]]]:
    """Records and their estimates by zeta and support, zetas ascending."""
    by_support: dict[tuple[float, str], list[tuple[Record, dict[str, Any]]]] = {}
    drawn = [record for record in records if record["options"]["kind"] != "dogs"]
    for name in (*SUPPORTS, MANY):
        for record in sorted(drawn, key=lambda one: (one["options"]["zeta"], one["seed"])):
            if name in record["result"]["estimates"]:
                own = record["result"]["estimates"][name]
                by_support.setdefault((record["options"]["zeta"], name), []).append((record, own))
    return dict(sorted(by_support.items(), key=lambda item: item[0][0]))


def _zeta_table(config: Config, records: Sequence[Record]) -> Table:
    wanted, printed = config["run"], config["paper"]["zeta_delta"]
    rows = []
    for (zeta, name), pairs in _estimates(records).items():
        truths, own = [record["result"] for record, _ in pairs], [estimate for _, estimate in pairs]
        rows.append(
            (
                f"{zeta:g}",
                name,
                str(len(own)),
                spread([truths[0]["kl"]], ".3f"),
                spread([one["kl"] for one in own]),
                f"{sum(one['saturated'] for one in own)} of {len(own)}",
                spread([one["delta"] for one in truths]),
                spread([one["delta"] for one in own]),
                "{:g}, {:g}".format(*printed[f"{zeta:g}"]) if f"{zeta:g}" in printed else "--",
                spread([one["means"] for one in truths]),
                spread([one["means"] for one in own]),
                spread([one["means_upper"] for one in own]),
                spread([one["means_from_tv"] for one in own]),
            )
        )
    return Table(
        "Figure 3: the synthetic family, exact and estimated",
        (
            "zeta",
            "support of the samples",
            "seeds",
            "KL, exact",
            "KL, estimated",
            "saturated",
            "Delta, exact KL",
            "Delta, estimated KL",
            "the paper prints (exact, estimated)",
            "difference of means, true",
            "estimated",
            "upper value",
            "from total variation",
        ),
        tuple(rows),
        (
            f"{wanted['chains']:,} chains of {wanted['steps']:,} steps, {wanted['epochs']} epochs; the last support "
            f"with {wanted['many']:,} chains.",
            _means_note(records),
            "Saturated: the rows can be told apart so well that Donsker-Varadhan reached what so many of them can "
            "show; the estimate is then a ceiling of the method, not a distance.",
        ),
    )


def _means_note(records: Sequence[Record]) -> str:
    """How often the upper value of the difference of means was above the true one."""
    pairs = [
        (record["result"]["means"], own["means_upper"]) for each in _estimates(records).values() for record, own in each
    ]
    return (
        "The upper value of the difference of means was above the true one in "
        f"{sum(upper >= true for true, upper in pairs)} of {len(pairs)} estimates."
    )


def _dogs_tables(config: Config, records: Sequence[Record]) -> list[Table]:
    groups = grouped(_ascending([record for record in records if record["options"]["kind"] == "dogs"]), "xi")
    if not groups:
        return []
    rows = []
    for (xi,), group in groups.items():
        results = [record["result"] for record in group]
        rows.append(
            (
                str(xi),
                spread([one["kl"] for one in results]),
                spread([one["reference"]["kl"] for one in results]),
                spread([one["estimate"]["kl"] for one in results]),
                f"{sum(one['estimate']['saturated'] for one in results)} of {len(results)}",
                spread([one["delta"] for one in results]),
                spread([one["reference"]["delta"] for one in results]),
                spread([one["estimate"]["delta"] for one in results]),
                "{:g}, {:g}".format(*config["paper"]["delta"][str(xi)])
                if str(xi) in config["paper"]["delta"]
                else "--",
            )
        )
    figure = Table(
        "Figure 4 and Table 9's Delta: Stanford Dogs, exact and estimated",
        (
            "xi",
            "KL of the class mixtures, exact",
            "KL, Donsker-Varadhan with the source's rows",
            "KL, estimated without them",
            "saturated",
            "Delta, exact KL",
            "Delta, with the source's rows",
            "Delta, estimated",
            "the paper prints (exact, estimated)",
        ),
        tuple(rows),
        (
            "The paper's exact value is the one with the source's rows. The KL of the class mixtures is that of rows "
            "and labels together, so no KL of rows alone is larger.",
            "The model's density on a Gaussian reference with the surrogate's own moments.",
        ),
    )
    ours = {
        (str(xi), name): [record["result"]["scores"][name] for record in group]
        for (xi,), group in groups.items()
        for name in ("Original", "Retrain", "Unlearn (+)", "Unlearn (-)")
    }
    theirs = {
        (*key, name): values
        for key, methods in by_group(config["paper"]["table9"], ()).items()
        for name, values in methods.items()
    }
    return [figure, comparison("Table 9: Stanford Dogs", ("xi", "method"), ours, theirs)]


def _ascending(records: Sequence[Record]) -> list[Record]:
    return sorted(records, key=lambda one: (one["options"]["xi"], one["seed"]))


# Figures --------------------------------------------------------------------------------------------------------


def figures(config: Config, records: Sequence[Record]) -> dict[str, bytes]:
    """Figures 3 and 4: (a) noise and (b) KL, exact and estimated, against zeta and xi."""
    drawn = {}
    if any(record["options"]["kind"] == "synthetic" for record in records):
        drawn["heuristic-figure3.png"] = _zeta_figure(records)
    if any(record["options"]["kind"] == "dogs" for record in records):
        drawn["heuristic-figure4.png"] = _dogs_figure(records)
    return drawn


def _zeta_figure(records: Sequence[Record]) -> bytes:
    figure, (noise, kl) = new_figure(2, 4.6, width=11.0)
    estimates = _estimates(records)
    for axis, key, title in ((noise, "sigma", "(a) required noise sigma"), (kl, "kl", "(b) KL of the surrogate")):
        zetas = sorted({zeta for zeta, _ in estimates})
        exact = []
        for zeta in zetas:
            truths = [record["result"] for record, _ in estimates[zeta, SUPPORTS[0]]]
            values = [_sigma(one["delta"]) if key == "sigma" else one["kl"] for one in truths]
            exact.append(float(np.mean(values)))
        axis.plot(zetas, exact, "k-o", label="exact", zorder=5)
        for name, colour in COLOURS.items():
            known = [zeta for zeta in zetas if (zeta, name) in estimates]
            _line(axis, known, [[one[key] for _, one in estimates[zeta, name]] for zeta in known], colour, name)
        axis.set(xlabel="zeta", ylabel=title[4:], title=title, yscale="log")
        axis.grid(alpha=0.3)
    figure.legend(*noise.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return png(figure)


def _dogs_figure(records: Sequence[Record]) -> bytes:
    figure, (noise, kl) = new_figure(2, 5.0, width=11.0)
    figure.suptitle(f"Stanford Dogs: {CATALOGUE['stanford-dogs'].label}", fontsize=8)
    groups = grouped(_ascending([record for record in records if record["options"]["kind"] == "dogs"]), "xi")
    places = [xi for (xi,) in groups]
    for axis, key, title in ((noise, "sigma", "(a) required noise sigma"), (kl, "kl", "(b) KL of the surrogate")):
        exact = [
            [_sigma(r["result"]["delta"]) if key == "sigma" else r["result"]["kl"] for r in group]
            for group in groups.values()
        ]
        _line(axis, places, exact, "black", "class mixtures, in closed form")
        for part, colour, label in (
            ("reference", "#2060b0", "Donsker-Varadhan with the source's rows (the paper's exact)"),
            ("estimate", "#d08000", "heuristic: model and surrogate alone"),
        ):
            _line(axis, places, [[r["result"][part][key] for r in g] for g in groups.values()], colour, label)
        axis.set(xlabel="concentration xi", ylabel=title[4:], title=title)
        axis.grid(alpha=0.3)
    figure.legend(*noise.get_legend_handles_labels(), loc="outside lower center", ncols=1, frameon=False, fontsize=9)
    return png(figure)


def _line(axis: Any, places: Sequence[float], values: Sequence[Sequence[float]], colour: str, label: str) -> None:
    if places:
        means, errors = [float(np.mean(v)) for v in values], [float(np.std(v)) for v in values]
        axis.errorbar(places, means, yerr=errors, fmt="--s", ms=4, capsize=3, color=colour, label=label)


def _sigma(delta: float) -> float:
    return sigma_classical(delta, PAPER_EPSILON, PAPER_DELTA)
