"""Which of two of one source left? Retained rows differ here, and weights with them, as retrained ones would: nothing
that stands beside the weights may tell. Played with a deposit, over one model and over ten, with everything published."""

from __future__ import annotations

import functools
import json
import re

import numpy as np
import pytest

from expunge.certificate.statement import Statement
from expunge.deposit.file import Deposit
from expunge.desk import Policy, create_desk
from expunge.desk.desk import Desk
from expunge.mechanism import Unlearned
from expunge.model import read_model
from expunge.report import statement_page
from expunge.runtime.arrays import to_numpy
from games.worlds import DELTA, EPSILON, ROWS, Leaving, Rows, joined, kept_of, leave, rows_of
from published_files import fields, published, require_same_but_weights, shown, two_desks

pytestmark = pytest.mark.usefixtures("one_thread")
LOSSES = ("ridge", "logistic")
MODELS = 10


@functools.cache
def source() -> Rows:
    """Two people first: one with a value that nobody else has, and one as anybody, of another class."""
    generator = np.random.default_rng(3)
    rare, ordinary, rest = (
        rows_of(generator, count, rare=value) for count, value in ((1, 23.0), (1, 0.0), (ROWS, 0.0))
    )
    return joined((rare[0], np.array([1])), (ordinary[0], np.array([0])), rest)


@functools.cache
def kept(loss: str) -> Deposit:
    return kept_of(source(), loss, seed=4)


def person(number: int, later: int = 0) -> Rows:
    """One of the two, or somebody that nobody wonders about."""
    index = number if later == 0 else later + 1
    return source()[0][index : index + 1], source()[1][index : index + 1]


@functools.cache
def policy_noise(loss: str) -> float:
    return max(leave(kept(loss), person(number)).noise.scale for number in (0, 1))


@functools.cache
def left(loss: str, number: int) -> Leaving:
    return leave(kept(loss), person(number), noise=policy_noise(loss))


@functools.cache
def results(loss: str) -> tuple[Unlearned, Unlearned]:
    return left(loss, 0).publish(1), left(loss, 1).publish(2)


def page_of(statement: Statement) -> str:
    return re.sub(r"[0-9a-f]{16,64}", "digest", statement_page(statement.content))


@pytest.mark.parametrize("loss", LOSSES)
def test_nothing_but_the_weights_tells(loss: str) -> None:
    first, second = results(loss)
    assert not np.array_equal(to_numpy(first.model.matrix()), to_numpy(second.model.matrix()))
    assert shown(first.statement.content) == shown(second.statement.content)
    assert len(first.statement.to_json()) == len(second.statement.to_json())
    assert len(first.model.to_bytes()) == len(second.model.to_bytes())
    records = [each.model.record.facts() | {"weights_sha256": ""} for each in (first, second)]
    assert records[0] == records[1]
    assert page_of(first.statement) == page_of(second.statement)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_dossier_tells(loss: str) -> None:
    first, second = (dict(fields(each.certificate.content)) for each in results(loss))
    telling = {name for name in first if first[name] != second.get(name)}
    assert {".bound.total", ".bound.inputs.output_spread.value"} <= telling


@pytest.mark.parametrize("loss", LOSSES)
def test_what_is_left_of_the_deposit_is_of_one_size(loss: str) -> None:
    """It is private, and its sums differ by the one that is still there; what frames them does not."""
    first, second = (left(loss, number).after for number in (0, 1))
    assert len(first.to_bytes()) == len(second.to_bytes())
    assert first.numbers.kappas == second.numbers.kappas
    assert first.numbers.row_bound == second.numbers.row_bound
    assert first.numbers.created == second.numbers.created


@pytest.mark.slow
def test_nothing_but_weights_of_ten_models_tells(tmp_path_factory: pytest.TempPathFactory) -> None:
    policy = Policy(
        epsilon=EPSILON, delta=DELTA, distance="deposit", planned=MODELS, noise=4.0 * policy_noise("logistic")
    )
    opened: Desk = create_desk(tmp_path_factory.mktemp("which") / "desk", None, None, policy, deposit=kept("logistic"))
    desks = two_desks(opened, person, (0, 1), MODELS, tmp_path_factory)
    first, second = (published(desk) for desk in desks)
    require_same_but_weights(first, second, MODELS)
    records = [read_model(path)[0].record for path in first + second if path.suffix == ".safetensors"]
    assert len({json.dumps(each.facts() | {"weights_sha256": ""}, sort_keys=True) for each in records if each}) == 1
