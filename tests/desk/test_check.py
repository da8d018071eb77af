"""Checking a desk offline: edits, cut-off tails, rewritten histories and changed files are seen."""

from __future__ import annotations

import random
import shutil
import sys
from dataclasses import replace
from typing import Any

import pytest

from desk_use import Rows, ask
from expunge.desk import Desk, history, run, verify_desk
from expunge.desk.layout import HEAD
from expunge.desk.ledger import DeskCreated, Ledger, RunRefused
from expunge.errors import VerificationFailed
from ledger_forgery import change, head, rebuild, rejected


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entries SET body = replace(body, 'case 1', 'case 9') WHERE kind = 'accepted'",
        "UPDATE entries SET time = '2020-01-01T00:00:00+00:00' WHERE number = 3",
        "UPDATE entries SET kind = 'refused' WHERE number = 3",
        "UPDATE entries SET hash = zeroblob(32) WHERE number = 3",
        "DELETE FROM entries WHERE number = 4",
        "DELETE FROM entries WHERE number = (SELECT max(number) FROM entries)",
        "UPDATE head SET size = size + 1",
        "UPDATE head SET hash = ''",
        "UPDATE requests SET reference = 'another' WHERE id = 1",
        "UPDATE requests SET state = 'done' WHERE state = 'pending'",
        "DELETE FROM row_digests WHERE request = 4",
        "UPDATE models SET prepared = prepared + 1",
        "CREATE TABLE more (x)",
        "CREATE TRIGGER sly AFTER INSERT ON entries BEGIN DELETE FROM head; END",
    ],
)
def test_an_edit_is_seen(statement: str, ledger: Desk) -> None:
    change(ledger, statement)
    assert "ledger" in rejected(ledger)


def test_two_entries_that_change_places_are_seen(ledger: Desk) -> None:
    change(
        ledger,
        "UPDATE entries SET number = -1 WHERE number = 2",
        "UPDATE entries SET number = 2 WHERE number = 3",
        "UPDATE entries SET number = 3 WHERE number = -1",
    )
    assert "entry 2" in rejected(ledger)


def test_a_cut_off_tail_is_seen_against_a_saved_head(ledger: Desk) -> None:
    saved = head(ledger)
    shutil.rmtree(ledger.layout.published)  # else the certificates' own heads show it
    ledger.layout.published.mkdir()
    rebuild(ledger, history(ledger)[:-1])
    assert verify_desk(ledger).head.size == saved.size - 1, "by itself it looks whole"
    assert "cut off" in rejected(ledger, [saved])
    with Ledger.open(ledger.layout.ledger) as opened:
        opened.append(RunRefused((), "x", "x"))
    assert "not those of a saved head" in rejected(ledger, [saved])


def test_a_rewritten_history_is_seen_by_the_certificates_it_published(ledger: Desk) -> None:
    first, *others = history(ledger)
    assert isinstance(first.body, DeskCreated)
    forged = replace(first, body=replace(first.body, policy=replace(first.body.policy, days=1)))
    rebuild(ledger, [forged, *others])
    assert "model 1 are not those of" in rejected(ledger)
    for number in (1, 2):
        (ledger.layout.published_model(number) / HEAD).unlink()
    assert "before model 1 are not those that its statement commits to" in rejected(ledger)


def test_a_published_file_that_was_changed_is_seen(ledger: Desk) -> None:
    path = ledger.layout.published_model(2) / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    assert "model.safetensors" in rejected(ledger)


def test_a_published_folder_that_was_taken_away_is_told(ledger: Desk) -> None:
    shutil.rmtree(ledger.layout.published_model(1))
    assert verify_desk(ledger).absent == (1,)


@pytest.mark.parametrize("flips", [200, pytest.param(1000, marks=pytest.mark.slow)])
def test_bit_flips_of_the_ledger_are_rejected(flips: int, ledger: Desk) -> None:
    path, generator = ledger.layout.ledger, random.Random(11)
    whole = path.read_bytes()
    survived = []
    for _ in range(flips):
        position, bit = generator.randrange(len(whole)), generator.randrange(8)
        changed = bytearray(whole)
        changed[position] ^= 1 << bit
        path.write_bytes(bytes(changed))
        try:
            verify_desk(ledger)
        except VerificationFailed:
            continue
        survived.append((position, bit))
    assert not survived
    path.write_bytes(whole)
    assert verify_desk(ledger).sealed


@pytest.mark.parametrize("place", ["expunge.desk.check._same", "expunge.desk.check.is_sealed", "refuse_unexpected"])
def test_a_command_that_writes_meanwhile_is_no_false_alarm(
    place: str, ledger: Desk, source: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request is accepted, or a model published, while the ledger, its file or the folders are looked at."""
    module, name = place.rsplit(".", 1) if "." in place else ("expunge.desk.check", "_refuse_unexpected")
    real, wrote = getattr(sys.modules[module], name), []

    def looked_at(*given: Any) -> Any:
        if not wrote:
            wrote.append(run(ledger) if name == "_refuse_unexpected" else ask(ledger, source, 20, 21))
        return real(*given)

    monkeypatch.setattr(sys.modules[module], name, looked_at)
    checked = verify_desk(ledger)
    assert wrote
    assert checked.head == head(ledger)


def test_what_is_wrong_is_found_though_a_command_writes_meanwhile(
    ledger: Desk, source: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, rows = sys.modules["expunge.desk.check"]._refuse_unexpected, iter(range(20, 60))

    def looked_at(*given: Any) -> Any:
        at = next(rows)
        ask(ledger, source, at, at + 1)
        return real(*given)

    (ledger.layout.published / "0007").mkdir()
    monkeypatch.setattr(sys.modules["expunge.desk.check"], "_refuse_unexpected", looked_at)
    monkeypatch.setattr(sys.modules["expunge.desk.check"], "MOST_TRIES", 3)
    with pytest.raises(VerificationFailed, match="does not know"):
        verify_desk(ledger)
