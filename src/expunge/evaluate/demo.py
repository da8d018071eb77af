"""Both stories on real data that comes with scikit-learn: with a deposit of the source, and without.

Each time: train, lose the source, forget, verify, and, since a demo can afford to keep the source, compare.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from expunge.certificate.rules import Check
from expunge.certificate.statement import read_certificate, read_statement
from expunge.certificate.verify import verify_statement
from expunge.deposit.make import make_deposit
from expunge.deposit.membership import answers
from expunge.distance import Distance
from expunge.door import ask
from expunge.evaluate.audit import whiten
from expunge.mechanism import Unlearned, measure
from expunge.model import LinearModel
from expunge.request.promise import Promise
from expunge.request.request import Request
from expunge.rows.output import DOSSIER, MODEL, PRIVATE_PART, STATEMENT, write_file
from expunge.runtime.arrays import to_numpy
from expunge.runtime.files import PRIVATE
from expunge.train import train
from expunge.unlearn import unlearn

N_FORGET = 3
L2 = 0.1
WITH, WITHOUT = "with-deposit", "without-deposit"  # folders, and names of the stories
TRAIN = "expunge train --data source.npz --l2 0.1 --max-norm 1 --out model.safetensors"
UNLEARN = "expunge unlearn --model model.safetensors --forget person.npz"

Rows = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


@dataclass(frozen=True)
class DemoResult:
    """How a story ended: what was handed over, the checks it passed, and how far from retraining it really is.

    `true_distance` is measured as the bound is, by the shape of the noise.
    """

    unlearned: Unlearned
    checks: list[Check]
    true_distance: float


@dataclass(frozen=True)
class Story:
    """What the demo shows; `retrained` exists only because a demo can afford to keep the source."""

    trained: LinearModel
    endings: dict[str, DemoResult]
    accuracies: dict[str, dict[str, float]]
    sizes: dict[str, int]


def digits() -> dict[str, Rows]:
    """Handwritten digits, unit norm, split at random into source, surrogate and test; the first of the source go."""
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
    folder: Path,
    *,
    epsilon: float = 1.0,
    delta: float = 1e-4,
    say: Callable[[str], None] = lambda _: None,
    ended: Callable[[str, DemoResult], None] = lambda *_: None,
) -> Story:
    """Write models and results under `folder`, tell both stories as they happen, and return what was measured."""
    data = digits()
    forget, surrogate = data["forget"], data["surrogate"]
    guarantee = f"       --epsilon {epsilon:g} --delta {delta:g} --out"
    trained, retrained = (train(*data[part], l2=L2, max_norm=1.0) for part in ("source", "retain"))
    endings: dict[str, DemoResult] = {}

    def finish(name: str, unlearned: Unlearned, request: Request) -> None:
        """Somebody else's check, from the files alone, and the distance that nobody else ever sees."""
        result = folder / name
        say("4. Somebody else verifies the statement and the model from their files; an auditor has the dossier too.")
        say(f"   expunge verify {name}/statement.json --model {name}/model.safetensors")
        dossier = read_certificate(result / PRIVATE_PART / DOSSIER)
        checks = verify_statement(read_statement(result / STATEMENT), result / MODEL, dossier)
        away = to_numpy(request.weights + measure(request).step.update - retrained.matrix())
        shape = None if request.deposit is None else request.deposit.ellipsoid
        endings[name] = DemoResult(unlearned, checks, float(np.linalg.norm(whiten(shape, away[None]))))
        ended(name, endings[name])

    say("With a deposit: the source is to be deleted, and that is known beforehand.\n")
    say(f"1. Train on {len(data['source'][0])} handwritten digits (scikit-learn), and store a deposit: sums, no row.")
    say(f"   {TRAIN} --deposit model.deposit")
    write_file(folder / MODEL, trained.to_bytes())
    deposit = make_deposit(trained, data["source"]).deposit
    before = folder / "model.deposit"
    write_file(before, deposit.to_bytes(), mode=PRIVATE)
    say("2. The source is gone.")
    there = sum(answer.there for answer in answers(deposit, forget))
    say(f"3. {N_FORGET} rows are to be forgotten. {there} of them are found in the deposit, by keyed hashes.")
    say(f"   {UNLEARN} --deposit model.deposit \\")
    say(f"{guarantee} {WITH}/")
    unlearned = unlearn(trained, forget, epsilon=epsilon, delta=delta, deposit=deposit)
    unlearned.save(folder / WITH)
    before.unlink()
    say("   They leave it. The old deposit is destroyed, the new one stays private, for the next deletion.")
    finish(WITH, unlearned, ask(trained, forget, None, Promise(epsilon, delta), deposit=deposit))

    say("Without one: nobody thought of it in time.\n")
    say("1. The model was trained in the same way, and nothing was stored but its training record.")
    say(f"   {TRAIN}")
    say(f"2. The source is gone. {len(surrogate[0])} digits of other people stand in for it. That they resemble")
    say("   it, as if drawn from one pot, is declared: nobody can check it any more.")
    say(f"3. The same {N_FORGET} rows are to be forgotten. Whether they were in the source cannot be looked up.")
    say(f"   {UNLEARN} --surrogate surrogate.npz --distance same \\")
    say(f"{guarantee} {WITHOUT}/")
    unlearned = unlearn(trained, forget, surrogate, epsilon=epsilon, delta=delta, distance="same")
    unlearned.save(folder / WITHOUT)
    promise = Promise(epsilon, delta, Distance("same", 0.0))
    finish(WITHOUT, unlearned, ask(trained, forget, surrogate, promise))

    models = {"before": trained, "retrained": retrained}
    models |= {name: ending.unlearned.model for name, ending in endings.items()}
    accuracies = {
        name: {
            part: float(np.mean(model.predict(data[part][0]) == data[part][1])) for part in ("test", "retain", "forget")
        }
        for name, model in models.items()
    }
    return Story(trained, endings, accuracies, {name: len(rows[0]) for name, rows in data.items()})
