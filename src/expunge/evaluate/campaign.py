"""An evaluation over several seeds, which may be stopped and continued."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from expunge.data import read_data
from expunge.data.partial import Partial
from expunge.data.raw_tables import is_table
from expunge.distance import parse_distance, parse_route
from expunge.errors import OptionError
from expunge.evaluate.case import Case, Splits, make_case
from expunge.evaluate.evaluation import MethodScores, evaluate
from expunge.evaluate.methods import (
    CertifiedNoise,
    Given,
    Method,
    Original,
    Retrain,
    UnlearnDeposit,
    UnlearnMinus,
    UnlearnPlus,
)
from expunge.evaluate.table import scores_from_json, scores_to_json
from expunge.model import read_model, table_of
from expunge.request.guarantee import check_budget
from expunge.runtime.progress import Progress

NEEDED = ("retain", "forget", "test")


@dataclass(frozen=True)
class Campaign:
    """What is run for each seed, and the setting that all seeds share."""

    setting: dict[str, Any]
    seed: Callable[[int, Progress], list[MethodScores]]

    def run(self, seeds: Sequence[int], partial: Partial, progress: Progress) -> list[list[MethodScores]]:
        """All seeds; those that `partial` already holds are read, the others run and saved."""
        results = []
        for number, seed in enumerate(seeds):
            progress("Seeds", number, len(seeds))
            kept = partial.load(f"seed-{seed}")
            if kept is None:
                kept = scores_to_json(self.seed(seed, progress))
                partial.save(f"seed-{seed}", kept)
            results.append(scores_from_json(kept))
        progress("Seeds", len(seeds), len(seeds))
        return results


def files_campaign(
    model_file: Path | None,
    parts: Mapping[str, Path | None],
    candidates: Sequence[str],
    *,
    label: str | None,
    epsilon: float,
    delta: float,
    distance: str,
    match_classes: bool = False,
    with_deposit: bool = False,
    n_models: int,
) -> Campaign:
    """A user's own model and splits; seeds differ in the noise, the attack's splits and the relearning's order."""
    missing = [name for name in NEEDED if parts.get(name) is None] + ([] if model_file else ["model"])
    if missing or model_file is None:
        raise OptionError(
            "no " + ", ".join(f"--{name}" for name in missing),
            "--model, --retain, --forget and --test are needed",
            "Give them.",
        )
    check_budget(epsilon, delta)
    if parse_route(distance) is None:
        parse_distance(distance)
    model, digest = read_model(model_file)
    files = {name: path for name, path in parts.items() if path is not None}
    read = {}
    for name, path in files.items():
        data = read_data(path, label if is_table(path) else None, preparation=table_of(model))
        read[name] = data.rows
    case = make_case(Splits(**read), trained=model)
    noise = CertifiedNoise(epsilon, delta, distance, match_classes=match_classes)
    methods = _methods(case, noise, with_deposit)
    brought = {}
    for text in candidates:
        name, equals, file = text.partition("=")
        if not equals or not name or name in brought:
            raise OptionError(f"candidate {text!r}", "each needs a name of its own", "Write NAME=model.safetensors.")
        other, brought[name] = read_model(file)
        methods.append(Given(name, other))
    setting = {
        "model": digest,
        "parts": {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()},
        "candidates": brought,
        "epsilon": epsilon,
        "delta": delta,
        "distance": distance,
        "match_classes": match_classes,
        "with_deposit": with_deposit,
        "models": n_models,
    }
    return Campaign(setting, lambda seed, progress: evaluate(case, methods, seed, n_models=n_models, progress=progress))


def _methods(case: Case, noise: CertifiedNoise, with_deposit: bool) -> list[Method]:
    """What can be compared on this case, the yardsticks first."""
    methods: list[Method] = [Original(), Retrain(), UnlearnPlus(noise)]
    if case.splits.surrogate is not None:
        methods.append(UnlearnMinus(noise))
    if with_deposit:
        methods.append(UnlearnDeposit(noise.epsilon, noise.delta))
    return methods
