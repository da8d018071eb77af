"""The whole story on real data that comes with scikit-learn: train, lose the source, forget, verify, compare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits

from expunge.certificate.content import read_certificate
from expunge.certificate.statement import read_statement
from expunge.certificate.verify import Check
from expunge.certificate.verify_statement import verify_statement
from expunge.data.output import write_file, write_folder
from expunge.distance import Distance
from expunge.mechanism import Unlearned, measure
from expunge.model import LinearModel
from expunge.request.door import ask
from expunge.request.guarantee import Guarantee
from expunge.train import train
from expunge.unlearn import unlearn

N_FORGET = 3
L2 = 0.1


@dataclass(frozen=True)
class Story:
    """What the demo found; `retrained` exists only because a demo can afford to keep the source."""

    trained: LinearModel
    unlearned: Unlearned
    accuracies: dict[str, dict[str, float]]
    true_distance: float
    checks: list[Check]
    sizes: dict[str, int]


def digits() -> dict[str, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Handwritten digits, unit norm, split at random into source, surrogate and test.

    The first source rows are to go.
    """
    features, labels = load_digits(return_X_y=True)
    features = features / np.linalg.norm(features, axis=1, keepdims=True)
    order = np.random.default_rng(2025).permutation(len(features))
    parts = {
        "source": order[:800],
        "surrogate": order[800:1500],
        "test": order[1500:],
        "forget": order[:N_FORGET],
        "retain": order[N_FORGET:800],
    }
    return {name: (features[index], labels[index]) for name, index in parts.items()}


def run(
    folder: Path, *, epsilon: float = 1.0, delta: float = 1e-4, say: Callable[[str], None] = lambda _: None
) -> Story:
    """Write data, model and result under `folder` and return what happened."""
    data = digits()
    say(f"1. Train on {len(data['source'][0])} handwritten digits (scikit-learn), to the optimum.")
    trained = train(*data["source"], l2=L2, max_norm=1.0)
    write_file(folder / "model.safetensors", trained.to_bytes())
    say("2. The source is gone. What is left: the model, its training record, and what these people sent.")
    say(
        f"3. {N_FORGET} of them ask to be forgotten; a disjoint surrogate of {len(data['surrogate'][0])} digits "
        "stands in for the source."
    )
    unlearned = unlearn(trained, data["forget"], data["surrogate"], epsilon=epsilon, delta=delta, distance="same")
    public = {
        "model.safetensors": unlearned.model.to_bytes(),
        "statement.json": unlearned.statement.to_json().encode(),
    }
    dossier = {"dossier.json": unlearned.certificate.to_json().encode()}
    result = folder / "result"
    write_folder(result, public, private={"private": dossier})
    say("4. Somebody else verifies the statement and the model from their files; an auditor has the dossier too.")
    checks = verify_statement(
        read_statement(result / "statement.json"),
        result / "model.safetensors",
        read_certificate(result / "private" / "dossier.json"),
    )
    say("5. Only a demo can do this: retrain without the forgotten rows, to see the true distance.")
    retrained = train(*data["retain"], l2=L2, max_norm=1.0)
    updated = _before_noise(trained, data, epsilon, delta)
    models = {"before": trained, "retrained": retrained, "unlearned": unlearned.model}
    accuracies = {
        name: {
            part: float(np.mean(model.predict(data[part][0]) == data[part][1])) for part in ("test", "retain", "forget")
        }
        for name, model in models.items()
    }
    sizes = {name: len(rows[0]) for name, rows in data.items()}
    return Story(trained, unlearned, accuracies, float((retrained.matrix() - updated).norm()), checks, sizes)


def _before_noise(trained: LinearModel, data: dict[str, Any], epsilon: float, delta: float) -> torch.Tensor:
    """The updated weights, which nobody else ever sees: only to show the true distance beside the bound."""
    guarantee = Guarantee(epsilon, delta, Distance("same", 0.0))
    request = ask(trained, data["forget"], data["surrogate"], guarantee)
    return request.weights + measure(request).step.update
