"""Errors: three parts, one line, and the exit status of their branch."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge import errors
from expunge.errors import LONGEST_PART, ExpungeError, one_line

EVERY = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, ExpungeError)]


@given(st.text(st.characters(), max_size=2 * LONGEST_PART))
def test_whatever_a_file_says_is_one_printable_line_of_bounded_length(text: str) -> None:
    line = one_line(text)
    assert line.isprintable()
    assert len(line) <= LONGEST_PART
    assert one_line(line) == line
    if text.isprintable() and len(text) <= LONGEST_PART:
        assert line == text


@pytest.mark.parametrize("kind", EVERY)
def test_a_message_is_found_required_and_remedy(kind: type[ExpungeError]) -> None:
    error = kind("rows\n3", "4 are needed", "Give one more.")
    assert str(error) == "rows 3; 4 are needed. Give one more."
    assert (error.found, error.required, error.remedy) == ("rows 3", "4 are needed", "Give one more.")


def test_the_exit_status_is_that_of_the_branch() -> None:
    for kind in EVERY:
        expected = 1 if kind is errors.VerificationFailed else 3 if issubclass(kind, errors.Refused) else 2
        assert kind.exit_status == expected, kind


def test_an_error_goes_through_a_pickle() -> None:
    """Errors are raised in other processes, by joblib for one, and kept by estimators."""
    for error in (
        errors.ModelError("a", "b", "C."),
        errors.VerificationFailed("a", "b", "C.", ("d", "e")),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
