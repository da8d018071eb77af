"""`expunge evaluate` and `expunge audit`: tables in every form, runs that stop and go on, claims that are false."""

from __future__ import annotations

import contextlib
import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command_line import done, refused, run
from expunge.errors import ModelError
from expunge.evaluate import audit as audit_campaign
from expunge.evaluate import evaluation as campaign

pytestmark = pytest.mark.usefixtures("one_thread", "there")


PARTS = "--retain retain.npz --forget forget.npz --surrogate surrogate.npz"
EVALUATE = (
    f"evaluate --model model.safetensors {PARTS} --test test.npz --seeds 2 --models 32 --epsilon 5 --delta 1e-2 --quiet"
)


@pytest.fixture
def there(files: Path) -> Iterator[None]:
    with contextlib.chdir(files):
        yield


def test_evaluate_writes_one_table_in_every_form(tmp_path: Path) -> None:
    target = tmp_path / "out"
    content = done(f"{EVALUATE} --out {target} --candidate mine=published.safetensors --json")
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


def test_evaluate_prints_a_table(tmp_path: Path) -> None:
    told = done(f"{EVALUATE} --out {tmp_path}/out --models 0")
    assert "Unlearn" in told
    assert "MIA" in told


def test_a_stopped_evaluation_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, seeds = campaign.evaluate, []

    def stopping(case: Any, methods: Any, seed: int, **options: Any) -> Any:
        seeds.append(seed)
        if seed == 1 and len(seeds) == 2:
            raise KeyboardInterrupt
        return whole(case, methods, seed, **options)

    monkeypatch.setattr(campaign, "evaluate", stopping)
    line = f"{EVALUATE} --out {tmp_path}/out"
    refused(line, "1 of 2 seeds are kept", status=130)
    assert not (tmp_path / "out").exists()
    refused(f"{line} --delta 1e-3", "another setting")
    done(line)
    assert seeds == [0, 1, 1]
    assert not (tmp_path / "out.partial").exists()
    monkeypatch.undo()
    done(f"{EVALUATE} --out {tmp_path}/at-once")
    assert (tmp_path / "at-once" / "table.csv").read_text() == (tmp_path / "out" / "table.csv").read_text()


def test_what_is_refused_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(*_given: Any, **_options: Any) -> Any:
        raise ModelError("this model", "another is needed", "Give another.")

    monkeypatch.setattr(campaign, "evaluate", refusing)
    refused(f"{EVALUATE} --out {tmp_path}/out", "another is needed")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("evaluate", "no --retain, --forget, --test, --model"),
        (f"{EVALUATE} --candidate published.safetensors", "NAME="),
        ("audit --fresh x.npz", "no --published, --forget"),
        ("audit --certificate c.json", "no --model, --retain, --forget"),
        ("audit --task tight --confidence 1 --runs 200", "confidence 1"),
        ("audit --task tight --confidence 2 --runs 400", "confidence 2.0"),
        ("audit --delta 1", "strictly between 0 and 1"),
    ],
)
def test_what_is_missing_or_impossible_is_named_and_nothing_is_left(line: str, message: str, tmp_path: Path) -> None:
    refused(f"{line} --out {tmp_path}/out --quiet", message)
    assert list(tmp_path.iterdir()) == []


# expunge audit --------------------------------------------------------------------------------------------------------


def test_audit_of_a_task(tmp_path: Path) -> None:
    (found,) = done(f"audit --task tight --runs 400 --out {tmp_path}/out --json --quiet").values()
    assert not found["contradicted"]
    assert found["lower"]["runs"] == 200
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["audit.json", "audit.png"]


def test_a_stopped_audit_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collect, runs = audit_campaign.collect, []

    def stopping(*given: Any, **options: Any) -> Any:
        runs.append(given[1])
        if len(runs) == 3:
            raise KeyboardInterrupt
        return collect(*given, **options)

    monkeypatch.setattr(audit_campaign, "collect", stopping)
    monkeypatch.setattr(audit_campaign, "BATCH", 100)
    line = f"audit --task tight --runs 450 --out {tmp_path}/out --quiet"
    refused(line, "the same command continues", status=130)
    assert len(list((tmp_path / "out.partial").glob("tight*"))) == 2
    done(line)
    assert runs == [100, 100, 100, 100, 100, 50]


def test_a_false_claim_has_exit_status_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("expunge.bounds.retained.training_term", lambda *anything: 0.0)
    result = run("audit --task tight --runs 400 --quiet")
    assert result.exit_code == 1
    assert "CONTRADICTED" in result.stdout


def test_audit_of_a_certificate_in_its_own_setting() -> None:
    line = f"audit --certificate certificate.json {PARTS} --runs 200 --json --quiet --model"
    found = done(f"{line} model.safetensors")["certificate"]
    issued = json.loads(Path("certificate.json").read_text())
    assert (found["epsilon"], found["sigma"]) == (issued["epsilon"], issued["sigma"])
    refused(f"{line} published.safetensors", "digests")


def test_audit_without_the_source(tmp_path: Path) -> None:
    line = "audit --published published.safetensors --forget forget.npz --fresh fresh.npz"
    found = done(f"{line} --before model.safetensors --json --out {tmp_path}/out")["source_free"]
    assert 0 < found["after"]["value"] < 1
    assert found["limits"]
    assert "audit.json" in [path.name for path in (tmp_path / "out").iterdir()]
    assert "no proof" in done(line)
