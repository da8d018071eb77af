"""Files with named columns on the command line: the right result or a refusal that names the columns."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from command_line import done, refused

pytestmark = pytest.mark.usefixtures("one_thread")

NAMES = ["age", "hours", "debt", "rent"]
SHUFFLED = ["rent", "age", "debt", "hours"]
UNLEARN = "unlearn --model model.safetensors --epsilon 5 --delta 1e-3 --distance same --quiet --json --force"
PLAN = "plan --model model.safetensors --delta 1e-3 --epsilon 1 --distance same --quiet --json"
DESK = "--model model.safetensors --epsilon 5 --delta 1e-3 --distance same --force"


def table(count: int, seed: int) -> pd.DataFrame:
    labels = np.arange(count) % 3
    noise = np.random.default_rng(seed).normal(size=(count, 4)) * np.array([0.3, 0.1, 0.05, 0.2])
    features = np.eye(3, 4)[labels] * np.array([1.0, 0.7, 0.4, 0.0]) + noise
    return pd.DataFrame(features / (2.0 * np.linalg.norm(features, axis=1).max()), columns=NAMES).assign(y=labels)


SOURCE, SURROGATE, TEST = table(240, 1), table(300, 2), table(60, 3)


def write(frame: pd.DataFrame, name: str, *, index: bool = False) -> str:
    frame.to_csv(name, index=index) if name.endswith(".csv") else frame.to_parquet(name, index=index)
    return name


def reordered(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[["y", *SHUFFLED]]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A trained model and its files, some csv and some Parquet; the result without anything shuffled."""
    with contextlib.chdir(tmp_path_factory.mktemp("named")):
        parts = {"source.csv": SOURCE, "forget.csv": SOURCE[:3], "retain.csv": SOURCE[3:], "test.csv": TEST}
        for name, frame in (parts | {"surrogate.parquet": SURROGATE}).items():
            write(frame, name)
        done("train --data source.csv --l2 0.05 --max-norm 1 --out model.safetensors --quiet")
        made = done(f"{UNLEARN} --forget forget.csv --surrogate surrogate.parquet --out straight")
        yield json.loads(Path(made["dossier_file"]).read_text())


def test_shuffled_files_give_the_same_bound(straight: Any, tmp_path: Path) -> None:
    """Matched by position, this was exit 0 with a bound below the truth."""
    forget = write(reordered(SOURCE[:3]), str(tmp_path / "forget.parquet"))
    surrogate = write(reordered(SURROGATE), str(tmp_path / "surrogate.csv"))
    sets = f"--forget {forget} --surrogate {surrogate}"
    made = done(f"{UNLEARN} {sets} --out {tmp_path / 'result'}")
    total = json.loads(Path(made["dossier_file"]).read_text())["bound"]["total"]
    assert total == pytest.approx(straight["bound"]["total"], rel=1e-6)
    planned = done(f"{PLAN} {sets}")["outlooks"][0]
    expected = done(f"{PLAN} --forget forget.csv --surrogate surrogate.parquet")["outlooks"][0]
    assert planned["sigma"] == pytest.approx(expected["sigma"], rel=1e-6)


SETS = "--forget forget.csv --surrogate surrogate.parquet"
DISTANCE = "distance --model model.safetensors --surrogate"
EVALUATE = "evaluate --model model.safetensors --retain retain.csv --forget forget.csv"
MISTAKES: dict[str, tuple[Callable[[pd.DataFrame], pd.DataFrame], str, tuple[str, ...]]] = {
    "missing": (
        lambda frame: frame.drop(columns="debt"),
        "no column 'debt'",
        (
            f"{UNLEARN} --forget BAD --surrogate surrogate.parquet --out OUT",
            f"{UNLEARN} --forget forget.csv --surrogate BAD --out OUT",
            f"{PLAN} --forget forget.csv --surrogate BAD",
            f"{DISTANCE} BAD --out OUT.npz --quiet",
        ),
    ),
    "extra": (
        lambda frame: frame.assign(shoe=1.0),
        "extra column 'shoe'",
        (f"{EVALUATE} --test BAD --out OUT --quiet --seeds 1 --models 0", f"desk init OUT --surrogate BAD {DESK}"),
    ),
    "renamed": (
        lambda frame: frame.rename(columns={"debt": "Debt"}),
        "no column 'debt' and extra column 'Debt'",
        (f"{DISTANCE} surrogate.parquet --reference BAD --out OUT.npz --quiet",),
    ),
    "index": (
        lambda frame: frame.set_index(7 * np.arange(len(frame))),
        "row numbers that pandas writes",
        (
            f"desk init OUT --surrogate BAD {DESK}",
            f"{PLAN} --forget BAD --surrogate surrogate.parquet",
            "train --data BAD --l2 0.05 --max-norm 1 --out OUT.safetensors --quiet",
        ),
    ),
}


@pytest.mark.usefixtures("straight")
@pytest.mark.parametrize("mistake", MISTAKES)
def test_wrong_columns_are_refused_and_nothing_is_written(mistake: str, tmp_path: Path) -> None:
    spoil, said, lines = MISTAKES[mistake]
    for end, line in itertools.product(("csv", "parquet"), lines):
        bad = write(spoil(SOURCE[:150]), str(tmp_path / f"bad.{end}"), index=mistake == "index")
        refused(line.replace("BAD", bad).replace("OUT", str(tmp_path / "out")), said)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.csv", "bad.parquet"]


def test_a_desk_matches_requests_and_surrogate(straight: Any, tmp_path: Path) -> None:
    desk, files = tmp_path / "desk", {"forget": SOURCE[:3], "surrogate": SURROGATE}
    names = {name: write(reordered(frame), str(tmp_path / f"{name}.csv")) for name, frame in files.items()}
    done(f"desk init {desk} --surrogate {names['surrogate']} {DESK} --planned 1")
    first = done(f"desk request {desk} --forget {names['forget']} --reference a --json")
    assert done(f"desk request {desk} --forget forget.csv --reference a --json") == first, "the same request"
    wrong = write(SOURCE[3:5].rename(columns={"age": "Age"}), str(tmp_path / "wrong.csv"))
    refused(f"desk request {desk} --forget {wrong} --reference c", "no column 'age'")
    done(f"desk run {desk} --quiet")
    found = json.loads(next(desk.glob("private/dossiers/*.json")).read_text())
    ours, theirs = (content["bound"]["inputs"]["change_mean"]["value"] for content in (found, straight))
    assert ours == pytest.approx(theirs, rel=1e-6)
