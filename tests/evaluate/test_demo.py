"""The demo's stories: disjoint parts, certificates that verify, and bounds above the true distance."""

from pathlib import Path

import numpy as np
import pytest

from digit_rows import demo_deposit
from expunge.evaluate import demo
from expunge.evaluate.demo import N_FORGET, WITH, WITHOUT, digits, run


def test_parts_are_disjoint_and_what_goes_is_of_the_source() -> None:
    data = digits()
    assert {name: len(rows) for name, (rows, _) in data.items()} == {
        "source": 800,
        "surrogate": 700,
        "test": 297,
        "forget": N_FORGET,
        "retain": 800 - N_FORGET,
    }
    source = np.concatenate([data["forget"][0], data["retain"][0]])
    assert np.array_equal(source, data["source"][0])
    np.testing.assert_allclose(np.linalg.norm(source, axis=1), 1.0)
    rows = [row.tobytes() for name in ("source", "surrogate", "test") for row in data[name][0]]
    assert len(set(rows)) == len(rows)


@pytest.mark.slow  # the command's own tests tell both stories too
def test_both_stories_end_with_retraining_within_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "make_deposit", lambda *_: demo_deposit())
    said: list[str] = []
    ended: list[str] = []
    story = run(tmp_path, epsilon=5.0, delta=1e-3, say=said.append, ended=lambda name, _: ended.append(name))
    numbered = [text[0] for text in said if text[0].isdigit()]
    assert numbered == ["1", "2", "3", "4"] * 2
    assert ended == list(story.endings) == [WITH, WITHOUT]
    for name, status in ((WITH, "proven"), (WITHOUT, "conditional")):
        ending = story.endings[name]
        assert all(check.passed for check in ending.checks)
        assert 0.0 < ending.true_distance <= ending.unlearned.certificate.total
        assert ending.unlearned.statement.status == status
    assert f"{N_FORGET} of them are found in the deposit" in " ".join(said)
    assert set(story.accuracies) == {"before", "retrained", WITH, WITHOUT}
    assert story.accuracies["retrained"]["test"] > 0.8
    assert abs(story.accuracies[WITH]["test"] - story.accuracies["retrained"]["test"]) < 0.05
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*"))
    shared = [f"{name}/{file}" for name in (WITH, WITHOUT) for file in ("model.safetensors", "private/dossier.json", "statement.json")]  # fmt: skip
    assert files == sorted(["model.safetensors", f"{WITH}/private/model.deposit", *shared]), "the old deposit is gone"
