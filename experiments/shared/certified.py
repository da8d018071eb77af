"""One task at an epsilon and delta that mean something: choose l2, train, forget, certify, and look at the truth.

The choice of l2 uses the surrogate alone: one half of it plays the source, the other the surrogate, and what counts is
the accuracy on the latter under the noise that would be due. So it tells nothing about the source, and nothing about
the test rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.datasets.folder import DataSet
from experiments.datasets.splits import dirichlet_split
from experiments.shared.checks import check, paper_delta
from experiments.shared.closed_forms import discrete_chi_square, discrete_kl
from experiments.shared.mixture import ROUNDING, of_length
from expunge.certificate.derive import held_region
from expunge.distance import Distance
from expunge.door import ask
from expunge.evaluate.case import Labelled, Splits, make_case
from expunge.evaluate.methods import MethodResult
from expunge.evidence import Measurement, build_claim, foresee
from expunge.heads import Rows
from expunge.heads.rows import in_memory
from expunge.mechanism import measure
from expunge.model import LinearModel
from expunge.request.promise import Promise
from expunge.request.request import Request
from expunge.request.sets import rows_of
from expunge.runtime.arrays import Array, double, engine_dtype, namespace, norm
from expunge.runtime.progress import Progress, silent
from expunge.train import train

HALVES = "halves"
CHOOSING_DRAWS = 5


@dataclass(frozen=True)
class Way:
    """How the surrogate is vouched for."""

    name: str
    distance: Distance
    matched: bool


@dataclass(frozen=True)
class Parts:
    """Rows of unit length; `kl` of the surrogate relative to the source, 0 for halves of one set."""

    source: Labelled
    surrogate: Labelled
    test: Labelled
    ways: tuple[Way, ...]
    kl: float


def parted(data: DataSet, wanted: Mapping[str, Any], generator: np.random.Generator) -> Parts:
    """Source, surrogate and test rows of a task, and what may truly be declared of the first two."""
    keep = [np.isin(labels, wanted["classes"] or np.unique(data.y)) for labels in (data.y, data.y_test)]
    labels, test_labels = data.y[keep[0]].astype(np.int64), data.y_test[keep[1]].astype(np.int64)
    rows, test = (_flat(part[chosen]) for part, chosen in zip((data.X, data.X_test), keep, strict=True))
    ways: tuple[Way, ...]
    if wanted["split"] == HALVES:
        order = generator.permutation(len(rows))
        source, surrogate = order[: len(order) // 2], order[len(order) // 2 :]
        ways, kl = (Way("same distribution", Distance("same", 0.0), False),), 0.0
    else:
        source, surrogate, _ = dirichlet_split(labels, wanted["split"], generator)
        shares = [
            np.bincount(labels[part], minlength=int(labels.max()) + 1) / len(part) for part in (source, surrogate)
        ]
        exact = Distance("chi2", discrete_chi_square(*shares))
        kl = discrete_kl(shares[1], shares[0])
        ways = (Way("exact chi2", exact, False), Way("classes matched", Distance("same", 0.0), True))
    if wanted["components"]:
        centre = rows[surrogate].mean(axis=0)
        _, vectors = np.linalg.eigh((rows[surrogate] - centre).T @ (rows[surrogate] - centre))
        leading = vectors[:, ::-1][:, : wanted["components"]]
        rows, test = (rows - centre) @ leading, (test - centre) @ leading
    rows, test = of_length(rows, 1.0), of_length(test, 1.0)
    return Parts((rows[source], labels[source]), (rows[surrogate], labels[surrogate]), (test, test_labels), ways, kl)


def _flat(rows: NDArray[Any]) -> NDArray[np.float64]:
    """Rows in float64, images as one row each."""
    return rows.reshape(len(rows), -1).astype(np.float64)


def frontier(
    parts: Parts, wanted: Mapping[str, Any], epsilons: Sequence[float], seed: int, progress: Progress = silent
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A line and a check for every number of forgotten rows and every way to vouch for the surrogate."""
    n_source = len(parts.source[1])
    counts = {asked: asked if asked >= 1 else max(1, round(asked * n_source)) for asked in wanted["forget"]}
    chosen = choose_l2(parts, wanted, counts, epsilons, seed)
    models: dict[float, LinearModel] = {}
    order = np.random.default_rng([seed, 1]).permutation(n_source)
    lines, checks = [], []
    for number, (asked, count) in enumerate(counts.items()):
        progress("Forget sets", number, len(counts))
        l2 = chosen[asked]
        if l2 not in models:
            models[l2] = train(*parts.source, l2=l2, max_norm=ROUNDING)
        forget, retain = order[:count], order[count:]
        features, labels = parts.source
        splits = Splits(
            (features[retain], labels[retain]), (features[forget], labels[forget]), parts.test, parts.surrogate
        )
        case = make_case(splits, trained=models[l2])
        truth: Array | None = None
        for way in parts.ways:
            request = _request(models[l2], splits.forget, parts.surrogate, 1.0 / n_source, way)
            measured = measure(request, seed=0)
            updated = request.weights + measured.step.update
            truth = case.retrained if truth is None else truth
            bound = held_region(build_claim(request, measured)).radius
            theorem = paper_delta(case, parts.kl, len(request.surrogate))
            distance = norm(updated - truth)
            generator = np.random.default_rng([seed, 3])
            outcomes = [
                _outcome(request, measured, epsilon, case.rows["test"], wanted["draws"], generator)
                for epsilon in epsilons
            ]
            label = f"{asked:g}" if asked >= 1 else f"{100.0 * asked:g} %"
            lines.append(
                {
                    "forget": label,
                    "count": count,
                    "way": way.name,
                    "distance": str(way.distance),
                    "l2": l2,
                    "n_source": n_source,
                }
                | {
                    "before": _accuracy(case.weights, case.rows["test"]),
                    "retrained": _accuracy(truth, case.rows["test"]),
                }
                | {"true": distance, "residual": bound, "paper": theorem, "outcomes": outcomes}
            )
            checks.append(check(f"{label} forgotten, {way.name}", distance, bound, theorem))
    return lines, checks


def _request(model: LinearModel, forget: Labelled, surrogate: Labelled, delta: float, way: Way) -> Request:
    distance = replace(way.distance, matched=way.matched)
    # forced: what would be refused is shown, and marked
    return ask(
        model, forget, surrogate, Promise(epsilon=1.0, delta=delta, distance=distance, force=True, noise="exact")
    )


def _outcome(
    request: Request, measured: Measurement, epsilon: float, test: Rows, draws: int, generator: np.random.Generator
) -> dict[str, Any]:
    """Noise and mean accuracy at this epsilon; the measurements do not depend on it."""
    _, derived = foresee(replace(request, promise=replace(request.promise, epsilon=epsilon)), measured)
    assert derived.noise is not None  # the region of a finite distance is finite
    published = MethodResult(request.weights + measured.step.update, derived.noise).ensemble(draws, generator)
    accuracies = [_accuracy(weights, test) for weights in published]
    refused = derived.noise.length > norm(request.weights)
    return {"epsilon": epsilon, "sigma": derived.sigma, "accuracy": float(np.mean(accuracies)), "refused": refused}


def _accuracy(weights: Array, rows: Rows) -> float:
    chosen = namespace(weights).argmax(rows.features @ weights.T, axis=1)
    return float(double(chosen == rows.labels).mean())


def choose_l2(
    parts: Parts, wanted: Mapping[str, Any], counts: Mapping[float, int], epsilons: Sequence[float], seed: int
) -> dict[float, float]:
    """For every number of forgotten rows the l2 with the best accuracy foreseen on the surrogate, over all epsilons.

    Where few rows are forgotten, which ones they are matters: the foreseen accuracy is a mean over `rehearsals` forget
    sets.
    """
    features, labels = parts.surrogate
    order = np.random.default_rng([seed, 2]).permutation(len(labels))
    first, second = order[: len(order) // 2], order[len(order) // 2 :]
    held = (features[second], labels[second])
    best = dict.fromkeys(counts, (-1.0, 0.0))
    for l2 in wanted["l2"]:
        model = train(features[first], labels[first], l2=l2, max_norm=ROUNDING)
        assert model.record is not None
        known = np.isin(held[1], model.classes)  # a rare class may be missing from one half
        stand_in = (held[0][known], held[1][known])
        rows = in_memory(
            rows_of(stand_in, model, model.record, engine_dtype("float64", "cpu"), "cpu", "the held-out half"),
            "a rehearsal",
        )
        for asked, count in counts.items():
            less = count if asked >= 1 else max(1, round(asked * len(first)))
            accuracies = []
            for turn in range(wanted["rehearsals"]):
                gone = np.random.default_rng([seed, 5, turn]).permutation(first)[:less]
                way = replace(parts.ways[0], matched=False)
                request = _request(model, (features[gone], labels[gone]), stand_in, 1.0 / len(first), way)
                measured = measure(request, seed=0)
                generator = np.random.default_rng([seed, 4])
                outcomes = [_outcome(request, measured, e, rows, CHOOSING_DRAWS, generator) for e in epsilons]
                accuracies += [one["accuracy"] for one in outcomes]
            best[asked] = max(best[asked], (float(np.mean(accuracies)), l2))
    return {asked: l2 for asked, (_, l2) in best.items()}
