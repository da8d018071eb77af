"""`expunge evaluate` and `expunge audit`: tables in every form, runs that stop and go on, claims that are false."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from expunge.cli import main
from expunge.errors import ModelError
from expunge.evaluate import audit as audit_campaign
from expunge.evaluate import evaluation as campaign

pytestmark = pytest.mark.usefixtures("one_thread")


def run(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def evaluation(files: Path, target: Path, *more: object) -> Result:
    parts = [
        word for name in ("retain", "forget", "test", "surrogate") for word in (f"--{name}", files / f"{name}.npz")
    ]
    return run(
        "evaluate", "--model", files / "model.safetensors", *parts, "--seeds", 2, "--models", 32, "--epsilon", 5,
        "--delta", 1e-2, "--out", target, "--quiet", *more,
    )  # fmt: skip


def test_evaluate_writes_one_table_in_every_form(files: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    result = evaluation(files, target, "--candidate", f"mine={files / 'published.safetensors'}", "--json")
    assert result.exit_code == 0, result.stderr
    content = json.loads(result.stdout)
    assert list(content["methods"]) == ["Original", "Retrain", "Unlearn (+)", "Unlearn (-)", "mine"]
    assert content["seeds"] == 2
    retrained = content["methods"]["Retrain"]["metrics"]
    assert retrained["test"]["mean"] > 0.3
    assert retrained["mia"]["spread"] is not None
    assert content["methods"]["mine"]["metrics"]["fs1"]["mean"] is None
    assert sorted(path.name for path in target.iterdir()) == ["table.csv", "table.json", "table.md", "table.png"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    lines = list(csv.DictReader((target / "table.csv").open()))
    assert {line["method"] for line in lines} == set(content["methods"])
    assert "| Retrain |" in (target / "table.md").read_text()


def test_evaluate_prints_a_table(files: Path, tmp_path: Path) -> None:
    result = evaluation(files, tmp_path / "out", "--models", 0)
    assert result.exit_code == 0, result.stderr
    assert "Unlearn" in result.stdout
    assert "MIA" in result.stdout


def test_a_stopped_evaluation_is_continued(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, whole, seeds = tmp_path / "out", campaign.evaluate, []

    def stopping(case: Any, methods: Any, seed: int, **options: Any) -> Any:
        seeds.append(seed)
        if seed == 1 and len(seeds) == 2:
            raise KeyboardInterrupt
        return whole(case, methods, seed, **options)

    monkeypatch.setattr(campaign, "evaluate", stopping)
    stopped = evaluation(files, target)
    assert stopped.exit_code == 130
    assert "1 of 2 seeds are kept" in stopped.stderr
    assert not target.exists()
    refused = evaluation(files, target, "--delta", 1e-3)
    assert refused.exit_code == 2
    assert "another setting" in refused.stderr
    again = evaluation(files, target)
    assert again.exit_code == 0, again.stderr
    assert seeds == [0, 1, 1]
    assert not (tmp_path / "out.partial").exists()
    monkeypatch.undo()
    assert evaluation(files, tmp_path / "at-once").exit_code == 0
    assert (tmp_path / "at-once" / "table.csv").read_text() == (target / "table.csv").read_text()


def test_what_is_refused_leaves_nothing_behind(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(*_given: Any, **_options: Any) -> Any:
        raise ModelError("this model", "another is needed", "Give another.")

    monkeypatch.setattr(campaign, "evaluate", refusing)
    assert evaluation(files, tmp_path / "out").exit_code == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluate"], "no --retain, --forget, --test, --model"),
        (["audit", "--fresh", "x.npz"], "no --published, --forget"),
        (["audit", "--certificate", "c.json"], "no --model, --retain, --forget"),
        (["audit", "--task", "tight", "--confidence", "1", "--runs", "200"], "confidence 1"),
        (["audit", "--delta", "1"], "strictly between 0 and 1"),
    ],
)
def test_what_is_missing_or_impossible_is_named(words: list[str], message: str, tmp_path: Path) -> None:
    result = run(*words, "--out", tmp_path / "out", "--quiet")
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_candidate_needs_a_name(files: Path, tmp_path: Path) -> None:
    result = evaluation(files, tmp_path / "out", "--candidate", files / "published.safetensors")
    assert result.exit_code == 2
    assert "NAME=" in result.stderr


# expunge audit --------------------------------------------------------------------------------------------------------


def test_audit_of_a_task(tmp_path: Path) -> None:
    result = run("audit", "--task", "tight", "--runs", 400, "--out", tmp_path / "out", "--json", "--quiet")
    assert result.exit_code == 0, result.stderr
    (found,) = json.loads(result.stdout).values()
    assert not found["contradicted"]
    assert found["lower"]["runs"] == 200
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["audit.json", "audit.png"]


def test_a_stopped_audit_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collect, runs = audit_campaign.collect, []

    def stopping(*given: Any, **options: Any) -> Any:
        runs.append(given[3])
        if len(runs) == 3:
            raise KeyboardInterrupt
        return collect(*given, **options)

    monkeypatch.setattr(audit_campaign, "collect", stopping)
    monkeypatch.setattr(audit_campaign, "BATCH", 100)
    words = ("audit", "--task", "tight", "--runs", 450, "--out", tmp_path / "out", "--quiet")
    stopped = run(*words)
    assert stopped.exit_code == 130
    assert "the same command continues" in stopped.stderr
    assert len(list((tmp_path / "out.partial").glob("tight*"))) == 2
    assert run(*words).exit_code == 0
    assert runs == [100, 100, 100, 100, 100, 50]


def test_a_refused_audit_leaves_nothing(tmp_path: Path) -> None:
    refused = run("audit", "--task", "tight", "--runs", 400, "--confidence", 2, "--out", tmp_path / "out", "--quiet")
    assert refused.exit_code == 2
    assert "confidence 2.0" in refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_false_claim_has_exit_status_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import expunge.bounds.retained as retained

    monkeypatch.setattr(retained, "training_term", lambda *anything: 0.0)
    result = run("audit", "--task", "tight", "--runs", 400, "--quiet")
    assert result.exit_code == 1
    assert "CONTRADICTED" in result.stdout


def test_audit_of_a_certificate_in_its_own_setting(files: Path, tmp_path: Path) -> None:
    parts = [word for name in ("retain", "forget", "surrogate") for word in (f"--{name}", files / f"{name}.npz")]
    words = ["audit", "--certificate", files / "certificate.json", *parts, "--runs", 200, "--json", "--quiet"]
    result = run(*words, "--model", files / "model.safetensors")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)["certificate"]
    issued = json.loads((files / "certificate.json").read_text())
    assert found["epsilon"] == issued["epsilon"]
    assert found["sigma"] == issued["sigma"]
    wrong = run(*words, "--model", files / "published.safetensors")
    assert wrong.exit_code == 2
    assert "digests" in wrong.stderr


def test_audit_without_the_source(files: Path, tmp_path: Path) -> None:
    words = ["audit", "--published", files / "published.safetensors"]
    words += [word for name in ("forget", "fresh") for word in (f"--{name}", files / f"{name}.npz")]
    result = run(*words, "--before", files / "model.safetensors", "--json", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)["source_free"]
    assert 0 < found["after"]["value"] < 1
    assert found["limits"]
    assert "audit.json" in [path.name for path in (tmp_path / "out").iterdir()]
    assert "no proof" in run(*words).stdout
