"""Runs: who is served together, with which noise, and until when."""

from __future__ import annotations

import shutil
import stat
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from threadpoolctl import threadpool_limits

from desk_use import Rows, ask, exhausted, opened
from expunge.bounds.calibration import closed_form
from expunge.certificate.sign import generate_keys, read_private_key, verify_file
from expunge.certificate.statement import read_certificate
from expunge.cli import main
from expunge.desk import (
    Desk,
    Policy,
    accept,
    create_desk,
    history,
    models,
    open_desk,
    requests,
    resume,
    run,
    status,
    verify_desk,
    withdraw,
)
from expunge.desk.ledger import RequestRow, RequestSetAside
from expunge.desk.policy import MODEL
from expunge.desk.run import divide_group
from expunge.desk.state import State, derive_secret, load_state
from expunge.errors import BeyondPolicy, DataError, FileError, RetrainNow, UselessModel, VacuousClaim
from expunge.model import LinearModel, read_model
from expunge.request.request import read_anchored
from expunge.rows import EncodedRows
from expunge.runtime.arrays import dtype_name, to_numpy

# Runs: one model a request or one for all, each certificate naming the model before, until it says: retrain.


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
    made = models(desk)
    for number, facts in enumerate(made, start=1):  # all that were published so far count, each with its mu
        left = facts["delta"] - facts["composition"]["failures"]
        epsilon = closed_form([each["mu"] for each in made[:number]], left)
        assert facts["composition"]["epsilon"] == pytest.approx(epsilon, rel=1e-12)
        assert facts["composition"]["models"] == number


def test_signed_runs(desk: Desk, source: Rows, tmp_path: Path) -> None:
    keys = generate_keys()
    (tmp_path / "k").write_bytes(keys.private)
    (tmp_path / "k").chmod(0o600)
    (tmp_path / "k.pub").write_bytes(keys.public)
    ask(desk, source, 0, 1)
    run(desk, sign_key=read_private_key(tmp_path / "k"))
    folder = desk.layout.published_model(1)
    verify_file(folder / "statement.signed.json", tmp_path / "k.pub", folder / "model.safetensors")
    assert stat.S_IMODE(desk.layout.dossier_of(1).stat().st_mode) == 0o600
    assert stat.S_IMODE(desk.layout.dossiers.stat().st_mode) == 0o700
    (facts,) = models(desk)
    assert facts["keyid"] == keys.keyid
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
        assert dtype_name(model.weight.dtype) == "float32"
    state, past = read_anchored(desk.layout.state_of(2))
    assert (dtype_name(state.weight.dtype), dtype_name(past.gradients.dtype)) == ("float32", "float64")


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


def test_retrain_when_all_models_together_say_too_much(
    source: Rows, surrogate: Rows, trained: LinearModel, tmp_path: Path
) -> None:
    desk = opened(source, surrogate, trained, tmp_path, total_epsilon=0.8)
    assert "together would have epsilon" in exhausted(desk, source, 5).found
    found = status(desk)
    assert 0.5 < found.epsilon <= 0.8
    assert found.models_left == 0
    assert found.models == 2
    assert (
        "all 2 planned" in exhausted(opened(source, surrogate, trained, tmp_path / "few", planned=2), source, 3).found
    )


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


# Which requests are served together: one bad request keeps nobody waiting.


pytestmark = pytest.mark.usefixtures("one_thread")


def asked(count: int) -> list[RequestRow]:
    return [RequestRow(number, f"case {number}", "", "", 1, "pending", None) for number in range(count)]


def numbers(part: Sequence[RequestRow]) -> list[int]:
    return [request.id for request in part]


def test_which_of_several_fit_together() -> None:
    """Regions of 1, 2, 4, 8, ... that add up, and a reach of 20: the smallest that fit."""
    sizes, tried = [4.0, 32.0, 1.0, 16.0, 2.0, 8.0], []

    def trial(chosen: Sequence[RequestRow]) -> float:
        tried.append(numbers(chosen))
        total = sum(sizes[request.id] for request in chosen)
        if total > 20.0:
            raise (BeyondPolicy if total > 25.0 else VacuousClaim)("too much", "less", "Less.")
        return total

    within, later, beyond = divide_group(asked(6), trial) or ([], [], [])
    assert (numbers(within), numbers(later)) == ([0, 2, 4, 5], [3])
    assert [(request.id, str(why)) for request, why in beyond] == [(1, "too much; less. Less.")]
    assert len(tried) <= 6 + 3
    within, later, beyond = divide_group(asked(2)[1:], trial) or ([], [], [])
    assert (within, later, numbers([request for request, _ in beyond])) == ([], [], [1])
    sizes[:] = [4.0] * 6
    within, later, beyond = divide_group(asked(6), trial) or ([], [], [])
    assert (len(within), len(later), beyond) == (5, 1, [])
    sizes[:] = [1.0] * 6
    assert divide_group(asked(6), trial) is None, "all fit: the refusal was not about their rows"


def test_a_request_that_needs_more_noise_than_was_set_keeps_nobody_waiting(
    source: Rows, surrogate: Rows, trained: LinearModel, tmp_path: Path
) -> None:
    rehearsed = opened(source, surrogate, trained, tmp_path / "rehearsed", noise="request")
    X, y = (part[source[1] == 0] for part in source)
    accept(rehearsed, X[:5], y[:5], "five of a class")
    (made,) = run(rehearsed).published
    desk = opened(source, surrogate, trained, tmp_path, noise=1.05 * made.certificate.content["noise"]["required"])
    accept(desk, X[:1], y[:1], "one")
    accept(desk, X[20:90], y[20:90], "seventy")
    accept(desk, X[2:3], y[2:3], "another")
    outcome = run(desk)
    assert [made.requests for made in outcome.published] == [(1, 3)]
    assert isinstance(outcome.refused, RetrainNow)
    assert (outcome.pending, outcome.aside) == (0, 1)
    (aside,) = [entry.body for entry in history(desk) if isinstance(entry.body, RequestSetAside)]
    assert (aside.request, aside.aside.kind) == (2, "BeyondPolicy")
    assert "more noise than was set" in aside.aside.reason
    assert "desk resume" in aside.aside.remedy
    assert status(desk).retrain == str(outcome.refused)
    accept(desk, X[4:5], y[4:5], "one more")
    later = run(desk)
    assert (later.refused, later.aside) == (None, 1), "what is set aside is not tried again by itself"
    resume(desk, 2)
    assert run(desk).aside == 1
    assert [request.state for request in requests(desk)] == ["done", "aside", "done", "done"]
    verify_desk(desk)


def test_copies_of_a_desk_choose_the_same_requests(desk: Desk, source: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials start as the run itself would: another start could choose others, and publish a second model of one state."""
    started: list[tuple[int, int | None]] = []
    real = sys.modules["expunge.desk.run"].measure

    def measured(request: Any, *, seed: int | None = None) -> Any:
        started.append((len(request.forget), seed))
        if len(request.forget) == 2 and len(started) == 1:
            raise BeyondPolicy("too much", "less", "Less.")
        return real(request, seed=seed)

    monkeypatch.setattr(sys.modules["expunge.desk.run"], "measure", measured)
    for at in range(2):
        ask(desk, source, at, at + 1)
    run(desk)
    assert [size for size, _ in started] == [2, 1, 1, 2], "the run, each alone, and all once more"
    assert None not in {seed for _, seed in started}
    assert started[0] == started[-1]


def test_a_refusal_that_is_not_about_rows_sets_nobody_aside(
    desk: Desk, source: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **more: object) -> None:
        raise DataError("the page lacks a number", "all are needed", "Give them.")

    ask(desk, source, 0, 1)
    ask(desk, source, 1, 2)
    with monkeypatch.context() as patched:
        patched.setattr(sys.modules["expunge.desk.run"], "statement_page", refuse)
        outcome = run(desk)
    assert isinstance(outcome.refused, DataError)
    assert (outcome.pending, outcome.aside) == (2, 0)
    assert run(desk).pending == 0


def test_columns_of_other_names_are_served_apart(
    source: Rows, surrogate: Rows, trained: LinearModel, tmp_path: Path
) -> None:
    """Where neither record nor surrogate names columns nobody can say which order is right: two models."""
    desk = opened(source, surrogate, trained, tmp_path)
    X, y = source
    names = ("a", "b", "c", "d")
    for number, given in enumerate((names, names[::-1], None)):
        accept(desk, X[[number]], y[[number]], f"case {number}", feature_names=given)
    assert [made.requests for made in run(desk).published] == [(1, 3), (2,)]
    assert np.isfinite(status(desk).epsilon)


# One deletion is published in one way; different ones never with the same noise.


CENTRE = b"centre"


def published(folder: Path, number: int = 1) -> bytes:
    return (open_desk(folder).layout.published_model(number) / MODEL).read_bytes()


def copies(desk: Desk, count: int, tmp_path: Path) -> list[Desk]:
    made = []
    for number in range(count):
        shutil.copytree(desk.layout.folder, tmp_path / f"copy-{number}")
        made.append(open_desk(tmp_path / f"copy-{number}"))
    return made


def test_copies_of_a_desk_publish_the_same_model_byte_for_byte(desk: Desk, source: Rows, tmp_path: Path) -> None:
    """40 copies averaged would have cut fresh noise 6.3 times."""
    ask(desk, source, 0, 2)
    seen = set()
    for copy in copies(desk, 3, tmp_path):
        (made,) = run(copy).published
        seen.add(published(copy.layout.folder))
    assert len(seen) == 1
    for content in (made.statement.content, made.certificate.content):
        assert content["noise"]["generator"] == "desk key"
        assert "under the desk's secret key" in content["limits"][0]


def test_a_desk_that_was_put_back_and_asked_again_does_too(desk: Desk, source: Rows, tmp_path: Path) -> None:
    """Under another reference, in another order, after requests that came to nothing, by another number of threads."""
    X, y = source
    first, second = copies(desk, 2, tmp_path)
    accept(first, X[:3], y[:3], "first")
    run(first)
    accept(second, X[9:10], y[9:10], "nothing comes of this")
    withdraw(second, 1, "so that the ledger is longer")
    accept(second, X[2::-1], y[2::-1], "another")
    with threadpool_limits(2):
        run(second)
    assert published(first.layout.folder) == published(second.layout.folder)


def noise_of(desk: Desk, number: int = 1) -> np.ndarray:
    """Published less trained weights: the noise, up to an update that is far smaller."""
    before = to_numpy(current(desk)[0].model.matrix())
    return (to_numpy(read_model(desk.layout.published_model(number) / MODEL)[0].matrix()) - before).ravel()


def current(desk: Desk) -> tuple[State, str]:
    with desk.reading() as ledger:
        return load_state(desk, ledger), ledger.created().surrogate_mac


def test_other_rows_have_other_noise(desk: Desk, source: Rows, tmp_path: Path) -> None:
    """The difference of two models is as long as two independent draws, not as the difference of two updates."""
    first, second = copies(desk, 2, tmp_path)
    ask(first, source, 0, 1)
    ask(second, source, 1, 2)
    for each in (first, second):
        run(each)
    sigma = models(first)[0]["sigma"]
    apart = noise_of(first) - noise_of(second)
    assert np.linalg.norm(apart) > 0.3 * sigma * np.sqrt(2 * apart.size)


CHANGES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "the place": lambda given: given | {"state": replace(given["state"], number=1)},
    "the state": lambda given: given | {"state": replace(given["state"], mac="0" * 64)},
    "the model before": lambda given: given | {"state": replace(given["state"], published_sha256="0" * 64)},
    "the type of weights": lambda given: given | {"state": replace(given["state"], store="float16")},
    "the policy": lambda given: given | {"policy": replace(given["policy"], epsilon=0.25)},
    "the surrogate": lambda given: given | {"surrogate_mac": "0" * 64},
    "a row's last digit": lambda given: given | {"rows": EncodedRows(given["rows"][0] * (1 + 2**-52), given["rows"][1])},
    "a label": lambda given: given | {"rows": EncodedRows(given["rows"][0], given["rows"][1] + 1)},
    "a row twice": lambda given: given | {
        "rows": EncodedRows(*(np.concatenate([part, part[:1]]) for part in given["rows"]))
    },
}  # fmt: skip


def test_whatever_determines_the_model_determines_the_noise(desk: Desk, source: Rows) -> None:
    state, surrogate = current(desk)
    given = {"key": desk.key, "policy": desk.policy, "state": state, "surrogate_mac": surrogate}
    given["rows"] = EncodedRows(*(part[:2] for part in source))
    usual = derive_secret(**given)
    assert usual == derive_secret(**given)
    assert usual.bits(CENTRE)(32) != usual.bits(b"another")(32)
    for what, change in CHANGES.items():
        other = derive_secret(**change(given))
        assert usual.bits(CENTRE)(32) != other.bits(CENTRE)(32), what
        assert usual.start != other.start, what


def test_however_a_row_is_written_its_noise_is_the_same(desk: Desk, source: Rows, tmp_path: Path) -> None:
    """0 and -0 are one value, 1 and 1.0 one label, and one column of labels is labels: the update is the same."""
    X, y = source[0][:2].copy(), source[1][:2]
    X[0, 1] = 0.0
    written = [(X, y), (np.where(X == 0.0, -0.0, X), y), (X, y.astype(float)), (X, y[:, None]), (torch.tensor(X), y)]
    seen = set()
    for copy, (features, labels) in zip(copies(desk, len(written), tmp_path), written, strict=True):
        accept(copy, features, labels, "one")
        assert run(copy).refused is None
        seen.add(published(copy.layout.folder))
    assert len(seen) == 1


# What is left is what then happens.


def test_capacity_is_what_then_happens(source: Rows, surrogate: Rows, trained: LinearModel, tmp_path: Path) -> None:
    desk = opened(source, surrogate, trained, tmp_path, total_epsilon=1.0)
    ask(desk, source, 0, 1)
    run(desk)
    left = status(desk).models_left
    assert 0 < left < 9
    exhausted(desk, source, left + 1, start=1)
    assert status(desk).models == left + 1


def test_a_request_finishes_what_was_prepared_as_any_command_does(
    desk: Desk, source: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed once its files are digested, the ledger speaks of a state that has no name yet."""
    ask(desk, source, 0, 1)
    with monkeypatch.context() as patched:
        patched.setattr(sys.modules["expunge.desk.desk"], "finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run(desk)
    X, y = source
    np.savez(tmp_path / "rows.npz", X=X[5:6], y=y[5:6])
    line = ["desk", "request", str(desk.layout.folder), "--forget", str(tmp_path / "rows.npz"), "--reference", "next"]
    done = CliRunner().invoke(main, line)
    assert done.exit_code == 0, done.stderr
    assert [request.state for request in requests(desk)] == ["done", "pending"]
