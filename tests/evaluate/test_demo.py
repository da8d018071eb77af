"""The demo's story: disjoint parts, a certificate that verifies, and a bound above the true distance."""

from pathlib import Path

import numpy as np

from expunge.evaluate.demo import N_FORGET, digits, run


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


def test_the_story_ends_with_retraining_within_the_bound(tmp_path: Path) -> None:
    said: list[str] = []
    story = run(tmp_path, epsilon=5.0, delta=1e-3, say=said.append)
    assert [text[0] for text in said] == ["1", "2", "3", "4", "5"]
    assert all(check.passed for check in story.checks)
    assert 0.0 < story.true_distance <= story.unlearned.certificate.total
    assert set(story.accuracies) == {"before", "retrained", "unlearned"}
    assert story.accuracies["retrained"]["test"] > 0.8
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*"))
    assert files == [
        "model.safetensors",
        "result/model.safetensors",
        "result/private/dossier.json",
        "result/statement.json",
    ]
