"""`expunge deposit`, and what is done with one: members looked up, rows forgotten, one deposit after another."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import numpy as np
import pytest

from command_line import done, refused, run
from expunge.deposit.file import read_deposit
from expunge.runtime.arrays import equal
from reference_cases import together
from small_deposit import kept, source, write_files

pytestmark = pytest.mark.usefixtures("one_thread")
DEPOSIT = "deposit --model model.safetensors --data source.npz"
UNLEARN = "unlearn --model model.safetensors --deposit model.deposit --forget forget.npz --epsilon 1 --delta 1e-3"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# Made ---------------------------------------------------------------------------------------------------------------


def test_a_deposit_is_private_whole_and_never_written_over(folder: Path) -> None:
    made = done(f"{DEPOSIT} --out new.deposit --json --quiet")
    file = folder / "new.deposit"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.stat().st_size == made["bytes"]
    assert made["n_rows"] == read_deposit(file).numbers.n_rows == 400
    assert [each["epsilon"] for each in made["outlook"]["affordable"]] == [0.1, 1.0, 5.0]
    before = file.read_bytes()
    refused(f"{DEPOSIT} --out new.deposit", "exists already")
    assert file.read_bytes() == before
    assert not list(folder.glob(".expunge*"))
    text = " ".join(done(f"{DEPOSIT} --out other.deposit --quiet").split())
    for said in ("400 rows, 4 features, 3 classes", "bytes, made in", "epsilon 0.1: ", "before a point of accuracy"):
        assert said in text
    for said in ("private, for you alone", "it may be used for: expunge member", "is the last deletion"):
        assert said in text


def test_train_keeps_one_too(folder: Path) -> None:
    made = done(
        "train --data source.npz --l2 1e-2 --max-norm 3 --bias --out both.safetensors --deposit both.deposit --json "
        "--quiet"
    )
    assert made["deposit"]["n_rows"] == made["record"]["n_source"] == 400
    assert stat.S_IMODE((folder / "both.deposit").stat().st_mode) == 0o600
    result = done(
        "unlearn --model both.safetensors --deposit both.deposit --forget forget.npz --epsilon 1 --delta 1e-3 --json "
        "--quiet --out result"
    )
    assert result["statement"]["status"] == "proven"
    refused("train --data source.npz --l2 1e-2 --max-norm 3 --out more.safetensors --deposit both.deposit")
    assert not (folder / "more.safetensors").exists()


def test_other_rows_and_heads_that_are_too_large_are_refused(folder: Path) -> None:
    refused("deposit --model model.safetensors --data forget.npz --out new.deposit", "trained on 400")
    rng = np.random.default_rng(0)
    np.savez(folder / "wide.npz", X=rng.normal(size=(30, 4001)), y=np.arange(30) % 3)
    done("train --data wide.npz --l2 1 --max-norm 100 --out wide.safetensors --quiet")
    refused("deposit --model wide.safetensors --data wide.npz --out new.deposit", "Train a ridge head")
    assert not (folder / "new.deposit").exists()


def test_a_folder_that_is_streamed_and_a_group_give_the_same_sums(folder: Path) -> None:
    (folder / "rows").mkdir()
    for name, array in zip("Xy", source(), strict=True):
        np.save(folder / "rows" / f"{name}.npy", array)
    line = "deposit --model model.safetensors --data rows --out shared.deposit --quiet"
    together([sys.executable, "-m", "expunge", *line.split()], 2)
    own, shared = kept().deposit, read_deposit(folder / "shared.deposit")
    assert equal(own.gram.parts, shared.gram.parts), "to the last digit, whoever adds up what first"
    off = float(np.abs(np.asarray(own.sums.curvature.values - shared.sums.curvature.values)).max())
    assert off < 0.1 * float(np.abs(np.asarray(own.sums.curvature.values)).max()), "another noise in the anchor"
    assert len(shared.hashes) == 400
    assert done("member --deposit shared.deposit --rows forget.npz --json")["members"] == 3


# Looked up ----------------------------------------------------------------------------------------------------------


def test_members_and_strangers(folder: Path) -> None:
    found = done("member --deposit model.deposit --rows forget.npz --json")
    assert (found["n_rows"], found["members"], found["source_rows_left"]) == (3, 3, 400)
    assert found["rows"][0] == {"row": 1, "there": True, "precision": "float64", "times": 1}
    text = done("member --deposit model.deposit --rows forget.npz")
    assert "3 of 3 rows are in what is left of the source" in text
    for more, said in (("", "0 of 2 rows"), (" --json", '"members": 0')):
        strangers = run(f"member --deposit model.deposit --rows other.npz{more}")
        assert (strangers.exit_code, said in strangers.stdout) == (1, True)
    features, labels = source()
    lines = ["a,b,c,d,kind", *(",".join(f"{v:.6f}" for v in features[k]) + f",{labels[k]}" for k in (5, 6))]
    (folder / "person.csv").write_text("\n".join(lines) + "\n")
    found = done("member --deposit model.deposit --rows person.csv --label kind --json")
    assert [row["precision"] for row in found["rows"]] == ["six decimals"] * 2


# Forgotten ----------------------------------------------------------------------------------------------------------


def test_a_deletion_leaves_a_new_deposit_and_does_not_touch_the_old(folder: Path) -> None:
    before = (folder / "model.deposit").read_bytes()
    result = done(f"{UNLEARN} --out result --json --quiet")
    assert result["statement"]["status"] == "proven"
    assert result["statement"]["assumptions"] == []
    assert (folder / "model.deposit").read_bytes() == before
    assert result["destroy"] == "model.deposit"
    private = folder / "result" / "private"
    assert {path.name for path in private.iterdir()} == {"dossier.json", "model.deposit"}
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in private.iterdir())
    left = read_deposit(private / "model.deposit").numbers
    assert (left.n_rows, left.forgotten, left.generation) == (397, 3, 1)
    done("verify result/statement.json --model result/model.safetensors --dossier result/private/dossier.json")
    text = done(f"{UNLEARN} --out again --quiet")
    assert "destroy model.deposit" in text
    assert "private, for the next deletion" in text
    done("report result --out page.html")
    done("report result --full --out private.html")
    assert stat.S_IMODE((folder / "private.html").stat().st_mode) == 0o600
    assert "taken out of these sums" in (folder / "private.html").read_text()


WITH_A_DEPOSIT = {
    "--between samples": "without --distance",
    "--sampling seen": "without --distance",
    "--surrogate source.npz": "a surrogate, or a distance, with a deposit",
    "--distance same": "a surrogate, or a distance, with a deposit",
    "--surrogate source.npz --distance same": "the published status would say whether they had",
    "--surrogate source.npz --distance source": "or, where the deposit refuses, leave the deposit out",
    "--noise rows:3": "with a deposit",
    "--step balanced": "--step with a deposit",
    "--bound paper": "--bound with a deposit",
    "--l2 0.1": "--l2 with a deposit",
    "--match-classes": "--match-classes with a deposit",
}


def test_what_does_not_go_with_a_deposit(folder: Path) -> None:
    for more, said in WITH_A_DEPOSIT.items():
        refused(f"{UNLEARN} {more} --out result", said)
    for more in ("--surrogate source.npz", "--distance same", "--noise rows:3", "--step newton", "--match-classes"):
        refused(f"desk init result --deposit model.deposit --epsilon 1 --delta 1e-3 {more}", "deposit")
    for more in ("", "--model model.safetensors", "--model model.safetensors --surrogate source.npz"):
        refused(f"desk init result --epsilon 1 --delta 1e-3 {more}", "Give --deposit if one was kept")
    line = "unlearn --model model.safetensors --forget forget.npz --epsilon 1 --delta 1e-3 --out result"
    for more in ("", " --surrogate source.npz", " --distance same"):
        refused(line + more, "Give them, or a deposit")
    assert not (folder / "result").exists()


# Verified -----------------------------------------------------------------------------------------------------------


def test_an_auditor_with_the_deposits(folder: Path) -> None:
    done(f"{UNLEARN} --out result --quiet")
    line = "verify result/statement.json --model result/model.safetensors --dossier result/private/dossier.json"
    after = "--deposit-after result/private/model.deposit"
    printed = done(f"{line} {after} --deposit model.deposit --forget forget.npz --json")
    assert printed["deposits_checked"] is True
    assert "deposit: shape_ratio" in printed["checks"]
    assert "deposits: without the forgotten rows: the gradient" in printed["checks"]
    assert printed["forgotten_checked"] is True
    assert "could have made up its sums" in printed["deposits_are"]
    told = done(f"{line} {after}")
    assert "taken as genuine: whoever made a deposit could have made up its sums" in told
    whole = Path("result/private/model.deposit").read_bytes()
    for position in (0, 8, whole.index(b"expunge deposit") + 40):
        changed = whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :]
        Path("damaged.deposit").write_bytes(changed)
        assert run(f"{line} --deposit-after damaged.deposit").exit_code == 1, position
    refused(f"{line} --deposit-after gone.deposit")
    shown = run(f"{line} {after} --deposit model.deposit --forget forget.npz")
    assert "forgotten  their rows left the deposit, and nothing else did" in shown.stdout
    untold = run(f"{line} {after} --deposit model.deposit")
    assert "forgotten  not given: that their rows left was not checked" in untold.stdout
    refused(f"{line} {after} --deposit model.deposit --forget later.npz", "as many rows are given as left", status=1)
    refused(f"{line} --deposit-after model.deposit", status=1)
    for more in ("--deposit model.deposit", f"{after} --forget forget.npz"):
        refused(f"{line} {more}", "--deposit with --deposit-after")


# Beforehand, and beside others --------------------------------------------------------------------------------------


def test_a_plan_with_a_deposit(folder: Path) -> None:
    line = "plan --model model.safetensors --forget forget.npz --delta 1e-3"
    planned = done(f"{line} --deposit model.deposit --epsilon 0.5 --epsilon 5 --test source.npz --json --quiet")
    assert [each["epsilon"] for each in planned["outlooks"]] == [0.5, 5.0]
    assert "of the deposit's reach" in done(f"{line} --deposit model.deposit --quiet")
    for more in ("--surrogate source.npz", "--distance same", "--match-classes", "--step newton"):
        refused(f"{line} --deposit model.deposit {more}")
    assert "Give one of the two" in run(line).stderr
