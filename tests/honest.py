"""Certificates that were issued honestly, of many kinds, with the models they speak of."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import expunge
from asking import asked
from deposit_problems import made as made_deposit
from expunge import Certificate
from expunge.certificate.rules import Check
from expunge.certificate.verify import checks, verify
from expunge.distance import Distance
from expunge.errors import Refused
from expunge.mechanism import certify, measure
from expunge.networks.module import unlearn_module
from expunge.networks.tangent import train_tangent, unlearn_tangent
from expunge.request.promise import Series

Rows = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Honest:
    """A certificate, the bytes of its published model (None of a whole network), and of the trained one."""

    certificate: Certificate
    model: bytes | None = None
    trained: bytes | None = None


def rows(rng: np.random.Generator, count: int, width: int, classes: int, shares: Any = None) -> Rows:
    labels = np.concatenate([np.arange(classes), rng.choice(classes, size=count - classes, p=shares)])
    features = rng.standard_t(4, size=(count, width)) + 1.5 * np.eye(classes, width)[labels]
    return features * rng.uniform(0.1, 1.0), labels


def few(given: Rows, start: int, stop: int) -> Rows:
    return given[0][start:stop], given[1][start:stop]


@cache
def problem(seed: int = 0, **options: Any) -> tuple[Any, Rows, Rows]:
    """A trained model, its source, and a surrogate with other proportions of classes."""
    rng = np.random.default_rng(seed)
    classes, width = int(rng.integers(2, 6)), int(rng.integers(1, 12))
    n, s = int(rng.integers(300, 900)), int(rng.integers(300, 900))
    source, shares = rows(rng, n, width, classes), rng.dirichlet(np.full(classes, 20.0))
    norm = float(rng.choice([0.5, 1.0, 3.0]))
    settings = {"l2": float(rng.choice([0.01, 0.1, 1.0])), "max_norm": norm, "force": True} | options
    return expunge.train(*source, **settings), source, rows(rng, s, width, classes, shares)


DISTANCES = ("same", "tv:0.01", "chi2:0.05", "kl:0.02")


def linear(seed: int = 0, **options: Any) -> Honest:
    """One deletion from a linear model, with the options given."""
    training = {name: options[name] for name in ("loss", "bias", "store") if name in options}
    kept = {"dtype": options["dtype"]} if "dtype" in options else {}
    made = result(seed, **options)
    return Honest(made.certificate, made.model.to_bytes(), problem(seed, **training, **kept)[0].to_bytes())


def result(seed: int = 0, **options: Any) -> expunge.Unlearned:
    """What one deletion from a linear model hands over."""
    training = {name: options.pop(name) for name in ("loss", "bias", "store") if name in options}
    kept = {"dtype": options["dtype"]} if "dtype" in options else {}
    model, source, standing = problem(seed, **training, **kept)
    settings: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-3, "distance": "same", "force": True} | options
    given = source if settings["distance"] == "source" else standing
    m = 1 + seed % 5
    return expunge.unlearn(model, few(source, 0, m), given, **settings)


def series(seed: int = 0, planned: int = 3, **options: Any) -> list[Honest]:
    """As many deletions one after another as there are three of them, or as are planned."""
    model, source, standing = problem(seed)
    past, found = None, []
    for position in range(1, min(planned, 3) + 1):
        place = Series(planned, position, past, None, None)
        settings = {"epsilon": 1.0, "delta": 1e-3, "distance": "same", "force": True} | options
        request = asked(model, few(source, 2 * position, 2 * position + 2), standing, series=place, **settings)
        made = certify(request, measure(request))
        past = request.next_past()
        found.append(Honest(made.certificate, made.model.to_bytes(), model.to_bytes()))
    return found


def kept(loss: str = "softmax", m: int = 1, *, copies: bool = False, noise: Any = None, **options: Any) -> Honest:
    """One deletion with a deposit, of the first rows or of copies in float32."""
    case = made_deposit(loss, **options)
    found = kept_result(loss, m, copies=copies, noise=noise, **options)
    return Honest(found.certificate, found.model.to_bytes(), case.deposit.model.to_bytes())


def kept_result(
    loss: str = "softmax", m: int = 1, *, copies: bool = False, noise: Any = None, **options: Any
) -> expunge.Unlearned:
    """What one deletion with a deposit hands over."""
    case = made_deposit(loss, **options)
    rows_given = case.X[:m].astype(np.float32) if copies else case.X[:m]
    settings: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5, "deposit": case.deposit, "force": True, "noise": noise}
    return expunge.unlearn(case.model, (rows_given, case.y[:m]), **settings)


@cache
def network(seed: int = 0) -> tuple[nn.Module, Any, Any, Any]:
    rng = np.random.default_rng(seed)
    module = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)).to(torch.float64).eval()
    with torch.no_grad():
        for value in module.parameters():
            value.copy_(torch.from_numpy(0.5 * rng.normal(size=tuple(value.shape))))
    sets = [tuple(map(torch.from_numpy, rows(rng, 200, 4, 3))) for _ in range(2)]
    return module, sets[0], sets[1], train_tangent(module, *sets[0], l2=0.05, max_norm=6.0)


def tangent(seed: int = 0, distance: str = "same") -> Honest:
    module, source, standing, model = network(seed)
    given = source if distance == "source" else standing
    forget = tuple(part[:3] for part in source)
    made = unlearn_tangent(module, model, forget, given, epsilon=1.0, delta=1e-3, distance=distance, force=True)
    return Honest(made.certificate, made.model.to_bytes(), model.to_bytes())


def whole(seed: int = 0) -> Honest:
    module, source, standing, _ = network(seed)
    forget = tuple(part[:3] for part in source)
    settings = {"n_source": 200, "l2": 0.05, "epsilon": 0.9, "delta": 1e-3, "distance": "tv:0.01", "force": True}
    return Honest(unlearn_module(module, forget, standing, **settings).certificate)


def drawn(seed: int) -> list[Honest]:
    """A random request; nothing where it is refused."""
    rng = np.random.default_rng(10_000 + seed)
    try:
        kind = rng.integers(0, 12)
        if kind == 0:
            planned = int(rng.choice([1, 3, 50]))
            return series(seed, planned, distance=str(rng.choice(DISTANCES)))
        if kind == 1:
            return [tangent(seed, str(rng.choice([*DISTANCES, "source"])))]
        if kind == 2:
            return [whole(seed)]
        return [linear(seed, **_options(rng))]
    except Refused:
        return []


def _options(rng: np.random.Generator) -> dict[str, Any]:
    options: dict[str, Any] = {"loss": str(rng.choice(["softmax", "ridge"])), "bias": bool(rng.integers(0, 2))}
    options |= {"dtype": str(rng.choice(["float64", "float32"])), "store": str(rng.choice(["float64", "float32"]))}
    options |= {"epsilon": float(10 ** rng.uniform(-2, 2)), "delta": float(10 ** rng.uniform(-8, -0.1))}
    kind = rng.integers(0, 8)
    if kind == 0:
        return options | {"distance": "source"}
    if kind == 1:
        sizes = str(rng.choice(["source", "surrogate"]))
        paper = {"bound": "paper", "constants": str(rng.choice(["paper", "derived"])), "sizes": sizes}
        return options | paper | {"distance": str(rng.choice(DISTANCES)), "epsilon": min(options["epsilon"], 0.9)}
    name, _, value = str(rng.choice(DISTANCES)).partition(":")
    between = "samples" if rng.integers(0, 4) == 0 and name != "same" else "populations"
    sampling = str(rng.choice(["seen", "strict"]))
    options["distance"] = Distance(name, float(value or 0.0), between, sampling=sampling)
    options["match_classes"] = bool(rng.integers(0, 3) == 0)
    return options | {"step": str(rng.choice(["converged", "newton", "balanced"]))}


def wrongly_rejected(given: Honest, folder: Path) -> list[Check]:
    """Checks that an honest certificate does not pass, with its model."""
    failed = [check for check in checks(given.certificate) if not check.passed]
    if not failed and given.model is not None:
        file = folder / "model.safetensors"
        file.write_bytes(given.model)
        verify(given.certificate, file)
    return failed


def campaign(count: int) -> Iterator[tuple[int, Honest, list[Check]]]:
    with tempfile.TemporaryDirectory() as name:
        for seed in range(count):
            for given in drawn(seed):
                yield seed, given, wrongly_rejected(given, Path(name))
