"""One deletion is published in one way; different ones never with the same noise."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from desk_use import ask
from expunge.desk import Desk, accept, models, open_desk, run, withdraw
from expunge.desk.layout import MODEL
from expunge.desk.state import State, derive_secret, load_state, sort_rows
from expunge.model import read_model
from expunge.rows import EncodedRows

Rows = tuple[np.ndarray, np.ndarray]
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
    for copy in copies(desk, 5, tmp_path):
        assert run(copy).refused is None
        seen.add(published(copy.layout.folder))
    assert len(seen) == 1


def test_a_desk_that_was_put_back_and_asked_again_does_too(desk: Desk, source: Rows, tmp_path: Path) -> None:
    """Under another reference, in another order, after requests that came to nothing, by another number of threads."""
    X, y = source
    first, second = copies(desk, 2, tmp_path)
    accept(first, X[:3], y[:3], "first")
    run(first)
    accept(second, X[9:10], y[9:10], "nothing comes of this")
    withdraw(second, 1, "so that the ledger is longer")
    accept(second, X[2::-1], y[2::-1], "another")
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        run(second)
    finally:
        torch.set_num_threads(threads)
    assert published(first.layout.folder) == published(second.layout.folder)


def test_the_next_model_is_the_same_in_every_copy_too(ledger: Desk, tmp_path: Path) -> None:
    seen = set()
    for copy in copies(ledger, 2, tmp_path):
        run(copy)
        seen.add(published(copy.layout.folder, 3))
    assert len(seen) == 1


def noise_of(desk: Desk, number: int = 1) -> np.ndarray:
    """Published less trained weights: the noise, up to an update that is far smaller."""
    before = current(desk)[0].model.matrix().numpy()
    return (read_model(desk.layout.published_model(number) / MODEL)[0].matrix().numpy() - before).ravel()


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


def test_desks_that_were_opened_apart_have_other_noise(desk: Desk, source: Rows) -> None:
    rows = EncodedRows(*(part[:2] for part in source))
    state, surrogate = current(desk)
    assert derive_secret(desk.key, desk.policy, state, surrogate, rows) != derive_secret(
        b"x" * 32, desk.policy, state, surrogate, rows
    )


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


@pytest.mark.parametrize("what", CHANGES)
def test_whatever_determines_the_model_determines_the_noise(what: str, desk: Desk, source: Rows) -> None:
    state, surrogate = current(desk)
    given = {"key": desk.key, "policy": desk.policy, "state": state, "surrogate_mac": surrogate}
    given["rows"] = EncodedRows(*(part[:2] for part in source))
    usual, other = derive_secret(**given), derive_secret(**CHANGES[what](given))
    assert usual == derive_secret(**given)
    assert usual.bits(CENTRE)(32) != other.bits(CENTRE)(32)
    assert usual.bits(CENTRE)(32) != usual.bits(b"another")(32)
    assert usual.start != other.start


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


def test_rows_have_one_order(desk: Desk, source: Rows) -> None:
    X, y = source
    one = sort_rows(desk.key, EncodedRows(X[:9], y[:9]))
    other = sort_rows(desk.key, EncodedRows(X[8::-1], y[8::-1]))
    assert np.array_equal(one[0], other[0])
    assert np.array_equal(one[1], other[1])
    assert sorted(map(tuple, one[0])) == sorted(map(tuple, X[:9]))


def test_the_statement_says_so_and_verifies(desk: Desk, source: Rows) -> None:
    ask(desk, source, 0, 1)
    (made,) = run(desk).published
    for content in (made.statement.content, made.certificate.content):
        assert content["noise"]["generator"] == "desk key"
        assert "under the desk's secret key" in content["limits"][0]
