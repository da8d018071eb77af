"""`expunge evaluate` and `expunge audit`: tables in every form, claims that are false."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command_line import done, refused, run
from expunge.errors import ModelError
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
    assert sorted(path.name for path in target.iterdir()) == ["table.json", "table.md"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert "| Retrain |" in (target / "table.md").read_text()


def test_evaluate_prints_a_table(tmp_path: Path) -> None:
    told = done(f"{EVALUATE} --out {tmp_path}/out --models 0 --seeds 1")
    assert "Unlearn" in told
    assert "MIA" in told


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
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["audit.json"]


def test_a_false_claim_has_exit_status_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("expunge.bounds.retained.training_term", lambda *anything: 0.0)
    result = run("audit --task tight --runs 400 --quiet")
    assert result.exit_code == 1
    assert "CONTRADICTED" in result.stdout
