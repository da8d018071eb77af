"""Table 5: a mixed-linear network on CIFAR-10, a random tenth and a whole class forgotten.

A network is pretrained on images that play the public data (`pretraining.py`). Its trunk is frozen; the last
convolution, its normalisation and a fresh random head are linearised, and their tangent weights trained on the source
by ridge regression. Source and surrogate are parts of the other images with class proportions of a Dirichlet law. A
fresh head, because one trained on public images of class 0 would know that class whatever is forgotten.

Every row gets the noise of the paper's experiments. Unlearn (-) is Expunge's step, in which the surrogate stands for
the retained rows; where a class is gone, once more with a surrogate that does not have it either, as the docs advise.
The paper's own step, which takes the forgotten rows' Hessian away, has a row of its own. Beside them: the true distance
to retraining, the residual bound, which holds, and accuracies under the noise that this bound needs. No deposit fits so
many weights; one of fewer is in kept_tangent.py.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from experiments.datasets.folder import DataFolder
from experiments.datasets.splits import class_split, dirichlet_split, random_split
from experiments.protocol.experiment import Case, Config, Record, Table, percent, spread
from experiments.shared.as_written import NAME as AS_WRITTEN
from experiments.shared.as_written import solved_as_written
from experiments.shared.checks import check
from experiments.shared.comparison import comparison
from experiments.shared.network_scores import (
    NOTHING_LEFT,
    NetworkTask,
    paper_delta,
    paper_sigma,
    share_right,
    tangent_task,
    with_noise,
)
from experiments.shared.pretraining import Public, pretrained
from expunge.certificate.derive import held_region
from expunge.distance import Distance
from expunge.evidence import Measurement, build_claim, foresee
from expunge.mechanism import measure
from expunge.networks.tangent import TangentModel, minimise_tangent, tangent_request, train_tangent
from expunge.request.promise import Promise
from expunge.request.request import Request
from expunge.runtime.progress import Progress, silent
from expunge.solve.newton import SurrogateEquation

PLUS, MINUS = "Unlearn (+)", "Unlearn (-)"
WITHOUT = f"{MINUS}, surrogate without the class"
WITHIN = f"All at delta = 1/n, what {MINUS} spends on sampling and eigenvalues included."

Examples = tuple[Tensor, NDArray[np.int64]]
Split = tuple[NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True)
class Private:
    """Maps of the trunk and labels of each set."""

    source: Examples
    surrogate: Examples
    test: Examples

    @property
    def kl_of_surrogate(self) -> float:
        """Of the surrogate relative to the source, as the paper's bound takes it."""
        source, surrogate = class_shares(self.source[1], self.surrogate[1])
        return float(np.sum(surrogate * np.log(surrogate / source)))


def class_shares(*sets: NDArray[np.int64]) -> list[NDArray[np.float64]]:
    """The class proportions of each set."""
    classes = 1 + max(int(labels.max()) for labels in sets)
    return [np.bincount(labels, minlength=classes) / len(labels) for labels in sets]


def chi_square(labels: NDArray[np.int64], others: NDArray[np.int64]) -> float:
    """Of one set's class proportions relative to another's: within a class both are drawn from the same images.

    >>> float(chi_square(np.array([0, 0, 1, 1]), np.array([0, 0, 0, 1])))
    0.3333333333333333
    >>> float(chi_square(np.array([1, 1]), np.array([0, 1])))
    1.0
    """
    share, other = class_shares(labels, others)
    found = other > 0.0
    if share[~found].any():
        raise ValueError("a class that the other set does not have: no finite chi-square")
    return float(np.sum((share - other)[found] ** 2 / other[found]))


def cases(config: Config, seeds: int) -> list[Case]:
    return [Case("cifar10", seed) for seed in range(seeds)]


def run(
    case: Case, config: Config, data: DataFolder, *, device: str = "cpu", progress: Progress = silent
) -> dict[str, Any]:
    wanted = config["run"]
    public, images = pretrained(wanted["public"], case.seed, data, device, progress)
    private = private_sets(public, images.X, images.y, images.X_test, images.y_test, wanted, case.seed)
    network = nn.Sequential(copy.deepcopy(public.last), fresh_head(public.head.in_features, wanted, case.seed)).cpu()
    options = {"block": wanted["block"], "device": device}
    model = train_tangent(
        network, *private.source, l2=wanted["l2"], max_norm=wanted["max_norm"], **options, progress=progress
    )
    forgets = forget_sets(private.source[1], wanted, case.seed)
    measured: dict[str, Any] = {"settings": {}, "checks": [], "public_accuracy": public.accuracy}
    for name, split in forgets.items():
        progress(f"Setting {name}", len(measured["settings"]), len(forgets))
        result, checks = setting(name, network, model, private, split, wanted, case.seed, options, progress)
        measured["settings"][name] = result
        measured["checks"] += checks
    return measured | {
        "chi_square": chi_square(private.source[1], private.surrogate[1]),
        "rows": {"source": len(private.source[1]), "surrogate": len(private.surrogate[1])},
        "tangent_weights": len(model.weights),
    }


def private_sets(
    public: Public,
    images: NDArray[Any],
    labels: NDArray[np.int64],
    test_images: NDArray[Any],
    test_labels: NDArray[np.int64],
    wanted: Mapping[str, Any],
    seed: int,
) -> Private:
    """Source and surrogate of the images that were not public, after the trunk."""
    own = public.private[: wanted["private"]]
    first, second, _ = dirichlet_split(labels[own], wanted["concentration"], np.random.default_rng([seed, 1]))
    source, surrogate = ((public.maps(images[own[index]]), labels[own[index]]) for index in (first, second))
    return Private(source, surrogate, (public.maps(test_images), test_labels))


def forget_sets(labels: NDArray[np.int64], wanted: Mapping[str, Any], seed: int) -> dict[str, Split]:
    """A random tenth, and a class: the rows that stay and those that leave."""
    return {
        "0.1": random_split(len(labels), wanted["forget_share"], np.random.default_rng([seed, 2])),
        "0": class_split(labels, [wanted["forget_class"]]),
    }


def fresh_head(features: int, wanted: Mapping[str, Any], seed: int) -> nn.Linear:
    """A random head. The larger its weights, the more the convolution counts beside the head in the Jacobian."""
    head = nn.Linear(features, wanted["classes"])
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        head.weight.copy_(torch.randn(head.weight.shape, generator=generator) * wanted["head_scale"])
        head.bias.zero_()
    return head.requires_grad_(False)


def setting(
    name: str,
    network: nn.Module,
    model: TangentModel,
    private: Private,
    split: Split,
    wanted: Mapping[str, Any],
    seed: int,
    options: Mapping[str, Any],
    progress: Progress,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """All rows of one setting: scores by method, and Deltas beside the truth."""
    retain, forget = (_part(private.source, index) for index in split)
    n = model.record.n_source
    known = Promise(epsilon=1.0, delta=1.0 / n, distance=Distance("source", 0.0), force=True, noise="exact")
    requests = {PLUS: tangent_request(network, model, forget, private.source, known, **options)}
    for method, given in surrogates(private.surrogate, retain[1]).items():
        asked = replace(known, distance=Distance("chi2", chi_square(retain[1], given[1])))
        requests[method] = tangent_request(network, model, forget, given, asked, **options)
    head, trained = requests[PLUS].head, requests[PLUS].weights
    rows = {
        "retain": head.rows(retain[0], torch.from_numpy(retain[1])),
        "forget": requests[PLUS].forget,
        "test": head.rows(private.test[0], torch.from_numpy(private.test[1])),
    }
    judged = tangent_task(head, trained, rows)
    retrained = minimise_tangent(head, rows["retain"], start=trained, progress=progress)[0]
    scores = {
        "Original": judged.scores(trained, seed) | {"distance": float((trained - retrained).norm())},
        "Retrain": judged.scores(retrained, seed) | {"distance": 0.0},
    }
    checks, certified, sigmas = [], {}, {}
    for number, (method, request) in enumerate(requests.items()):
        progress(f"{method}, setting {name}", number, len(requests))
        measured = measure(request, seed=seed, progress=progress)
        updated = trained + measured.step.update
        true = float((updated - retrained).norm())
        region = held_region(build_claim(request, measured))
        divergence = 0.0 if method == PLUS else private.kl_of_surrogate
        gradient = float(head.gradient(trained, request.forget).norm())
        theirs = paper_delta(wanted["l2"], n, request.n_forget, request.n_surrogate, gradient, divergence)
        generator = np.random.default_rng([seed, 3, number])
        sigmas[method] = paper_sigma(theirs)
        published = with_noise(updated, sigmas[method], generator)
        scores[method] = judged.scores(published, seed) | {"sigma": sigmas[method], "distance": true}
        told_of_step = {
            "terms": dict(region.terms),
            "distance": str(measured.retained.distance),
            "positive_definite": measured.step.positive_definite,
            "step_size": float(measured.step.update.norm()),
            "iterations": measured.step.inner_iterations,
        }
        checks.append(check(f"{method}, {name}", true, region.radius, theirs, **told_of_step))
        certified[method] = {
            f"{epsilon:g}": _under_noise(judged, request, measured, epsilon, generator)
            for epsilon in wanted["epsilons"]
        }
    progress(f"{AS_WRITTEN}, setting {name}", len(requests), None)
    rows_given = requests[MINUS].forget, requests[MINUS].surrogate
    update, left = solved_as_written(SurrogateEquation(head, trained, *rows_given, n))
    sigma = sigmas[MINUS]  # the theorem's does not depend on the step
    noised = with_noise(trained + update, sigma, np.random.default_rng([seed, 3, len(requests)]))
    away = float((trained + update - retrained).norm())
    scores[AS_WRITTEN] = judged.scores(noised, seed) | {"sigma": sigma, "distance": away, "left": left}
    sizes = {"n_retain": len(retain[1]), "n_forget": len(forget[1])}
    return {"scores": scores, "certified": certified, "weights_norm": float(trained.norm())} | sizes, checks


def surrogates(surrogate: Examples, retained: NDArray[np.int64]) -> dict[str, Examples]:
    """The surrogate as it is, and where the retained rows have none of a class, without that class too."""
    alike = np.isin(surrogate[1], retained)
    whole = {MINUS: surrogate}
    return whole if alike.all() else whole | {WITHOUT: _part(surrogate, np.flatnonzero(alike))}


def _part(examples: Examples, index: NDArray[np.int64]) -> Examples:
    return examples[0][torch.from_numpy(index).to(examples[0].device)], examples[1][index]


def _under_noise(
    judged: NetworkTask, request: Request, measured: Measurement, epsilon: float, generator: np.random.Generator
) -> dict[str, float]:
    """Accuracies with the noise that the residual bound needs at this epsilon; the measurements do not depend on it."""
    _, derived = foresee(replace(request, promise=replace(request.promise, epsilon=epsilon)), measured)
    sigma = derived.sigma
    noised = with_noise(request.weights + measured.step.update, sigma, generator)
    shares = {part: share_right(judged.outputs(noised, part), judged.labels[part]) for part in ("test", "forget")}
    return shares | {"sigma": sigma, "spent": math.fsum(measured.failures.values())}


def tables(config: Config, records: Sequence[Record]) -> list[Table]:
    paper = config["paper"]
    results = [record["result"] for record in sorted(records, key=lambda one: one["seed"])]
    if not results:
        return []
    names = [(setting, method) for setting in ("0.1", "0") for method in _methods(results, setting, "scores")[1:]]
    ours: dict[tuple[str, ...], list[Mapping[str, Any]]] = {
        (setting, method): [one["settings"][setting]["scores"][method] for one in results] for setting, method in names
    }
    theirs: dict[tuple[str, ...], Sequence[float | str]] = {
        (setting, method): paper[f"setting_{setting}"][MINUS if method.startswith(MINUS) else method]
        for setting, method in names
    }
    return [
        comparison(
            "Table 5: mixed-linear network on CIFAR-10 (0.1: a random tenth forgotten; 0: class 0)",
            ("forgotten", "method"),
            ours,
            theirs,
            notes=_goals(ours, results),
        ),
        _deltas(results),
        _certified(config, results),
    ]


def _goals(ours: Mapping[tuple[str, ...], Sequence[Mapping[str, Any]]], results: Sequence[Any]) -> tuple[str, ...]:
    steps = [method for setting, method in ours if setting == "0" and method != "Retrain"]
    forget = ", ".join(f"{100 * max(one['forget'] for one in ours['0', step]):.1f} % by {step}" for step in steps)
    apart = max(
        abs(one["retain"] - other["retain"])
        for setting, method in ours
        if method != "Retrain"
        for one, other in zip(ours[setting, method], ours[setting, "Retrain"], strict=True)
    )
    first = results[0]
    return (
        f"Largest forget accuracy after class unlearning, any seed: {forget}; largest difference of "
        f"retain accuracy from retraining's, any seed and setting: {100 * apart:.2f} points.",
        f"{first['tangent_weights']:,} tangent weights; source and surrogate of {first['rows']['source']:,} and "
        f"{first['rows']['surrogate']:,} images in the first seed; the public network's own test accuracy is "
        f"{percent([one['public_accuracy'] for one in results])} %.",
        NOTHING_LEFT,
    )


def _deltas(results: Sequence[Any]) -> Table:
    rows = []
    for number in range(len(results[0]["checks"])):
        checks = [one["checks"][number] for one in results]
        rows.append(
            (
                checks[0]["what"],
                *(spread([one[key] for one in checks]) for key in ("true", "residual", "paper")),
                spread([one["terms"]["surrogate"] for one in checks]),
                spread([one["terms"]["sampling"] for one in checks]),
                "yes" if all(one["positive_definite"] for one in checks) else "no",
            )
        )
    return Table(
        "Distance to retraining, and bounds on it",
        (
            "method",
            "true distance",
            "residual Delta",
            "paper's Delta",
            "surrogate term",
            "sampling term",
            "positive definite",
        ),
        tuple(rows),
        (
            "The residual Delta is at delta = 1/n, with the chi-square of the class proportions of retained rows and "
            "surrogate; the paper's is its theorem's with its constants.",
        ),
    )


def _certified(config: Config, results: Sequence[Any]) -> Table:
    rows = []
    for setting_name in ("0.1", "0"):
        for method in _methods(results, setting_name, "certified"):
            for epsilon in config["run"]["epsilons"]:
                certified = [one["settings"][setting_name]["certified"][method][f"{epsilon:g}"] for one in results]
                cells = (percent([one[part] for one in certified]) for part in ("test", "forget"))
                rows.append((setting_name, method, f"{epsilon:g}", spread([one["sigma"] for one in certified]), *cells))
    return Table(
        "Under the noise that the residual Delta needs",
        ("forgotten", "method", "epsilon", "sigma", "Test %", "Forget %"),
        tuple(rows),
        (WITHIN,),
    )


def _methods(results: Sequence[Any], setting_name: str, of: str) -> list[str]:
    """In the order they were run."""
    return list(results[0]["settings"][setting_name][of])


def figures(config: Config, records: Sequence[Record]) -> dict[str, bytes]:
    """The paper has none for this table."""
    return {}
