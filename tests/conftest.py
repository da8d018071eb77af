"""Fixtures shared by the tests of files, bad input and the command line."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import signal
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors import safe_open
from safetensors.torch import save_file
from threadpoolctl import threadpool_limits

from expunge.certificate.dossier import digest_of
from expunge.cli import main
from three_classes import three_classes

PROMISE = ["--epsilon", "5", "--delta", "1e-3", "--distance", "same"]
SETTINGS = ["--l2", "0.1", "--max-norm", "1"]
FACTS = ["--n-source", "120", "--l2", "0.1", "--max-norm", "1", "--loss", "softmax", "--training-residual", "1e-9"]


def _rows(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Three well separated classes in four dimensions, unit norm."""
    labels = np.arange(count) % 3
    features = 2.0 * np.eye(3, 4)[labels] + 0.3 * np.random.default_rng(seed).normal(size=(count, 4))
    return features / np.linalg.norm(features, axis=1, keepdims=True), labels


class NoChance:
    """What coarse preparation draws, standing still: numbers are rounded to the nearest, counts need no more."""

    def randrange(self, below: int) -> int:
        return 0

    def randint(self, low: int, high: int) -> int:
        return 0

    def random(self) -> float:
        return 0.5


@pytest.fixture(autouse=True)
def chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are prepared the same each time, except where chance is what is tested."""
    monkeypatch.setattr("expunge.rows.preparation._chance", NoChance())


@pytest.fixture(autouse=True, scope="session")
def few_trials() -> Iterator[None]:
    """Of 24 people who are to leave a deposit while it is made four do, except in games: that is most of the time."""
    with patch("expunge.deposit.forecast.GROUPS", ((10**9, 4),)):
        yield


def _snapshot(folder: Path) -> dict[str, str]:
    """Every path below the folder, hidden ones too, with the digest of what it holds."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink() or not path.is_file():
            found[name] = "link" if path.is_symlink() else "folder"
        else:
            with contextlib.suppress(PermissionError):
                found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
            found.setdefault(name, "unreadable")
    return found


@dataclass(frozen=True)
class Ran:
    """What one run of the command line did."""

    status: int
    out: str
    err: str
    crash: BaseException | None
    before: dict[str, str]
    after: dict[str, str]

    @property
    def message(self) -> str:
        """What is on standard error, less the marker of its kind."""
        return self.err.strip().removeprefix("error: ").removeprefix("refused: ")


class Box:
    """A folder with good files to start from, and ways to make bad ones."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.X, self.y = _rows(120, 1)
        self.S, self.t = _rows(150, 2)

    def run(self, args: list[str], env: Mapping[str, str] | None = None) -> Ran:
        """The command line, in this folder."""
        before = _snapshot(self.folder)
        with contextlib.chdir(self.folder):
            result = CliRunner().invoke(main, args, env=dict(env or {}))
        crash = None if isinstance(result.exception, SystemExit) else result.exception
        return Ran(result.exit_code, result.stdout, result.stderr, crash, before, _snapshot(self.folder))

    # Command lines that would work, were it not for what is given -------------------------------------------------

    def unlearn(
        self,
        *options: str,
        forget: str = "forget.npz",
        surrogate: str = "surrogate.npz",
        model: str = "model.safetensors",
    ) -> list[str]:
        files = ["--model", model, "--forget", forget, "--surrogate", surrogate]
        return ["unlearn", *files, *PROMISE, "--out", "new", "--quiet", *options]

    def bare(self, *options: str, model: str = "bare.safetensors", **files: str) -> list[str]:
        """Unlearning with a model that has no record."""
        return self.unlearn(*FACTS, *options, model=model, **files)

    def train(self, *options: str, data: str = "source.npz") -> list[str]:
        return ["train", "--data", data, *SETTINGS, "--out", "new.safetensors", "--quiet", *options]

    def verify(self, certificate: str, model: str | None = None) -> list[str]:
        return ["verify", certificate, *(() if model is None else ("--model", model))]

    # Files --------------------------------------------------------------------------------------------------------

    def write(self, name: str, content: str | bytes) -> str:
        (self.folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
        return name

    def read(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    def npz(self, X: Any, y: Any, name: str = "bad.npz", save: Callable[..., None] = np.savez) -> str:
        save(self.folder / name, X=X, y=y)
        return name

    def forge_safetensors(
        self,
        header: object = None,
        *,
        length: int | None = None,
        name: str = "bad.safetensors",
    ) -> str:
        """A safetensors file of two rows whose header says what it is told to say."""
        good = {
            "X": {"dtype": "F64", "shape": [2, 4], "data_offsets": [0, 64]},
            "y": {"dtype": "I64", "shape": [2], "data_offsets": [64, 80]},
        }
        described = good if header is None else header
        text = described if isinstance(described, bytes) else json.dumps(described).encode()
        data = self.X[:2].tobytes() + self.y[:2].tobytes()
        return self.write(name, struct.pack("<Q", len(text) if length is None else length) + text + data)

    @property
    def record(self) -> dict[str, Any]:
        """The good model's training record."""
        with safe_open(self.folder / "model.safetensors", "pt") as file:
            return json.loads(file.metadata()["expunge"])

    @property
    def weight(self) -> torch.Tensor:
        with safe_open(self.folder / "model.safetensors", "pt") as file:
            return file.get_tensor("weight")

    def model(self, record: str | None = None, name: str = "bad.safetensors", **tensors: torch.Tensor) -> str:
        """A model file with these tensors and this text for a record."""
        metadata = None if record is None else {"expunge": record}
        save_file(tensors or {"weight": self.weight}, self.folder / name, metadata=metadata)
        return name

    def recorded(self, **changes: object) -> str:
        """The good model with some facts of its record changed."""
        return self.model(json.dumps({**self.record, **changes}))

    def certificate(
        self, change: Callable[[dict[str, Any]], object], *, sealed: bool = False, name: str = "bad.json"
    ) -> str:
        """The good dossier, changed; `sealed` computes its digest anew, as a forger would."""
        content = json.loads(self.read("result/private/dossier.json"))
        change(content)
        if sealed:
            content["digest"] = digest_of(content)
        return self.write(name, json.dumps(content))


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Small problems are slower on many threads than on one."""
    with threadpool_limits(1):  # numpy's and torch's
        yield


@pytest.fixture(scope="session")
def parts() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Source, surrogate and rows to forget, of three classes that a linear model tells apart roughly."""
    X, y = three_classes()
    return {"source": (X[:300], y[:300]), "surrogate": (X[300:], y[300:]), "forget": (X[:4], y[:4])}


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a source, a surrogate, rows to forget, a model with a record, one without, and a result."""
    box = Box(tmp_path_factory.mktemp("workshop"))
    box.npz(box.X, box.y, "source.npz")
    box.npz(box.S, box.t, "surrogate.npz")
    box.npz(box.X[:2], box.y[:2], "forget.npz")
    for args in (box.train("--out", "model.safetensors"), box.unlearn("--out", "result")):
        ran = box.run(args)
        assert ran.status == 0, ran.err
    box.model(name="bare.safetensors", weight=box.weight)
    return box.folder


@pytest.fixture(scope="session")
def make_box(workshop: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Box]:
    """Boxes, each with its own copy of the good files."""

    def make() -> Box:
        folder = tmp_path_factory.mktemp("box")
        shutil.copytree(workshop, folder, dirs_exist_ok=True)
        return Box(folder)

    return make


@pytest.fixture
def box(make_box: Callable[[], Box]) -> Box:
    return make_box()


@pytest.fixture(scope="session")
def snapshot() -> Callable[[Path], dict[str, str]]:
    return _snapshot


@pytest.fixture(scope="session")
def within() -> Callable[[float], contextlib.AbstractContextManager[None]]:
    """A limit in seconds, so that what never ends fails instead."""

    @contextlib.contextmanager
    def limit(seconds: float) -> Iterator[None]:
        def stop(number: int, frame: object) -> None:
            raise AssertionError(f"still running after {seconds} s")

        previous = signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, previous)

    return limit
