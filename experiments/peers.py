"""Expunge beside its peers, all of them run on the same rows, and the peers beside their own published figures."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.datasets.folder import DataFolder, DataSet
from experiments.other_methods import DescentToDelete, Langevin
from experiments.protocol.experiment import Case, Config
from experiments.shared import peer_figures, peer_tables
from experiments.shared.certified import parted
from experiments.shared.mixture import ROUNDING, of_length
from experiments.shared.ours import compared
from experiments.shared.ridge_heads import LOSS as RIDGE_LOSS
from experiments.shared.ridge_heads import ridge_heads, ridge_task
from experiments.shared.rivals import Task, accuracies, task_of
from expunge.evaluate.case import Splits, make_case
from expunge.runtime.progress import Progress, silent

tables, figures = peer_tables.tables, peer_figures.figures


def cases(config: Config, seeds: int) -> list[Case]:
    """Task by task, since a task's cases share its models and deposits."""
    made = [
        Case(
            peer_tables.PUBLISHED,
            0,
            {"task": peer_tables.PUBLISHED, "forget": 1, "data": config["run"][peer_tables.PUBLISHED]["data"]},
        )
    ]
    for seed in range(seeds):
        for name, wanted in config["run"]["tasks"].items():
            if seed >= wanted["seeds"]:
                continue
            requests = [(count, False) for count in wanted["forget"]] + [(count, True) for count in wanted["sequence"]]
            for count, sequence in requests:
                options = {"task": name, "forget": count, "sequence": sequence, "data": wanted["data"]}
                made.append(Case(f"{name}, {peer_tables.said(count, sequence)}", seed, options))
            for count in wanted["forget"]:
                options = {"task": name, "forget": count, "sequence": False, "data": wanted["data"], "head": RIDGE_LOSS}
                made.append(Case(f"{name}, {peer_tables.said(count, False)}, {RIDGE_LOSS}", seed, options))
    return made


def run(
    case: Case, config: Config, data: DataFolder, *, device: str = "cpu", progress: Progress = silent
) -> dict[str, Any]:
    if case.options["task"] == peer_tables.PUBLISHED:
        wanted = config["run"][peer_tables.PUBLISHED]
        return published(data.load(wanted["data"]), wanted, progress)
    wanted, asked = config["run"]["tasks"][case.options["task"]], case.options["forget"]
    head = case.options.get("head")
    task = _task(data, json.dumps(wanted), case.seed, device, head)
    count = asked if asked >= 1 else round(asked * len(task.parts.source[1]))
    if head == RIDGE_LOSS:
        return ridge_heads(task, wanted, count, case.seed)
    return compared(task, wanted, count, case.seed, case.options["sequence"], progress)


@functools.lru_cache(maxsize=1)
def _task(data: DataFolder, wanted: str, seed: int, device: str, head: str | None) -> Task:
    """Models and deposits of a task, which all its cases share."""
    told = json.loads(wanted)
    make = ridge_task if head == RIDGE_LOSS else task_of
    return make(parted(data.load(told["data"]), told, np.random.default_rng([seed, 8])), told, device)


def published(data: DataSet, wanted: Mapping[str, Any], progress: Progress = silent) -> dict[str, Any]:
    """Two peers in the setting of the published figures, with the noise of their papers' own formulas."""
    keep = [np.isin(labels, wanted["classes"]) for labels in (data.y, data.y_test)]
    rows, test = (
        (of_length(images[chosen].reshape(chosen.sum(), -1) / 255.0 - 0.5, 1.0), labels[chosen].astype(np.int64))
        for images, labels, chosen in zip((data.X, data.X_test), (data.y, data.y_test), keep, strict=True)
    )
    n_source = len(rows[1])
    splits = Splits((rows[0][1:], rows[1][1:]), (rows[0][:1], rows[1][:1]), test)
    task = make_case(splits, l2=wanted["l2_by_rows"] * n_source, max_norm=ROUNDING)
    delta, draws, cells = 1.0 / n_source, wanted["draws"], []
    for number, epsilon in enumerate(wanted["epsilons"]):
        progress("Epsilons", number, len(wanted["epsilons"]))
        methods: tuple[Langevin | DescentToDelete, ...] = (
            *(Langevin(epsilon, delta, steps, published=True, draws=draws) for steps in wanted["langevin_steps"]),
            *(DescentToDelete(epsilon, delta, steps, published=True) for steps in wanted["descent_steps"]),
        )
        for method in methods:
            models = method.run(task).ensemble(draws, np.random.default_rng(3))
            shares = [accuracies(model[None], task.rows["test"]) for model in models]
            cells.append({"method": method.name, "steps": method.steps, "epsilon": epsilon, "accuracies": shares})
    return {"n_source": n_source, "before": accuracies(task.weights[None], task.rows["test"]), "cells": cells}
