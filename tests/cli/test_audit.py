"""`expunge audit`: runs that stop and go on, claims that are false, certificates in their own setting."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from expunge.cli import main
from expunge.evaluate import audit as audit_campaign


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


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
    monkeypatch.setattr(audit_campaign, "PART", 100)
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
    words = [
        "audit",
        "--forget",
        files / "forget.npz",
        "--fresh",
        files / "fresh.npz",
        "--published",
        files / "published.safetensors",
    ]
    result = run(*words, "--before", files / "model.safetensors", "--json", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)["source_free"]
    assert 0 < found["after"]["value"] < 1
    assert found["limits"]
    assert "audit.json" in [path.name for path in (tmp_path / "out").iterdir()]
    assert "no proof" in run(*words).stdout
