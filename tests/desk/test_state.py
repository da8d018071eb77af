"""The private state shows nothing of itself."""

from __future__ import annotations

from expunge.desk import (
    Desk,
)
from expunge.desk.state import current_state


def test_nothing_private_is_in_what_a_log_might_hold(desk: Desk) -> None:
    with desk.reading() as ledger:
        state = current_state(desk, ledger)
    for text in (repr(desk), repr(state)):
        assert repr(desk.key) not in text
        assert "tensor" not in text
