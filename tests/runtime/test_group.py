"""Processes that share rows out; several of them are in tests/test_streaming.py."""

from __future__ import annotations

import pytest
import torch
from click.testing import CliRunner

from expunge.cli import main
from expunge.errors import GroupError
from expunge.runtime.group import Group, launched_as_group, local_device


def test_a_group_of_one_says_what_it_was_told() -> None:
    alone = Group()
    value = torch.ones(2)
    assert alone.total(value) is value
    assert alone.agreed(value) is value
    assert alone.largest(3.0) == 3.0
    assert alone.first


@pytest.mark.parametrize(("gpus", "expected"), [(8, "cuda:3"), (2, "cuda:1"), (1, "cuda:0"), (0, "cuda:0")])
def test_processes_share_gpus_where_they_are_more(gpus: int, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("WORLD_SIZE", "4"), ("RANK", "3"), ("LOCAL_RANK", "3")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert local_device("cuda") == expected
    assert local_device("cpu") == "cpu"
    assert local_device("cuda:7") == "cuda:7"


def test_several_are_more_than_one_and_what_is_no_number_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert not launched_as_group()
    for said, expected in (("", False), (" ", False), ("1", False), ("2", True)):
        monkeypatch.setenv("WORLD_SIZE", said)
        assert launched_as_group() is expected
    for said in ("two", "-1", "1.5", "²"):
        monkeypatch.setenv("WORLD_SIZE", said)
        with pytest.raises(GroupError, match="WORLD_SIZE"):
            launched_as_group()
    done = CliRunner().invoke(main, ["keygen", "--out", "nowhere/key"])
    assert (done.exit_code, "WORLD_SIZE" in done.stderr) == (GroupError.exit_status, True)
