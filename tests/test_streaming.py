"""Unlearning from streams, within a memory limit and in several processes: the same result as from arrays."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import expunge
from asking import asked
from expunge.errors import DataError
from expunge.model import LinearModel
from expunge.rows import open_data, stream
from expunge.rows.streams import StreamedRows
from expunge.runtime.arrays import norm

WIDTH, CLASSES = 12, 3
OPTIONS: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-5, "distance": "chi2:0.01", "force": True}


def rows(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, count)
    X = rng.normal(size=(count, WIDTH)) + 2.0 * np.eye(CLASSES, WIDTH)[y]
    return X / 4.0, y


X, Y = rows(0, 900)
S, T = rows(1, 2000)


@pytest.fixture(scope="module")
def model() -> LinearModel:
    return expunge.train(X, Y, l2=1e-2, max_norm=1.0, bias=True)


@pytest.fixture
def streaming(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing fits, and reads are short."""
    monkeypatch.setattr("expunge.request.sets.fits", lambda *given: False)
    monkeypatch.setattr("expunge.rows.streams.HELD_SHARE", 0.0)
    monkeypatch.setattr("expunge.rows.streams.READ_BYTES", 300 * WIDTH * 8)
    monkeypatch.setattr("expunge.heads.rows.BLOCK_BYTES", 100 * WIDTH * 8)


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch, streaming: None) -> None:
    """Nothing may be kept from one pass to the next either."""
    monkeypatch.setattr("expunge.rows.streams.REMEMBERED_SHARE", 0.0)
    monkeypatch.setattr(StreamedRows, "_has_room", lambda self, n_bytes: False)


def folder_of(path: Path) -> Any:
    path.mkdir()
    for index in range(4):
        part = slice(500 * index, 500 * (index + 1))
        save_file({"X": S[part], "y": T[part]}, path / f"{index}.safetensors")
    return open_data(path)


def compare(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Two certificates' contents: numbers to what the solver's tolerance leaves of them, words and counts alike."""
    for name in ("status", "sizes", "notes", "assumptions", "limits"):
        assert found[name] == wanted[name], name
    assert found["data"]["rows_scaled_to_max_norm"] == wanted["data"]["rows_scaled_to_max_norm"]
    assert found["sigma"] == pytest.approx(wanted["sigma"], rel=1e-6)
    for name, value in wanted["bound"]["terms"].items():
        assert found["bound"]["terms"][name] == pytest.approx(
            value, rel=1e-6, abs=1e-6 * wanted["bound"]["total"] + 1e-14
        ), name


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"match_classes": True, "distance": "chi2:0.1"},
        {"distance": "kl:0.01"},
        {"step": "newton"},
        {"step": "balanced", "distance": "tv:0.01"},
        {"dtype": "float32"},
        {"distance": "same"},
    ],
    ids=["plain", "matched", "kl", "newton", "balanced", "float32", "same"],
)
@pytest.mark.usefixtures("forgetful")
def test_a_stream_gives_what_arrays_give(model: LinearModel, changed: dict[str, Any], tmp_path: Path) -> None:
    options = OPTIONS | changed | {"insecure_test_seed": 3}
    wanted = expunge.unlearn(model, (X[:30], Y[:30]), (S, T), **options)
    found = expunge.unlearn(model, (X[:30], Y[:30]), folder_of(tmp_path / "s"), **options)
    compare(found.certificate.content, wanted.certificate.content)
    scale = float(norm(wanted.model.matrix()))
    assert float(norm(found.model.matrix() - wanted.model.matrix())) <= 1e-5 * scale


@pytest.mark.usefixtures("streaming")
def test_the_source_itself_may_be_streamed(model: LinearModel) -> None:
    options = OPTIONS | {"distance": "source", "insecure_test_seed": 3}
    forget = (X[:30], Y[:30])

    def source(labels: np.ndarray) -> Any:
        return stream(lambda: ((X[i : i + 100], labels[i : i + 100]) for i in range(0, len(X), 100)))

    wanted = expunge.unlearn(model, forget, (X, Y), **options).certificate.content
    compare(expunge.unlearn(model, forget, source(Y), **options).certificate.content, wanted)
    assert wanted["status"] == "conditional"
    with pytest.raises(DataError, match="30 of 30 forget rows are not among the source rows"):
        expunge.unlearn(model, (X[:30] + 1e-9, Y[:30]), source(Y), **options)
    with pytest.raises(DataError, match="class counts"):
        expunge.unlearn(model, forget, source(np.zeros_like(Y)), **options)


@pytest.mark.usefixtures("streaming")
def test_forget_rows_in_a_stream_are_found(model: LinearModel) -> None:
    both = np.concatenate([S, X[:5]]), np.concatenate([T, Y[:5]])
    request = asked(
        model, (X[:30], Y[:30]), stream(lambda: ((both[0][i : i + 64], both[1][i : i + 64]) for i in range(0, 2005, 64))), **OPTIONS
    )  # fmt: skip
    shared, *scaled = request.notes
    assert shared == "5 of 30 forget rows are also in the surrogate; it should hold none of them"
    longer = int((np.linalg.norm(both[0], axis=1) > 1.0).sum())
    assert f"the surrogate set: {longer} of 2,005 rows" in scaled[0]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_so_they_are_where_rows_are_scaled_in_another_dtype(model: LinearModel, dtype: str) -> None:
    both = np.concatenate([S, X[:5]]), np.concatenate([T, Y[:5]])
    request = asked(model, (2.0 * X[:30], Y[:30]), (2.0 * both[0], both[1]), **OPTIONS, dtype=dtype)
    shared, *scaled = request.notes
    assert shared == "5 of 30 forget rows are also in the surrogate; it should hold none of them"
    assert all(note.startswith("FORCED: the ") and "were scaled down to it" in note for note in scaled)
    assert len(scaled) == 2


@pytest.mark.usefixtures("streaming")
def test_a_stream_without_labels_will_do(model: LinearModel) -> None:
    unlabelled = stream(lambda: iter([S[:1200], S[1200:]]), labelled=False)
    found = expunge.unlearn(model, (X[:30], Y[:30]), unlabelled, **OPTIONS, insecure_test_seed=3)
    wanted = expunge.unlearn(model, (X[:30], Y[:30]), S, **OPTIONS, insecure_test_seed=3)
    compare(found.certificate.content, wanted.certificate.content)


@pytest.mark.usefixtures("streaming")
def test_what_needs_all_rows_at_once_says_so(model: LinearModel) -> None:
    with pytest.raises(DataError, match="an estimated distance on rows that are streamed"):
        asked(model, (X[:30], Y[:30]), stream(lambda: iter([(S, T)])), **OPTIONS | {"distance": "estimate"})


def test_a_small_stream_of_files_is_held_in_memory(model: LinearModel, tmp_path: Path) -> None:
    request = asked(model, (X[:30], Y[:30]), folder_of(tmp_path / "s"), **OPTIONS)
    assert isinstance(request.surrogate, expunge.heads.Rows)


def test_what_is_forgotten_may_come_as_a_stream(model: LinearModel, tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", X[:30])
    np.save(tmp_path / "y.npy", Y[:30])
    request = asked(model, open_data(tmp_path), (S, T), **OPTIONS)
    assert request.n_forget == 30
    with pytest.raises(DataError, match="no labels"):
        asked(model, open_data(tmp_path / "X.npy") if (tmp_path / "y.npy").unlink() is None else None, (S, T), **OPTIONS)  # type: ignore[func-returns-value, arg-type]  # fmt: skip


# Several processes ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def prepared(model: LinearModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("group")
    (folder / "model.safetensors").write_bytes(model.to_bytes())
    np.savez(folder / "forget.npz", X=X[:30], y=Y[:30])
    folder_of(folder / "shards")
    return folder


DRIVER = Path(__file__).parent / "group_driver.py"


def launch(count: int, program: list[str], extra: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """A group on this host, as torchrun starts it."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path), **(extra or {})}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count), *program]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        output, errors = process.communicate(timeout=400)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, output, errors


def several(counts: tuple[int, ...], folder: Path, target: Path) -> dict[int, Any]:
    """Updates and certificates of groups of so many processes."""
    found = {}
    for count in counts:
        file = target / f"{count}.json"
        status, _, errors = finish(launch(count, [str(DRIVER), str(folder), str(file)]))
        assert status == 0, errors
        found[count] = json.loads(file.read_text())
    return found


def require_alike(found: dict[int, Any]) -> None:
    one = np.array(found[1]["update"])
    for count, result in found.items():
        assert np.linalg.norm(np.array(result["update"]) - one) <= 1e-12 * np.linalg.norm(one), count
        compare(result["certificate"], found[1]["certificate"])
        total = found[1]["certificate"]["bound"]["total"]
        assert result["certificate"]["bound"]["total"] == pytest.approx(total, rel=1e-9)
        assert result["certificate"]["step"]["method"] == found[1]["certificate"]["step"]["method"]


def test_two_processes_give_what_one_gives(prepared: Path, tmp_path: Path) -> None:
    require_alike(several((1, 2), prepared, tmp_path))


@pytest.mark.slow
def test_so_they_do_with_conjugate_gradients(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, 4000)
    wide = (rng.normal(size=(4000, 450)) * np.arange(1, 451) ** -0.5 + 2 * np.eye(10, 450)[y]) / 4
    model = expunge.train(wide[:1000], y[:1000], l2=1e-3, max_norm=1.0)
    (tmp_path / "model.safetensors").write_bytes(model.to_bytes())
    np.savez(tmp_path / "forget.npz", X=wide[:20], y=y[:20])
    (tmp_path / "shards").mkdir()
    np.save(tmp_path / "shards" / "X.npy", wide[1000:])
    np.save(tmp_path / "shards" / "y.npy", y[1000:])
    found = several((1, 2, 4), tmp_path, tmp_path)
    assert found[1]["certificate"]["step"]["method"] == "conjugate gradients"
    require_alike(found)


def test_processes_that_are_given_different_rows_to_forget_are_refused(prepared: Path, tmp_path: Path) -> None:
    extra = {"EXPUNGE_TEST_OTHER": "1"}
    status, _, errors = finish(launch(2, [str(DRIVER), str(prepared), str(tmp_path / "2.json")], extra))
    assert status != 0
    assert "model, forget set or options differ between the processes" in errors
    assert list(tmp_path.iterdir()) == []


COMMAND = ["-m", "expunge", "unlearn", "--epsilon", "2", "--delta", "1e-5", "--distance", "chi2:0.01", "--force"]


def given(prepared: Path, target: Path) -> list[str]:
    return [
        *COMMAND, "--model", str(prepared / "model.safetensors"), "--forget", str(prepared / "forget.npz"),
        "--surrogate", str(prepared / "shards"), "--out", str(target),
    ]  # fmt: skip


@pytest.mark.slow
def test_the_command_runs_in_a_group_and_writes_once(prepared: Path, tmp_path: Path) -> None:
    status, output, errors = finish(launch(2, given(prepared, tmp_path / "out")))
    assert status == 0, errors
    assert output.count("may be handed out:") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
    content = expunge.read_certificate(tmp_path / "out" / "private" / "dossier.json").content
    assert content["sizes"]["n_surrogate"] == len(S)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("moment", ["first pass", "step", "moments", "end"])
def test_a_killed_process_ends_the_job_and_leaves_nothing(
    prepared: Path, tmp_path: Path, moment: str, rank: int
) -> None:
    extra = {"EXPUNGE_TEST_KILL": moment, "EXPUNGE_TEST_RANK": str(rank)}
    begun = time.monotonic()
    status, output, errors = finish(launch(2, [str(DRIVER), str(prepared), str(tmp_path / "out"), "cli"], extra))
    assert status != 0
    assert "may be handed out:" not in output
    assert list(tmp_path.iterdir()) == []
    assert "SIGKILL" in errors or "Signal 9" in errors or "another process of the group is gone" in errors
    assert time.monotonic() - begun < 100


@pytest.mark.slow
def test_a_refusal_is_said_once(prepared: Path, tmp_path: Path) -> None:
    asked = [part for part in given(prepared, tmp_path / "out") if part != "--force"]
    asked[asked.index("--epsilon") + 1] = "1e-4"
    status, _, errors = finish(launch(2, asked))
    assert status != 0
    assert errors.count("refused: the noise") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_bad_row_in_one_share_ends_all(prepared: Path, tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    broken = S.copy()
    broken[1999, 3] = np.inf
    np.save(tmp_path / "shards" / "X.npy", broken)
    asked = given(prepared, tmp_path / "out")
    asked[asked.index("--surrogate") + 1] = str(tmp_path / "shards")
    status, _, errors = finish(launch(2, asked))
    assert status != 0
    assert "every feature must be finite" in errors
    assert not (tmp_path / "out").exists()
