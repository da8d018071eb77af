"""What was spent, as counts: the same whether it is read from the last entry or gone over anew."""

from __future__ import annotations

import importlib
import json
import os
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from desk_use import Rows, ask, opened
from expunge.bounds.calibration import closed_form
from expunge.desk import Desk, models, run
from expunge.desk.state import count_mus
from expunge.errors import FileError
from expunge.model import LinearModel

ledger_module = importlib.import_module("expunge.desk.ledger")


def test_the_last_entry_says_what_all_models_spent(ledger: Desk) -> None:
    run(ledger)
    made = models(ledger)
    assert len(made) == 3
    with ledger.reading() as entries:
        assert count_mus(entries) == Counter(facts["mu"] for facts in made)
    for number, facts in enumerate(made, start=1):
        epsilon = closed_form([each["mu"] for each in made[:number]], facts["delta"] - facts["failures"])
        assert facts["composition"]["epsilon"] == pytest.approx(epsilon, rel=1e-12)


def test_a_damaged_count_is_an_error_in_words(ledger: Desk) -> None:
    with sqlite3.connect(ledger.layout.ledger) as connection:
        query = "SELECT max(number), body FROM entries WHERE kind = 'prepared'"
        number, body = connection.execute(query).fetchone()
        content = json.loads(body) | {"spent": {"a b c": 1}}
        connection.execute("UPDATE entries SET body = ? WHERE number = ?", (json.dumps(content), number))
    connection.close()
    with ledger.reading() as entries, pytest.raises(FileError, match="was spent"):
        count_mus(entries)


# A desk that grows --------------------------------------------------------------------------------------------------------


class Counted:
    """What a request and a run do: statements and steps of SQLite, entries read, files opened and synced."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.counts: Counter[str] = Counter()
        connect = ledger_module._connect

        def traced(path: Path, *, writing: bool) -> sqlite3.Connection:
            connection = connect(path, writing=writing)
            connection.set_trace_callback(lambda _: self.counts.update(["statements"]))
            connection.set_progress_handler(lambda: self.counts.update(["steps of SQLite"]), 10)
            return connection

        patch.setattr(ledger_module, "_connect", traced)
        for module, name in ((ledger_module, "read_as"), (os, "fsync"), (os, "open"), (os, "scandir")):
            self._count(patch, module, name)

    def _count(self, patch: pytest.MonkeyPatch, module: Any, name: str) -> None:
        real = getattr(module, name)

        def counting(*given: Any, **options: Any) -> Any:
            self.counts[name] += 1
            return real(*given, **options)

        patch.setattr(module, name, counting)

    def taken(self) -> Counter[str]:
        counts, self.counts = self.counts, Counter()
        return counts


def test_a_request_and_a_run_take_the_same_after_many_models(
    source: Rows, surrogate: Rows, trained: LinearModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted, not timed: no more is read, opened, synced or asked of SQLite for the 25th model than for the third."""
    desk = opened(source, surrogate, trained, tmp_path, planned=100, noise=1e3, total_epsilon=1e6)
    counted, taken = Counted(monkeypatch), []
    for number in range(25):
        ask(desk, source, number, number + 1)
        asked = counted.taken()
        assert len(run(desk).published) == 1
        taken.append((asked, counted.taken()))
    for early, late in zip(taken[2], taken[-1], strict=True):
        steps = "steps of SQLite"
        assert late[steps] < 1.3 * early[steps] + 20, "but the depth of its trees"
        assert {name: late[name] for name in late if name != steps} == {
            name: early[name] for name in early if name != steps
        }
