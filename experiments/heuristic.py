"""The paper's heuristic end to end on its synthetic family: estimated against exact KL and Delta (its Figure 3).

    python experiments/heuristic.py [--seeds 5 --jobs 2 --out experiments/results]

Source N(0, I) in 50 dimensions, surrogate N(0, (1 - zeta) I + zeta 1 1^T), 15,000 rows each, 10 % forgotten. The source's features
are sampled from the model by Langevin dynamics on three supports (1,000 chains, as in the paper); KL by the conditional part and Donsker-Varadhan; beside it the
exact KL. Delta is the paper's, with the constants of its experiments (which no loss has). Then what the residual bound needs,
the difference of means of phi_u: estimated directly, and its true value. Writes heuristic.json, heuristic.md and heuristic.png; a rerun continues.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from expunge._version import __version__
from expunge.bounds import PaperConstants, paper_bound
from expunge.data.synthetic import L2, N_FEATURES, ZETAS, source_rows, surrogate_kl, surrogate_rows
from expunge.distance import Estimation
from expunge.distance.inequalities import shift_total_variation, tv_upper_from_kl
from expunge.estimate.source import estimate_source
from expunge.report.canvas import new_figure, png
from expunge.request import make_request
from expunge.sets import rows_of
from expunge.solve import Unlearning, newton_step
from expunge.train import train

MAX_NORM = 12.0
KNOWN: dict[str, Any] = {"support": "gaussian", "mean": np.zeros(N_FEATURES), "covariance": np.eye(N_FEATURES)}
SUPPORTS: dict[str, dict[str, Any]] = {
    "ball": {"support": "ball"},
    "gaussian, surrogate's moments": {"support": "gaussian"},
    "gaussian, source's moments": KNOWN,
    "the same, 15,000 chains": KNOWN | {"chains": 15_000},
}
MANY, MANY_SEEDS = "the same, 15,000 chains", 1  # slow: fewer seeds


def one(case: tuple[float, int], epochs: int) -> dict[str, Any]:
    """All estimates for one zeta and one seed."""
    torch.set_num_threads(1)
    zeta, seed = case
    began = time.perf_counter()
    X, y = source_rows(np.random.default_rng([seed, 1]))
    S, sy = surrogate_rows(np.random.default_rng([seed, 2, round(1000 * zeta)]), zeta)
    m = len(X) // 10
    model = train(X, y, l2=L2, max_norm=MAX_NORM)
    assert model.record is not None
    request = make_request(model, (X[:m], y[:m]), (S, sy), epsilon=1.0, delta=1e-5, distance="same", force=True)
    problem = Unlearning(request.objective, request.weights, request.forget, request.surrogate, request.n_source)
    update = newton_step(problem, single=False).update
    source = rows_of((X, y), model, model.record, torch.float64, torch.device("cpu"), "the source")

    def mean(rows: Any) -> torch.Tensor:
        return request.objective.change_mean(request.weights, update, rows)

    truth = float((mean(source) - mean(request.surrogate)).norm())
    gradient = float(request.objective.gradient(request.weights, request.forget).norm())
    supremum = request.objective.change_sup(update)

    def delta(kl: float) -> float:
        constants = PaperConstants.of_the_experiments(L2)
        sizes = {"n_source": request.n_source, "n_forget": m, "n_surrogate": request.n_surrogate}
        return paper_bound(constants, **sizes, gradient_norm=gradient, tv=tv_upper_from_kl(kl), sizes="surrogate").total

    exact = surrogate_kl(zeta)
    found: dict[str, Any] = {}
    for name, options in SUPPORTS.items():
        if name == MANY and seed >= MANY_SEEDS:
            continue
        wanted = Estimation(route="kl", epochs=epochs, seed=seed, **options)
        estimate = estimate_source(request.objective, request.weights, model.record, request.surrogate, wanted)
        assert estimate.kl is not None
        means = estimate.means(request.objective, request.weights, update, request.surrogate)
        found[name] = {
            "conditional": estimate.kl.conditional.value,
            "marginal": estimate.kl.marginal.value,
            "kl": estimate.kl.value,
            "kl_standard_error": estimate.kl.standard_error,
            "saturated": estimate.kl.marginal.saturated,
            "r_hat": estimate.sampled.diagnostics.r_hat,
            "delta": delta(estimate.kl.value),
            "means": means.value,
            "means_upper": means.upper,
            "means_from_tv": shift_total_variation(estimate.kl.tv_upper, supremum),
        }
    return {
        "zeta": zeta,
        "seed": seed,
        "exact_kl": exact,
        "exact_delta": delta(exact),
        "true_means": truth,
        "estimates": found,
        "seconds": round(time.perf_counter() - began, 1),
    }


def spread(values: list[float]) -> str:
    return f"{np.mean(values):.3g} ± {np.std(values, ddof=1) if len(values) > 1 else 0.0:.2g}"


def table(results: list[dict[str, Any]]) -> str:
    lines = [
        "| zeta | support | KL exact | KL estimated | saturated | Delta exact | Delta estimated | difference of means: true | estimated | upper value | from TV |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for zeta in ZETAS:
        rows = [result for result in results if result["zeta"] == zeta]
        for name in SUPPORTS:
            each = [row["estimates"][name] for row in rows if name in row["estimates"]]
            seeds = "" if len(each) == len(rows) else f" ({len(each)} of {len(rows)} seeds)"
            lines.append(
                f"| {zeta} | {name}{seeds} | {rows[0]['exact_kl']:.3f} | {spread([e['kl'] for e in each])} | {sum(e['saturated'] for e in each)} of {len(each)} "
                f"| {spread([row['exact_delta'] for row in rows])} | {spread([e['delta'] for e in each])} | {spread([row['true_means'] for row in rows])} "
                f"| {spread([e['means'] for e in each])} | {spread([e['means_upper'] for e in each])} | {spread([e['means_from_tv'] for e in each])} |"
            )
    return "\n".join(lines) + "\n"


def draw(results: list[dict[str, Any]]) -> bytes:
    figure, panels = new_figure(3, 4.4, width=13.0)
    colours = dict(zip(SUPPORTS, ("#c03028", "#d08000", "#2060b0", "#209060"), strict=True))
    titles = (
        "KL of surrogate relative to source",
        "Delta (the paper's bound and constants)",
        "difference of means of phi_u",
    )
    for panel, title, exact, estimated in zip(
        panels, titles, ("exact_kl", "exact_delta", "true_means"), ("kl", "delta", "means"), strict=True
    ):
        by_zeta = [[row for row in results if row["zeta"] == zeta] for zeta in ZETAS]
        panel.plot(
            ZETAS,
            [np.mean([row[exact] for row in rows]) for rows in by_zeta],
            "k-o",
            label="exact" if exact != "true_means" else "true",
        )
        for name, colour in colours.items():
            values = [
                [row["estimates"][name][estimated] for row in rows if name in row["estimates"]] for rows in by_zeta
            ]
            means, errors = [np.mean(v) for v in values], [np.std(v) for v in values]
            panel.errorbar(
                ZETAS, means, yerr=errors, fmt="--s", ms=4, capsize=3, color=colour, label=f"estimated, {name}"
            )
        panel.set_title(title, fontsize=10)
        panel.set_xlabel("zeta")
        panel.set_yscale("log")
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False, fontsize=9
    )
    return png(figure)


def main() -> None:
    """Run, or redraw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--epochs", type=int, default=500)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--redraw", action="store_true", help="only table and figure, from heuristic.json")
    given = parser.parse_args()
    if given.redraw:
        show(json.loads((given.out / "heuristic.json").read_text())["results"], given.out)
        return
    cases = [(zeta, seed) for zeta in ZETAS for seed in range(given.seeds)]
    given.out.mkdir(parents=True, exist_ok=True)
    target = given.out / "heuristic.json"
    known = json.loads(target.read_text())["results"] if target.exists() else []
    results = [row for row in known if (row["zeta"], row["seed"]) in cases]
    missing = [case for case in cases if case not in {(row["zeta"], row["seed"]) for row in results}]
    with ProcessPoolExecutor(given.jobs) as pool:
        for result in pool.map(partial(one, epochs=given.epochs), missing):
            results.append(result)
            record = {
                "results": sorted(results, key=lambda row: (row["zeta"], row["seed"])),
                "epochs": given.epochs,
                "versions": {
                    "expunge": __version__,
                    "torch": torch.__version__,
                    "numpy": np.__version__,
                    "python": platform.python_version(),
                },
                "cores": os.cpu_count(),
            }
            target.write_text(json.dumps(record, indent=1) + "\n")
            print(
                f"{len(results)} of {len(cases)}: zeta {result['zeta']}, seed {result['seed']}, {result['seconds']} s",
                flush=True,
            )
    show(results, given.out)


def show(results: list[dict[str, Any]], folder: Path) -> None:
    print(table(results))
    (folder / "heuristic.md").write_text(table(results))
    (folder / "heuristic.png").write_bytes(draw(results))


if __name__ == "__main__":
    main()
