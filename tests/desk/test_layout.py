"""Where things are, and who may read them."""

from __future__ import annotations

import stat

from desk_use import Rows, ask
from expunge.desk import (
    Desk,
)


def test_private_files_are_private(desk: Desk, source: Rows) -> None:
    ask(desk, source, 0, 1)
    private = [desk.layout.ledger, desk.layout.seal, *(p for p in desk.layout.private.rglob("*") if p.is_file())]
    assert len(private) >= 7
    for path in private:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    for folder in (desk.layout.private, desk.layout.rows, desk.layout.states):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder
