"""One process, or several that were started together."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from expunge.cli import main
from expunge.errors import GroupError
from expunge.runtime.launched import launched_as_group


@pytest.mark.parametrize(("said", "expected"), [(None, False), ("", False), (" ", False), ("1", False), ("2", True)])
def test_several_are_more_than_one(said: str | None, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if said is not None:
        monkeypatch.setenv("WORLD_SIZE", said)
    assert launched_as_group() is expected


@pytest.mark.parametrize("said", ["two", "-1", "1.5", "²"])
def test_what_is_no_number_is_said(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", said)
    with pytest.raises(GroupError, match="WORLD_SIZE"):
        launched_as_group()
    done = CliRunner().invoke(main, ["keygen", "--out", "nowhere/key"])
    assert done.exit_code == GroupError.exit_status
    assert "WORLD_SIZE" in done.stderr
