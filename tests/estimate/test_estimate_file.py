"""An estimate in a file: written, read back, used, and refused where it is damaged or of something else."""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from digit_rows import QUICK
from expunge import train, unlearn
from expunge.cli import main
from expunge.errors import DataError, FileError, ModelError
from expunge.estimate.comparison import compare
from expunge.estimate.source import SourceEstimate, estimate_bytes, read_estimate
from expunge.runtime.arrays import equal

pytestmark = pytest.mark.usefixtures("one_thread")
OPTIONS: dict[str, Any] = {"epsilon": 5.0, "delta": 1e-3, "force": True, "insecure_test_seed": 3}
TUNING = "--chains 200 --steps 400 --step-size 0.005 --epochs 3 --quiet"
MEASURE = "distance --model {0}/model.safetensors --surrogate {0}/surrogate.npz " + TUNING
UNLEARN = (
    "unlearn --model {0}/model.safetensors --forget {0}/forget.npz --surrogate {0}/surrogate.npz --epsilon 5 "
    "--delta 1e-3 --force --quiet --out {0}/result "
)


@pytest.fixture(scope="module")
def written(estimate: SourceEstimate) -> bytes:
    return estimate_bytes(estimate)


@pytest.fixture
def files(digits: dict[str, Any], written: bytes, tmp_path: Path) -> Path:
    for name in ("forget", "surrogate"):
        np.savez(tmp_path / f"{name}.npz", X=digits[name][0], y=digits[name][1])
    (tmp_path / "model.safetensors").write_bytes(digits["model"].to_bytes())
    (tmp_path / "estimate.npz").write_bytes(written)
    return tmp_path


def run(text: str, files: Path) -> Any:
    result = CliRunner().invoke(main, text.format(files).split())
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    return result


def read(content: bytes, folder: Path) -> SourceEstimate:
    (folder / "read.npz").write_bytes(content)
    return read_estimate(folder / "read.npz")


# Written and read -----------------------------------------------------------------------------------------------


def test_what_is_read_is_what_was_written(estimate: SourceEstimate, written: bytes, tmp_path: Path) -> None:
    found = read(written, tmp_path)
    assert (found.wanted, found.kl, found.origin) == (estimate.wanted, estimate.kl, estimate.origin)
    assert equal(found.sampled.rows.features, estimate.sampled.rows.features)
    assert replace(found.sampled, rows=estimate.sampled.rows) == estimate.sampled
    assert estimate_bytes(found) == written


# Used -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("route", "match_classes"), [("means", False), ("kl", True)])
def test_it_gives_the_certificate_that_estimating_on_the_way_gives(
    digits: dict[str, Any], route: str, match_classes: bool, tmp_path: Path
) -> None:
    wanted = replace(QUICK, route=route, matched=match_classes)
    sets = (digits["model"], digits["forget"], digits["surrogate"])
    gone = {"forget": digits["forget"]} if match_classes else {}  # classes are matched to what is retained
    made = compare(digits["model"], digits["surrogate"], record=digits["model"].record, wanted=wanted, **gone).estimate
    kept = unlearn(*sets, distance=read(estimate_bytes(made), tmp_path), **OPTIONS)
    anew = unlearn(*sets, distance=wanted, **OPTIONS)
    assert kept.certificate.status == "estimated"
    assert kept.model.to_bytes() == anew.model.to_bytes()
    for part in ("distance", "estimate", "bound", "assumptions"):
        assert kept.certificate.content[part] == anew.certificate.content[part]


def test_samples_serve_any_surrogate_the_kl_only_its_own(digits: dict[str, Any], estimate: SourceEstimate) -> None:
    X, y = digits["surrogate"]
    fewer = (X[:600], y[:600])
    unlearn(digits["model"], digits["forget"], fewer, distance=estimate, **OPTIONS)
    by_kl = replace(estimate, wanted=replace(QUICK, route="kl"))
    with pytest.raises(DataError, match="KL is that of another surrogate"):
        unlearn(digits["model"], digits["forget"], fewer, distance=by_kl, **OPTIONS)
    with pytest.raises(DataError, match="KL is that of another surrogate"):
        unlearn(digits["model"], digits["forget"], (X, y), distance=by_kl, match_classes=True, **OPTIONS)
    with pytest.raises(DataError, match="has no KL"):
        unlearn(digits["model"], digits["forget"], (X, y), distance=replace(by_kl, kl=None), **OPTIONS)


def test_an_estimate_of_another_model_is_refused(digits: dict[str, Any], estimate: SourceEstimate) -> None:
    other = train(*digits["source"], l2=0.03, max_norm=1.0, bias=True)
    with pytest.raises(ModelError, match=r"made of another model \(weights"):
        unlearn(other, digits["forget"], digits["surrogate"], distance=estimate, **OPTIONS)
    longer = replace(digits["model"], record=replace(digits["model"].record, max_norm=2.0))
    with pytest.raises(ModelError, match=r"made of another model \(max_norm 1\.0\)"):
        unlearn(longer, digits["forget"], digits["surrogate"], distance=estimate, **OPTIONS)


# Damaged, or made to deceive ------------------------------------------------------------------------------------


def arrays_of(content: bytes) -> dict[str, Any]:
    with np.load(io.BytesIO(content)) as arrays:
        return {name: arrays[name] for name in arrays.files}


def changed(content: bytes, change: Callable[[dict[str, Any]], Any]) -> bytes:
    arrays = arrays_of(content)
    facts = json.loads(arrays["facts"].item())
    change(facts)
    stream = io.BytesIO()
    np.savez(stream, **(arrays | {"facts": np.array(json.dumps(facts))}))
    return stream.getvalue()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda f: f.update(schema="expunge/estimate/2"), "not those of expunge/estimate/1"),
        (lambda f: f.update(more=1), "lacks or adds more"),
        (lambda f: f.pop("origin"), "lacks or adds origin"),
        (lambda f: f["settings"].update(support="cube"), "support 'cube'"),
        (lambda f: f["settings"].update(chains=True), "chains True"),
        (lambda f: f["settings"].update(chains=300), "samples of shape"),
        (lambda f: f["settings"].update(mean=[0.0]), "mean"),
        (lambda f: f["diagnostics"].update(r_hat="1"), "r_hat '1'"),
        (lambda f: f["diagnostics"].update(r_hat=math.nan), "not a number"),
        (lambda f: f["origin"].update(max_norm=1e-3), "a sample of norm"),
        (lambda f: f["origin"].update(max_norm=None), "max_norm"),
    ],
)
def test_facts_that_cannot_be(change: Callable[[Any], Any], match: str, written: bytes, tmp_path: Path) -> None:
    with pytest.raises(FileError, match=match) as caught:
        read(changed(written, change), tmp_path)
    assert "expunge distance --out" in caught.value.remedy


@pytest.mark.parametrize(
    ("samples", "match"),
    [
        (np.full((200, 64), np.nan), "not finite"),
        (np.zeros((200, 64), dtype=np.float32), "dtype float32"),
        (np.zeros((199, 64)), "shape"),
        (np.zeros((200, 0)), "shape"),
        (np.zeros(200), "shape"),
        (np.ones((200, 64)), "norm"),
        (np.array([[object()]]), "Python objects"),
    ],
)
def test_samples_that_cannot_be(samples: Any, match: str, written: bytes, tmp_path: Path) -> None:
    stream = io.BytesIO()
    np.savez(stream, **(arrays_of(written) | {"samples": samples}))
    with pytest.raises(FileError, match=match):
        read(stream.getvalue(), tmp_path)


def test_a_size_is_checked_before_anything_is_allocated(
    written: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXPUNGE_MAX_BYTES", "50000")
    with pytest.raises(FileError, match="declares 102,400 bytes"):
        read(written, tmp_path)


def test_files_that_are_cut_short_or_something_else(files: Path, written: bytes, tmp_path: Path) -> None:
    for share in (0.0, 0.5, 0.99):
        with pytest.raises(FileError):
            read(written[: int(share * len(written))], tmp_path)
    with pytest.raises(FileError, match="arrays samples and facts are needed"):
        read_estimate(files / "surrogate.npz")
    with zipfile.ZipFile(files / "empty.npz", "w"):
        pass
    with pytest.raises(FileError, match="holds nothing"):
        read_estimate(files / "empty.npz")


# The commands ---------------------------------------------------------------------------------------------------


def test_measured_kept_and_used(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains this short tell nothing; here they are taken as if they had mixed."""
    monkeypatch.setattr("expunge.estimate.comparison.doubt_chains", lambda *_: ())
    monkeypatch.setattr("expunge.estimate.comparison.doubt_entropy", lambda *_: ())
    printed = run(MEASURE + " --out {0}/kept.npz --json", files)
    assert printed.exit_code == 0, printed.output
    assert json.loads(printed.stdout)["estimate_file"] == str(files / "kept.npz")
    assert read_estimate(files / "kept.npz").kl == read_estimate(files / "estimate.npz").kl
    result = run(UNLEARN + "--distance {0}/kept.npz", files)
    assert result.exit_code == 0, result.output
    assert "status   estimated" in result.stdout
    assert "NOT KNOWN, ESTIMATED: means:" in result.stdout
    assert run("verify {0}/result/statement.json --model {0}/result/model.safetensors", files).exit_code == 0


def test_the_paper_s_route_and_the_options_of_use(files: Path) -> None:
    result = run(UNLEARN + "--distance {0}/estimate.npz:kl --sampling strict --json", files)
    assert result.exit_code == 0, result.output
    distance = json.loads(result.stdout)["statement"]["distance"]
    assert (distance["kind"], distance["provenance"], distance["sampling"]) == ("tv", "estimated", "strict")


def test_plan_takes_it_too(files: Path) -> None:
    line = "plan --model {0}/model.safetensors --forget {0}/forget.npz --surrogate {0}/surrogate.npz --delta 1e-3"
    result = run(line + " --epsilon 5 --distance {0}/estimate.npz --quiet --json", files)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["outlooks"][0]["distance"] == "estimate:means"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--distance estimate", ("--distance estimate names no estimate", "expunge distance --out estimate.npz first")),
        ("--distance estimate:kl", ("names no estimate", "--distance estimate.npz:kl")),
        ("--distance {0}/nothing.npz", ("nothing.npz does not exist",)),
        ("--distance {0}/surrogate.npz", ("arrays samples and facts",)),
        ("--distance {0}/estimate.npz:tv", ("route 'tv'",)),
        ("--distance {0}/estimate.npz --between samples", ("estimates are between populations",)),
        ("--distance {0}/estimate.npz --bound paper", ("takes a total variation",)),
        ("--distance {0}/estimate.npz:kl --match-classes", ("another surrogate", "the same --match-classes")),
    ],
)
def test_what_is_refused_says_what_to_do_and_writes_nothing(files: Path, options: str, words: tuple[str, ...]) -> None:
    before = sorted(files.iterdir())
    result = run(UNLEARN + options, files)
    assert result.exit_code == 2, result.output
    for text in words:
        assert text in result.stderr
    assert sorted(files.iterdir()) == before


def test_a_name_that_cannot_be_written_to_is_refused(files: Path) -> None:
    for options, match in (("--out {0}/estimate.npz", "exists already"), ("--out {0}/estimate.json", "ends in .npz")):
        result = run(MEASURE + " " + options, files)
        assert result.exit_code == 2
        assert match in result.stderr
