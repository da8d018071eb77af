"""Table 6: a linear layer, one convolution before it, and two, trained together on CIFAR-10.

The paper does not say what its layers stand on; a linear layer on pixels reaches 40 %, its own 77 %. Here they stand on
the maps of a network that was pretrained on other images of CIFAR-10 (`pretraining.py`; one network for all seeds):
4 x 4 positions, the leading principal components of their channels over public images.

    L       linear on all positions
    C+L     convolution 3 x 3, SiLU, linear on all positions
    2C+L    two convolutions with SiLU, linear on all positions

All weights are trained together, with softmax loss and L2: Adam, then L-BFGS and damped Newton steps to rest;
retraining likewise, from the same start. Only L is convex. The steps are those of `unlearn_module`, on what is at hand:
the source for Unlearn (+), surrogate and forgotten rows alone for Unlearn (-). The noise is that of the paper's
experiments.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from experiments.datasets.folder import DataFolder
from experiments.datasets.splits import random_split
from experiments.mixed_linear import MINUS, PLUS, Private, private_sets
from experiments.protocol.experiment import Case, Config, Record, Table, spread
from experiments.shared.comparison import ACCURACIES, comparison
from experiments.shared.network_scores import NetworkTask, paper_delta, paper_sigma, with_noise
from experiments.shared.pretraining import pretrained
from expunge.evaluate.evaluation import TITLES
from expunge.heads.network import Examples, ModuleObjective
from expunge.runtime.progress import Progress, silent
from expunge.solve.linear import Step
from expunge.solve.newton import Equation, RetainedEquation, SurrogateEquation, iterated_step

ARCHITECTURES = ("L", "C+L", "2C+L")
METHODS = ("Original", "Retrain", PLUS, MINUS)
SIDE = 4  # positions of a map each way

Labelled = tuple[Tensor, Tensor]


def cases(config: Config, seeds: int) -> list[Case]:
    return [Case(name, seed, {"architecture": name}) for seed in range(seeds) for name in ARCHITECTURES]


def run(
    case: Case, config: Config, data: DataFolder, *, device: str = "cpu", progress: Progress = silent
) -> dict[str, Any]:
    wanted = config["run"]
    architecture = case.options["architecture"]
    l2 = wanted["l2"][architecture]
    sets = private_parts(architecture, wanted, case.seed, data, device, progress)
    start = module(architecture, wanted, case.seed).to(device)
    progress("Training", 0, 2)
    trained = fit(start, sets.source, wanted, architecture, case.seed)
    progress("Retraining", 1, 2)
    retrained = _vector(fit(start, sets.retain, wanted, architecture, case.seed))
    objective = ModuleObjective(trained, l2=l2, curvature=wanted["curvature"], block=wanted["block"], device=device)
    judged = network_task(
        objective, {"retain": sets.retain, "forget": sets.forget, "test": sets.test}, wanted["splits"]
    )
    scores: dict[str, Any] = {
        "Original": judged.scores(objective.weights, case.seed),
        "Retrain": judged.scores(retrained, case.seed),
    }
    retain = Examples(*sets.retain)
    steps = {}
    for number, (method, equation) in enumerate(equations(objective, sets).items()):
        step = iterated_step(equation, progress=progress)
        sigma = paper_noise(objective, sets, method)
        updated = objective.weights + step.update
        published = with_noise(updated, sigma, np.random.default_rng([case.seed, 3, number]))
        scores[method] = judged.scores(published, case.seed) | {"sigma": sigma}
        steps[method] = _described(step) | {
            "retain_gradient": float(objective.gradient(updated, retain).norm()),
            "to_retrained": float((updated - retrained).norm()),
        }
    return {
        "scores": scores,
        "steps": steps,
        "parameters": objective.n_parameters,
        "training_gradient": float(objective.gradient(objective.weights, Examples(*sets.source)).norm()),
        "retraining_gradient": float(objective.gradient(retrained, retain).norm()),
        "retain_gradient": float(objective.gradient(objective.weights, retain).norm()),
        "to_retrained": float((objective.weights - retrained).norm()),
        "rows": {name: len(getattr(sets, name)[1]) for name in ("source", "surrogate", "forget")},
    }


@dataclass(frozen=True)
class Sets:
    """Inputs as the layers take them, and labels; `kl` is of the surrogate relative to the source."""

    source: Labelled
    surrogate: Labelled
    test: Labelled
    retain: Labelled
    forget: Labelled
    kl: float


def private_parts(
    architecture: str, wanted: Mapping[str, Any], seed: int, data: DataFolder, device: str, progress: Progress
) -> Sets:
    """The sets of one seed, as the architecture takes them."""
    key = (repr(sorted(wanted.items())), seed, data.folder, device)
    if key not in _LATEST:
        _LATEST.clear()
        _LATEST[key] = _drawn(wanted, seed, data, device, progress)
    private = _LATEST[key]
    source, surrogate, test = (
        (laid_out(maps, architecture), torch.from_numpy(labels).to(maps.device))
        for maps, labels in (private.source, private.surrogate, private.test)
    )
    split = random_split(len(source[1]), wanted["forget_share"], np.random.default_rng([seed, 2]))
    retain, forget = ((source[0][index], source[1][index]) for index in map(torch.from_numpy, split))
    return Sets(source, surrogate, test, retain, forget, private.kl_of_surrogate)


_LATEST: dict[Any, Private] = {}  # a pure function of its key, kept for the other architectures of a seed


def _drawn(wanted: Mapping[str, Any], seed: int, data: DataFolder, device: str, progress: Progress) -> Private:
    """Maps and labels of one seed. The public network is one for all seeds; the private images are drawn anew."""
    public, images = pretrained(wanted["public"], wanted["public_seed"], data, device, progress)
    drawn = np.random.default_rng([seed, 4]).permutation(public.private)[: wanted["private"]]
    own = replace(public, private=np.sort(drawn))
    private = private_sets(own, images.X, images.y, images.X_test, images.y_test, wanted, seed)
    others = np.setdiff1d(np.arange(len(images.y)), public.private)[: wanted["components_from"]]
    principal = components(public.maps(images.X[others]), wanted["components"])
    return Private(*((principal(maps), labels) for maps, labels in (private.source, private.surrogate, private.test)))


def components(maps: Tensor, count: int) -> Callable[[Tensor], Tensor]:
    """Takes maps to their leading principal components over channels, each with mean 0 and variance 1 on these maps."""
    channels = maps.transpose(0, 1).flatten(1).double()
    mean = channels.mean(dim=1, keepdim=True)
    values, vectors = torch.linalg.eigh(torch.cov(channels))
    leading = (vectors[:, -count:] * values[-count:].rsqrt()).T
    return lambda given: torch.einsum("ij,njhw->nihw", leading, given.double() - mean[:, :, None])


def laid_out(maps: Tensor, architecture: str) -> Tensor:
    """Maps for L; for a convolution its patches, rows x positions x 9 channels: unfolded once, not in every pass."""
    if architecture == "L":
        return maps
    return nn.functional.unfold(maps, 3, padding=1).transpose(1, 2).contiguous()


class Convolution(nn.Module):
    """A convolution of 3 x 3 on positions x channels, as one matrix: on maps as small as these that is faster."""

    places: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        layer = nn.Conv2d(width, width, 3, padding=1)
        assert layer.bias is not None
        self.weight, self.bias = layer.weight, layer.bias
        one = torch.eye(SIDE**2).reshape(SIDE**2, 1, SIDE, SIDE)
        near = nn.functional.unfold(one, 3, padding=1)  # from, of the nine, to: 1 where the one is that neighbour
        self.register_buffer("places", near)

    def forward(self, inputs: Tensor) -> Tensor:
        matrix = torch.einsum("qkp,oik->qipo", self.places, self.weight.flatten(2)).flatten(2).flatten(0, 1)
        outputs: Tensor = (inputs.flatten(1) @ matrix).reshape(len(inputs), SIDE**2, -1) + self.bias
        return outputs


def module(architecture: str, wanted: Mapping[str, Any], seed: int) -> nn.Module:
    """The layers of an architecture, with fresh weights. A linear layer on patches is a convolution."""
    width, classes, channels = wanted["channels"], wanted["classes"], wanted["components"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if architecture == "L":
            return nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2 * channels, classes))
        convolutions: list[nn.Module] = [nn.Linear(9 * channels, width), nn.SiLU()]
        if architecture == "2C+L":
            convolutions += [Convolution(width), nn.SiLU()]
        return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(SIDE**2 * width, classes))


def fit(start: nn.Module, rows: Labelled, wanted: Mapping[str, Any], architecture: str, seed: int) -> nn.Module:
    """A copy of `start` trained on these rows: Adam on batches in float32, then on all of them in float64 to rest."""
    l2 = wanted["l2"][architecture]
    made = copy.deepcopy(start).float().train()
    generator = torch.Generator().manual_seed(seed)
    batch, epochs = wanted["batch"], wanted["epochs"]
    steps = max(1, len(rows[1]) // batch)
    optimiser = torch.optim.Adam(made.parameters(), lr=wanted["learning_rate"])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs * steps)
    inputs = rows[0].float()
    for _ in range(epochs):
        order = torch.randperm(len(rows[1]), generator=generator)
        for step in range(steps):
            chosen = order[step * batch : (step + 1) * batch].to(inputs.device)
            optimiser.zero_grad(set_to_none=True)
            torch.autograd.backward(_loss(made, inputs[chosen], rows[1][chosen]) + _penalty(made, l2))
            optimiser.step()
            schedule.step()
    return brought_to_rest(made.double(), rows, wanted, l2)


def brought_to_rest(made: nn.Module, rows: Labelled, wanted: Mapping[str, Any], l2: float) -> nn.Module:
    """At most `polish` iterations of L-BFGS and then damped Newton steps, until the gradient's norm is `rest`."""
    made.eval().requires_grad_(False)
    objective = ModuleObjective(made, l2=l2, curvature="hessian", block=wanted["block"], device=rows[0].device)
    rest, examples = wanted["rest"], Examples(*rows)
    weights = polished(objective, rows, wanted["polish"], rest)
    gradient = len(examples) * objective.gradient(weights, examples)
    equation = RetainedEquation(objective, weights, -gradient, examples, len(examples))  # a'(u) is the gradient there
    step = iterated_step(equation, goal=rest * len(examples) / float(gradient.norm()))
    nn.utils.vector_to_parameters(weights + step.update, made.parameters())
    return made


def polished(objective: ModuleObjective, rows: Labelled, most: int, rest: float) -> Tensor:
    """Weights after at most so many iterations of L-BFGS. Its many small products of vectors stay off the device."""
    at = objective.weights.to("cpu", copy=True).requires_grad_()
    blocks = list(zip(*(torch.split(part, objective.block) for part in rows), strict=True))
    polish = torch.optim.LBFGS(
        [at],
        max_iter=most,
        history_size=100,
        tolerance_grad=rest / math.sqrt(len(at)),  # of every single weight: then the norm is at most `rest`
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        there = at.detach().to(objective.device).requires_grad_()
        total = objective.l2 / 2 * there.square().sum()
        slope = torch.autograd.grad(total, there)[0]
        for inputs, labels in blocks:
            scores = objective.outputs(there, inputs)
            loss = nn.functional.cross_entropy(scores, labels, reduction="sum") / len(rows[1])
            slope += torch.autograd.grad(loss, there)[0]
            total = total.detach() + loss.detach()
        at.grad = slope.cpu()
        return total.cpu()

    polish.step(closure)  # type: ignore[no-untyped-call]
    return at.detach().to(objective.device)


def _loss(made: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(made(inputs), labels)


def _penalty(made: nn.Module, l2: float) -> Tensor:
    return l2 / 2 * torch.stack([value.square().sum() for value in made.parameters()]).sum()


def equations(objective: ModuleObjective, sets: Sets) -> dict[str, Equation]:
    """The retained rows' equation, as `unlearn_module` has it: exactly, and with the surrogate in their place."""
    source, forget = Examples(*sets.source), Examples(*sets.forget)
    surrogate = objective.as_predicted(Examples(*sets.surrogate))
    forgotten = len(forget) * objective.gradient(objective.weights, forget)
    return {
        PLUS: SurrogateEquation(objective, objective.weights, forget, source, len(source)),
        MINUS: RetainedEquation(objective, objective.weights, forgotten, surrogate, len(source) - len(forget)),
    }


def paper_noise(objective: ModuleObjective, sets: Sets, method: str) -> float:
    """Sigma of the paper's experiments."""
    norm = float(objective.gradient(objective.weights, Examples(*sets.forget)).norm())
    stand_in, divergence = (sets.source, 0.0) if method == PLUS else (sets.surrogate, sets.kl)
    sizes = (len(sets.source[1]), len(sets.forget[1]), len(stand_in[1]))
    return paper_sigma(paper_delta(objective.l2, *sizes, norm, divergence))


def network_task(objective: ModuleObjective, parts: Mapping[str, Labelled], splits: int) -> NetworkTask:
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
        splits=splits,
    )


def _vector(made: nn.Module) -> Tensor:
    return torch.cat([value.detach().double().reshape(-1) for value in made.parameters()])


def _described(step: Step) -> dict[str, Any]:
    return {
        "residual_ratio": step.residual / step.residual_at_start,
        "step_norm": float(step.update.norm()),
        "steps": step.iterations,
        "products": step.inner_iterations,
        "ending": step.ending.value,
        "positive_definite": step.positive_definite,
    }


def tables(config: Config, records: Sequence[Record]) -> list[Table]:
    paper = config["paper"]
    results: dict[str, list[dict[str, Any]]] = {}
    for record in sorted(records, key=lambda one: (ARCHITECTURES.index(one["key"]), one["seed"])):
        results.setdefault(record["key"], []).append(record["result"])
    if not results:
        return []
    ours: dict[tuple[str, ...], list[Mapping[str, Any]]] = {
        (name, method): [one["scores"][method] for one in seeds]
        for name, seeds in results.items()
        for method in METHODS
    }
    theirs: dict[tuple[str, ...], Sequence[float | str]] = {
        (name, method): paper[name].get(method, ()) for name in results for method in METHODS
    }
    absent = tuple(f"No result yet: {name}." for name in ARCHITECTURES if name not in results)
    return [
        comparison("Table 6: three architectures on CIFAR-10", ("architecture", "method"), ours, theirs, notes=absent),
        _apart(ours),
        _steps(results),
    ]


def _apart(ours: Mapping[tuple[str, ...], Sequence[Mapping[str, Any]]]) -> Table:
    """Every row less retraining's, seed by seed."""
    metrics = (*ACCURACIES, "mia", "rt")
    points = {
        (name, method, metric): _less(seeds, ours[name, "Retrain"], metric)
        for (name, method), seeds in ours.items()
        for metric in metrics
        if method != "Retrain"
    }
    above = {name: min(points[name, "Original", "forget"]) for name, _ in ours}
    left = [apart for (_, method, metric), apart in points.items() if method != "Original" and metric != "rt" and apart]
    mean = max(abs(math.fsum(apart) / len(apart)) for apart in left)
    largest = max(abs(one) for apart in left for one in apart)
    rows = dict.fromkeys((name, method) for name, method, _ in points)
    return Table(
        "Less retraining's, in points (RT: in iterations)",
        ("architecture", "method", *(TITLES[metric] for metric in metrics)),
        tuple((*row, *(spread(points[(*row, metric)], ".1f") for metric in metrics)) for row in rows),
        (
            "Largest difference of an unlearned network from the retrained one in train, test, retain and forget "
            f"accuracy and MIA: {mean:.1f} points in the mean over seeds, {largest:.1f} in one seed. Before unlearning "
            "the forget accuracy is above retraining's, in the seed where it is least, by "
            + ", ".join(f"{least:.1f} ({name})" for name, least in above.items())
            + " points.",
            "RT counts iterations of Adam on the forget rows until their accuracy is within half a point of the "
            "trained network's; it hangs on the last few rows.",
        ),
    )


def _less(seeds: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]], metric: str) -> list[float]:
    unit = 1.0 if metric == "rt" else 100.0
    pairs = [(one[metric], other[metric]) for one, other in zip(seeds, others, strict=True)]
    return [unit * (one - other) for one, other in pairs if one is not None and other is not None]


def _steps(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table:
    rows = []
    for name, seeds in results.items():
        for method in (PLUS, MINUS):
            steps = [one["steps"][method] for one in seeds]
            endings = sorted({one["ending"] for one in steps})
            left = [step["retain_gradient"] / one["retain_gradient"] for step, one in zip(steps, seeds, strict=True)]
            rows.append(
                (
                    name,
                    method,
                    f"{seeds[0]['parameters']:,}",
                    spread([one["steps"] for one in steps], ".0f"),
                    ", ".join(endings),
                    spread([one["residual_ratio"] for one in steps]),
                    spread(left),
                    spread([one["to_retrained"] for one in seeds]),
                    spread([one["to_retrained"] for one in steps]),
                )
            )
    norms = [
        f"{max(max(one['training_gradient'], one['retraining_gradient']) for one in seeds):.1e} of "
        f"{min(one['retain_gradient'] for one in seeds):.1e} ({name})"
        for name, seeds in results.items()
    ]
    return Table(
        "The steps",
        (
            "architecture",
            "method",
            "weights",
            "steps",
            "ended",
            "residual left",
            "retain gradient left",
            "distance before",
            "distance after",
        ),
        tuple(rows),
        (
            "Residual left: ||a'(u)|| / ||a'(0)||, which needs no source. Retain gradient left: the norm of the "
            "retained rows' gradient after the steps as a share of that before, which only somebody with the source "
            "can know. Distance: of all weights from the retrained ones, trained from the same start.",
            "Norms of the gradient after training and retraining, at most, and of that of the retained rows before the "
            f"first step, at least: {', '.join(norms)}.",
            "Nothing is proven for C+L and 2C+L: their loss is not convex.",
        ),
    )


def figures(config: Config, records: Sequence[Record]) -> dict[str, bytes]:
    """The paper has none for this table."""
    return {}
