"""Is this person in the model? Each case that the documents name."""

from __future__ import annotations

import numpy as np
import pytest

from expunge.deposit.membership import answers
from expunge.errors import DataError
from expunge.unlearn import unlearn
from small_deposit import kept, rows, trained

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_row_a_copy_of_it_and_a_stranger() -> None:
    features, labels = rows(1, 2, 3, 4)
    features = np.array([features[0], features[1].astype(np.float32), np.round(features[2], 6), features[3] + 0.1])
    found = answers(kept().deposit, (features, labels))
    assert [answer.there for answer in found] == [True, True, True, False]
    assert [answer.to_json()["precision"] for answer in found] == ["float64", "float32", "six decimals", None]
    assert [answer.times for answer in found] == [1, 1, 1, 0]
    assert [answer.row for answer in found] == [1, 2, 3, 4]


def test_two_people_with_the_same_values_are_two_rows() -> None:
    found = answers(kept().deposit, rows(0, 0))
    assert [answer.there for answer in found] == [True, True]
    assert [answer.times for answer in found] == [2, 2]
    assert [answer.there for answer in answers(kept().deposit, rows(0, 0, 0))] == [True, True, False]


def test_another_label_is_another_row() -> None:
    features, labels = rows(1)
    (found,) = answers(kept().deposit, (features, (labels + 1) % 3))
    assert not found.there


def test_who_was_forgotten_is_gone() -> None:
    result = unlearn(trained(), rows(0, 1), epsilon=1.0, delta=1e-3, deposit=kept().deposit)
    found = answers(result.deposit, rows(0, 1, 2))
    assert [answer.there for answer in found] == [True, False, True], "the other person with row 0 stays"


def test_rows_that_cannot_be_looked_up_are_refused() -> None:
    features, labels = rows(1)
    with pytest.raises(DataError, match="no labels"):
        answers(kept().deposit, (features, None))
    with pytest.raises(DataError, match="classes are 0, 1, 2"):
        answers(kept().deposit, (features, labels.astype(str)))
    with pytest.raises(DataError, match="features"):
        answers(kept().deposit, (features[:, :3], labels))
