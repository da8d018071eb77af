"""Beside Table 5: a tangent head whose weights are few enough for a deposit.

The public network is that of Table 6, one for all seeds; its last convolution is passed through once, and linearised
are the normalisation after it and a fresh head. A deposit is kept of the source; from then on everything is forgotten
from it alone, without a surrogate, by the library's own call, its noise and its certificate included. The truth is
retraining on the retained images by conjugate gradients, which knows nothing of the deposit.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from experiments.datasets.folder import DataFolder
from experiments.mixed_linear import Examples, Split, forget_sets, fresh_head, private_sets
from experiments.protocol.experiment import Case, Config, Record, Table, percent, spread
from experiments.shared.checks import check
from experiments.shared.comparison import ACCURACIES, PAPER_METRICS, shown
from experiments.shared.network_scores import tangent_task
from experiments.shared.pretraining import PASS, pretrained
from expunge.deposit.file import Deposit
from expunge.evaluate.evaluation import PERCENT, TITLES
from expunge.mechanism import measure
from expunge.networks.tangent import (
    TangentModel,
    deposit_tangent,
    minimise_tangent,
    objective_of,
    tangent_request,
    train_tangent,
    unlearn_tangent,
)
from expunge.request.promise import Promise
from expunge.runtime.progress import Progress, silent

KEPT = "With a deposit"
ROWS = ("Original", "Retrain", KEPT)
NOISE = 1e-6  # set before anybody asks: there is nothing but rounding to hide


def cases(config: Config, seeds: int) -> list[Case]:
    return [Case("cifar10", seed) for seed in range(min(seeds, config["about"]["seeds"]))]


def run(
    case: Case, config: Config, data: DataFolder, *, device: str = "cpu", progress: Progress = silent
) -> dict[str, Any]:
    wanted = config["run"]
    public, images = pretrained(wanted["public"], wanted["public_seed"], data, device, progress)
    drawn = np.random.default_rng([case.seed, 4]).permutation(public.private)
    own = replace(public, private=np.sort(drawn))
    private = private_sets(own, images.X, images.y, images.X_test, images.y_test, wanted, case.seed)
    forgets = forget_sets(private.source[1], wanted, case.seed)
    head = fresh_head(public.head.in_features, wanted, case.seed)
    sets = {"source": private.source, "test": private.test}
    found = kept(public.last, head, sets, forgets, wanted, case.seed, device, progress)
    return found | {"public_accuracy": public.accuracy, "n_source": len(private.source[1])}


def kept(
    last: nn.Sequential,
    head: nn.Linear,
    sets: Mapping[str, Examples],
    forgets: Mapping[str, Split],
    wanted: Mapping[str, Any],
    seed: int,
    device: str = "cpu",
    progress: Progress = silent,
) -> dict[str, Any]:
    """What is found with a deposit, and its checks. `sets` are `source` and `test`, as `last` takes them."""
    options = {"block": wanted["block"], "device": device}
    network = copy.deepcopy(nn.Sequential(*list(last)[1:], head)).cpu()
    parts = {name: (_convolved(last[0], inputs), labels) for name, (inputs, labels) in sets.items()}
    progress("Tangent weights to be kept", 0, 2)
    model = train_tangent(network, *parts["source"], l2=wanted["l2"], max_norm=wanted["max_norm"], **options)
    progress("Deposit", 1, 2)
    deposit = deposit_tangent(network, model, *parts["source"], seed=seed, **options)
    settings, checks = {}, []
    for name, split in forgets.items():
        settings[name], true = _forgotten(network, model, deposit, parts, split, wanted["epsilon"], seed, options)
        checks.append(check(f"{KEPT}, {name}", true, settings[name]["radius"], None))
    layers = [type(part).__name__ for part in network if any(True for _ in part.parameters())]
    return {"settings": settings, "checks": checks, "weights": len(model.weights), "layers": layers}


def _convolved(convolution: nn.Module, maps: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([convolution(part) for part in torch.split(maps, PASS)])


def _forgotten(
    network: nn.Module,
    model: TangentModel,
    deposit: Deposit,
    parts: Mapping[str, Examples],
    split: Split,
    epsilon: float,
    seed: int,
    options: Mapping[str, Any],
) -> tuple[dict[str, Any], float]:
    """Scores of one forget set; and the true distance, as the radius in the norm of the noise's shape."""
    objective = objective_of(network, model, options["block"], options["device"])
    retain, forget = (_part(parts["source"], index) for index in split)
    rows = {
        name: objective.rows(inputs, torch.from_numpy(labels))
        for name, (inputs, labels) in (("retain", retain), ("forget", forget), ("test", parts["test"]))
    }
    trained = model.weights.to(objective.device)
    retrained = minimise_tangent(objective, rows["retain"], start=trained)[0]
    delta = 1.0 / model.record.n_source
    promised = Promise(epsilon, delta, noise=NOISE)
    request = tangent_request(network, model, forget, None, promised, deposit=deposit, **options)
    updated = request.weights + measure(request, seed=seed).step.update
    asked: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "deposit": deposit, "noise": NOISE}
    result = unlearn_tangent(network, model, forget, insecure_test_seed=seed, **asked, **options)
    judged = tangent_task(objective, trained, rows)
    published = result.model.weights.to(objective.device)
    weights = {"Original": trained, "Retrain": retrained, KEPT: published}
    distance = result.deposit.length((updated - retrained[None]).to(result.deposit.device))
    found = {
        "scores": {method: judged.scores(at, seed) for method, at in weights.items()},
        "radius": result.certificate.total,
        "noise_length": float((published - updated[0].to(published.device)).norm()),
        "weights_norm": float(trained.norm()),
        "moved": float((updated[0] - trained).norm()),
        "status": result.certificate.status,
        "n_forget": len(forget[1]),
    }
    return found, distance


def _part(examples: Examples, index: NDArray[np.int64]) -> Examples:
    return examples[0][torch.from_numpy(index).to(examples[0].device)], examples[1][index]


def tables(config: Config, records: Sequence[Record]) -> list[Table]:
    results = [record["result"] for record in sorted(records, key=lambda one: one["seed"])]
    if not results:
        return []
    rows = []
    for setting in results[0]["settings"]:
        seeds = [one["settings"][setting] for one in results]
        for method in ROWS:
            cells = [shown(metric, [one["scores"][method][metric] for one in seeds]) for metric in PAPER_METRICS]
            noise = spread([one["noise_length"] for one in seeds]) if method == KEPT else "--"
            rows.append((setting, method, *cells, noise))
    titles = [f"{TITLES[metric]}{' %' if metric in PERCENT else ''}" for metric in PAPER_METRICS]
    return [
        Table(
            f"A tangent head with a deposit, epsilon {config['run']['epsilon']:g}, delta 1/n, no surrogate (0.1: a "
            "random tenth forgotten; 0: class 0)",
            ("forgotten", "method", *titles, "length of the noise"),
            tuple(rows),
            _notes(results),
        )
    ]


def figures(config: Config, records: Sequence[Record]) -> dict[str, bytes]:
    """None."""
    return {}


def _notes(results: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    settings = [found for one in results for found in one["settings"].values()]
    apart = max(
        100.0 * abs(one["scores"][KEPT][part] - one["scores"]["Retrain"][part])
        for one in settings
        for part in ACCURACIES
    )
    checks = [one for result in results for one in result["checks"]]
    inside = sum(one["true"] <= one["residual"] for one in checks)
    first = results[0]
    return (
        f"{first['weights']:,} tangent weights: {' and '.join(first['layers'])}; a source of {first['n_source']:,} "
        f"images in the first seed; the public network's own test accuracy is "
        f"{percent([one['public_accuracy'] for one in results])} %. Certificates: "
        f"{', '.join(sorted({one['status'] for one in settings}))}.",
        f"Largest difference from retraining in train, test, retain and forget accuracy, any seed and setting: "
        f"{apart:.2f} points.",
        f"True distance to retraining inside the region, both in the norm of the noise's shape: {inside} of "
        f"{len(checks)}; largest distance {max(one['true'] for one in checks):.2g}, least radius "
        f"{min(one['residual'] for one in checks):.2g}. Forgetting moved the weights by up to "
        f"{max(one['moved'] for one in settings):.2g}.",
    )
