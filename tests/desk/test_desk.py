"""A desk from its opening to the moment it says: retrain."""

from __future__ import annotations

import datetime
import json
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from expunge.certificate.sign import generate_keys, read_private_key, verify_file
from expunge.desk import (
    Desk,
    Policy,
    accept,
    create_desk,
    history,
    models,
    open_desk,
    requests,
    run,
    status,
    verify_desk,
    withdraw,
)
from expunge.desk.desk import _locked
from expunge.desk.state import current_state
from expunge.errors import DataError, FileError, ModelError, OptionError, RetrainNow
from expunge.model import LinearModel, read_model
from expunge.request.declared import Declared

Rows = tuple[np.ndarray, np.ndarray]


def ask(desk: Desk, source: Rows, start: int, stop: int, reference: str | None = None) -> int:
    X, y = source
    return accept(desk, X[start:stop], y[start:stop], reference or f"rows {start} to {stop}").request.id


# Requests -------------------------------------------------------------------------------------------------------


def test_a_request_is_there_when_it_is_acknowledged(desk: Desk, source: Rows) -> None:
    number = ask(desk, source, 0, 2, "case 1")
    (request,) = requests(open_desk(desk.layout.folder))
    assert (request.id, request.reference, request.n_rows, request.state) == (number, "case 1", 2, "pending")
    due = datetime.date.fromisoformat(request.accepted[:10]) + datetime.timedelta(days=30)
    assert request.due == due.isoformat()
    assert accept(desk, source[0][3:4], source[1][3:4], "case 2", "2031-02-03").request.due == "2031-02-03"


def test_asking_twice_is_one_request(desk: Desk, source: Rows) -> None:
    X, y = source
    first = accept(desk, X[:3], y[:3], "case 1")
    assert first.new
    again = accept(desk, X[:3], y[:3], "case 1")
    other = accept(desk, X[2::-1], y[2::-1], "another reference")
    minus = accept(desk, np.where(X[:3] == 0.0, -0.0, X[:3]), y[:3], "case 1")
    assert [again.request, other.request, minus.request] == [first.request] * 3
    assert not any(found.new for found in (again, other, minus))
    run(desk)
    assert accept(desk, X[:3], y[:3], "case 1").request.state == "done"
    assert len(requests(desk)) == 1
    assert len(models(desk)) == 1


def test_a_row_can_be_forgotten_once(desk: Desk, source: Rows) -> None:
    ask(desk, source, 0, 3)
    with pytest.raises(DataError, match="1 of 2 rows are already in request 1"):
        ask(desk, source, 2, 4)
    with pytest.raises(OptionError, match="stands for request 1, which is pending"):
        ask(desk, source, 7, 8, "rows 0 to 3")


def test_a_withdrawn_request_is_not_done_and_may_be_asked_again(desk: Desk, source: Rows) -> None:
    ask(desk, source, 0, 1, "case 1")
    assert withdraw(desk, 1, "a mistake").state == "withdrawn"
    assert not list(desk.layout.rows.iterdir())
    assert run(desk).published == ()
    assert ask(desk, source, 0, 1, "case 1 again") == 2
    with pytest.raises(OptionError, match="withdrawn"):
        withdraw(desk, 1, "again")
    with pytest.raises(OptionError, match="unknown"):
        withdraw(desk, 9, "no such")
    verify_desk(desk)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda X, y: (X[:, :3], y), DataError),
        (lambda X, y: (X * np.nan, y), DataError),
        (lambda X, y: (X, y + 7), DataError),
        (lambda X, y: (X[:0], y[:0]), DataError),
    ],
)
def test_rows_a_run_could_not_use_are_refused_at_once(change: Any, error: type, desk: Desk, source: Rows) -> None:
    before = [entry.number for entry in history(desk)]
    with pytest.raises(error):
        accept(desk, *change(source[0][:2], source[1][:2]), "case")
    assert [entry.number for entry in history(desk)] == before
    assert not list(desk.layout.rows.iterdir())


@pytest.mark.parametrize("reference", ["", "x" * 201, "a\nb", "a\x00b", "\ud800", "a\u202eb"])
def test_odd_references(reference: str, desk: Desk, source: Rows) -> None:
    with pytest.raises(OptionError, match="reference"):
        ask(desk, source, 0, 1, reference or "\n")


def test_more_rows_than_the_source_has(desk: Desk, source: Rows) -> None:
    ask(desk, source, 0, 150)
    with pytest.raises(DataError, match="300 rows are to be forgotten"):
        ask(desk, source, 150, 300)
    with pytest.raises(OptionError, match="due date"):
        accept(desk, source[0][200:201], source[1][200:201], "late", "tomorrow")


# Runs -----------------------------------------------------------------------------------------------------------


def test_one_model_a_request_or_one_for_all(empty: Path, desk: Desk, source: Rows, tmp_path: Path) -> None:
    for number in range(3):
        ask(desk, source, number, number + 1)
    outcome = run(desk)
    assert [made.requests for made in outcome.published] == [(1,), (2,), (3,)]
    assert outcome.pending == 0
    for number in range(3, 6):
        ask(desk, source, number, number + 1)
    (made,) = run(desk, batch=True).published
    assert made.requests == (4, 5, 6)
    assert made.certificate.content["sizes"]["n_source"] == 297
    assert made.certificate.content["sizes"]["n_retain"] == 294
    assert run(desk).published == ()


def test_each_certificate_verifies_and_names_the_model_before_it(
    desk: Desk, source: Rows, trained: LinearModel
) -> None:
    for number in range(3):
        ask(desk, source, number, number + 1)
    run(desk)
    before = trained.sha256()
    for facts in models(desk):
        folder = desk.layout.published_model(facts["model"])
        certificate, _ = verify_file(folder / "certificate.json", None, folder / "model.safetensors")
        assert certificate.content["model"]["before"]["sha256"] == before, "never a digest of private weights"
        before = certificate.content["model"]["after"]["sha256"]
        place = certificate.content["data"]["sequence"]
        assert (place["planned"], place["position"]) == (10, facts["model"])
        assert certificate.content["noise"]["failures"]["sequence"] > 0
        assert sum(certificate.content["noise"]["failures"].values()) == pytest.approx(0.41e-3)
        inputs = certificate.content["bound"]["inputs"]["training_residual"]
        assert inputs["provenance"] == ("measured" if facts["model"] == 1 else "declared")
    assert any("2 earlier deletions" in note for note in certificate.content["notes"])


def test_signed_runs(desk: Desk, source: Rows, tmp_path: Path) -> None:
    keys = generate_keys()
    (tmp_path / "k").write_bytes(keys.private)
    (tmp_path / "k").chmod(0o600)
    (tmp_path / "k.pub").write_bytes(keys.public)
    ask(desk, source, 0, 1)
    run(desk, sign_key=read_private_key(tmp_path / "k"), test=source)
    folder = desk.layout.published_model(1)
    verify_file(folder / "certificate.signed.json", tmp_path / "k.pub", folder / "model.safetensors")
    (facts,) = models(desk)
    assert facts["keyid"] == keys.keyid
    assert facts["accuracy"]["rows"] == 300
    assert keys.keyid in (folder / "report.html").read_text()


def test_what_is_published_is_in_the_type_the_model_came_in(
    source: Rows, surrogate: Rows, policy: Policy, tmp_path: Path
) -> None:
    from expunge.train import train

    desk = create_desk(tmp_path / "d", train(*source, l2=0.1, max_norm=1.0, store="float32"), surrogate, policy)
    for number in range(2):
        ask(desk, source, number, number + 1)
    run(desk)
    for number in (1, 2):
        model, _ = read_model(desk.layout.published_model(number) / "model.safetensors")
        assert str(model.weight.dtype) == "torch.float32"
    state, _ = read_model(desk.layout.state_of(2))
    assert str(state.weight.dtype) == "torch.float64"


def test_one_writer_at_a_time(desk: Desk, source: Rows) -> None:
    with _locked(desk.layout), pytest.raises(FileError, match="in use"):
        ask(desk, source, 0, 1)
    ask(desk, source, 0, 1)


def test_private_files_that_were_changed_are_refused(desk: Desk, source: Rows, trained: LinearModel) -> None:
    ask(desk, source, 0, 1)
    path = desk.layout.rows_of(1)
    whole = path.read_bytes()
    path.write_bytes(whole + b"x")
    outcome = run(desk)
    assert isinstance(outcome.refused, DataError)
    assert outcome.pending == 1
    path.write_bytes(whole)
    standing = desk.layout.surrogate.read_bytes()
    desk.layout.surrogate.write_bytes(whole)
    with pytest.raises(FileError, match="surrogate"):
        run(desk)
    desk.layout.surrogate.write_bytes(standing)
    state = desk.layout.state_of(0)
    content = bytearray(state.read_bytes())
    content[-1] ^= 1
    state.write_bytes(bytes(content))
    with pytest.raises(FileError, match="state"):
        run(desk)


# The end of a desk ----------------------------------------------------------------------------------------------


def exhausted(desk: Desk, source: Rows, count: int, start: int = 0) -> RetrainNow:
    for number in range(start, start + count):
        ask(desk, source, number, number + 1)
    outcome = run(desk)
    assert isinstance(outcome.refused, RetrainNow)
    assert "retrain now" in str(outcome.refused)
    assert outcome.pending == count - len(outcome.published)
    assert status(desk).retrain == str(outcome.refused)
    assert {request.state for request in requests(desk)} <= {"done", "pending"}
    verify_desk(desk)
    return outcome.refused


def opened(source: Rows, surrogate: Rows, trained: LinearModel, folder: Path, **changes: Any) -> Desk:
    options = {"epsilon": 0.5, "delta": 1e-3, "distance": "same", "planned": 10, "force": True} | changes
    return create_desk(folder / "d", trained, surrogate, Policy(**options))


def test_retrain_when_the_planned_models_are_published(
    source: Rows, surrogate: Rows, trained: LinearModel, tmp_path: Path
) -> None:
    reason = exhausted(opened(source, surrogate, trained, tmp_path, planned=2), source, 3)
    assert "all 2 planned" in reason.found


def test_retrain_when_all_models_together_say_too_much(
    source: Rows, surrogate: Rows, trained: LinearModel, tmp_path: Path
) -> None:
    desk = opened(source, surrogate, trained, tmp_path, total_epsilon=0.8)
    assert "together would have epsilon" in exhausted(desk, source, 5).found
    found = status(desk)
    assert 0.5 < found.epsilon <= 0.8
    assert found.models_left == 0
    assert found.models == 2


def test_retrain_when_the_noise_would_swamp_the_weights(
    source: Rows, surrogate: Rows, trained: LinearModel, tmp_path: Path
) -> None:
    desk = opened(source, surrogate, trained, tmp_path, epsilon=0.1, distance="chi2:0.5", force=False)
    assert "swamp" in exhausted(desk, source, 10).found
    found = status(desk)
    assert found.models > 0
    assert found.deletions_left == 0


def test_capacity_is_what_then_happens(source: Rows, surrogate: Rows, trained: LinearModel, tmp_path: Path) -> None:
    desk = opened(source, surrogate, trained, tmp_path, total_epsilon=1.0)
    ask(desk, source, 0, 1)
    run(desk)
    left = status(desk).models_left
    assert 0 < left < 9
    exhausted(desk, source, left + 1, start=1)
    assert status(desk).models == left + 1


# Opening --------------------------------------------------------------------------------------------------------


def test_private_files_are_private(desk: Desk, source: Rows) -> None:
    ask(desk, source, 0, 1)
    private = [desk.layout.ledger, desk.layout.seal, *(p for p in desk.layout.private.rglob("*") if p.is_file())]
    assert len(private) >= 7
    for path in private:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    for folder in (desk.layout.private, desk.layout.rows, desk.layout.states):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder


@pytest.mark.parametrize(
    "options",
    [
        {"epsilon": 0.0},
        {"delta": 1.0},
        {"distance": "source"},
        {"distance": "near"},
        {"planned": 0},
        {"total_epsilon": 0.1},
        {"total_epsilon": float("nan")},
        {"days": -1},
        {"step": "leap"},
    ],
)
def test_impossible_policies(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        Policy(**({"epsilon": 1.0, "delta": 1e-4, "distance": "same"} | options)).checked()


def test_what_cannot_open_a_desk(
    trained: LinearModel, surrogate: Rows, policy: Policy, desk: Desk, source: Rows, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match="record"):
        create_desk(tmp_path / "a", LinearModel(trained.weight), surrogate, policy)
    ask(desk, source, 0, 1)
    run(desk)
    noised, _ = read_model(desk.layout.published_model(1) / "model.safetensors")
    with pytest.raises(ModelError, match="noised"):
        create_desk(tmp_path / "a", noised, surrogate, policy)
    with pytest.raises(DataError):
        create_desk(tmp_path / "a", trained, (surrogate[0][:20], surrogate[1][:20]), policy)
    with pytest.raises(FileError, match="exists"):
        create_desk(desk.layout.folder, trained, surrogate, policy)
    with pytest.raises(FileError, match="not a desk"):
        open_desk(tmp_path)
    assert not (tmp_path / "a").exists()


def test_a_model_without_a_record_and_labels_that_are_words(
    source: Rows, surrogate: Rows, trained: LinearModel, policy: Policy, tmp_path: Path
) -> None:
    bare = LinearModel(trained.weight)
    facts = {"n_source": 300, "l2": 0.1, "loss": "softmax", "max_norm": 1.0, "training_residual": 1e-9}
    desk = create_desk(tmp_path / "bare", bare, surrogate, policy, declared=Declared(**facts))
    ask(desk, source, 0, 1)
    (made,) = run(desk).published
    assert made.certificate.content["model"]["record"] == "declared"
    with pytest.raises(ModelError, match="agree"):
        create_desk(tmp_path / "other", trained, surrogate, policy, declared=Declared(n_source=299))
    from expunge.train import train

    words = np.array(["ash", "birch", "cedar"])
    model = train(source[0], words[source[1]], l2=0.1, max_norm=1.0)
    desk = create_desk(tmp_path / "words", model, (surrogate[0], words[surrogate[1]]), policy)
    accept(desk, source[0][:2], words[source[1][:2]], "case")
    assert len(run(desk).published) == 1


# Privacy --------------------------------------------------------------------------------------------------------

CANARY = 0.123456789012345678


def test_nothing_of_a_row_is_in_anything_that_may_leave(
    source: Rows, surrogate: Rows, trained: LinearModel, policy: Policy, tmp_path: Path
) -> None:
    """Row values in any spelling, noise values, private weights, the key and the file's name are in no public artefact."""
    from expunge.desk import desk_report

    desk = create_desk(tmp_path / "d", trained, surrogate, policy)
    row, labels = source[0][:1].copy(), source[1][:1]
    row[0, 1] = CANARY * 0.3
    states = [desk.layout.state_of(0).read_bytes()]
    accept(desk, row, labels, "case 1")
    run(desk)
    states.append(desk.layout.state_of(1).read_bytes())
    ask(desk, source, 1, 2, "case 2")
    run(desk)
    states.append(desk.layout.state_of(2).read_bytes())
    secrets: list[bytes] = [desk.key, desk.key.hex().encode()]
    for value in row[0]:
        secrets += spellings(float(value))
    private = [read_bytes_model(content, tmp_path) for content in states[1:]]
    for number, model in enumerate(private, start=1):
        published, _ = read_model(desk.layout.published_model(number) / "model.safetensors")
        noise = (published.matrix() - model.matrix()).numpy().reshape(-1)
        for value in [*noise, *model.matrix().numpy().reshape(-1)]:
            secrets += spellings(float(value))
    public = [path for path in desk.layout.published.rglob("*") if path.is_file()]
    artefacts = {str(path): path.read_bytes() for path in public}
    artefacts |= {"ledger": desk.layout.ledger.read_bytes(), "seal": desk.layout.seal.read_bytes()}
    artefacts |= {f"report {name}": content for name, content in desk_report(desk).items()}
    artefacts["status"] = json.dumps(status(desk).to_json()).encode()
    artefacts["history"] = json.dumps([entry.to_json() for entry in history(desk)]).encode()
    assert len(artefacts) >= 12
    for name, content in artefacts.items():
        found = [secret for secret in secrets if secret in content]
        assert not found, (name, found)
    # what is found where it may be shows that the search works
    assert any(secret in states[1] for secret in spellings(float(private[0].matrix()[0, 0])))
    assert not any(b"case 1" in artefacts[str(path)] for path in public), "references stay at the desk"
    assert not list(desk.layout.rows.iterdir()), "forgotten rows are gone"
    assert [path.name for path in desk.layout.states.iterdir()] == ["0002.safetensors"], "so are earlier weights"


def spellings(value: float) -> list[bytes]:
    """A number as bytes and as text; short texts would be found by chance."""
    texts = {repr(value), f"{value:.12g}", f"{value:.17g}", f"{value:.12e}", value.hex()}
    found = [np.float64(value).tobytes(), *(text.encode() for text in texts if len(text) >= 10)]
    return found if value not in (0.0, 1.0) else []


def read_bytes_model(content: bytes, folder: Path) -> LinearModel:
    path = folder / "state.safetensors"
    path.write_bytes(content)
    return read_model(path)[0]


def test_nothing_private_is_in_what_a_log_might_hold(desk: Desk) -> None:
    with desk.reading() as ledger:
        state = current_state(desk, ledger)
    for text in (repr(desk), repr(state)):
        assert repr(desk.key) not in text
        assert "tensor" not in text


def test_the_ledger_holds_keyed_digests_only(desk: Desk, source: Rows, copy: Callable[[Path], Desk]) -> None:
    import hashlib
    import hmac

    X, y = source
    ask(desk, source, 0, 1)
    (entry,) = [entry for entry in history(desk) if entry.kind == "accepted"]
    raw = np.ascontiguousarray(X[0], dtype="<f8").tobytes()
    label = np.int64(y[0]).tobytes()
    expected = hmac.new(desk.key, b"row\x00" + raw + label, hashlib.sha256).hexdigest()
    assert entry.body.to_json()["rows"] == [expected]
    text = json.dumps([entry.to_json() for entry in history(desk)])
    for bare in (raw, raw + label, desk.layout.rows_of(1).read_bytes()):
        assert hashlib.sha256(bare).hexdigest() not in text


# Distances ------------------------------------------------------------------------------------------------------


def test_a_desk_matches_classes_as_rows_leave(
    trained: LinearModel, source: Rows, surrogate: Rows, policy: Policy, tmp_path: Path
) -> None:
    """The second certificate's weights follow the class counts of the rows that are left."""
    desk = create_desk(tmp_path / "matched", trained, surrogate, replace(policy, match_classes=True))
    X, y = source
    gone = np.flatnonzero(y == 0)[:20]
    accept(desk, X[gone], y[gone], "twenty of one class")
    accept(desk, X[y == 1][:1], y[y == 1][:1], "one of another")
    first, second = run(desk).published
    contents = [made.certificate.content for made in (first, second)]
    assert all(content["distance"]["matched"] for content in contents)
    largest = [content["bound"]["inputs"]["weight_largest"]["value"] for content in contents]
    shares = np.bincount(surrogate[1]) / len(surrogate[1])
    assert largest[0] == pytest.approx((np.array([100, 100, 100]) / 300 / shares).max(), rel=1e-12)
    assert largest[1] == pytest.approx((np.array([80, 100, 100]) / 280 / shares).max(), rel=1e-12)
    verify_desk(open_desk(desk.layout.folder))


def test_a_desk_needs_a_declared_distance(policy: Policy) -> None:
    for text in ("estimate", "estimate:kl"):
        with pytest.raises(OptionError, match="a distance that somebody declares"):
            replace(policy, distance=text).checked()
