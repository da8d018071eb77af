"""A check, and the words in which it fails."""

import pytest

from expunge.certificate.check import FOLLOWS, LARGEST_NUMBER, MODEL, POSSIBLE, Check, equal, require_passed
from expunge.errors import VerificationFailed


@pytest.mark.parametrize(
    ("claimed", "recomputed", "same"),
    [
        (1.0, 1.0 + 1e-13, True),
        (1.0, 1.0 + 1e-11, False),
        (1, 1.0, True),
        (True, 1.0, False),
        (1.0, 1, False),
        (10 * LARGEST_NUMBER, 1.0, False),
        (["a"], ("a",), True),
        (("a",), ["a"], False),
        ({"a": 1.0}, {"a": 1.0}, True),
        ({"a": 1.0, "b": 1.0}, {"a": 1.0}, False),
        (None, 0.0, False),
        ("x", "x", True),
    ],
)
def test_what_counts_as_equal(claimed: object, recomputed: object, same: bool) -> None:
    assert equal(claimed, recomputed) is same


def test_what_is_wrong_is_said_in_words_and_the_remedy_fits() -> None:
    impossible = Check("rows are there", False, True, "there are none", POSSIBLE)
    differing = Check("sigma", 1.0, 2.0)
    wrong_model = Check("the model is the one", "a", "b", "it is another", MODEL)
    require_passed([Check("sigma", 1.0, 1.0)])
    for failed, words, remedy in (
        (
            [differing],
            "sigma is stated as 1.0, which does not follow from the rest; the file must say what follows",
            "rely on this certificate",
        ),
        ([wrong_model], "it is not so that the model is the one (it is another)", "published model's file"),
        ([differing, wrong_model, impossible], "it is not so that rows are there (there are none)", "wrote or changed"),
    ):
        with pytest.raises(VerificationFailed) as caught:
            require_passed(failed)
        assert words in str(caught.value)
        assert remedy in caught.value.remedy


def test_few_are_shown_and_the_rest_counted() -> None:
    with pytest.raises(VerificationFailed, match="; and 5 more"):
        require_passed([Check(f"number {k}", k, -1, about=FOLLOWS) for k in range(10)])
    long = Check("text", "x" * 1000, "y")
    assert len(long.words) < 200
