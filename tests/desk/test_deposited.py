"""A desk whose state is a deposit: requests looked up, rows gone with every run, noise from the deposit's radii."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from expunge.certificate.content import read_certificate
from expunge.certificate.sign import verify_file
from expunge.desk import (
    Desk,
    Policy,
    accept,
    create_desk,
    models,
    open_desk,
    requests,
    run,
    status,
    verify_desk,
    withdraw,
)
from expunge.desk.deposited import composed, require_available, require_ordinary
from expunge.desk.state import current_state
from expunge.errors import DataError, OptionError, RetrainNow, UselessModel
from expunge.evidence.deposit.asking import ask_deposit, deposit_guarantee
from expunge.evidence.deposit.contents import Deposit, read_deposit
from expunge.evidence.deposit.membership import answers
from expunge.evidence.deposit.verifying import verify_deposits
from expunge.model import read_model
from expunge.train import train
from small_deposit import N_SOURCE, kept, rows, source, trained

pytestmark = pytest.mark.usefixtures("one_thread")
POLICY = Policy(epsilon=0.5, delta=1e-3, distance="deposit", planned=10)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return create_desk(tmp_path / "desk", None, None, POLICY, deposit=kept().deposit)


def asked(desk: Desk, reference: str, *numbers: int) -> int:
    return accept(desk, *rows(*numbers), reference).request.id


def state_of(desk: Desk) -> Deposit:
    with desk.reading() as ledger:
        deposit = current_state(desk, ledger).deposit
    assert deposit is not None
    return deposit


# Opened -------------------------------------------------------------------------------------------------------------


def test_it_takes_the_deposit_in_and_keeps_no_surrogate(desk: Desk) -> None:
    assert desk.policy.kept
    assert desk.policy.radii == kept().deposit.numbers.radii
    assert state_of(desk).numbers == kept().deposit.numbers
    assert not desk.layout.surrogate.exists()
    assert open_desk(desk.layout.folder).policy == desk.policy


def test_what_cannot_open_one(tmp_path: Path) -> None:
    deposit, declared = kept().deposit, replace(POLICY, distance="same")
    with pytest.raises(OptionError, match="nothing stands in"):
        create_desk(tmp_path / "a", None, source(), POLICY, deposit=deposit)
    with pytest.raises(OptionError, match="nothing stands in"):
        create_desk(tmp_path / "a", None, None, declared, deposit=deposit)
    for policy in (POLICY, declared):
        with pytest.raises(OptionError, match="or the deposit"):
            create_desk(tmp_path / "a", trained(), None, policy)
    tiny = replace(POLICY, epsilon=1e-4, delta=1e-9)
    with pytest.raises(UselessModel, match="typical output"):
        create_desk(tmp_path / "a", None, None, tiny, deposit=deposit)
    other = train(*source(), l2=0.02, max_norm=3.0, bias=True)
    with pytest.raises(Exception, match="l2"):
        create_desk(tmp_path / "a", other, None, POLICY, deposit=deposit)
    assert not (tmp_path / "a").exists()


def test_models_are_published_in_the_type_of_the_one_given(tmp_path: Path) -> None:
    single = train(*source(), l2=0.01, max_norm=3.0, bias=True, store="float32")
    desk = create_desk(tmp_path / "desk", single, None, POLICY, deposit=kept().deposit)
    asked(desk, "one", 1)
    run(desk)
    published, _ = read_model(desk.layout.published_model(1) / "model.safetensors")
    assert str(published.weight.dtype) == "torch.float32"


# Asked --------------------------------------------------------------------------------------------------------------


def test_rows_that_are_not_there_are_refused_when_they_are_asked_for(desk: Desk) -> None:
    features, labels = rows(1)
    with pytest.raises(DataError, match="not in what is left"):
        accept(desk, features + 0.5, labels, "a stranger")
    with pytest.raises(DataError, match="not in what is left"):
        accept(desk, *rows(1, 1), "twice")
    assert requests(desk) == []
    copied = accept(desk, features.astype(np.float32), labels, "a copy")
    assert copied.new
    assert not accept(desk, *rows(1), "the original").new, "the same row, which is there once"
    assert [made.requests for made in run(desk).published] == [(1,)]
    known = accept(desk, *rows(1), "again")
    assert (known.new, known.request.id, known.request.state) == (False, 1, "done")


def test_two_people_with_the_same_row_are_two_requests(desk: Desk) -> None:
    first, second = (accept(desk, *rows(0), name) for name in ("one", "another"))
    assert (first.new, second.new) == (True, True)
    assert first.request.id != second.request.id
    assert not accept(desk, *rows(0), "one").new, "asked again under its own reference"
    assert not accept(desk, *rows(0), "a third").new, "there is no third"
    assert len(run(desk, batch=True).published) == 1
    assert [answer.there for answer in answers(state_of(desk), rows(0))] == [False]


def test_rows_of_pending_requests_are_not_there_for_others(desk: Desk) -> None:
    asked(desk, "one", 1, 2)
    with pytest.raises(DataError, match="1 of 2 rows are in pending requests already"):
        accept(desk, *rows(2, 3), "overlapping")
    with pytest.raises(OptionError, match="reference 'one' stands for request 1"):
        accept(desk, *rows(4), "one")
    withdraw(desk, 1, "a mistake")
    assert accept(desk, *rows(2, 3), "overlapping").new


def test_available_counts_every_precision() -> None:
    features, labels = rows(1)
    coarse = (np.round(features, 6), labels)
    require_available(kept().deposit, [], coarse)
    with pytest.raises(DataError, match="pending"):
        require_available(kept().deposit, [coarse], rows(1))
    require_available(kept().deposit, [rows(0)], rows(0))
    with pytest.raises(DataError, match="pending"):
        require_available(kept().deposit, [rows(0), rows(0)], rows(0))


# Run ----------------------------------------------------------------------------------------------------------------


def test_every_run_leaves_one_deposit_and_no_row(desk: Desk) -> None:
    before = kept().deposit
    for number in range(3):
        asked(desk, f"case {number}", 2 * number + 1, 2 * number + 2)
        (made,) = run(desk).published
        assert made.certificate.status == made.statement.status == "proven"
        assert [path.name for path in desk.layout.states.iterdir()] == [f"{number + 1:04d}.safetensors"]
        assert list(desk.layout.rows.iterdir()) == []
        after = state_of(desk)
        assert (after.numbers.n_rows, after.numbers.generation) == (N_SOURCE - 2 * number - 2, number + 1)
        gone = rows(2 * number + 1, 2 * number + 2)
        folder = desk.layout.published_model(number + 1)
        dossier = desk.layout.dossier_of(number + 1)
        verify_file(folder / "statement.json", None, folder / "model.safetensors", dossier)
        verify_deposits(read_certificate(dossier), after, before, gone, folder / "model.safetensors")
        before = after
    content = read_certificate(dossier).content
    assert content["sizes"]["n_forget"] == 6
    assert content["data"]["sequence"]["forgotten_before"] == 4
    assert [facts["n_rows"] for facts in models(desk)] == [2, 2, 2]
    verify_desk(desk)


def test_nothing_of_a_forgotten_row_stays_in_the_folder(desk: Desk) -> None:
    asked(desk, "one", 5)
    run(desk)
    features, _ = rows(5)
    values = {part.tobytes() for kind in (np.float64, np.float32) for part in features.astype(kind).ravel()}
    hashes = {bytes(digest[0]) for digest in _hashes_of(5)}
    for path in desk.layout.folder.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert not any(value in content for value in values | hashes), path


def _hashes_of(number: int) -> list[np.ndarray]:
    from expunge.data.row_hashes import row_hashes

    return list(row_hashes(kept().deposit.key, *rows(number)).digests)


def test_one_model_for_all_that_wait(desk: Desk) -> None:
    for number in range(1, 5):
        asked(desk, f"case {number}", number)
    (made,) = run(desk, batch=True, test=source()).published
    assert made.requests == (1, 2, 3, 4)
    accuracy = models(desk)[0]["accuracy"]
    assert accuracy["rows"] == N_SOURCE


def test_a_deposit_that_rows_have_left_can_open_a_desk(tmp_path: Path, desk: Desk) -> None:
    asked(desk, "one", 1, 2)
    run(desk)
    used = read_deposit(desk.layout.state_of(1))
    later = create_desk(tmp_path / "later", None, None, POLICY, deposit=used)
    asked(later, "two", 3)
    (made,) = run(later).published
    assert made.certificate.content["data"]["sequence"]["forgotten_before"] == 2
    folder = later.layout.published_model(1)
    verify_file(folder / "statement.json", None, folder / "model.safetensors", later.layout.dossier_of(1))
    verify_desk(later)


def test_beyond_the_reach_it_says_retrain_and_nothing_is_lost(desk: Desk) -> None:
    asked(desk, "nearly everybody", *range(1, N_SOURCE - 5))
    outcome = run(desk)
    assert isinstance(outcome.refused, RetrainNow)
    assert status(desk).retrain == str(outcome.refused)
    assert outcome.pending == 1
    assert state_of(desk).numbers == kept().deposit.numbers


# What is left -------------------------------------------------------------------------------------------------------


def test_status_says_how_much_of_the_reach_is_used(desk: Desk) -> None:
    before = status(desk)
    assert (before.reach, before.forgotten, before.deletions_left) == (0.0, 0, None)
    asked(desk, "one", 1, 2)
    run(desk)
    after = status(desk)
    total = read_certificate(desk.layout.dossier_of(1)).content["bound"]["total"]
    assert after.reach == pytest.approx(total / desk.policy.radii[-1])
    assert after.forgotten == 2
    assert after.deletions_left is not None
    assert after.deletions_left > 0
    asked(desk, "two", 3, 4)
    run(desk)
    assert (status(desk).reach or 0.0) > after.reach


def test_all_models_together_pay_for_what_float64_made_of_each(desk: Desk) -> None:
    asked(desk, "one", 1)
    asked(desk, "two", 2)
    outcome = run(desk)
    first, second = (made.composition for made in outcome.published)
    assert 0.0 < first.failures < second.failures < 1e-3
    assert first.epsilon < second.epsilon < 1.0
    made = kept().deposit
    request = ask_deposit(made, rows(1), deposit_guarantee(0.5, 1e-14))
    with pytest.raises(RetrainNow, match="float64"):
        composed(made, request, [made.numbers.radii[0]] * 3, [8.0] * 3)
    with pytest.raises(RetrainNow, match="doubled"):
        require_ordinary(made, 3.0 * float(made.model.matrix().norm()) + 2.0)


def test_what_is_published_does_not_depend_on_who_left(desk: Desk, tmp_path: Path) -> None:
    shutil.copytree(desk.layout.folder, tmp_path / "other")
    statements = []
    for folder, number in ((desk.layout.folder, 1), (tmp_path / "other", 2)):
        own = open_desk(folder)
        asked(own, "one", number)
        run(own)
        statements.append(json.loads((own.layout.published_model(1) / "statement.json").read_text()))
    for content in statements:
        for name in ("digest", "dossier", "model", "created"):
            content.pop(name)
        content["series"].pop("ledger_head")
    assert statements[0] == statements[1]


def test_a_damaged_deposit_is_not_used(desk: Desk) -> None:
    asked(desk, "one", 1)
    path = desk.layout.state_of(0)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(Exception, match="private files must be whole"):
        run(desk)
    assert math.isclose(status(desk).epsilon, 0.0)
