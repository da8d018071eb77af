"""What hostile files are made from: good ones of every kind, ways to change them, and the commands that read them."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from click.testing import CliRunner
from safetensors.torch import save_file

from encoders import net
from expunge.cli import main

MILLION = 10**6
LIMIT = 600 * MILLION  # bytes, given to the command as EXPUNGE_MAX_BYTES
DESK = "bad-desk"  # a copy of the good one, with another ledger
Make = Callable[[Path], bytes]


@dataclass(frozen=True)
class Case:
    """A file, and the command that reads it; `quick` where both take little time."""

    name: str
    file: str
    make: Make
    args: tuple[str, ...]
    quick: bool = True
    size: int = 0  # that the file is given, with nothing in the rest of it


# Good files ---------------------------------------------------------------------------------------------------------


def rows(count: int, width: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    labels = np.arange(count) % 3
    values = 2.0 * np.eye(3, width)[labels] + 0.3 * np.random.default_rng(seed).normal(size=(count, width))
    return values / np.linalg.norm(values, axis=1, keepdims=True), labels


def run(folder: Path, *args: str) -> None:
    done = CliRunner().invoke(main, [part.replace("@", f"{folder}/") for part in args])
    assert done.exit_code == 0, (args, done.output, done.exception)


def good(folder: Path) -> Path:
    """Good files of every kind; `five` have a feature too many for the model."""
    for name, (X, y) in {"source": rows(120, 4), "surrogate": rows(150, 4, 1), "five": rows(60, 5, 2)}.items():
        np.savez(folder / f"{name}.npz", X=X, y=y)
    np.savez(folder / "forget.npz", X=rows(120, 4)[0][:2], y=rows(120, 4)[1][:2])
    X, y = rows(60, 5, 2)
    table = pa.table({**{f"c{place}": X[:, place] for place in range(5)}, "y": y})
    pq.write_table(table, folder / "five.parquet")
    pq.write_table(table.set_column(5, "y", pa.array([f"kind {label}" for label in y])), folder / "words.parquet")
    pa.csv.write_csv(table, folder / "five.csv")
    save_file({"X": torch.tensor(X), "y": torch.tensor(y)}, folder / "five.safetensors")
    np.save(folder / "five-X.npy", X)
    np.savez(folder / "images.npz", X=np.zeros((6, 2, 5, 5), np.float32), y=np.arange(6) % 2)
    train = (
        "train",
        "--data",
        "@source.npz",
        "--l2",
        "0.1",
        "--max-norm",
        "1",
        "--out",
        "@model.safetensors",
        "--quiet",
    )
    promise = ("--epsilon", "5", "--delta", "1e-3", "--distance", "same")
    sets = ("--model", "@model.safetensors", "--forget", "@forget.npz", "--surrogate", "@surrogate.npz")
    run(folder, *train, "--deposit", "@model.deposit")
    run(folder, "unlearn", *sets, *promise, "--out", "@result", "--quiet")
    opening = ("--model", "@model.safetensors", "--surrogate", "@surrogate.npz", *promise, "--noise", "1", "--force")
    run(folder, "desk", "init", "@desk", *opening)
    (folder / "head.json").write_text(json.dumps({"size": 9, "hash": "0" * 64}))
    save_file(net().state_dict(), folder / "state.safetensors")
    return folder


# Commands -----------------------------------------------------------------------------------------------------------

PROMISE = ("--epsilon", "5", "--delta", "1e-3", "--distance", "same", "--out", "new", "--quiet")
READERS: dict[str, tuple[str, ...]] = {
    "forget": ("unlearn", "--model", "model.safetensors", "--forget", "FILE", "--surrogate", "surrogate.npz", *PROMISE),
    "surrogate": ("unlearn", "--model", "model.safetensors", "--forget", "forget.npz", "--surrogate", "FILE", *PROMISE),
    "model": ("unlearn", "--model", "FILE", "--forget", "five.npz", "--surrogate", "surrogate.npz", *PROMISE),
    "train": ("train", "--data", "FILE", "--l2", "0.1", "--max-norm", "1", "--out", "new.safetensors", "--quiet"),
    "member": ("member", "--deposit", "model.deposit", "--rows", "FILE"),
    "kept": ("member", "--deposit", "FILE", "--rows", "five.npz"),
    "deposit": ("deposit", "--model", "model.safetensors", "--data", "FILE", "--out", "new", "--quiet"),
    "images": ("embed", "--data", "FILE", "--encoder", "encoders:net", "--head", "fc", "--out", "new.npz", "--quiet"),
    "encoder": ("embed", "--data", "images.npz", "--encoder", "FILE", "--out", "new.npz", "--quiet"),
    "weights": (
        "embed", "--data", "images.npz", "--encoder", "encoders:net", "--weights", "FILE", "--out", "new.npz", "--quiet",
    ),
    "verify": ("verify", "FILE", "--model", "result/model.safetensors"),
    "dossier": ("verify", "result/statement.json", "--dossier", "FILE"),
    "desk": ("desk", "verify", "FILE", "--head", "head.json"),
}  # fmt: skip
OF_ROWS = ("forget", "surrogate", "member", "deposit")  # commands that read rows, in turn


def case(name: str, file: str, reader: str, make: Make, quick: bool = True, size: int = 0) -> Case:
    args = tuple(part.replace("FILE", file.split("/", maxsplit=1)[0]) for part in READERS[reader])
    return Case(f"{file.rsplit('.', maxsplit=1)[-1]}, {reader}: {name}", file, make, args, quick, size)


def place(folder: Path, given: Case) -> None:
    """Put the file where its command looks for it."""
    path = folder / given.file
    if path.name == DESK:
        shutil.copytree(folder / "desk", path)
        path /= "ledger.sqlite"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(given.make(folder))
    if given.size:
        os.truncate(path, given.size)


def clear(folder: Path, given: Case) -> None:
    path = folder / given.file.split("/")[0]
    shutil.rmtree(path) if path.is_dir() else path.unlink()


# Changes ------------------------------------------------------------------------------------------------------------


def changed(content: bytes, seed: int, first: int = 0, last: int | None = None) -> bytes:
    """A few bytes of a part changed, a piece cut out, doubled or moved, or the end cut off."""
    chance = random.Random(seed)
    whole, end = bytearray(content), len(content) if last is None else min(last, len(content))
    manner = chance.choice(["bytes", "bytes", "bytes", "cut", "piece", "twice", "numbers"])
    place = chance.randrange(first, end)
    if manner == "bytes":
        for _ in range(chance.choice([1, 2, 8])):
            whole[chance.randrange(first, end)] = chance.randrange(256)
    elif manner == "cut":
        whole = whole[: max(1, place)]
    elif manner == "piece":
        del whole[place : place + chance.randrange(1, 40)]
    elif manner == "twice":
        whole[place:place] = whole[place : place + chance.randrange(1, 200)]
    else:
        number = chance.choice([0, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1])
        whole[place : place + 8] = struct.pack("<Q", number)
    return bytes(whole)


def fuzzed(source: str, seed: int, first: int = 0, last: int | None = None) -> Make:
    """A good file, changed between two places; from the end where they are negative."""

    def make(folder: Path) -> bytes:
        content = (folder / source).read_bytes()
        begin = len(content) + first if first < 0 else first
        return changed(content, seed, max(0, begin), last)

    return make


def plain(content: bytes) -> Make:
    return lambda _: content
