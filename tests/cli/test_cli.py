"""The command line on small real data (scikit-learn's handwritten digits), end to end."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file
from sklearn.datasets import load_digits

import expunge
from command_line import done, refused, run
from digit_rows import demo_deposit
from expunge.record import one_digit

pytestmark = pytest.mark.usefixtures("one_thread")
README = Path(__file__).parents[2] / "README.md"
N_SOURCE, N_FORGET, N_SURROGATE = 200, 3, 150
UNLEARN = "unlearn --model model.safetensors --forget forget.npz --surrogate surrogate.npz --epsilon 5 --delta 1e-3"
PROVENANCES = {"derived", "measured", "declared", "estimated"}


def tensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    with safe_open(path, "np") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, json.loads(file.metadata()["expunge"])  # noqa: SIM118


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Threes and eights, 2 x 2 pixels averaged to one, unit norm, in three files."""
    folder = tmp_path_factory.mktemp("digits")
    images, labels = load_digits(return_X_y=True)
    keep = np.isin(labels, (3, 8))
    pixels = images[keep].reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)).reshape(-1, 16)
    pixels, labels = pixels / np.linalg.norm(pixels, axis=1, keepdims=True), labels[keep]
    stop = N_SOURCE + N_SURROGATE
    for name, part in (("source", slice(N_SOURCE)), ("surrogate", slice(N_SOURCE, stop)), ("forget", slice(N_FORGET))):
        np.savez(folder / f"{name}.npz", X=pixels[part], y=labels[part])
    return folder


@pytest.fixture(scope="module")
def story(digits: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The issue's commands one after the other, as a user types them; the folder and what each printed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(digits)
        printed = {
            "train": done("train --data source.npz --l2 5e-2 --max-norm 1 --bias --out model.safetensors --json"),
            "unlearn": done(f"{UNLEARN} --distance chi2:0.01 --json --out result/"),
            "verify": done("verify result/statement.json --model result/model.safetensors --json"),
        }
        yield digits, printed


# End to end -----------------------------------------------------------------------------------------------------------


def test_train_keeps_a_record_and_no_value_of_the_source(story: tuple[Path, dict[str, Any]]) -> None:
    folder, printed = story
    found, record = tensors(folder / "model.safetensors")
    assert {name: (array.shape, array.dtype) for name, array in found.items()} == {
        "weight": ((2, 16), np.float64), "bias": ((2,), np.float64),
    }  # fmt: skip
    assert record.pop("schema") == "expunge/record/1"
    assert printed["train"]["model"] == "model.safetensors"
    assert printed["train"]["sha256"] == hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert printed["train"]["record"] == record
    with np.load(folder / "source.npz") as source:
        labels, values = source["y"], {value.tobytes() for value in source["X"].ravel() if value not in (0.0, 1.0)}
    known = {
        "n_source": N_SOURCE, "classes": [3, 8], "class_counts": [int((labels == label).sum()) for label in (3, 8)],
        "l2": 0.05, "loss": "softmax", "max_norm": 1.0, "bias": True, "noised": False, "provenance": "measured",
    }  # fmt: skip
    assert {name: record[name] for name in known} == known
    assert math.isclose(record["row_bound"], math.sqrt(2.0))
    assert 0 <= record["residual"] < 1e-10
    for name in ("model.safetensors", "result/model.safetensors"):
        content = (folder / name).read_bytes()
        assert not any(value in content for value in list(values)[:500])


def test_the_written_model_is_another_and_still_good(story: tuple[Path, dict[str, Any]]) -> None:
    folder, printed = story
    before, old = tensors(folder / "model.safetensors")
    after, new = tensors(folder / "result" / "model.safetensors")
    assert {name: array.shape for name, array in after.items()} == {"weight": (2, 16), "bias": (2,)}
    assert not any(np.any(after[name] == before[name]) for name in after)
    assert new["n_source"] == one_digit(N_SOURCE - 3) != N_SOURCE, "what is retained, to one digit"
    assert (new["class_counts"], new["noised"], new["residual"]) == (None, True, None)
    assert all(new[key] == old[key] for key in ("classes", "l2", "loss", "max_norm", "bias"))
    written = sorted(path.name for path in (folder / "result").iterdir())
    assert written == ["model.safetensors", "private", "statement.json"]
    assert len(list(folder.iterdir())) == 5, "nothing else was written"
    paths = {"model": "model.safetensors", "statement_file": "statement.json", "dossier_file": "private/dossier.json"}
    assert {name: printed["unlearn"][name].removeprefix("result/") for name in paths} == paths
    model, _ = expunge.read_model(folder / "result" / "model.safetensors")
    with np.load(folder / "surrogate.npz") as surrogate:
        assert np.mean(model.predict(surrogate["X"]) == surrogate["y"]) > 0.6


def test_the_dossier(story: tuple[Path, dict[str, Any]]) -> None:
    folder = story[0]
    dossier = json.loads((folder / "result" / "private" / "dossier.json").read_text())
    bound, sizes = dossier["bound"], dossier["sizes"]
    assert (dossier["status"], dossier["epsilon"], dossier["delta"], dossier["notes"]) == ("conditional", 5.0, 1e-3, [])
    assert dossier["sigma"] > 0
    assert bound["kind"] == "residual"
    assert 0 <= bound["total"] / math.fsum(bound["terms"].values()) - 1 < 1e-6, "rounded to the safe side"
    assert set(bound["terms"]) >= {"training", "solver", "surrogate", "sampling"}
    assert all(fact["provenance"] in PROVENANCES and fact["value"] >= 0 for fact in bound["inputs"].values())
    assert [dossier["distance"][name] for name in ("kind", "value", "provenance")] == ["chi2", 0.01, "declared"]
    assert (sizes["n_source"], sizes["n_forget"], sizes["n_surrogate"]) == (N_SOURCE, N_FORGET, N_SURROGATE)
    for when, path in (("before", "model.safetensors"), ("after", "result/model.safetensors")):
        assert dossier["model"][when]["sha256"] == hashlib.sha256((folder / path).read_bytes()).hexdigest()
    assert any("chi2:0.01" in sentence for sentence in dossier["assumptions"])
    assert any("before" in sentence for sentence in dossier["limits"])
    assert dossier["software"]["expunge"] == expunge.__version__
    private = folder / "result" / "private"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (private, private / "dossier.json")] == [0o700, 0o600]


def test_noise_that_was_set_beforehand(story: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    found = done(f"{UNLEARN} --distance same --force --quiet --json --noise 0.75 --out", tmp_path / "set")
    assert found["statement"]["sigma"] == 0.75
    assert found["statement"]["noise"]["choice"] == "policy"
    done("verify", tmp_path / "set" / "statement.json", "--model", tmp_path / "set" / "model.safetensors")
    less = run(f"{UNLEARN} --distance same --force --quiet --json --noise 0.0001 --out {tmp_path / 'less'}")
    assert (less.exit_code, json.loads(less.stdout)["error"]["kind"]) == (3, "BeyondPolicy")
    assert not (tmp_path / "less").exists()
    refused(f"{UNLEARN} --distance same --quiet --noise rows:0 --out {tmp_path / 'odd'}")


@pytest.mark.parametrize("options", ["--loss ridge", "--store float32", "--dtype float32 --bias"])
def test_other_ways_to_train(options: str, story: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    model, result = tmp_path / "model.safetensors", tmp_path / "result"
    record = done(f"train --data source.npz --l2 0.05 --max-norm 1 --json {options} --out", model)["record"]
    found, _ = tensors(model)
    assert ("bias" in found) == ("--bias" in options)
    assert found["weight"].dtype == (np.float32 if "--store" in options else np.float64)
    assert record["loss"] == ("ridge" if "ridge" in options else "softmax")
    dtype = "float32" if "--dtype" in options else "float64"
    done(f"{UNLEARN} --distance same --force --dtype {dtype} --model", model, "--out", result)
    after, _ = tensors(result / "model.safetensors")
    assert {name: (array.shape, array.dtype) for name, array in after.items()} == {
        name: (array.shape, array.dtype) for name, array in found.items()
    }
    done("verify", result / "statement.json", "--model", result / "model.safetensors")


@pytest.mark.parametrize(
    ("options", "bound", "step", "status"),
    [
        ("kl:0.001", "residual", "converged", "conditional"),
        ("chi2:0.01 --between samples", "residual", "converged", "conditional"),
        ("same --step newton", "residual", "newton", "conditional"),
        ("kl:0.1 --bound paper --epsilon 0.5 --sizes surrogate --constants paper", "paper", "newton", "estimated"),
        ("same --bound paper --epsilon 0.5 --constants alpha=0.05,beta=1.1,L=3,gamma=1", "paper", "newton", "conditional"),
        ("source --surrogate source.npz", "residual", "converged", "conditional"),
    ],
)  # fmt: skip
def test_other_ways_to_unlearn(
    options: str, bound: str, step: str, status: str, story: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """The paper's bound is one of one Newton step, whatever the default."""
    done(f"{UNLEARN} --force --json --distance {options} --out", tmp_path / "result")
    file = tmp_path / "result" / "private" / "dossier.json"
    dossier = json.loads(file.read_text())
    assert dossier["distance"]["kind"] == re.split("[ :]", options)[0]
    assert (dossier["bound"]["kind"], dossier["step"]["kind"], dossier["status"]) == (bound, step, status)
    assert (dossier["assumptions"] == []) == (status == "proven")
    done("verify", file, "--model", tmp_path / "result" / "model.safetensors")


def test_a_model_from_elsewhere_is_marked_declared(
    story: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _ = tensors(story[0] / "model.safetensors")
    save_file({"weight": found["weight"], "bias": found["bias"]}, tmp_path / "model.safetensors")
    for name in ("forget", "surrogate"):
        with np.load(story[0] / f"{name}.npz") as rows:
            np.savez(tmp_path / f"{name}.npz", X=rows["X"], y=rows["y"] == 8)
    monkeypatch.chdir(tmp_path)
    facts = "--n-source 200 --l2 0.05 --max-norm 1 --loss softmax --training-residual 1e-9"
    done(f"{UNLEARN} {facts} --distance same --json --out result")
    certificate = json.loads((tmp_path / "result" / "private" / "dossier.json").read_text())
    inputs = certificate["bound"]["inputs"]
    assert all(inputs[name]["provenance"] == "declared" for name in ("n_source", "l2", "training_residual"))
    assert any("n_source" in sentence and "declared" in sentence for sentence in certificate["assumptions"])
    assert certificate["model"]["record"] == "declared"
    _, record = tensors(tmp_path / "result" / "model.safetensors")
    known = {"provenance": "declared", "n_source": 100, "noised": True, "classes": [0, 1]}  # of 197, to one digit
    assert {name: record[name] for name in known} == known


# Demo -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def kept_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("expunge.evaluate.demo.make_deposit", lambda *_: demo_deposit())


@pytest.mark.usefixtures("kept_before")
def test_demo_as_json(tmp_path: Path) -> None:
    printed = done("demo --json --out", tmp_path / "demo")
    assert set(printed) == {"accuracies", "sizes", "stories"}
    assert set(printed["accuracies"]) == {"before", "retrained", "with-deposit", "without-deposit"}
    assert all(0 <= value <= 1 for part in printed["accuracies"].values() for value in part.values())
    for name, story in printed["stories"].items():
        result = tmp_path / "demo" / name
        dossier = json.loads((result / "private" / "dossier.json").read_text())
        assert story["true_distance"] <= dossier["bound"]["total"]
        assert story["checks"] > 10
        assert json.loads((result / "statement.json").read_text()) == story["statement"]
        done("verify", result / "statement.json", "--model", result / "model.safetensors")
        for page in (result / "report.html", result / "private" / "report.html"):
            assert "rows were taken out" in page.read_text().replace("Rows", "rows")
        assert (result / "private" / "report.html").stat().st_mode & 0o077 == 0
    assert [story["statement"]["status"] for story in printed["stories"].values()] == ["proven", "conditional"]


@pytest.mark.usefixtures("kept_before")
def test_demo_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both stories in plain words, what to open at the end, nothing left behind; the README shows a part of it."""
    monkeypatch.chdir(tmp_path)
    text = done("demo")
    for words in ("With a deposit", "Without one", "source is gone", "PROVEN.", "CONDITIONAL.", "at most 73.2 %"):
        assert words in text
    assert text.splitlines()[-1].endswith("expunge demo --out demo")
    assert list(tmp_path.iterdir()) == []
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    (shown,) = re.findall(r"The demo prints.*?```\n(.*?)```", readme, flags=re.DOTALL)
    any_number = functools.partial(re.sub, r"\s*\d+(\.\d+)?", "0")
    for line in shown.splitlines():
        assert line == "[...]" or any_number(line) in any_number(text), line
    own = re.findall(r"expunge (train|unlearn|verify)\b", text)
    files = readme.split("## On your own files")[1].split("```sh")[1:3]
    assert own == [name for block in files for name in re.findall(r"^expunge (train|unlearn|verify)\b", block, re.M)]


# Text, JSON, help -----------------------------------------------------------------------------------------------


def test_quiet_says_nothing_on_standard_error_and_json_is_one_object(
    story: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    train = "train --data source.npz --l2 0.05 --max-norm 1 --out"
    assert run(train, tmp_path / "a.safetensors").stderr != ""
    assert run(train, tmp_path / "b.safetensors", "--quiet").stderr == ""
    result = run("verify result/statement.json --json")
    assert (len(result.stdout.splitlines()), result.stderr) == (1, ""), "so that another program can read it"
