"""How far one `expunge unlearn` wanders: files it runs through, and how often a call goes from one room to another.

    python benchmarks/rooms.py [--pairs]

Calls of functions are counted, with sys.setprofile, of one command with a deposit and one with a surrogate, each after
it was run before, so that loading does not count; nor does `runtime/arrays.py`, which stands for numpy and torch.
`--pairs` lists the most frequent changes.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

import numpy as np

import expunge
from expunge.cli import main

PACKAGE = str(Path(expunge.__file__).parent) + "/"
ARRAYS = f"{PACKAGE}runtime/arrays.py"
PROMISE = "--model model.safetensors --forget forget.npz --epsilon 1 --delta 1e-3 --force --quiet --json"
COMMANDS = {
    "with a deposit": f"unlearn {PROMISE} --deposit model.deposit --out one",
    "with a surrogate": f"unlearn {PROMISE} --surrogate surrogate.npz --distance chi2:0.01 --out two",
}


def write_files() -> None:
    """Three classes in four dimensions, a model, and a deposit of its source."""
    labels = np.arange(800) % 3
    rows = 2.0 * np.eye(3, 4)[labels] + 0.3 * np.random.default_rng(0).normal(size=(800, 4))
    rows /= 1.001 * np.linalg.norm(rows, axis=1, keepdims=True)
    for name, part in (("source", slice(400)), ("surrogate", slice(400, 800)), ("forget", slice(3))):
        np.savez(f"{name}.npz", X=rows[part], y=labels[part])
    run("train --data source.npz --l2 0.01 --max-norm 1 --out model.safetensors --deposit model.deposit --quiet --json")


def run(line: str) -> None:
    """A command that says nothing."""
    with contextlib.redirect_stdout(None):
        main(line.split(), standalone_mode=False)


def calls_of(line: str) -> list[CodeType]:
    """The package's functions that a command calls, one after the other."""
    found: list[CodeType] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        own = code.co_filename.startswith(PACKAGE) and code.co_filename != ARRAYS
        if event == "call" and own and not code.co_name.startswith("<"):
            found.append(code)

    sys.setprofile(note)
    try:
        run(line)
    finally:
        sys.setprofile(None)
    return found


def place(code: CodeType) -> str:
    return code.co_filename.removeprefix(PACKAGE).removesuffix(".py")


def report(name: str, calls: list[CodeType], pairs: bool) -> None:
    changes = Counter(
        (f"{place(a)}:{a.co_name}", f"{place(b)}:{b.co_name}")
        for a, b in itertools.pairwise(calls)
        if place(a).split("/")[0] != place(b).split("/")[0]
    )
    files, functions = {place(code) for code in calls}, {(place(code), code.co_name) for code in calls}
    print(f"{name}: {len(functions)} functions, {len(files)} files, {changes.total()} changes of room")
    for (a, b), count in changes.most_common(60 if pairs else 0):
        print(f"{count:5}  {a} -> {b}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        write_files()
        for name, line in COMMANDS.items():
            run(f"{line}-before")  # what is loaded once does not count
            report(name, calls_of(line), "--pairs" in sys.argv)
