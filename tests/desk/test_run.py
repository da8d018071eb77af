"""Runs: one model a request or one for all, each certificate naming the model before, until it says: retrain."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from desk_use import Rows, ask, exhausted, opened
from expunge.certificate.dossier import read_certificate
from expunge.certificate.sign import generate_keys, read_private_key, verify_file
from expunge.desk import Desk, Policy, accept, create_desk, models, open_desk, resume, run, status, verify_desk
from expunge.errors import DataError, FileError, UselessModel
from expunge.model import LinearModel, read_model
from expunge.request.past import read_anchored


def test_one_model_a_request_or_one_for_all(empty: Path, desk: Desk, source: Rows, tmp_path: Path) -> None:
    for number in range(3):
        ask(desk, source, number, number + 1)
    outcome = run(desk, each=True)
    assert [made.requests for made in outcome.published] == [(1,), (2,), (3,)]
    assert outcome.pending == 0
    for number in range(3, 6):
        ask(desk, source, number, number + 1)
    (made,) = run(desk).published
    assert made.requests == (4, 5, 6)
    assert made.certificate.content["sizes"]["n_source"] == 300, "counted from the trained weights"
    assert made.certificate.content["sizes"]["n_retain"] == 294
    assert run(desk).published == ()


def test_each_certificate_verifies_and_names_the_model_before_it(
    desk: Desk, source: Rows, trained: LinearModel
) -> None:
    for number in range(3):
        ask(desk, source, number, number + 1)
    run(desk, each=True)
    before = trained.sha256()
    for facts in models(desk):
        folder = desk.layout.published_model(facts["model"])
        dossier = desk.layout.dossier_of(facts["model"])
        statement, _ = verify_file(folder / "statement.json", None, folder / "model.safetensors", dossier)
        certificate = read_certificate(dossier)
        assert certificate.content["model"]["before"]["sha256"] == before
        assert before not in statement.to_json(), "never a bare digest of private weights"
        before = certificate.content["model"]["after"]["sha256"]
        assert statement.content["sigma"] == desk.policy.noise
        assert facts["mu"] == statement.content["mu"], "what all models say together is counted with the target"
        place = certificate.content["data"]["sequence"]
        assert (place["planned"], place["position"]) == (10, facts["model"])
        assert certificate.content["noise"]["failures"]["sequence"] > 0
        assert sum(certificate.content["noise"]["failures"].values()) == pytest.approx(0.41e-3)
        inputs = certificate.content["bound"]["inputs"]["training_residual"]
        assert inputs["provenance"] == "measured", "nothing is carried"
    assert any("2 earlier deletions" in note for note in certificate.content["notes"])


def test_signed_runs(desk: Desk, source: Rows, tmp_path: Path) -> None:
    keys = generate_keys()
    (tmp_path / "k").write_bytes(keys.private)
    (tmp_path / "k").chmod(0o600)
    (tmp_path / "k.pub").write_bytes(keys.public)
    ask(desk, source, 0, 1)
    run(desk, sign_key=read_private_key(tmp_path / "k"), test=source)
    folder = desk.layout.published_model(1)
    verify_file(folder / "statement.signed.json", tmp_path / "k.pub", folder / "model.safetensors")
    assert stat.S_IMODE(desk.layout.dossier_of(1).stat().st_mode) == 0o600
    assert stat.S_IMODE(desk.layout.dossiers.stat().st_mode) == 0o700
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
    run(desk, each=True)
    for number in (1, 2):
        model, _ = read_model(desk.layout.published_model(number) / "model.safetensors")
        assert str(model.weight.dtype) == "torch.float32"
    state, past = read_anchored(desk.layout.state_of(2))
    assert (str(state.weight.dtype), str(past.gradients.dtype)) == ("torch.float32", "torch.float64")


def test_private_files_that_were_changed_are_refused(desk: Desk, source: Rows, trained: LinearModel) -> None:
    ask(desk, source, 0, 1)
    path = desk.layout.rows_of(1)
    whole = path.read_bytes()
    path.write_bytes(whole + b"x")
    outcome = run(desk)
    assert isinstance(outcome.refused, DataError)
    assert (outcome.pending, outcome.aside) == (0, 1)
    with pytest.raises(DataError, match="not those that were accepted"):
        resume(desk, 1)
    path.write_bytes(whole)
    resume(desk, 1)
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
    desk = opened(source, surrogate, trained, tmp_path, epsilon=0.03, distance="chi2:0.5", force=False, noise="request")
    assert "swamp" in exhausted(desk, source, 10).found
    assert desk.policy.noise is None
    with pytest.raises(UselessModel, match="swamp"):  # noise that is set is known when the desk is opened
        opened(source, surrogate, trained, tmp_path / "set", force=False, noise=100.0)


def test_retrain_when_the_noise_that_was_set_is_not_enough(
    source: Rows, surrogate: Rows, trained: LinearModel, tmp_path: Path
) -> None:
    """The bound grows with every deletion, the noise does not; how much was needed is nowhere told."""
    first = opened(source, surrogate, trained, tmp_path / "first", noise="request")
    ask(first, source, 0, 1)
    (made,) = run(first).published
    needed = made.certificate.content["noise"]["required"]
    desk = opened(source, surrogate, trained, tmp_path, noise=1.05 * needed)
    reason = exhausted(desk, source, 10)
    assert "more noise than was set beforehand" in reason.found
    assert not any(character.isdigit() for character in str(reason))
    found = status(desk)
    assert 1 <= found.models < 10
    assert {facts["sigma"] for facts in models(desk)} == {1.05 * needed}
    assert found.deletions_left is not None


def test_a_desk_matches_classes_as_rows_leave(
    trained: LinearModel, source: Rows, surrogate: Rows, policy: Policy, tmp_path: Path
) -> None:
    """The second certificate's weights follow the class counts of the rows that are left."""
    desk = create_desk(tmp_path / "matched", trained, surrogate, replace(policy, match_classes=True), noise="request")
    X, y = source
    gone = np.flatnonzero(y == 0)[:20]
    accept(desk, X[gone], y[gone], "twenty of one class")
    accept(desk, X[y == 1][:1], y[y == 1][:1], "one of another")
    first, second = run(desk, each=True).published
    contents = [made.certificate.content for made in (first, second)]
    assert all(content["distance"]["matched"] for content in contents)
    largest = [content["bound"]["inputs"]["weight_largest"]["value"] for content in contents]
    shares = np.bincount(surrogate[1]) / len(surrogate[1])
    assert largest[0] == pytest.approx((np.array([80, 100, 100]) / 280 / shares).max(), rel=1e-12)
    assert largest[1] == pytest.approx((np.array([80, 99, 100]) / 279 / shares).max(), rel=1e-12)
    verify_desk(open_desk(desk.layout.folder))
