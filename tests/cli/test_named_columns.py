"""Files with named columns on the command line: the right result or a refusal that names the columns."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from command_line import done, refused, run

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


@pytest.fixture(scope="module", params=["csv", "parquet"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any]]:
    """A trained model and its files, as csv or Parquet; the ending, and the result without anything shuffled."""
    end = request.param
    with contextlib.chdir(tmp_path_factory.mktemp(end)):
        write(SOURCE, f"source.{end}")
        write(SOURCE[:3], f"forget.{end}")
        write(SOURCE[3:], f"retain.{end}")
        write(SURROGATE, f"surrogate.{end}")
        write(TEST, f"test.{end}")
        done(f"train --data source.{end} --l2 0.05 --max-norm 1 --out model.safetensors --quiet")
        straight = done(f"{UNLEARN} --forget forget.{end} --surrogate surrogate.{end} --out straight")
        yield end, json.loads(Path(straight["dossier_file"]).read_text())


@pytest.mark.parametrize("which", ["forget", "surrogate"])
def test_a_shuffled_file_gives_the_same_bound(place: tuple[str, Any], which: str, tmp_path: Path) -> None:
    """Matched by position, this was exit 0 with a bound below the truth."""
    end, straight = place
    files = {name: f"{name}.{end}" for name in ("forget", "surrogate")}
    files[which] = write(reordered(SOURCE[:3] if which == "forget" else SURROGATE), str(tmp_path / f"other.{end}"))
    sets = " ".join(f"--{name} {path}" for name, path in files.items())
    done(f"{UNLEARN} {sets} --out {tmp_path / 'result'}")
    found = json.loads((tmp_path / "result" / "private" / "dossier.json").read_text())
    assert found["bound"]["total"] == pytest.approx(straight["bound"]["total"], rel=1e-6)
    planned = done(f"{PLAN} {sets}")["outlooks"][0]
    expected = done(f"{PLAN} --forget forget.{end} --surrogate surrogate.{end}")["outlooks"][0]
    assert planned["sigma"] == pytest.approx(expected["sigma"], rel=1e-6)


MISTAKES: dict[str, tuple[Callable[[pd.DataFrame], pd.DataFrame], str]] = {
    "missing": (lambda frame: frame.drop(columns="debt"), "no column 'debt'"),
    "extra": (lambda frame: frame.assign(shoe=1.0), "extra column 'shoe'"),
    "renamed": (lambda frame: frame.rename(columns={"debt": "Debt"}), "no column 'debt' and extra column 'Debt'"),
    "index": (lambda frame: frame.set_index(7 * np.arange(len(frame))), "row numbers that pandas writes"),
}


@pytest.mark.parametrize(
    ("which", "mistake"),
    [
        *(("forget", mistake) for mistake in MISTAKES),
        *(("surrogate", "missing"), ("test", "extra"), ("reference", "renamed"), ("desk", "index")),
    ],
)
def test_wrong_columns_are_refused_and_nothing_is_written(
    place: tuple[str, Any], which: str, mistake: str, tmp_path: Path
) -> None:
    (end, _), (spoil, said) = place, MISTAKES[mistake]
    part = {"forget": SOURCE[:3], "test": TEST, "reference": SOURCE[:150]}.get(which, SURROGATE)
    bad, out = str(tmp_path / f"bad.{end}"), tmp_path / "out"
    write(spoil(part), bad, index=mistake == "index")
    forget, surrogate = f"--forget forget.{end}", f"--surrogate surrogate.{end}"
    lines = {
        "forget": [f"{UNLEARN} --forget {bad} {surrogate} --out {out}", f"{PLAN} --forget {bad} {surrogate}"],
        "surrogate": [
            f"{UNLEARN} {forget} --surrogate {bad} --out {out}",
            f"{PLAN} {forget} --surrogate {bad}",
            f"distance --model model.safetensors --surrogate {bad} --out {out}.npz --quiet",
        ],
        "test": [
            f"evaluate --model model.safetensors --retain retain.{end} {forget} --test {bad} --out {out} --quiet "
            "--seeds 1 --models 0"
        ],
        "reference": [f"distance --model model.safetensors {surrogate} --reference {bad} --out {out}.npz --quiet"],
        "desk": [f"desk init {out} --surrogate {bad} {DESK}"],
    }
    for line in lines[which]:
        result = run(line)
        assert result.exit_code == 2, (line, result.stdout, result.stderr)
        assert said in result.stderr, line
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"bad.{end}"]


def test_an_index_column_is_not_trained_on(place: tuple[str, Any], tmp_path: Path) -> None:
    end, _ = place
    bad = write(MISTAKES["index"][0](SOURCE), str(tmp_path / f"bad.{end}"), index=True)
    refused(
        f"train --data {bad} --l2 0.05 --max-norm 1 --out {tmp_path / 'model.safetensors'} --quiet",
        "row numbers that pandas writes",
        "index=False",
    )


def test_a_desk_matches_requests_surrogate_and_test_rows(place: tuple[str, Any], tmp_path: Path) -> None:
    end, straight = place
    desk, files = tmp_path / "desk", {"forget": SOURCE[:3], "surrogate": SURROGATE, "test": TEST}
    names = {name: write(reordered(frame), str(tmp_path / f"{name}.{end}")) for name, frame in files.items()}
    done(f"desk init {desk} --surrogate {names['surrogate']} {DESK} --planned 1")
    first = done(f"desk request {desk} --forget {names['forget']} --reference a --json")
    assert done(f"desk request {desk} --forget forget.{end} --reference a --json") == first, "the same request"
    wrong = write(SOURCE[3:5].rename(columns={"age": "Age"}), str(tmp_path / f"wrong.{end}"))
    refused(f"desk request {desk} --forget {wrong} --reference c", "no column 'age'")
    refused(
        f"desk run {desk} --test {write(TEST.drop(columns='age'), str(tmp_path / f'less.{end}'))} --quiet",
        "no column 'age'",
    )
    done(f"desk run {desk} --test {names['test']} --quiet")
    found = json.loads(next(desk.glob("private/dossiers/*.json")).read_text())
    assert found["bound"]["inputs"]["solver_residual"]["value"] < 1e-6
    ours, theirs = (content["bound"]["inputs"]["change_mean"]["value"] for content in (found, straight))
    assert ours == pytest.approx(theirs, rel=1e-6)
    assert not any("position" in note for note in found["notes"])
