"""From an ordinary table to a verified certificate, with short commands only: what docs/tutorial-tables.md does."""

from __future__ import annotations

import contextlib
import csv
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import expunge
from command_line import done, refused, run
from examples.tables import KEPT, PAGE, run_part, text_of
from ordinary_tables import HEADER, credit_lines, write_credit

UNLEARN = "--epsilon 1 --delta 1e-4 --quiet --json"


@pytest.fixture(scope="module")
def credit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A table, a later one, rows to forget, a model and its deposit; what training printed."""
    lines = credit_lines(600)
    with contextlib.chdir(tmp_path_factory.mktemp("credit")):
        for name, part in (("credit", lines[:400]), ("test", lines[400:]), ("forget", lines[3:6])):
            write_credit(Path(f"{name}.csv"), part)
        yield done("train --data credit.csv --label pays --out m.safetensors --deposit m.deposit --quiet")


def record_of(model: Path | str) -> Any:
    return expunge.LinearModel.load(model).record


def test_every_decision_is_printed_and_kept_as_data(credit: str) -> None:
    for words in (
        "label: pays",
        "standardised: age, income, debts",
        "median: age",
        "job (5 values, rare",
        "since (dates)",
    ):
        assert words in credit
    record = record_of("m.safetensors")
    assert record.l2 == 2.0 / 400
    assert [each["column"] for each in record.table["columns"]] == ["age", "income", "job", "debts"]
    assert b"pickle" not in Path("m.safetensors").read_bytes()


@pytest.mark.usefixtures("credit")
def test_from_the_raw_file_to_a_verified_certificate_and_its_score() -> None:
    assert done("member --deposit m.deposit --rows forget.csv --json")["members"] == 3
    made = done(f"unlearn --model m.safetensors --deposit m.deposit --forget forget.csv {UNLEARN} --out result")
    assert made["statement"]["status"] == "proven"
    assert made["statement"]["model"]["preparation"] == "learnt from the source, coarse"
    assert "a practice and no proof" in made["statement"]["limits"][-1]
    assert "made coarse" in made["statement"]["guarantee"]
    done("verify result/statement.json --model result/model.safetensors --dossier result/private/dossier.json "
         "--deposit-after result/private/model.deposit --deposit m.deposit --forget forget.csv")  # fmt: skip
    scores = done("score --model result/model.safetensors --before m.safetensors --data test.csv --json")
    assert scores["after"]["rows"] == 200
    assert scores["after"]["balanced"] > 0.7
    assert abs(scores["after"]["accuracy"] - scores["before"]["accuracy"]) < 0.02
    assert run("member --deposit result/private/model.deposit --rows forget.csv").exit_code == 1
    screen = done("score --model result/model.safetensors --data test.csv")
    for words in ("balanced accuracy", "guessing", "class yes", "200 rows"):
        assert words in screen


@pytest.mark.usefixtures("credit")
def test_predictions_need_no_label_and_are_the_model_s(tmp_path: Path) -> None:
    lines = [line.rsplit(";", 1)[0] for line in Path("test.csv").read_text().splitlines()]
    (tmp_path / "new.csv").write_text("\n".join(lines) + "\n")
    line = f"predict --model m.safetensors --data {tmp_path}/new.csv --out {tmp_path}/p.csv"
    assert done(f"{line} --json")["rows"] == 200
    read = list(csv.reader((tmp_path / "p.csv").open()))
    frame = pd.read_csv("test.csv", sep=";", decimal=",", na_values=["?"], dtype={"job": str}, keep_default_na=True)
    model = expunge.LinearModel.load("m.safetensors")
    assert [line[1] for line in read[1:]] == model.predict(frame.drop(columns="pays")).tolist()
    refused(line, "exists already")


@pytest.mark.usefixtures("credit")
def test_a_deposit_made_later_a_desk_a_plan_and_an_evaluation_read_raw_tables(tmp_path: Path) -> None:
    done(f"deposit --model m.safetensors --data credit.csv --out {tmp_path}/late.deposit --quiet")
    done(f"desk init {tmp_path}/desk --deposit {tmp_path}/late.deposit --epsilon 1 --delta 1e-4")
    done(f"desk request {tmp_path}/desk --forget forget.csv --reference case-1")
    done(f"desk run {tmp_path}/desk --quiet")
    done("plan --model m.safetensors --deposit m.deposit --forget forget.csv --delta 1e-4 --test test.csv --quiet")
    lines = Path("credit.csv").read_text().splitlines()
    (tmp_path / "retain.csv").write_text("\n".join([HEADER, *lines[1:4], *lines[7:]]) + "\n")
    done(f"evaluate --model m.safetensors --retain {tmp_path}/retain.csv --forget forget.csv --test test.csv "
         f"--epsilon 1 --delta 1e-4 --distance same --seeds 1 --quiet --out {tmp_path}/evaluation")  # fmt: skip


def test_a_file_without_a_header_is_trained_on_and_later_files_follow(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    draws = ((rng.integers(18, 80), rng.choice(["a", "b"]), rng.choice(["yes", "no"])) for _ in range(120))
    lines = [f"{place},{age},{job},{pays}" for place, (age, job, pays) in enumerate(draws)]
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))
    (tmp_path / "f.csv").write_text("\n".join(lines[:2]) + "\n")
    line = f"train --data {tmp_path}/a.csv.gz --no-header --quiet --out {tmp_path}"
    done(f"{line}/m.safetensors --label 3 --deposit {tmp_path}/m.deposit")
    assert done(f"member --deposit {tmp_path}/m.deposit --rows {tmp_path}/f.csv --json")["members"] == 2
    named = done(f"{line}/n.safetensors --names number,age,job,pays --label pays --columns age")
    assert "standardised: age" in named


def test_ready_numbers_are_trained_on_as_before(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(80, 3)), rng.integers(0, 2, 80)
    pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=y).to_csv(tmp_path / "t.csv", index=False)
    done(f"train --data {tmp_path}/t.csv --l2 0.1 --max-norm 4 --out {tmp_path}/m.safetensors")
    record = record_of(tmp_path / "m.safetensors")
    assert (record.table, record.preparation, record.bias, record.features) == (None, None, False, ("a", "b", "c"))
    refused(f"train --data {tmp_path}/t.csv --prepare none --out {tmp_path}/n.safetensors", "no l2 and no max_norm")


@pytest.mark.usefixtures("credit")
def test_what_is_learnt_elsewhere_is_said_in_the_certificate(tmp_path: Path) -> None:
    write_credit(tmp_path / "public.csv", credit_lines(300, 7))
    made = trained_and_unlearned(f"--prepare-from {tmp_path}/public.csv", tmp_path)
    assert made["statement"]["model"]["preparation"] == "learnt elsewhere"
    assert "from no row of the source" in made["statement"]["limits"][-1]


def trained_and_unlearned(options: str, folder: Path, said: str = "") -> Any:
    model = f"{folder}/m.safetensors", f"{folder}/m.deposit"
    told = done(f"train --data credit.csv --label pays --quiet {options} --out {model[0]} --deposit {model[1]}")
    assert said in told
    return done(f"unlearn --model {model[0]} --deposit {model[1]} --forget forget.csv {UNLEARN} --out {folder}/r")


@pytest.mark.usefixtures("credit")
def test_a_free_bias_needs_a_deposit_and_leaves_through_it(tmp_path: Path) -> None:
    line = f"train --data credit.csv --label pays --out {tmp_path}/f.safetensors --free-bias"
    refused(line, "without --deposit")
    refused(f"{line} --no-bias --deposit {tmp_path}/d", "with --no-bias")
    assert list(tmp_path.iterdir()) == []
    assert trained_and_unlearned("--free-bias", tmp_path, "a free bias")["statement"]["model"]["free_bias"] is True


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
