"""A value with its error, or none and the reason why."""

from expunge.evaluate.metrics import Score


def test_what_is_meaningless_has_reasons_and_no_number() -> None:
    assert Score.meaningless("too few", "equal") == Score(None, None, ("too few", "equal"))
    assert Score(0.5) == Score(0.5, None, ())
