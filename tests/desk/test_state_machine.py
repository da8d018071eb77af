"""A desk under random work, beside a simple model of it kept in memory.

Two people ask, ask again, withdraw and look; equal rows, copies in other precisions and strangers' rows come and go; an
operator runs, resumes, damages and repairs files, copies the folder and puts an older copy back; any of this may be
killed at any write. After each operation every accepted request waits, is done by one model, is set aside with a
reason or was withdrawn, as the model of it says; no answer names another request; and the ledger verifies against
the head that is kept outside.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from expunge.cli import main
from expunge.desk import Desk, Head, Policy, create_desk, models, open_desk, requests, run, verify_desk
from expunge.desk.ledger import Ledger
from expunge.errors import RetrainNow, VerificationFailed
from expunge.train import train
from expunge.unlearn import deposit

pytestmark = pytest.mark.usefixtures("one_thread")

STRANGER = 8  # a row that is not in the source
TWICE = 0  # a row that is in it twice
ONES = (0, 1, 2, 38)  # the rows of class 1, of which row 38 is row 0 again
USERS = ("alice", "bob")
OPEN = ("pending", "aside")


class Killed(BaseException):
    """The process is gone."""


# Rows ---------------------------------------------------------------------------------------------------------------


def six_decimals(X: np.ndarray) -> np.ndarray:
    return np.array([[float(f"{value:.6f}") for value in row] for row in X])


COPIES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "as it is": lambda X: X,
    "float32": lambda X: X.astype(np.float32),
    "six decimals": six_decimals,
    "one unit away": lambda X: np.nextafter(X, np.inf),
}


def _agree(row: np.ndarray) -> bool:
    """Whether any two copies of a row have a rounding in common; two of different roundings need not (docs/desk.md)."""
    made = [np.asarray(copy(row[None]), float) for copy in COPIES.values()]
    narrow, decimal = [copy.astype(np.float32) for copy in made], [six_decimals(copy) for copy in made]
    return all(
        np.array_equal(narrow[i], narrow[j]) or np.array_equal(decimal[i], decimal[j])
        for i in range(len(made))
        for j in range(i)
    )


@functools.cache
def source() -> tuple[np.ndarray, np.ndarray]:
    """Rows 0 to 7 are asked for, 8 is a stranger and not trained on; row 0 is there twice; class 1 has four rows."""
    generator, found = np.random.default_rng(3), []
    while len(found) < 39:
        label = int(len(found) in ONES)
        row = np.eye(2)[label] + 0.3 * generator.normal(size=2)
        if _agree(row):
            found.append(row)
    X, y = np.array(found), np.array([int(number in ONES) for number in range(39)])
    X[-1], y[-1] = X[TWICE], y[TWICE]
    return X, y


def trained_on() -> tuple[np.ndarray, np.ndarray]:
    X, y = source()
    kept = np.arange(len(y)) != STRANGER
    return X[kept], y[kept]


@functools.cache
def template(kept: bool) -> Path:
    """A desk nobody has asked anything."""
    folder = Path(tempfile.mkdtemp(prefix="desk-")) / "desk"
    (X, y), generator = trained_on(), np.random.default_rng(5)
    model = train(X, y, l2=0.5, max_norm=2.0)
    policy = Policy(
        epsilon=0.5, delta=1e-3, distance="deposit" if kept else "same", planned=200, total_epsilon=1e4, force=True
    )
    if kept:
        create_desk(folder, model, None, policy, deposit=deposit(model, X, y, seed=1))
    else:
        near = np.tile(X, (4, 1)) + 0.01 * generator.normal(size=(4 * len(X), 2))
        create_desk(folder, model, (near, np.tile(y, 4)), policy, noise=1e3)
    return folder


# The model of it ----------------------------------------------------------------------------------------------------


@dataclass
class Known:
    """A request as the model has it; `file` is what its rows' file should be where somebody damaged it."""

    user: str
    keys: tuple[int, ...]
    state: str
    declared: bool = False
    file: bytes | None = None


class Deskwork(RuleBasedStateMachine):
    """Random work at one desk; `kept`: its state is a deposit."""

    kept = False
    operations = 0

    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp(prefix="desk-"))
        self.folder = self.place / "desk"
        shutil.copytree(template(self.kept), self.folder)
        self.known: dict[str, Known] = {}
        self.copies: list[tuple[Path, Head]] = []
        self.made = 0
        self.head = self.head_now()

    def teardown(self) -> None:
        shutil.rmtree(self.place)

    # Looking at it

    @property
    def desk(self) -> Desk:
        return open_desk(self.folder)

    def head_now(self) -> Head:
        with self.desk.reading() as ledger:
            return ledger.head()

    def number_of(self, reference: str) -> int:
        return next(request.id for request in requests(self.desk) if request.reference == reference)

    def state_of(self, reference: str) -> str | None:
        return next((request.state for request in requests(self.desk) if request.reference == reference), None)

    def command(self, *line: str) -> tuple[int, str]:
        done = CliRunner().invoke(main, ["desk", line[0], str(self.folder), *line[1:]])
        assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
        return done.exit_code, done.output

    def answered(self, reference: str, *line: str) -> tuple[int, str]:
        """What a requester is told: nothing that names another request, or says that somebody asked before."""
        status, text = self.command(*line, "--reference", reference)
        named = set(re.findall(r"\b(?:alice|bob)-\d+\b", text))
        assert named <= {reference}, text
        assert not re.search(r"aside|before|somebody|another person|request \d", text), text
        return status, text

    @contextlib.contextmanager
    def mortal(self, kill: int | None) -> Iterator[list[bool]]:
        """Dies at a write, if `kill` says at which; then another process opens the desk and puts it right."""
        died: list[bool] = []
        writes = iter(range(10**6))
        sync, append = os.fsync, Ledger.append

        def synced(handle: int) -> None:
            if next(writes) == kill:
                raise Killed
            sync(handle)

        def appended(ledger: Ledger, *body: object) -> object:
            if next(writes) == kill:
                raise Killed
            entry = append(ledger, *body)  # type: ignore[arg-type]
            if next(writes) == kill:
                raise Killed
            return entry

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", synced)
            patch.setattr(Ledger, "append", appended)
            try:
                yield died
            except Killed:
                died.append(True)
        if died:
            with self.desk.writing():
                pass

    # What must come of it

    def predicted(self, keys: Sequence[int], declared: bool, own: str | None = None) -> str:
        """What becomes of a request for these rows: `pending`, `aside` or `refused`."""
        others = {name: known for name, known in self.known.items() if name != own and known.state != "withdrawn"}
        counts = [known for known in others.values() if own is None or known.state != "aside"]  # whoever is first goes
        held = {key for known in counts for key in known.keys}
        if self.kept:
            left = Counter(self.labels_left())
            short = {key for key, count in Counter(keys).items() if count > left[key]}
            if any(not left[key] for key in short - held):
                return "refused"
            sharing = [known.keys for known in others.values() if self.counted(known) and set(known.keys) & set(keys)]
            wanted = Counter(key for part in (*sharing, keys) for key in part)
            if short or any(count > left[key] for key, count in wanted.items()):
                return "aside"
        elif not declared and (len(set(keys)) < len(keys) or held & set(keys)):
            return "aside"
        return "aside" if self.overdrawn(keys, own) else "pending"

    def counted(self, known: Known) -> bool:
        return known.state == "pending" and known.file is None

    def gone(self) -> list[int]:
        return [key for known in self.known.values() if known.state == "done" for key in known.keys]

    def labels_left(self) -> Counter[int]:
        """How often each row that can be asked for is left in the source."""
        return Counter({key: 1 + (key == TWICE) for key in range(STRANGER)}) - Counter(self.gone())

    def overdrawn(self, keys: Sequence[int], own: str | None) -> bool:
        """Whether more rows would leave than are left, in all or of a class."""
        labels, there = source()[1], Counter(trained_on()[1].tolist())
        waiting = [
            k for name, known in self.known.items() if known.state == "pending" and name != own for k in known.keys
        ]
        left = there - Counter(labels[self.gone()].tolist())
        wanted = Counter(labels[[*waiting, *keys]].tolist())
        asked = set(labels[list(keys)].tolist())
        return wanted.total() >= left.total() or any(wanted[label] > left[label] for label in asked)

    @invariant()
    def every_request_is_where_it_should_be(self) -> None:
        type(self).operations += 1
        desk = self.desk
        there = {request.reference: request for request in requests(desk)}
        assert {name: request.state for name, request in there.items()} == {
            name: known.state for name, known in self.known.items()
        }
        served = Counter(number for facts in models(desk) for number in facts["requests"])
        assert served == Counter(request.id for request in there.values() if request.state == "done"), "none twice"
        for request in there.values():
            assert (request.aside is not None) == (request.state == "aside")
            assert request.aside is None or (request.aside.reason and request.aside.remedy)
            assert desk.layout.rows_of(request.id).exists() == request.open
        if models(desk):
            assert models(desk)[-1]["n_left"] == len(trained_on()[1]) - len(self.gone())
        checked = verify_desk(desk, [self.head])
        assert checked.absent == (), "what is published is there"
        self.head = checked.head

    # What two people do

    def written(self, keys: Sequence[int], copy: str) -> str:
        X, y = source()
        np.savez(self.place / "rows.npz", X=COPIES[copy](X[list(keys)]), y=y[list(keys)])
        return str(self.place / "rows.npz")

    @rule(
        user=st.sampled_from(USERS),
        keys=st.lists(st.integers(0, STRANGER), min_size=1, max_size=4),
        copy=st.sampled_from(sorted(COPIES)),
        declared=st.booleans(),
        kill=st.none() | st.integers(0, 6),
    )
    def ask(self, user: str, keys: list[int], copy: str, declared: bool, kill: int | None) -> None:
        reference, self.made = f"{user}-{self.made}", self.made + 1
        expected, file = self.predicted(keys, declared), self.written(keys, copy)
        flag = ["--another-person"] if declared else []
        with self.mortal(kill) as died:
            status, text = self.answered(reference, "request", "--forget", file, *flag)
        if not died:
            assert status == (2 if expected == "refused" else 0), text
            assert expected == "refused" or re.fullmatch(rf"accepted: {reference}, {len(keys)} rows, due \S+\n", text)
        there = self.state_of(reference)
        assert there == (None if expected == "refused" else expected) or (died and there is None)
        if there is not None:
            self.known[reference] = Known(user, tuple(keys), there, declared)

    @precondition(lambda self: any(known.state != "withdrawn" for known in self.known.values()))
    @rule(data=st.data(), copy=st.sampled_from(sorted(COPIES)), declared=st.booleans())
    def ask_the_same_again(self, data: st.DataObject, copy: str, declared: bool) -> None:
        asked = sorted(name for name, known in self.known.items() if known.state != "withdrawn")
        reference = data.draw(st.sampled_from(asked))
        known = self.known[reference]
        file, flag = self.written(known.keys[::-1], copy), ["--another-person"] if declared else []
        status, text = self.answered(reference, "request", "--forget", file, *flag)
        assert status == 0, text
        assert re.fullmatch(rf"accepted: {reference}, {len(known.keys)} rows, due \S+\n", text)
        taken_up = known.state == "aside" and declared and known.file is None
        if taken_up and self.predicted(known.keys, declared, reference) == "pending":
            known.state, known.declared = "pending", True

    @precondition(lambda self: self.known)
    @rule(data=st.data(), kill=st.none() | st.integers(0, 6))
    def withdraw(self, data: st.DataObject, kill: int | None) -> None:
        reference = data.draw(st.sampled_from(sorted(self.known)))
        known = self.known[reference]
        with self.mortal(kill) as died:
            status, text = self.answered(reference, "withdraw")
            assert status == (0 if known.state in OPEN else 2), text
        if known.state in OPEN and (not died or self.state_of(reference) == "withdrawn"):
            known.state, known.file = "withdrawn", None

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def look(self, data: st.DataObject) -> None:
        reference = data.draw(st.sampled_from(sorted(self.known)))
        known = self.known[reference]
        status, text = self.command("status", "--json", "--reference", reference)
        (told,) = json.loads(text)["requests"]
        assert (status, told["n_rows"], told["state"]) == (0, len(known.keys), known.state)

    # What the operator does

    @rule(each=st.booleans(), kill=st.none() | st.integers(0, 26))
    def serve(self, each: bool, kill: int | None) -> None:
        waiting = {name: known for name, known in self.known.items() if known.state == "pending"}
        refused = None
        with self.mortal(kill) as died:
            outcome = run(self.desk, each=each)
            refused = outcome.refused
            assert each or died or len(outcome.published) <= 1 or refused is not None
        for reference, known in waiting.items():
            state = self.state_of(reference)
            if not died and not self.kept and refused is None:
                assert state == "done", "nothing was in the way"
            if known.file is not None:
                assert state == "aside" or died, "its file is damaged"
            assert state != "pending" or died or isinstance(refused, RetrainNow), f"{refused}"
            assert state in ("done", "aside", "pending")
            known.state = state

    @precondition(lambda self: any(known.state == "aside" for known in self.known.values()))
    @rule(data=st.data(), declared=st.booleans(), repair=st.booleans())
    def resume(self, data: st.DataObject, declared: bool, repair: bool) -> None:
        reference = data.draw(st.sampled_from(sorted(name for name, k in self.known.items() if k.state == "aside")))
        known, number = self.known[reference], self.number_of(reference)
        if repair and known.file is not None:
            self.desk.layout.rows_of(number).write_bytes(known.file)
            known.file = None
        word = declared or self.others_of(reference) > 0
        expected = "damaged" if known.file is not None else self.predicted(known.keys, word, reference)
        status, text = self.command("resume", str(number), *(["--another-person"] if declared else []))
        assert status == (0 if expected == "pending" else 2), (expected, text)
        if expected == "pending":
            known.state = "pending"

    def others_of(self, reference: str) -> int:
        return next(request.others for request in requests(self.desk) if request.reference == reference)

    @precondition(lambda self: any(k.state == "pending" and k.file is None for k in self.known.values()))
    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        names = sorted(name for name, k in self.known.items() if k.state == "pending" and k.file is None)
        reference = data.draw(st.sampled_from(names))
        path = self.desk.layout.rows_of(self.number_of(reference))
        self.known[reference].file = path.read_bytes()
        path.write_bytes(path.read_bytes()[:50])

    # Copies of the folder

    @precondition(lambda self: len(self.copies) < 2)
    @rule()
    def copy(self) -> None:
        target = self.place / f"copy-{len(self.copies)}"
        shutil.copytree(self.folder, target)
        self.copies.append((target, self.head_now()))

    @precondition(lambda self: self.copies)
    @rule(data=st.data())
    def work_on_a_copy(self, data: st.DataObject) -> None:
        """It is a desk of its own; what is done there changes nothing here."""
        number = data.draw(st.integers(0, len(self.copies) - 1))
        desk = open_desk(self.copies[number][0])
        run(desk)
        self.copies[number] = (self.copies[number][0], verify_desk(desk, [self.copies[number][1]]).head)

    @precondition(lambda self: self.copies)
    @rule(data=st.data())
    def restore_a_copy(self, data: st.DataObject) -> None:
        """An older folder in the place of this one is found out by the head that was kept outside; it is put back."""
        older, head = data.draw(st.sampled_from(self.copies))
        aside = self.place / "put away"
        self.folder.rename(aside)
        shutil.copytree(older, self.folder)
        kept_outside = self.head
        if head == kept_outside:
            verify_desk(self.desk, [kept_outside])
        elif head.size <= kept_outside.size:
            with pytest.raises(VerificationFailed):
                verify_desk(self.desk, [kept_outside])
        shutil.rmtree(self.folder)
        aside.rename(self.folder)


class KeptDeskwork(Deskwork):
    kept = True


def work(machine: type[Deskwork], examples: int, steps: int) -> int:
    machine.operations = 0
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=chosen)
    return machine.operations


@pytest.mark.parametrize("machine", [Deskwork, KeptDeskwork])
def test_a_desk_at_random_work_is_what_a_simple_model_says(machine: type[Deskwork]) -> None:
    work(machine, 8, 30)


@pytest.mark.slow
@pytest.mark.parametrize("machine", [Deskwork, KeptDeskwork])
def test_two_thousand_operations(machine: type[Deskwork]) -> None:
    assert work(machine, 60, 50) >= 2000
