"""Several seeds: what was kept is read and not run again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from expunge.errors import OptionError
from expunge.evaluate.evaluation import Campaign, MethodScores, files_campaign
from expunge.evaluate.metrics import Score
from expunge.rows.output import open_run
from expunge.runtime.progress import Progress, silent
from expunge.train import train


def test_a_stopped_campaign_goes_on_where_it_was(tmp_path: Path) -> None:
    ran: list[int] = []

    def one(seed: int, progress: Progress) -> list[MethodScores]:
        ran.append(seed)
        if len(ran) == 3:
            raise KeyboardInterrupt
        return [MethodScores("a", {"test": Score(seed / 10, 0.1, ("odd",))}, ("note",))]

    campaign = Campaign({"task": "x"}, one)
    with pytest.raises(KeyboardInterrupt):
        campaign.run([4, 5, 6], open_run(tmp_path / "p", campaign.setting), silent)
    told: list[tuple[str, int, int | None]] = []
    found = campaign.run([4, 5, 6], open_run(tmp_path / "p", campaign.setting), lambda *given: told.append(given))
    assert ran == [4, 5, 6, 6]
    assert [rows[0].scores["test"] for rows in found] == [Score(seed / 10, 0.1, ("odd",)) for seed in (4, 5, 6)]
    assert told == [("Seeds", done, 3) for done in range(4)]


def test_own_files_must_all_be_there() -> None:
    options = {"label": None, "epsilon": 1.0, "delta": 1e-3, "distance": "same", "n_models": 0}
    with pytest.raises(OptionError, match="no --forget, --test, --model"):
        files_campaign(None, {"retain": Path("r.npz")}, [], **options)


def test_one_weight_vector_is_compared_by_every_way(tmp_path: Path) -> None:
    generator = np.random.default_rng(5)
    features = generator.standard_normal((260, 3))
    labels = (features[:, 0] + generator.standard_normal(260) > 0).astype(int)
    model = train(features[:200], labels[:200], l2=0.05, max_norm=4.0, loss="logistic")
    model.save(tmp_path / "model.safetensors")
    parts = {}
    sets = {"retain": slice(25, 200), "forget": slice(0, 25), "test": slice(200, 260), "surrogate": slice(100, 260)}
    for name, part in sets.items():
        parts[name] = tmp_path / f"{name}.npz"
        np.savez(parts[name], X=features[part], y=labels[part])
    options = {"label": None, "epsilon": 1.0, "delta": 1e-3, "distance": "same", "n_models": 20}
    campaign = files_campaign(tmp_path / "model.safetensors", parts, [], with_deposit=True, **options)
    rows = {row.method: row.scores for row in campaign.run(range(1), open_run(tmp_path / "p", {}), silent)[0]}
    assert list(rows) == ["Original", "Retrain", "Unlearn (+)", "Unlearn (-)", "Deposit"]
    right = np.mean(model.predict(features[200:]) == labels[200:])
    assert rows["Original"]["test"].value == pytest.approx(float(right))
    assert rows["Deposit"]["fs1"].value is not None
