"""Ordinary mistakes, made as somebody who knows only the README would make them.

Each ends with one line that names what was found, what is needed and what to do; with no traceback, no result, and
before the work: training and unlearning are not even begun.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from command_line import run
from ordinary_tables import HEADER, credit_lines, write_credit


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as after the README: a table, a model, its deposit, rows to forget, and a deletion that was done."""
    folder = tmp_path_factory.mktemp("office")
    lines = credit_lines(260)
    write_credit(folder / "credit.csv", lines[:200])
    write_credit(folder / "test.csv", lines[200:])
    write_credit(folder / "forget.csv", lines[3:5])
    (folder / "bare.csv").write_text("\n".join(line.partition(";")[2] for line in lines[:200]) + "\n")
    write_credit(folder / "gaps.csv", [*lines[:50], lines[50].rpartition(";")[0] + ";"])
    write_credit(folder / "short.csv", [*lines[:50], "51;40"])
    write_credit(folder / "words.csv", [lines[0].replace(";", ";", 1).replace(lines[0].split(";")[1], "old", 1)])
    write_credit(folder / "other.csv", credit_lines(3, 99))
    write_credit(folder / "maybe.csv", [lines[3].rpartition(";")[0] + ";maybe"])
    write_credit(folder / "shouted.csv", [line.rpartition(";")[0] + ";YES" for line in lines[200:204]])
    write_credit(folder / "twice.csv", [lines[3], lines[4], lines[3]])
    (folder / "unlabelled.csv").write_text("\n".join(line.rpartition(";")[0] for line in (HEADER, *lines[3:5])) + "\n")
    write_credit(folder / "one.csv", [line.rpartition(";")[0] + ";yes" for line in lines[:50]])
    (folder / "renamed.csv").write_text("\n".join([HEADER.replace("income", "Incomes"), *lines[3:5]]) + "\n")
    (folder / "latin.csv").write_bytes(
        f"{HEADER}\n{lines[0]}\n".replace("clerk", "Büro").replace("worker", "Büro").encode("latin-1")
        + b"\xfc;1;2;3;4;5;6\n"
    )
    (folder / "empty.csv").write_text("")
    (folder / "sheet.xlsx").write_bytes(b"PK")
    (folder / "damaged.csv.gz").write_bytes(b"no gzip at all")
    (folder / "weights.pkl").write_bytes(b"\x80\x04")
    np.savez(folder / "arrays.npz", X=np.ones((4, 2)), y=[0, 1, 0, 1])
    (folder / "locked").mkdir()
    train = "train --data credit.csv --label pays --out m.safetensors --deposit m.deposit --quiet"
    ask = "unlearn --model m.safetensors --deposit m.deposit --forget forget.csv --epsilon 1 --delta 1e-3 --out result"
    for line in (train, ask):
        assert call(folder, line).exit_code == 0
    return folder


def call(folder: Path, line: str) -> Result:
    with contextlib.chdir(folder):
        return run(line)


TRAIN, OUT = "train --data", "--out new.safetensors"
ASK = "--epsilon 1 --delta 1e-3 --out new"
MISTAKES = {
    "a label misspelt": (f"{TRAIN} credit.csv --label pay {OUT}", "no column 'pay'", "Did you mean pays?"),
    "no label named": (f"{TRAIN} credit.csv {OUT}", "and none is called y", "Name it with --label"),
    "a file misspelt": (f"{TRAIN} credits.csv --label pays {OUT}", "does not exist", "did you mean credit.csv?"),
    "a folder for a file": (f"{TRAIN} locked --label pays {OUT}", "is a folder", "Name the file inside it"),
    "a spreadsheet": (f"{TRAIN} sheet.xlsx --label pays {OUT}", "unknown file type '.xlsx'", "as .csv or .parquet"),
    "an empty file": (f"{TRAIN} empty.csv --label pays {OUT}", "is empty", "Write it again"),
    "no gzip": (f"{TRAIN} damaged.csv.gz --label pays {OUT}", "is not a table (zlib", "Write it again as CSV"),
    "no header": (f"{TRAIN} bare.csv --label pays {OUT}", "no column 'pays'", "--no-header"),
    "rows of two lengths": (f"{TRAIN} short.csv --label pays {OUT}", "is not a table", "in UTF-8"),
    "another encoding": (f"{TRAIN} latin.csv --label pays {OUT}", "is not a table", "in UTF-8"),
    "rows without a label": (f"{TRAIN} gaps.csv --label pays {OUT}", "1 of 51 rows have no value", "Remove those rows"),
    "a label that is measured": (f"{TRAIN} credit.csv --label income {OUT}", "200 different values", "with --label"),
    "a label that is a number of each": (f"{TRAIN} credit.csv --label customer {OUT}", "200 different values", "--label"),
    "one class only": (f"{TRAIN} one.csv --label pays {OUT}", "has one class, 'yes'", "Check the label column"),
    "a column that is not there": (
        f"{TRAIN} credit.csv --label pays --columns age,incme {OUT}", "no column 'incme'", "Did you mean income?",
    ),
    "the label among the columns": (
        f"{TRAIN} credit.csv --label pays --columns age,pays {OUT}", "the label column 'pays'", "Leave it out",
    ),
    "names for a file with a header": (
        f"{TRAIN} credit.csv --label pays --names a,b {OUT}", "--names with a header", "Add --no-header",
    ),
    "arrays without settings": (f"{TRAIN} arrays.npz {OUT}", "no l2 and no max_norm", "--l2 and --max-norm"),
    "a label for arrays": (f"{TRAIN} arrays.npz --label y {OUT}", "--label 'y'", "Leave --label out"),
    "a model that is no safetensors": (f"{TRAIN} credit.csv --label pays --out new.pkl", "--out new.pkl", "new.safetensors"),
    "a result that is there": (f"{TRAIN} credit.csv --label pays --out m.safetensors", "exists already", "another name"),
    "a folder that cannot be written": (
        f"{TRAIN} credit.csv --label pays --out /proc/new/m.safetensors", "/proc cannot be written in", "another place",
    ),
    "model and deposit swapped": (
        f"unlearn --model m.deposit --deposit m.safetensors --forget forget.csv {ASK}",
        "the two are swapped", "Write --model m.safetensors --deposit m.deposit.",
    ),
    "model and rows swapped": (
        f"unlearn --model forget.csv --deposit m.deposit --forget m.safetensors {ASK}",
        "the two are swapped", "Write --model m.safetensors --forget forget.csv.",
    ),
    "model and data swapped": (
        "score --model test.csv --data m.safetensors", "the two are swapped", "Write --model m.safetensors --data test.csv.",
    ),
    "a model given as deposit": (
        f"unlearn --model m.safetensors --deposit m.safetensors --forget forget.csv {ASK}",
        "--deposit m.safetensors is a model", "Give a deposit.",
    ),
    "a pickled model": ("score --model weights.pkl --data test.csv", "unknown model type '.pkl'", "never loaded"),
    "rows of somebody else": (
        f"unlearn --model m.safetensors --deposit m.deposit --forget other.csv {ASK}",
        "3 of 3 rows (row 1, 2, 3) are not in what is left", "expunge member",
    ),
    "all rows": (
        f"unlearn --model m.safetensors --deposit m.deposit --forget credit.csv {ASK}",
        "200 rows to forget of a source of 200", "delete the model",
    ),
    "a class that is none": (
        f"unlearn --model m.safetensors --deposit m.deposit --forget maybe.csv {ASK}",
        "label 'maybe' is not a class of the model", "Map the labels",
    ),
    "a column that was renamed": (
        f"unlearn --model m.safetensors --deposit m.deposit --forget renamed.csv {ASK}",
        "no column 'income'", "Did you mean Incomes?",
    ),
    "text where numbers were": (
        "score --model m.safetensors --data words.csv", "column 'age' has 'old'", "Write numbers, or leave the cell empty",
    ),
    "neither deposit nor surrogate": (
        f"unlearn --model m.safetensors --forget forget.csv {ASK}", "no surrogate, or no distance", "or a deposit",
    ),
    "a delta of one": (
        "unlearn --model m.safetensors --deposit m.deposit --forget forget.csv --epsilon 1 --delta 1 --out new",
        "delta 1.0", "at most 1/n",
    ),
    "an epsilon below zero": (
        "unlearn --model m.safetensors --deposit m.deposit --forget forget.csv --epsilon -1 --delta 1e-3 --out new",
        "epsilon -1.0", "0.1 to 5",
    ),
    "the old deposit with the new model": (
        f"unlearn --model result/model.safetensors --deposit m.deposit --forget forget.csv {ASK}",
        "the model is a published one", "private/model.deposit",
    ),
    "the same people again": (
        f"unlearn --model result/model.safetensors --deposit result/private/model.deposit --forget forget.csv {ASK}",
        "are not in what is left of the source", "are gone already",
    ),
    "the model verified alone": (
        "verify result/model.safetensors", "is not a certificate", "Give statement.json",
    ),
    "a statement for a dossier": (
        "verify result/statement.json --model result/model.safetensors --dossier result/statement.json",
        "result/statement.json", "private/dossier.json",
    ),
    "a row that is given twice": (
        f"unlearn --model m.safetensors --deposit m.deposit --forget twice.csv {ASK}",
        "1 of 3 rows (row 3) is given more often", "as often as it was trained on",
    ),
    "labels in capitals": (
        "score --model m.safetensors --data shouted.csv", "label 'YES' is not a class", "differ in capitals",
    ),
    "a table without its labels": (
        "score --model m.safetensors --data unlabelled.csv", "no column 'pays'", "expunge predict needs none",
    ),
    "the statement for its folder": (
        "report result/statement.json --out new.html", "neither a desk nor a result", "Give the folder it is in, result.",
    ),
    "the model for a result": (
        "report m.safetensors --out new.html", "neither a desk nor a result", "Give the folder that expunge unlearn --out",
    ),
    "a free intercept without a deposit": (
        f"{TRAIN} credit.csv --label pays --free-bias {OUT}", "--free-bias without --deposit", "Give --deposit",
    ),
    "a deposit that is called as models are": (
        f"{TRAIN} credit.csv --label pays {OUT} --deposit newer.safetensors", "a deposit is private", "newer.deposit",
    ),
    "a deposit made later, called so": (
        "deposit --model m.safetensors --data credit.csv --out new.safetensors", "a deposit is private", "new.deposit",
    ),
    "noise with a deposit": (
        f"unlearn --model m.safetensors --deposit m.deposit --forget forget.csv --noise rows:3 {ASK}",
        "noise as for 3 rows with a deposit", "leave --noise",
    ),
    "a preparation learnt elsewhere, from the source": (
        f"{TRAIN} credit.csv --label pays --prepare-from credit.csv {OUT}", "is the source itself", "another table",
    ),
    "a result for its model": (
        "score --model m.safetensors --before result --data test.csv", "result is a folder", "result/model.safetensors",
    ),
    "a table for a key": ("sign result --sign-key credit.csv", "is not an Ed25519 private key", "expunge keygen"),
    "an address for a file": (
        f"unlearn --model m.safetensors --deposit m.deposit --forget https://example.org/a.csv {ASK}",
        "does not exist", "Nothing is fetched",
    ),
    "predictions that are no csv": (
        "predict --model m.safetensors --data test.csv --out new.xlsx", "--out new.xlsx", "new.csv",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_with_what_to_do_and_before_the_work(
    mistake: str, office: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, found, remedy = MISTAKES[mistake]

    def worked(*args: object, **options: object) -> None:
        raise AssertionError("the work had begun")

    monkeypatch.setattr(sys.modules["expunge.train"], "minimise", worked)
    monkeypatch.setattr(sys.modules["expunge.mechanism"], "carry_out", worked)
    done = call(office, line)
    assert done.exit_code in (2, 3), done.output
    said = " ".join(done.output.split())
    assert found in said, said
    assert remedy in said, said
    assert said.startswith(("error: ", "refused: ")), said
    assert not list(office.glob("new*"))


def test_columns_are_listed_once_and_the_last_of_them_too(tmp_path: Path) -> None:
    names = [*(f"f{place}" for place in range(40)), "default"]
    (tmp_path / "t.csv").write_text(",".join(names) + "\n" + ",".join("1" * 41) + "\n")
    said = call(tmp_path, f"{TRAIN} t.csv --label nowhere {OUT}").output
    assert said.count("f0, f1") == 1
    assert "default (41 columns)" in said


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_found_before_the_work(office: Path, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    said = call(office, f"{TRAIN} credit.csv --label pays --out {locked}/m.safetensors").output
    assert "cannot be written in" in said
    shutil.rmtree(locked)
