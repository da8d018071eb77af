"""A desk as a whole: opened, locked, private, and told what its noise costs."""

from __future__ import annotations

import errno
import io
import json
import os
import stat
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from desk_use import Rows, ask
from expunge.bounds.calibration import mu_for
from expunge.certificate.claim import ARITHMETIC_SHARE
from expunge.cli import main
from expunge.desk import Desk, Policy, accept, create_desk, history, open_desk, run, status, verify_desk
from expunge.desk.desk import lock
from expunge.desk.ledger import Ledger, RunRefused, write_seal
from expunge.errors import DataError, FileError, ModelError, OptionError
from expunge.model import LinearModel, read_model
from expunge.request.promise import Declared
from expunge.request.request import read_anchored
from expunge.runtime.arrays import to_numpy
from ledger_forgery import rejected
from small_deposit import kept

# Opening a desk: everything is checked; that the folder appears whole, whoever was faster, tests/rows/test_output.py tries.


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


# A desk as a whole: one writer at a time, and nothing of a row in anything that may leave.


# Waiting, locks and permissions --------------------------------------------------------------------------------------


def test_a_request_waits_for_another_command(desk: Desk, source: Rows) -> None:
    """As long as it is told to: the one that writes ends meanwhile, or does not."""
    patient = open_desk(desk.layout.folder, timeout=20.0)
    taken, done = threading.Event(), threading.Event()

    def writing() -> None:
        with lock(desk.layout):
            taken.set()
            done.wait(20.0)

    other = threading.Thread(target=writing)
    other.start()
    assert taken.wait(20.0)
    with pytest.raises(FileError, match=r"in use by another command, and was for 0\.2 seconds"):
        ask(open_desk(desk.layout.folder, timeout=0.2), source, 0, 1)
    threading.Timer(0.3, done.set).start()
    started = time.monotonic()
    assert ask(patient, source, 0, 1) == 1
    assert time.monotonic() - started > 0.2
    other.join()


def test_a_private_folder_that_others_can_enter_is_refused(desk: Desk) -> None:
    for mode in (0o777, 0o750, 0o701, 0o704):
        desk.layout.private.chmod(mode)
        with pytest.raises(FileError, match=rf"private has mode {mode:04o}.*chmod 700"):
            open_desk(desk.layout.folder)
    desk.layout.private.chmod(0o700)
    open_desk(desk.layout.folder)


def failing(call: str, number: int, where: Path, patch: pytest.MonkeyPatch) -> None:
    """Whatever is below a folder is another user's, or on a disk mounted for reading."""
    real = getattr(os, call) if call != "io.open" else io.open

    def refused(path: Any, *given: Any, **options: Any) -> Any:
        reading = call == "io.open" and number == errno.EROFS and not set("wax+") & set(given[0] if given else "r")
        if isinstance(path, (str, Path)) and Path(path).is_relative_to(where) and not reading:
            raise OSError(number, os.strerror(number), str(path))
        return real(path, *given, **options)

    patch.setattr(io if call == "io.open" else os, call.removeprefix("io."), refused)


@pytest.mark.parametrize("call", ["stat", "open"])
def test_another_users_desk_is_an_error_in_words(
    call: str, ledger: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Permissions do not bind everybody who runs tests, so the system's answer is put in its place."""
    folder, rows, pages = str(ledger.layout.folder), tmp_path / "rows.npz", tmp_path / "pages"
    np.savez(rows, X=np.eye(1, 4), y=[0])
    lines = [[command, folder] for command in ("status", "history", "head", "run")]
    for line in (*lines, ["request", folder, "--forget", str(rows)], ["withdraw", folder, "4"],
                 ["report", folder, "--out", str(pages)]):  # fmt: skip
        with monkeypatch.context() as patch:
            failing(call, errno.EACCES, ledger.layout.private, patch)
            done = CliRunner().invoke(main, ["desk", *line])
        assert done.exit_code == 2, done.output
        assert "cannot be read (Permission denied)" in done.stderr
        assert "run this as that user" in done.stderr
    assert not pages.exists()


def test_a_desk_on_a_disk_that_is_mounted_for_reading(
    ledger: Desk, source: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can be looked at; writing is refused in words, from the library too."""
    with monkeypatch.context() as patch:
        for call in ("io.open", "mkdir", "rename", "unlink"):
            failing(call, errno.EROFS, ledger.layout.folder, patch)
        opened = open_desk(ledger.layout.folder)
        assert status(opened).pending == 1
        with pytest.raises(FileError, match=r"Read-only file system.*mounted for writing"):
            ask(opened, source, 40, 41)
        with pytest.raises(FileError, match="Read-only file system"):
            run(opened)


# Clocks -----------------------------------------------------------------------------------------------------------------


def test_no_entry_is_dated_before_the_one_before_it(desk: Desk, source: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the clock."""
    ask(desk, source, 0, 1)
    monkeypatch.setattr("expunge.desk.ledger.now", lambda: "2020-01-01T00:00:00+00:00")
    ask(desk, source, 1, 2)
    times = [entry.time for entry in history(desk)]
    assert times == sorted(times)
    verify_desk(desk)


def test_an_entry_that_is_dated_before_the_one_before_it_fails(desk: Desk) -> None:
    with Ledger.open(desk.layout.ledger) as ledger:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Ledger, "_value", lambda *_: "")
            ledger.append(RunRefused((1,), "RetrainNow", "by another clock"), "2020-01-01T00:00:00+00:00")
        write_seal(desk.layout, ledger)
    assert "entry 2 is dated before" in rejected(desk)


# Privacy --------------------------------------------------------------------------------------------------------

CANARY = 0.123456789012345678


def test_nothing_of_a_row_is_in_anything_that_may_leave(
    source: Rows, surrogate: Rows, trained: LinearModel, policy: Policy, tmp_path: Path
) -> None:
    """Row values in any spelling, their gradients, private weights, the key and the file's name are in no public artefact."""
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
    for content in states[1:]:
        (tmp_path / "state").write_bytes(content)
        model, past = read_anchored(tmp_path / "state")
        for value in [*to_numpy(past.gradients).reshape(-1), *to_numpy(model.matrix()).reshape(-1)]:
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
    assert any(secret in states[1] for secret in spellings(float(model.matrix()[0, 0])))
    assert not any(b"case 1" in artefacts[str(path)] for path in public), "references stay at the desk"
    assert not list(desk.layout.rows.iterdir()), "forgotten rows are gone"
    assert [path.name for path in desk.layout.states.iterdir()] == ["0002.safetensors"], "so are earlier weights"


def spellings(value: float) -> list[bytes]:
    """A number as bytes and as text; short texts would be found by chance."""
    texts = {repr(value), f"{value:.12g}", f"{value:.17g}", f"{value:.12e}", value.hex()}
    found = [np.float64(value).tobytes(), *(text.encode() for text in texts if len(text) >= 10)]
    return found if value not in (0.0, 1.0) else []


# Where things are, and who may read them.


def test_private_files_are_private(desk: Desk, source: Rows) -> None:
    ask(desk, source, 0, 1)
    private = [desk.layout.ledger, desk.layout.seal, *(p for p in desk.layout.private.rglob("*") if p.is_file())]
    assert len(private) >= 7
    for path in private:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    for folder in (desk.layout.private, desk.layout.rows, desk.layout.states):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder


# What a desk cannot promise.


@pytest.mark.parametrize(
    "options",
    [
        *({"epsilon": 0.0}, {"delta": 1.0}, {"distance": "source"}, {"distance": "near"}, {"planned": 0}),
        *({"total_epsilon": 0.1}, {"total_epsilon": float("nan")}, {"days": -1}, {"step": "leap"}),
    ],
)
def test_impossible_policies(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        Policy(**({"epsilon": 1.0, "delta": 1e-4, "distance": "same"} | options)).check()


def test_a_desk_needs_a_declared_distance(policy: Policy) -> None:
    for text in ("estimate", "estimate:kl"):
        with pytest.raises(OptionError, match="a distance that somebody declares"):
            replace(policy, distance=text).check()


# What a desk's noise costs is told when it is opened, and where it would be of no use, with what would help.


KEPT = Policy(epsilon=0.5, delta=1e-3, distance="deposit", planned=10)


def test_accuracy_on_the_surrogate_without_noise_and_with_it(
    tmp_path: Path, trained: LinearModel, surrogate: Rows, policy: Policy
) -> None:
    right, said = 100 * float((trained.predict(surrogate[0]) == surrogate[1]).mean()), []
    create_desk(tmp_path / "quiet", trained, surrogate, policy, say=said.append, noise=1e-6)
    assert said[-1] == f"of the surrogate's rows {right:.1f} % are right before, and with this noise {right:.1f} %"
    create_desk(tmp_path / "ladder", trained, surrogate, policy, say=said.append, noise="request")
    assert len([note for note in said if "with this noise" in note]) == 1, "of the latter it is not known yet"


@pytest.mark.usefixtures("one_thread")
def test_outputs_with_a_deposit(tmp_path: Path) -> None:
    deposit, said = kept().deposit, []
    desk = create_desk(tmp_path / "desk", None, None, KEPT, deposit=deposit, say=said.append)
    assert desk.policy.noise is not None
    hundredth = 0.01 * mu_for(1.0, 1e-3) / mu_for(0.5, 1e-3)
    assert 0.2 * hundredth < desk.policy.noise * deposit.output_noise <= hundredth
    assert f"by {desk.policy.noise * deposit.output_noise:.3g}; the outputs themselves" in said[-1]
    assert f"about {deposit.output_spread:.3g}" in said[-1]
    hidden = desk.policy.noise * mu_for(0.5, 1e-3 * (1.0 - ARITHMETIC_SHARE))
    assert f"by more than {hidden:.3g}" in said[-1]
