"""Table 6: a linear layer, one convolution before it, and two, trained together on CIFAR-10.

The paper does not say what its layers stand on; a linear layer on pixels reaches 40 %, its own 77 %. Here they stand on
the maps of a network that was pretrained on other images of CIFAR-10 (`pretraining.py`): 4 x 4 positions, divided by
their root mean square over the source.

    L       mean over positions, linear
    C+L     convolution 3 x 3, ReLU, linear on all positions
    2C+L    two convolutions with ReLU, linear on all positions

All weights are trained together, with softmax loss and L2: Adam, then L-BFGS until it stops, always from the same
start. Only L is convex. The step is that of `unlearn_module` with Gauss-Newton products; its damping is searched on
surrogate and forget set alone. The noise is that of the paper's experiments.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from experiments.datasets.folder import DataFolder
from experiments.mixed_linear import MINUS, PLUS, private_sets
from experiments.protocol.experiment import Case, Config, Record, Table, spread
from experiments.shared.comparison import comparison
from experiments.shared.network_scores import NOTHING_LEFT, NetworkTask, paper_delta, paper_sigma, with_noise
from experiments.shared.pretraining import pretrained
from expunge.data.splits import random_split
from expunge.heads.convolutions import unfold_convolutions
from expunge.heads.examples import Examples
from expunge.heads.module import ModuleObjective
from expunge.runtime.progress import Progress, silent
from expunge.solve.balanced import searched_step
from expunge.solve.equation import SurrogateEquation
from expunge.solve.outcome import Step

ARCHITECTURES = ("L", "C+L", "2C+L")

Labelled = tuple[Tensor, Tensor]


def cases(config: Config, seeds: int) -> list[Case]:
    return [Case(name, seed, {"architecture": name}) for seed in range(seeds) for name in ARCHITECTURES]


def run(
    case: Case, config: Config, data: DataFolder, *, device: str = "cpu", progress: Progress = silent
) -> dict[str, Any]:
    wanted = config["run"]
    public, images = pretrained(wanted["public"], case.seed, data, device, progress)
    private = private_sets(public, images.X, images.y, images.X_test, images.y_test, wanted, case.seed)
    scale = private.source[0].square().mean().sqrt()
    source, surrogate, test = (
        (maps / scale, torch.from_numpy(labels).to(maps.device))
        for maps, labels in (private.source, private.surrogate, private.test)
    )
    kept, gone = random_split(len(source[1]), wanted["forget_share"], np.random.default_rng([case.seed, 2]))
    retain, forget = (
        (source[0][index], source[1][index]) for index in (torch.from_numpy(kept), torch.from_numpy(gone))
    )
    start = module(case.options["architecture"], source[0].shape[1], wanted, case.seed).to(device)
    progress("Training", 0, 2)
    trained = fit(start, source, wanted, case.seed)
    progress("Retraining", 1, 2)
    retrained = fit(start, retain, wanted, case.seed)
    objective = ModuleObjective(trained, l2=wanted["l2"], block=wanted["block"], device=device)
    judged = network_task(objective, {"retain": retain, "forget": forget, "test": test})
    scores: dict[str, Any] = {
        "Original": judged.scores(objective.weights, case.seed),
        "Retrain": judged.scores(_vector(retrained), case.seed),
    }
    steps = {}
    for number, (method, stand_in, divergence) in enumerate(
        ((PLUS, source, 0.0), (MINUS, surrogate, private.kl_of_surrogate))
    ):
        equation = SurrogateEquation(
            objective, objective.weights, Examples(*forget), Examples(*stand_in), len(source[1])
        )
        step = searched_step(equation, wanted["dampings"][case.options["architecture"]], progress)
        norm = float(objective.gradient(objective.weights, Examples(*forget)).norm())
        theirs = paper_delta(wanted["l2"], len(source[1]), len(forget[1]), len(stand_in[1]), norm, divergence)
        published = with_noise(
            objective.weights + step.update, paper_sigma(theirs), np.random.default_rng([case.seed, 3, number])
        )
        scores[method] = judged.scores(published, case.seed) | {"sigma": paper_sigma(theirs)}
        steps[method] = _described(step, objective, retain)
    start_norm = float(objective.gradient(objective.weights, Examples(*retain)).norm())
    return {
        "scores": scores,
        "steps": steps,
        "parameters": objective.n_parameters,
        "training_gradient": float(objective.gradient(objective.weights, Examples(*source)).norm()),
        "retain_gradient": start_norm,
        "rows": {"source": len(source[1]), "surrogate": len(surrogate[1]), "forget": len(forget[1])},
    }


def module(architecture: str, channels: int, wanted: Mapping[str, Any], seed: int) -> nn.Module:
    """The layers of an architecture, with fresh weights."""
    width, classes = wanted["channels"], wanted["classes"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if architecture == "L":
            return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
        convolutions: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
        if architecture == "2C+L":
            convolutions += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
        return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(16 * width, classes))


def fit(start: nn.Module, rows: Labelled, wanted: Mapping[str, Any], seed: int) -> nn.Module:
    """A copy of `start` trained on these rows: Adam on batches in float32, then L-BFGS on all of them in float64."""
    made = unfold_convolutions(copy.deepcopy(start)).float().train()
    generator = torch.Generator().manual_seed(seed)
    batch, epochs = wanted["batch"], wanted["epochs"]
    steps = max(1, len(rows[1]) // batch)
    optimiser = torch.optim.Adam(made.parameters(), lr=wanted["learning_rate"])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs * steps)
    for _ in range(epochs):
        order = torch.randperm(len(rows[1]), generator=generator)
        for step in range(steps):
            chosen = order[step * batch : (step + 1) * batch].to(rows[0].device)
            optimiser.zero_grad(set_to_none=True)
            torch.autograd.backward(_loss(made, rows[0][chosen], rows[1][chosen], wanted["l2"]))
            optimiser.step()
            schedule.step()
    made.double()
    inputs = rows[0].double()
    polish = torch.optim.LBFGS(
        made.parameters(),
        max_iter=wanted["polish"],
        history_size=30,
        tolerance_grad=1e-9,
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        polish.zero_grad()
        loss = _loss(made, inputs, rows[1], wanted["l2"])
        torch.autograd.backward(loss)
        return loss

    polish.step(closure)  # type: ignore[no-untyped-call]
    return made.eval().requires_grad_(False)


def _loss(made: nn.Module, inputs: Tensor, labels: Tensor, l2: float) -> Tensor:
    size = torch.stack([value.square().sum() for value in made.parameters()]).sum()
    return nn.functional.cross_entropy(made(inputs), labels) + l2 / 2 * size


def network_task(objective: ModuleObjective, parts: Mapping[str, Labelled]) -> NetworkTask:
    """The columns' view of a whole network."""

    def outputs(weights: Tensor, name: str) -> Tensor:
        inputs = parts[name][0]
        return torch.cat([objective.outputs(weights, part) for part in torch.split(inputs, objective.block)])

    def gradient(weights: Tensor, batch: Tensor) -> Tensor:
        chosen = batch.to(objective.device)
        return objective.gradient(weights, Examples(parts["forget"][0][chosen], parts["forget"][1][chosen]))

    return NetworkTask(
        labels={name: part[1] for name, part in parts.items()},
        outputs=outputs,
        losses=lambda scores, labels: nn.functional.cross_entropy(scores, labels, reduction="none"),
        gradient=gradient,
        original=objective.weights,
    )


def _vector(made: nn.Module) -> Tensor:
    return torch.cat([value.detach().double().reshape(-1) for value in made.parameters()])


def _described(step: Step, objective: ModuleObjective, retain: Labelled) -> dict[str, Any]:
    after = objective.gradient(objective.weights + step.update, Examples(*retain))
    return {
        "damping": step.pull if step.pull < float("inf") else None,
        "residual_ratio": step.residual / step.residual_at_start,
        "step_norm": float(step.update.norm()),
        "iterations": step.inner_iterations,
        "positive_definite": step.positive_definite,
        "retain_gradient": float(after.norm()),
    }


def tables(config: Config, records: Sequence[Record]) -> list[Table]:
    paper = config["paper"]
    results: dict[str, list[dict[str, Any]]] = {}
    for record in sorted(records, key=lambda one: (ARCHITECTURES.index(one["key"]), one["seed"])):
        results.setdefault(record["key"], []).append(record["result"])
    if not results:
        return []
    methods = ("Retrain", PLUS, MINUS)
    ours: dict[tuple[str, ...], list[Mapping[str, Any]]] = {
        (name, method): [one["scores"][method] for one in seeds]
        for name, seeds in results.items()
        for method in methods
    }
    theirs: dict[tuple[str, ...], Sequence[float | str]] = {
        (name, method): paper[name][method] for name in results for method in methods
    }
    apart = max(
        abs(one["test"] - other["test"])
        for name in results
        for method in (PLUS, MINUS)
        for one, other in zip(ours[name, method], ours[name, "Retrain"], strict=True)
    )
    note = (
        "Largest difference in test accuracy between an unlearned and the retrained network, any seed and "
        f"architecture: {100 * apart:.2f} points."
    )
    absent = tuple(f"No result yet: {name}." for name in ARCHITECTURES if name not in results)
    return [
        comparison(
            "Table 6: three architectures on CIFAR-10",
            ("architecture", "method"),
            ours,
            theirs,
            notes=(note, NOTHING_LEFT, *absent),
        ),
        _steps(results),
    ]


def _steps(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table:
    rows = []
    for name, seeds in results.items():
        for method in (PLUS, MINUS):
            steps = [one["steps"][method] for one in seeds]
            dampings = sorted({"none" if one["damping"] is None else f"{one['damping']:g}" for one in steps})
            rows.append(
                (
                    name,
                    method,
                    f"{seeds[0]['parameters']:,}",
                    ", ".join(dampings),
                    spread([one["residual_ratio"] for one in steps]),
                    spread(
                        [s["retain_gradient"] / one["retain_gradient"] for s, one in zip(steps, seeds, strict=True)]
                    ),
                )
            )
    return Table(
        "The steps",
        ("architecture", "method", "weights", "damping chosen", "residual left", "retain gradient left"),
        tuple(rows),
        (
            "Residual left: ||a(u)|| / ||a(0)||, which needs no source and by which the damping is chosen. Retain "
            "gradient left: the norm of the retained rows' gradient after the step as a share of that before, which "
            "only somebody with the source can know.",
            "Nothing is proven for C+L and 2C+L: their loss is not convex.",
        ),
    )


def figures(config: Config, records: Sequence[Record]) -> dict[str, bytes]:
    """The paper has none for this table."""
    return {}
