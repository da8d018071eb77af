"""Audits in parts: parts that were kept are read, and the whole is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from expunge.errors import ModelError, OptionError
from expunge.evaluate import audit as audit_campaign
from expunge.evaluate.audit import (
    Runs,
    conclude,
    make_task,
    run_audits,
    setting_of,
    source_free_from_files,
    task_from_files,
)
from expunge.model import one_row_a_class
from expunge.rows.output import open_run
from expunge.runtime.progress import silent
from expunge.train import train


def test_parts_are_joined_and_kept_ones_are_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_campaign, "PART", 300)
    task, collect, parts = make_task("tight", 1.0, 1e-2), audit_campaign.collect, []

    def counting(*given: Any) -> Any:
        parts.append(collect(*given))
        return parts[-1]

    monkeypatch.setattr(audit_campaign, "collect", counting)
    setting = setting_of([task], 800)
    first = run_audits([task], 800, 0.95, open_run(tmp_path / "p", setting), silent)
    assert [len(next(iter(part.unlearned.values()))) for part in parts] == [300, 300, 200]
    assert first["tight"] == conclude(task.request, task.measured, task.retrained, Runs.join(parts), confidence=0.95)
    again = run_audits([task], 800, 0.95, open_run(tmp_path / "p", setting), silent)
    assert len(parts) == 3
    assert again == first


def test_the_setting_names_claim_model_and_facts() -> None:
    task = make_task("tight", 1.0, 1e-2)
    (described,) = setting_of([task], 10)["tasks"]
    assert (described["task"], described["epsilon"], described["delta"]) == ("tight", 1.0, 1e-2)
    assert described["model"] == task.request.subject.sha256
    assert described["facts"]["l2"] == task.request.record.l2
    assert np.isfinite(list(described["facts"].values())).all()


def test_what_is_missing_is_named() -> None:
    with pytest.raises(OptionError, match="--model, --forget"):
        task_from_files(Path("c.json"), None, Path("r.npz"), None, None, None)
    with pytest.raises(OptionError, match="--published, --forget, --fresh"):
        source_free_from_files(None, None, None, None, None)


def test_a_model_of_one_vector_is_compared_with_the_two_rows_it_became(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    X = rng.standard_normal((300, 3))
    y = np.where(X[:, 0] + rng.standard_normal(300) > 0.0, "yes", "no")
    one = train(X[:200], y[:200], l2=0.05, max_norm=5.0, loss="logistic", bias=True)
    two, other = one_row_a_class(one), train(X[:200, :2], y[:200], l2=0.05, max_norm=5.0, bias=True)
    for name, model in (("one", one), ("two", two), ("other", other)):
        model.save(tmp_path / f"{name}.safetensors")
    for name, part in (("forget", slice(0, 30)), ("fresh", slice(200, 300))):
        np.savez(tmp_path / f"{name}.npz", X=X[part], y=y[part])
    rows = (tmp_path / "forget.npz", tmp_path / "fresh.npz", None)
    found = source_free_from_files(tmp_path / "two.safetensors", tmp_path / "one.safetensors", *rows)
    assert found.before == found.after
    assert found.before_p == found.after_p
    same = source_free_from_files(tmp_path / "one.safetensors", tmp_path / "one.safetensors", *rows)
    assert same.before == same.after
    with pytest.raises(ModelError, match=r"--before .* shape \(2, 3\).*Give the model that it was unlearned from"):
        source_free_from_files(tmp_path / "two.safetensors", tmp_path / "other.safetensors", *rows)
