"""From an ordinary table to a verified certificate, with short commands only: what docs/tutorial-tables.md does."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import Result

import command_line
import expunge
from examples.tables import KEPT, PAGE, run_part, text_of
from ordinary_tables import HEADER, credit_lines, write_credit


def run(*line: object) -> Result:
    return command_line.run("", *line)


def told(*line: object) -> dict:
    return command_line.done("", *line, "--json")


@pytest.fixture(scope="module")
def credit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table, a later one, rows to forget, a model and its deposit."""
    folder = tmp_path_factory.mktemp("credit")
    lines = credit_lines(600)
    write_credit(folder / "credit.csv", lines[:400])
    write_credit(folder / "test.csv", lines[400:])
    write_credit(folder / "forget.csv", lines[3:6])
    done = run(
        "train", "--data", folder / "credit.csv", "--label", "pays", "--out", folder / "m.safetensors",
        "--deposit", folder / "m.deposit", "--quiet",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    (folder / "printed.txt").write_text(done.output)
    return folder


def test_every_decision_is_printed_and_kept_as_data(credit: Path) -> None:
    printed = (credit / "printed.txt").read_text()
    for words in (
        "label: pays",
        "standardised: age, income, debts",
        "median: age",
        "job (5 values, rare",
        "since (dates)",
    ):
        assert words in printed
    record = expunge.LinearModel.load(credit / "m.safetensors").record
    assert record is not None
    assert record.l2 == 2.0 / 400
    assert record.table is not None
    assert [each["column"] for each in record.table["columns"]] == ["age", "income", "job", "debts"]
    assert b"pickle" not in (credit / "m.safetensors").read_bytes()


def test_from_the_raw_file_to_a_verified_certificate_and_its_score(credit: Path, tmp_path: Path) -> None:
    assert told("member", "--deposit", credit / "m.deposit", "--rows", credit / "forget.csv")["members"] == 3
    result = tmp_path / "result"
    made = told(
        "unlearn", "--model", credit / "m.safetensors", "--deposit", credit / "m.deposit", "--forget",
        credit / "forget.csv", "--epsilon", 1, "--delta", 1e-4, "--out", result, "--quiet",
    )  # fmt: skip
    assert made["statement"]["status"] == "proven"
    assert made["statement"]["model"]["preparation"] == "learnt from the source, coarse"
    assert "a practice and no proof" in made["statement"]["limits"][-1]
    assert "made coarse" in made["statement"]["guarantee"]
    verified = run(
        "verify", result / "statement.json", "--model", result / "model.safetensors", "--dossier",
        result / "private/dossier.json", "--deposit-after", result / "private/model.deposit", "--deposit",
        credit / "m.deposit", "--forget", credit / "forget.csv",
    )  # fmt: skip
    assert verified.exit_code == 0, verified.output
    scores = told(
        "score", "--model", result / "model.safetensors", "--before", credit / "m.safetensors", "--data",
        credit / "test.csv",
    )  # fmt: skip
    assert scores["after"]["rows"] == 200
    assert scores["after"]["balanced"] > 0.7
    assert abs(scores["after"]["accuracy"] - scores["before"]["accuracy"]) < 0.02
    gone = run("member", "--deposit", result / "private/model.deposit", "--rows", credit / "forget.csv")
    assert gone.exit_code == 1
    screen = run("score", "--model", result / "model.safetensors", "--data", credit / "test.csv").output
    for words in ("balanced accuracy", "guessing", "class yes", "200 rows"):
        assert words in screen


def test_predictions_need_no_label_and_are_the_model_s(credit: Path, tmp_path: Path) -> None:
    lines = [line.rsplit(";", 1)[0] for line in (credit / "test.csv").read_text().splitlines()]
    (tmp_path / "new.csv").write_text("\n".join(lines) + "\n")
    done = told(
        "predict", "--model", credit / "m.safetensors", "--data", tmp_path / "new.csv", "--out", tmp_path / "p.csv"
    )
    assert done["rows"] == 200
    read = list(csv.reader((tmp_path / "p.csv").open()))
    frame = pd.read_csv(
        credit / "test.csv", sep=";", decimal=",", na_values=["?"], dtype={"job": str}, keep_default_na=True
    )
    model = expunge.LinearModel.load(credit / "m.safetensors")
    assert [line[1] for line in read[1:]] == model.predict(frame.drop(columns="pays")).tolist()
    again = run(
        "predict", "--model", credit / "m.safetensors", "--data", tmp_path / "new.csv", "--out", tmp_path / "p.csv"
    )
    assert again.exit_code == 2
    assert "exists already" in again.output


def test_the_deposit_can_be_made_later_and_a_desk_takes_raw_rows(credit: Path, tmp_path: Path) -> None:
    late = tmp_path / "late.deposit"
    assert (
        run(
            "deposit", "--model", credit / "m.safetensors", "--data", credit / "credit.csv", "--out", late, "--quiet"
        ).exit_code
        == 0
    )
    assert run("desk", "init", tmp_path / "desk", "--deposit", late, "--epsilon", 1, "--delta", 1e-4).exit_code == 0
    asked = run("desk", "request", tmp_path / "desk", "--forget", credit / "forget.csv", "--reference", "case-1")
    assert asked.exit_code == 0, asked.output
    ran = run("desk", "run", tmp_path / "desk", "--test", credit / "test.csv", "--quiet")
    assert ran.exit_code == 0, ran.output


def test_a_plan_and_an_evaluation_read_raw_tables_too(credit: Path, tmp_path: Path) -> None:
    planned = run(
        "plan", "--model", credit / "m.safetensors", "--deposit", credit / "m.deposit", "--forget", credit / "forget.csv",
        "--delta", 1e-4, "--test", credit / "test.csv", "--quiet",
    )  # fmt: skip
    assert planned.exit_code == 0, planned.output
    lines = (credit / "credit.csv").read_text().splitlines()
    (tmp_path / "retain.csv").write_text("\n".join([HEADER, *lines[1:4], *lines[7:]]) + "\n")
    done = run(
        "evaluate", "--model", credit / "m.safetensors", "--retain", tmp_path / "retain.csv", "--forget",
        credit / "forget.csv", "--test", credit / "test.csv", "--epsilon", 1, "--delta", 1e-4, "--distance", "same",
        "--seeds", 1, "--quiet", "--out", tmp_path / "evaluation",
    )  # fmt: skip
    assert done.exit_code == 0, done.output


def test_a_file_without_a_header_is_trained_on_and_later_files_follow(tmp_path: Path) -> None:
    lines = [line.replace(";", ",").replace(",,", ",x,") for line in _plain_lines()]
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))
    (tmp_path / "f.csv").write_text("\n".join(lines[:2]) + "\n")
    done = run(
        "train", "--data", tmp_path / "a.csv.gz", "--no-header", "--label", 3, "--out", tmp_path / "m.safetensors",
        "--deposit", tmp_path / "m.deposit", "--quiet",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert told("member", "--deposit", tmp_path / "m.deposit", "--rows", tmp_path / "f.csv")["members"] == 2
    named = run(
        "train", "--data", tmp_path / "a.csv.gz", "--no-header", "--names", "number,age,job,pays", "--label", "pays",
        "--columns", "age", "--out", tmp_path / "n.safetensors", "--quiet",
    )  # fmt: skip
    assert named.exit_code == 0, named.output
    assert "standardised: age" in named.output


def _plain_lines() -> list[str]:
    rng = np.random.default_rng(2)
    return [
        f"{place};{rng.integers(18, 80)};{rng.choice(['a', 'b'])};{rng.choice(['yes', 'no'])}" for place in range(120)
    ]


def test_ready_numbers_are_trained_on_as_before(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(80, 3)), rng.integers(0, 2, 80)
    pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=y).to_csv(tmp_path / "t.csv", index=False)
    done = run("train", "--data", tmp_path / "t.csv", "--l2", 0.1, "--max-norm", 4, "--out", tmp_path / "m.safetensors")
    assert done.exit_code == 0, done.output
    record = expunge.LinearModel.load(tmp_path / "m.safetensors").record
    assert record is not None
    assert (record.table, record.preparation, record.bias, record.features) == (None, None, False, ("a", "b", "c"))
    bare = run("train", "--data", tmp_path / "t.csv", "--prepare", "none", "--out", tmp_path / "n.safetensors")
    assert bare.exit_code == 2
    assert "no l2 and no max_norm" in bare.output


def test_what_is_learnt_elsewhere_is_said_in_the_certificate(credit: Path, tmp_path: Path) -> None:
    write_credit(tmp_path / "public.csv", credit_lines(300, 7))
    done = run(
        "train", "--data", credit / "credit.csv", "--label", "pays", "--prepare-from", tmp_path / "public.csv",
        "--out", tmp_path / "m.safetensors", "--deposit", tmp_path / "m.deposit", "--quiet",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    made = told(
        "unlearn", "--model", tmp_path / "m.safetensors", "--deposit", tmp_path / "m.deposit", "--forget",
        credit / "forget.csv", "--epsilon", 1, "--delta", 1e-4, "--out", tmp_path / "r", "--quiet",
    )  # fmt: skip
    assert made["statement"]["model"]["preparation"] == "learnt elsewhere"
    assert "from no row of the source" in made["statement"]["limits"][-1]


@pytest.mark.slow
def test_the_third_table_of_the_tutorial_runs_as_it_stands_there(tmp_path: Path) -> None:
    done = run_part("credit", tmp_path)
    assert done["steps"]["verify"]["printed"].startswith("verdict: consistent, not authenticated")
    assert done["scores"]["after"]["balanced"] > 0.75
    assert done["steps"]["look"]["printed"].startswith('"row","predicted","probability of no"')
    longest = max(len(step["command"]) for step in done["steps"].values())
    assert longest < 250, "no longer than a command of the README"


def test_the_tutorial_is_what_was_kept() -> None:
    assert PAGE.read_text() == text_of(json.loads(KEPT.read_text()))


def test_a_free_bias_needs_a_deposit_and_leaves_through_it(credit: Path, tmp_path: Path) -> None:
    line = ("train", "--data", credit / "credit.csv", "--label", "pays", "--out", tmp_path / "f.safetensors")
    for more, words in (((), "without --deposit"), (("--no-bias", "--deposit", tmp_path / "d"), "with --no-bias")):
        refused = run(*line, "--free-bias", *more)
        assert refused.exit_code == 2
        assert words in refused.output
    assert list(tmp_path.iterdir()) == []
    done = run(*line, "--free-bias", "--deposit", tmp_path / "f.deposit", "--quiet")
    assert done.exit_code == 0, done.output
    assert "a free bias" in done.output
    made = told(
        "unlearn", "--model", tmp_path / "f.safetensors", "--deposit", tmp_path / "f.deposit", "--forget",
        credit / "forget.csv", "--epsilon", 1, "--delta", 1e-4, "--out", tmp_path / "result", "--quiet",
    )  # fmt: skip
    assert made["statement"]["model"]["free_bias"] is True
