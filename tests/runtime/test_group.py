"""Processes that share rows out; several of them are in tests/test_streaming.py."""

import pytest
import torch

from expunge.runtime.group import Group, local_device


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
