"""Audits in parts: parts that were kept are read, and the whole is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from expunge.data.partial import open_partial
from expunge.errors import OptionError
from expunge.evaluate import audit_campaign
from expunge.evaluate.audit import conclude, join
from expunge.evaluate.audit_campaign import run_audits, setting_of, source_free_from_files, task_from_files
from expunge.evaluate.tasks import make_task
from expunge.runtime.progress import silent


def test_parts_are_joined_and_kept_ones_are_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_campaign, "PART", 300)
    task, collect, parts = make_task("tight", 1.0, 1e-2), audit_campaign.collect, []

    def counting(*given: Any) -> Any:
        parts.append(collect(*given))
        return parts[-1]

    monkeypatch.setattr(audit_campaign, "collect", counting)
    setting = setting_of([task], 800)
    first = run_audits([task], 800, 0.95, open_partial(tmp_path / "p", setting), silent)
    assert [len(next(iter(part.unlearned.values()))) for part in parts] == [300, 300, 200]
    assert first["tight"] == conclude(task.request, task.measured, task.retrained, join(parts), confidence=0.95)
    again = run_audits([task], 800, 0.95, open_partial(tmp_path / "p", setting), silent)
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
