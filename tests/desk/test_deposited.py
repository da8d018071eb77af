"""A desk whose state is a deposit: requests looked up, rows gone with every run, noise that was set when it was opened."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from expunge import deposit as make_deposit
from expunge.bounds.calibration import mu_for
from expunge.certificate.claim import ARITHMETIC_SHARE, Fact
from expunge.certificate.sign import verify_file
from expunge.certificate.statement import read_certificate
from expunge.deposit.evidence import reach_of
from expunge.deposit.file import Deposit, read_deposit
from expunge.deposit.membership import answers
from expunge.deposit.verify import verify_deposits
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
from expunge.desk.create import default_noise
from expunge.desk.ledger import RunRefused
from expunge.desk.run import compose_drawn
from expunge.desk.state import load_state
from expunge.errors import DataError, ModelError, OptionError, RetrainNow, UselessModel
from expunge.model import read_model
from expunge.train import train
from small_deposit import N_SOURCE, kept, rows, source, trained

pytestmark = pytest.mark.usefixtures("one_thread")
POLICY = Policy(epsilon=0.5, delta=1e-3, distance="deposit", planned=10)
NOISE = 0.05  # more than the default, which hides hardly two of so few rows


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return create_desk(tmp_path / "desk", None, None, POLICY, deposit=kept().deposit, noise=NOISE)


def asked(desk: Desk, reference: str, *numbers: int) -> int:
    return accept(desk, *rows(*numbers), reference).request.id


def state_of(desk: Desk) -> Deposit:
    with desk.reading() as ledger:
        deposit = load_state(desk, ledger).deposit
    assert deposit is not None
    return deposit


# Opened -------------------------------------------------------------------------------------------------------------


def test_it_takes_the_deposit_in_and_keeps_no_surrogate(desk: Desk, tmp_path: Path) -> None:
    assert desk.policy.with_deposit
    assert desk.policy.noise == NOISE
    usual = create_desk(tmp_path / "usual", None, None, POLICY, deposit=kept().deposit)
    assert usual.policy.noise == default_noise(kept().deposit, POLICY.epsilon, POLICY.delta)
    assert state_of(desk).numbers == kept().deposit.numbers
    assert not desk.layout.surrogate.exists()
    assert open_desk(desk.layout.folder).policy == desk.policy


def test_noise_that_nobody_set_hides_at_a_small_epsilon_what_it_hides_at_1() -> None:
    """Else a desk at epsilon 0.1 opens and serves hardly anybody; up to where noise would be felt."""
    usual = default_noise(kept().deposit, 1.0, 1e-5)
    for epsilon in (0.1, 0.3, 1.0):
        noise = default_noise(kept().deposit, epsilon, 1e-5)
        assert noise * mu_for(epsilon, 1e-5) == pytest.approx(usual * mu_for(1.0, 1e-5), rel=1e-9)
    assert default_noise(kept().deposit, 0.001, 1e-5) == pytest.approx(16.0 * usual)
    assert default_noise(kept().deposit, 5.0, 1e-5) == usual


def test_what_cannot_open_one(tmp_path: Path) -> None:
    deposit, declared = kept().deposit, replace(POLICY, distance="same")
    with pytest.raises(OptionError, match="nothing stands in"):
        create_desk(tmp_path / "a", None, source(), POLICY, deposit=deposit)
    with pytest.raises(OptionError, match="nothing stands in"):
        create_desk(tmp_path / "a", None, None, declared, deposit=deposit)
    for policy in (POLICY, declared):
        with pytest.raises(OptionError, match="or the deposit"):
            create_desk(tmp_path / "a", trained(), None, policy)
    with pytest.raises(UselessModel, match="typical output"):
        create_desk(tmp_path / "a", None, None, POLICY, deposit=deposit, noise=10.0)
    with pytest.raises(OptionError, match="rehearse"):
        create_desk(tmp_path / "a", None, None, POLICY, deposit=deposit, noise="rows:3")
    other = train(*source(), l2=0.02, max_norm=3.0, bias=True)
    with pytest.raises(Exception, match="l2"):
        create_desk(tmp_path / "a", other, None, POLICY, deposit=deposit)
    assert not (tmp_path / "a").exists()


# Asked --------------------------------------------------------------------------------------------------------------


def test_rows_that_are_not_there_are_refused_when_they_are_asked_for(desk: Desk) -> None:
    features, labels = rows(1)
    with pytest.raises(DataError, match="not in what is left"):
        accept(desk, features + 0.5, labels, "a stranger")
    mixed = (np.vstack([rows(1)[0], features + 0.5]), np.repeat(labels, 2))
    with pytest.raises(DataError, match=r"1 of 2 rows \(row 2\) is not in what is left"):
        accept(desk, *mixed, "a person and a stranger")
    assert requests(desk) == []
    with pytest.raises(DataError, match="not in what is left"):
        accept(desk, *(np.repeat(part, 2, axis=0) for part in (features + 0.5, labels)), "a stranger twice")
    assert requests(desk) == []
    copied = accept(desk, features.astype(np.float32), labels, "a copy")
    assert copied.new
    original = accept(desk, *rows(1), "the original")
    assert (original.new, original.request.state) == (True, "aside"), "the same row, which is there once"
    assert [made.requests for made in run(desk).published] == [(1,)]
    again = accept(desk, *rows(1), "again", another_person=True)
    assert (again.new, again.request.state, again.request.others) == (True, "aside", 0), "whoever asks"
    with pytest.raises(
        OptionError, match=r"more often than the source has it left.*once that one is done these rows are gone"
    ):
        resume(desk, 3, another_person=True)
    assert (run(desk).published, status(desk).aside) == ((), 2)
    verify_desk(desk)


def test_a_refusal_does_not_say_who_asked_before(desk: Desk) -> None:
    """Asked for twice, or beside a stranger's row, a row is answered alike before and after somebody else asked."""
    stranger = (np.vstack([rows(1)[0], rows(2)[0] + 0.5]), np.concatenate([rows(1)[1], rows(2)[1]]))
    said = []
    for step in range(3):
        twice = accept(desk, *rows(1, 1), f"twice {step}")
        assert (twice.new, twice.request.state) == (True, "aside")
        withdraw(desk, twice.request.id, "tried")
        with pytest.raises(DataError) as refused:
            accept(desk, *stranger, f"beside {step}")
        said.append(str(refused.value))
        if step == 0:
            asked(desk, "somebody", 1)
        else:
            run(desk)
    assert len(set(said)) == 1


def test_two_people_with_the_same_row_are_two_requests(desk: Desk) -> None:
    first, second = (accept(desk, *rows(0), name) for name in ("one", "another"))
    assert (first.new, second.new) == (True, True)
    assert first.request.id != second.request.id
    assert not accept(desk, *rows(0), "one").new, "asked again under its own reference"
    assert accept(desk, *rows(0), "a third").request.state == "aside", "there is no third"
    (made,) = run(desk).published
    assert made.requests == (1, 2)
    assert made.certificate.status == "proven"
    assert "another_person" not in made.certificate.content["data"]["sequence"], "nothing was declared"
    assert [answer.there for answer in answers(state_of(desk), rows(0))] == [False]


def test_columns_of_other_names_do_not_keep_a_batch_from_running(desk: Desk) -> None:
    """The model's record names none, and the rows were found by their values in the order they came."""
    names = ("a", "b", "c", "d")
    for number, given in enumerate((names, names[::-1], None), start=1):
        accept(desk, *rows(number), f"case {number}", feature_names=given)
    assert run(desk).published[0].requests == (1, 2, 3)


def test_a_desk_is_not_opened_with_a_deposit_from_before_its_model(tmp_path: Path, desk: Desk) -> None:
    """Somebody kept the old deposit: with it the forgotten rows would be back."""
    asked(desk, "one", 1)
    run(desk)
    published, _ = read_model(desk.layout.published_model(1) / "model.safetensors")
    with pytest.raises(ModelError, match="whoever was forgotten would be back"):
        create_desk(tmp_path / "again", published, None, POLICY, deposit=kept().deposit)
    create_desk(tmp_path / "again", published, None, POLICY, deposit=state_of(desk))


@pytest.mark.parametrize(("loss", "features"), [("ridge", 6), ("logistic", 1), ("logistic", 26)])
def test_noise_does_not_tell_that_somebody_was_there(tmp_path: Path, loss: str, features: int) -> None:
    """One person has a column to themselves, or is like everybody: what a desk takes for granted must not show it."""
    generator, seen = np.random.default_rng(3), []
    X = generator.normal(size=(301, features + 1))
    y = (X[:, 0] + generator.logistic(size=len(X)) > 0).astype(int)
    X[:, -1] = 0.0
    for own in (0.0, 23.0):
        X[-1, -1] = own
        model = train(X, y, l2=1e-3, max_norm="largest", loss=loss)
        policy = replace(POLICY, epsilon=1.0, planned=5, force=True)
        desk = create_desk(tmp_path / f"{own}", None, None, policy, deposit=make_deposit(model, X, y))
        accept(desk, X[-1:], y[-1:])
        seen.append([desk.policy.noise])
        for made in run(desk).published:
            content = made.statement.content
            seen[-1].append((content["sigma"], content["noise"]))
    shown = min(map(len, seen))
    assert seen[0][:shown] == seen[1][:shown], "that one was refused is the one bit that may be seen"


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


def test_a_deposit_that_rows_have_left_can_open_a_desk(tmp_path: Path, desk: Desk) -> None:
    asked(desk, "one", 1, 2)
    run(desk)
    used, said = read_deposit(desk.layout.state_of(1)), []
    later = create_desk(tmp_path / "later", None, None, POLICY, deposit=used, say=said.append, noise=NOISE)
    assert ["2 rows had left the deposit before" in note for note in said] == [True, False], "and what noise costs"
    asked(later, "two", 3)
    (made,) = run(later).published
    standing = status(later)
    assert (standing.forgotten, standing.deletions_left) == (3, standing.rows_left), (
        "all that have left, one a run here"
    )
    assert standing.reach is not None
    assert standing.rows_left == math.floor(3.0 / math.sqrt(standing.reach) - 3.0)
    assert made.certificate.content["data"]["sequence"]["forgotten_before"] == 2
    folder = later.layout.published_model(1)
    verify_file(folder / "statement.json", None, folder / "model.safetensors", later.layout.dossier_of(1))
    verify_desk(later)


def test_beyond_the_reach_it_says_retrain_and_nothing_is_lost(desk: Desk) -> None:
    asked(desk, "nearly everybody", *range(1, N_SOURCE - 5))
    outcome = run(desk)
    assert isinstance(outcome.refused, RetrainNow)
    assert status(desk).retrain == str(outcome.refused)
    assert (outcome.pending, outcome.aside) == (0, 1)
    assert state_of(desk).numbers == kept().deposit.numbers
    withdraw(desk, 1, "a mistake")
    assert status(desk).retrain is None, "nobody waits for it any more"


@pytest.mark.parametrize("each", [False, True])
def test_one_who_is_beyond_the_reach_keeps_nobody_else_waiting(desk: Desk, each: bool) -> None:
    asked(desk, "one", 1)
    asked(desk, "nearly everybody", *range(20, N_SOURCE - 5))
    asked(desk, "two", 2)
    outcome = run(desk, each=each)
    assert [made.requests for made in outcome.published] == ([(1,), (3,)] if each else [(1, 3)])
    assert isinstance(outcome.refused, RetrainNow)
    assert [request.state for request in requests(desk)] == ["done", "aside", "done"]
    assert status(desk).retrain == str(outcome.refused), "for the one that waits"
    assert state_of(desk).numbers.n_rows == N_SOURCE - 2
    asked(desk, "three", 3)
    later = run(desk, each=each)
    assert [made.requests for made in later.published] == [(4,)]
    assert [entry.body.requests for entry in history(desk) if isinstance(entry.body, RunRefused)] == [(2,)]
    resume(desk, 2)
    assert (run(desk).published, status(desk).aside) == ((), 1), "tried again, and as far away as before"
    verify_desk(desk)


def test_where_no_other_could_be_served_it_stops(tmp_path: Path) -> None:
    few = create_desk(tmp_path / "few", None, None, replace(POLICY, planned=1, noise=NOISE), deposit=kept().deposit)
    for number in range(1, 4):
        asked(few, f"case {number}", number)
    outcome = run(few, each=True)
    assert (len(outcome.published), outcome.pending) == (1, 2)
    assert "all 1 planned models" in str(outcome.refused)
    assert [entry.kind for entry in history(few)].count("refused") == 1


# What is left -------------------------------------------------------------------------------------------------------


def test_status_says_how_much_of_the_reach_is_used(desk: Desk) -> None:
    before = status(desk)
    assert (before.reach, before.forgotten, before.deletions_left, before.rows_left) == (0.0, 0, None, None)
    asked(desk, "one", 1, 2)
    run(desk)
    after = status(desk)
    content = read_certificate(desk.layout.dossier_of(1)).content["bound"]
    facts = {name: Fact(fact["value"], fact["provenance"]) for name, fact in content["inputs"].items()}
    hidden = desk.policy.noise * mu_for(desk.policy.epsilon, desk.policy.delta)
    assert after.reach == reach_of(facts, content["convention"], hidden)
    region = content["total"] - content["terms"]["drawing"]
    assert region / hidden <= after.reach * (1.0 + 1e-12) < 1.0
    assert after.rows_left == math.floor(2.0 / math.sqrt(after.reach) - 2.0)
    assert (after.forgotten, after.deletions_left) == (2, after.rows_left // 2)
    assert after.deletions_left is not None
    assert after.deletions_left > 0
    asked(desk, "two", 3, 4)
    run(desk)
    assert (status(desk).reach or 0.0) > after.reach


def test_all_models_together_pay_for_what_float64_made_of_each(desk: Desk) -> None:
    asked(desk, "one", 1)
    asked(desk, "two", 2)
    outcome = run(desk, each=True)
    first, second = (made.composition for made in outcome.published)
    assert first.failures == second.failures == ARITHMETIC_SHARE * 1e-3
    assert first.epsilon < second.epsilon < 1.0
    with pytest.raises(RetrainNow, match="float64"):
        compose_drawn(6, 1e-14, [8.0] * 3)
    assert compose_drawn(6, 1e-6, [0.5] * 3).failures == ARITHMETIC_SHARE * 1e-6
