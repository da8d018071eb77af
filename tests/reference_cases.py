"""Small cases whose numbers are stored in `stored/reference/`, one function a case.

python tests/reference_cases.py --write [NAME ...]    stores what the code gives now

The library is called only in the functions named `run_...`, in `trained` and in `trained_network`; all else is data and
options.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn

import expunge
from asking import asked
from expunge.bounds import PaperConstants
from expunge.desk import Policy, accept, create_desk, models, run
from expunge.distance import Estimation, parse_distance
from expunge.mechanism import certify, measure
from expunge.networks.module import module_request, unlearn_module
from expunge.networks.tangent import tangent_request, train_tangent, unlearn_tangent
from expunge.request.promise import Promise, Series
from expunge.runtime.arrays import to_numpy

Json = dict[str, Any]
Rows = tuple[np.ndarray, np.ndarray]

STORE = Path(__file__).parent / "stored" / "reference"
DRIVER = Path(__file__).parent / "group_driver.py"
SEED = 5
BUDGET: Json = {"epsilon": 1.0, "delta": 1e-4, "force": True, "noise": "exact"}
SIZES = {"source": 600, "surrogate": 800}
WIDTH, CLASSES, FORGOTTEN = 6, 3, 4
VOLATILE = {"created", "software", "digest", "sha256", "encoder", "ledger_head", "nonce"}
CASES: dict[str, Callable[[], Json]] = {}


def case(function: Callable[[], Json]) -> Callable[[], Json]:
    """Names a case by its function, so that no list can forget one."""
    CASES[function.__name__] = function
    return function


# Inputs ---------------------------------------------------------------------------------------------------------


def rows(seed: int, count: int, width: int = WIDTH, shares: tuple[float, ...] | None = None) -> Rows:
    """Overlapping classes, most rows within norm 1 and some beyond, so that scaling has something to do."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(CLASSES, size=count, p=shares)
    return (rng.normal(size=(count, width)) + 2.0 * np.eye(CLASSES, width)[labels]) / 4.0, labels


def source() -> Rows:
    return rows(1, SIZES["source"])


def surrogate(shares: tuple[float, ...] | None = None) -> Rows:
    return rows(2, SIZES["surrogate"], shares=shares)


def first(given: Rows, start: int = 0, stop: int = FORGOTTEN) -> Rows:
    """The rows that are forgotten."""
    return given[0][start:stop], given[1][start:stop]


def stable(value: Any) -> Any:
    """A value as JSON holds it, without what differs from run to run."""
    if isinstance(value, dict):
        return {str(key): stable(part) for key, part in value.items() if key not in VOLATILE}
    if isinstance(value, (list, tuple)):
        return [stable(part) for part in value]
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return value.tolist()
    return value


# The library, one function a kind -------------------------------------------------------------------------------


@cache
def trained(**options: Any) -> Any:
    """A linear model; several cases start from the same one."""
    return expunge.train(*source(), **({"l2": 0.02, "max_norm": 1.0} | options))


def run_linear(model: Any, forget: Any, standing: Any, **options: Any) -> Json:
    """One deletion from a linear model: the step before noise, the certificate, the weights after noise."""
    request = asked(model, forget, standing, **(BUDGET | options))
    update = measure(request, seed=SEED).step.update
    made = expunge.unlearn(model, forget, standing, insecure_test_seed=SEED, **(BUDGET | options))
    return stable({"certificate": made.certificate.content, "update": update, "noised": made.model.matrix()})


def run_series(model: Any, forgets: list[Any], standing: Any, **options: Any) -> list[Json]:
    """Several deletions, each from where the last one stopped, as a desk does it."""
    found: list[Json] = []
    past, store = None, str(model.weight.dtype).removeprefix("torch.")
    for position, forget in enumerate(forgets, start=1):
        place = Series(len(forgets), position, past, store, None)
        request = asked(model, forget, standing, series=place, **(BUDGET | options))
        measured = measure(request, seed=SEED)
        made = certify(request, measured, insecure_test_seed=SEED)
        past = request.next_past()
        parts = {"certificate": made.certificate.content, "update": measured.step.update, "noised": made.model.matrix()}
        found.append(stable(parts | {"forgotten": past.gradients, "counts": list(past.counts)}))
    return found


def in_order(value: Any) -> Any:
    """Keys as a ledger keeps them."""
    return dict(sorted(value.items())) if isinstance(value, dict) else value


def run_desk(model: Any, forgets: list[Rows], standing: Rows, **options: Any) -> list[Json]:
    """Requests through a desk with a key that is known; what was published is left out all the same."""
    known = mock.patch("expunge.desk.create.new_key", return_value=bytes(32))
    with tempfile.TemporaryDirectory() as folder, mock.patch("secrets.randbits", return_value=SEED), known:
        policy = Policy(**{name: value for name, value in (BUDGET | options).items() if name != "noise"})
        desk = create_desk(Path(folder) / "desk", model, standing, policy, noise="request")
        for number, forget in enumerate(forgets):
            accept(desk, *forget, f"case {number}")
        outcome = run(desk, each=True)
        kept = ("n_rows", "n_left", "carried", "mu", "failures", "composition", "noise_share")
        found = []
        for made, facts in zip(outcome.published, models(desk), strict=True):
            content = made.certificate.content
            facts["carried"] = content["bound"]["inputs"]["training_residual"]["provenance"]
            facts["failures"] = facts["composition"]["failures"]
            found.append(stable({"certificate": content, "facts": {name: in_order(facts[name]) for name in kept}}))
        return found


@contextlib.contextmanager
def nothing_fits() -> Iterator[None]:
    """Streams are read anew in each pass, in short reads, with nothing kept between them."""
    with contextlib.ExitStack() as stack:
        for name, value in {
            "expunge.request.sets.fits": lambda *given: False,
            "expunge.rows.streams.HELD_SHARE": 0.0,
            "expunge.rows.streams.REMEMBERED_SHARE": 0.0,
            "expunge.rows.streams.StreamedRows._has_room": lambda self, n_bytes: False,
            "expunge.rows.streams.READ_BYTES": 300 * WIDTH * 8,
            "expunge.heads.rows.BLOCK_BYTES": 100 * WIDTH * 8,
        }.items():
            stack.enter_context(mock.patch(name, value))
        yield


def run_streamed(model: Any, forget: Rows, standing: Rows, **options: Any) -> Json:
    """As `run_linear`, from a stream that does not fit."""
    parts = [(standing[0][i : i + 100], standing[1][i : i + 100]) for i in range(0, len(standing[0]), 100)]
    with nothing_fits():
        return run_linear(model, forget, expunge.stream(lambda: iter(parts)), **options)


def run_conjugate(model: Any, forget: Rows, standing: Rows, **options: Any) -> Json:
    """As `run_linear`, by conjugate gradients, which small problems do not need."""
    with mock.patch("expunge.heads.linear.DENSE_PARAMETERS", 0):
        return run_linear(model, forget, standing, **options)


def run_group(model: Any, forget: Rows, standing: Rows, processes: int) -> Json:
    """A group of processes on this host; the options are the driver's own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "model.safetensors").write_bytes(model.to_bytes())
        np.savez(folder / "forget.npz", X=forget[0], y=forget[1])
        (folder / "shards").mkdir()
        for part, array in zip("Xy", standing, strict=True):
            np.save(folder / "shards" / f"{part}.npy", array)
        together([sys.executable, str(DRIVER), name, str(folder / "found.json")], processes)
        return stable(json.loads((folder / "found.json").read_text()))


def together(command: list[str], count: int) -> None:
    """The processes torchrun would start, without the seconds torchrun takes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            command,
            env={**os.environ, **shared, "PYTHONPATH": os.pathsep.join(sys.path), "RANK": str(k), "LOCAL_RANK": str(k)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for k in range(count)
    ]
    try:
        for process in started:
            _, errors = process.communicate(timeout=60)
            assert process.returncode == 0, errors
    finally:
        for process in started:
            process.kill()


@cache
def trained_network() -> Any:
    """Tangent weights of `network()`."""
    return train_tangent(network(), *images(3, 400), l2=0.05, max_norm=1.5)


def run_tangent(model: Any, forget: Any, standing: Any, distance: str) -> Json:
    """One deletion from a linearised network."""
    promise = Promise(distance=parse_distance(distance), **BUDGET)
    update = measure(tangent_request(network(), model, forget, standing, promise), seed=SEED).step.update
    made = unlearn_tangent(network(), model, forget, standing, distance=distance, insecure_test_seed=SEED, **BUDGET)
    return stable({"certificate": made.certificate.content, "update": update, "noised": made.model.weights})


def run_module(module: nn.Module, forget: Any, standing: Any, **options: Any) -> Json:
    """One step of a whole network."""
    told = {name: options[name] for name in ("l2", "n_source", "curvature", "damping")}
    promise = Promise(
        distance=parse_distance(options["distance"]),
        bound="paper",
        constants=PaperConstants.of_the_experiments(options["l2"]),
        **(BUDGET | {"epsilon": 0.9}),
    )
    step = measure(module_request(module, forget, standing, promise, **told)).step
    made = unlearn_module(module, forget, standing, insecure_test_seed=SEED, **(BUDGET | {"epsilon": 0.9} | options))
    noised = torch.cat([value.detach().flatten() for value in made.model.parameters()])
    return stable({"certificate": made.certificate.content, "update": step.update, "noised": noised})


# Linear models --------------------------------------------------------------------------------------------------


def usual(distance: Any, *, model: Any = None, **options: Any) -> Json:
    """A few rows forgotten with the usual sets."""
    return run_linear(model or trained(), first(source()), surrogate(), distance=distance, **options)


@case
def training() -> Json:
    kinds: dict[str, Json] = {"plain": {}, "bias": {"bias": True}, "ridge": {"loss": "ridge"}}
    kinds |= {"float32 rows": {"dtype": "float32"}, "float32 weights": {"store": "float32"}}
    made = {name: trained(**options) for name, options in kinds.items()}
    return {name: stable({"weights": m.matrix(), "residual": m.record.residual}) for name, m in made.items()}


@case
def same() -> Json:
    return usual("same")


@case
def total_variation() -> Json:
    return usual("tv:0.01")


@case
def chi_square() -> Json:
    return usual("chi2:0.05")


@case
def kullback_leibler() -> Json:
    return usual("kl:0.02")


@case
def source_itself() -> Json:
    return run_linear(trained(), first(source()), source(), distance="source")


@case
def strict_same() -> Json:
    return usual(parse_distance("same", sampling="strict"))


@case
def strict_chi_square() -> Json:
    return usual(parse_distance("chi2:0.05", sampling="strict"))


@case
def samples_chi_square() -> Json:
    return usual(parse_distance("chi2:0.05", between="samples"))


@case
def samples_kullback_leibler() -> Json:
    return usual(parse_distance("kl:0.02", between="samples"))


@case
def samples_total_variation() -> Json:
    return usual(parse_distance("tv:0.01", between="samples"))


@case
def rows_never_seen() -> Json:
    return usual("chi2:0.05", model=trained(max_norm=3.0))


@case
def step_newton() -> Json:
    return usual("chi2:0.05", step="newton")


@case
def step_balanced() -> Json:
    return usual("tv:0.003", step="balanced")


@case
def step_balanced_to_none() -> Json:
    return usual("tv:0.05", step="balanced")


@case
def paper_derived() -> Json:
    return usual("tv:0.01", bound="paper", epsilon=0.9, constants="derived")


@case
def paper_own() -> Json:
    return usual("kl:0.02", bound="paper", epsilon=0.9, constants="paper", sizes="surrogate")


@case
def ridge() -> Json:
    return usual("chi2:0.05", model=trained(loss="ridge"))


@case
def bias() -> Json:
    return usual("chi2:0.05", model=trained(bias=True))


@case
def float32_surrogate() -> Json:
    return usual("chi2:0.05", dtype="float32")


@case
def float32_source_and_weights() -> Json:
    return usual("same", model=trained(dtype="float32", store="float32"), dtype="float32")


@case
def declared_facts() -> Json:
    facts = {"n_source": 600, "l2": 0.02, "loss": "softmax", "max_norm": 1.0, "training_residual": 1e-7}
    return run_linear(to_numpy(trained().weight), first(source()), surrogate()[0], distance="chi2:0.05", **facts)


@case
def match_classes() -> Json:
    standing = surrogate((0.6, 0.3, 0.1))
    return run_linear(trained(), first(source()), standing, distance="chi2:0.05", match_classes=True)


@case
def forget_class() -> Json:
    X, y = source()
    return run_linear(trained(), (X[y == 1], y[y == 1]), surrogate(), distance="same", epsilon=50.0)


@case
def conjugate() -> Json:
    return run_conjugate(trained(), first(source()), surrogate(), distance="chi2:0.05")


@case
def series() -> Json:
    forgets = [first(source(), 4 * k, 4 * k + 4) for k in range(3)]
    return {"steps": run_series(trained(), forgets, surrogate(), distance="chi2:0.05")}


@case
def desk() -> Json:
    forgets = [first(source(), 0, 2), first(source(), 2, 5)]
    return {"models": run_desk(trained(), forgets, surrogate(), distance="same", planned=4, epsilon=0.5)}


@case
def streamed() -> Json:
    return run_streamed(trained(), first(source()), surrogate(), distance="chi2:0.05")


@case
def streamed_matched() -> Json:
    standing = surrogate((0.6, 0.3, 0.1))
    return run_streamed(trained(bias=True), first(source()), standing, distance="kl:0.02", match_classes=True)


@case
def group() -> Json:
    return run_group(trained(), first(source()), surrogate(), 2)


@case
def estimated_means() -> Json:
    return usual(Estimation(route="means", chains=200, steps=300, epochs=3, seed=3, step_size=0.05))


@case
def estimated_kl() -> Json:
    return usual(Estimation(route="kl", chains=200, steps=300, epochs=3, seed=3, step_size=0.05))


# Networks -------------------------------------------------------------------------------------------------------


def network() -> nn.Module:
    """Two layers with weights from numpy, which gives the same ones with any version of torch."""
    rng = np.random.default_rng(7)
    module = nn.Sequential(nn.Linear(WIDTH, 5), nn.Tanh(), nn.Linear(5, CLASSES)).double().eval()
    with torch.no_grad():
        for value in module.parameters():
            value.copy_(torch.from_numpy(0.5 * rng.normal(size=tuple(value.shape))))
    return module


def images(seed: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    features, labels = rows(seed, count)
    return torch.from_numpy(features), torch.from_numpy(labels)


def tangent(distance: str, standing: Any) -> Json:
    forget = tuple(part[:FORGOTTEN] for part in images(3, 400))
    return run_tangent(trained_network(), forget, standing, distance)


@case
def tangent_training() -> Json:
    return stable({"weights": trained_network().weights, "residual": trained_network().record.residual})


@case
def tangent_same() -> Json:
    return tangent("same", images(4, 400))


@case
def tangent_chi_square() -> Json:
    return tangent("chi2:0.05", images(4, 400))


@case
def tangent_source() -> Json:
    return tangent("source", images(3, 400))


def whole(curvature: str, damping: float) -> Json:
    forget = tuple(part[:FORGOTTEN] for part in images(3, 400))
    options = {"n_source": 400, "l2": 0.05, "distance": "tv:0.01", "curvature": curvature, "damping": damping}
    return run_module(network(), forget, images(4, 400), **options)


@case
def whole_gauss_newton() -> Json:
    return whole("gauss-newton", 0.1)


@case
def whole_hessian() -> Json:
    return whole("hessian", 0.01)


# The store ------------------------------------------------------------------------------------------------------


def found(name: str) -> Json:
    """What the code gives now, on one thread as when it was stored."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return json.loads(json.dumps(CASES[name]()))
    finally:
        torch.set_num_threads(threads)


def arithmetic() -> str:
    """How this CPU and its libraries add up, from torch alone: another order of sums gives another digest."""
    given = torch.from_numpy(np.random.default_rng(0).normal(size=(700, 12)))
    square, single = given.T @ given, given.float()
    parts = [square, torch.linalg.cholesky(square), (given @ given[:5].T).softmax(dim=1), given.square().sum(dim=0)]
    parts += [given.norm(), single.T @ single, torch.tanh(given)]
    return hashlib.sha256(b"".join(to_numpy(part.contiguous()).tobytes() for part in parts)).hexdigest()


def as_when_stored() -> bool:
    """Whether sums are added up here as on the machine that wrote the store."""
    return arithmetic() == (STORE / "arithmetic.txt").read_text().strip()


def stored(name: str) -> Json:
    return json.loads((STORE / f"{name}.json").read_text())


def write(names: list[str]) -> None:
    """Store what the code gives now; JSON writes floats so that they come back as they were."""
    STORE.mkdir(parents=True, exist_ok=True)
    (STORE / "arithmetic.txt").write_text(arithmetic() + "\n")
    for name in names or CASES:
        (STORE / f"{name}.json").write_text(json.dumps(found(name), indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] != ["--write"]:
        sys.exit(__doc__)
    write(sys.argv[2:])
