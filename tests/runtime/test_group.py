"""Processes that share rows out; several of them are in tests/test_streaming.py."""

import torch

from expunge.runtime.group import Group


def test_a_group_of_one_says_what_it_was_told() -> None:
    alone = Group()
    value = torch.ones(2)
    assert alone.total(value) is value
    assert alone.agreed(value) is value
    assert alone.largest(3.0) == 3.0
    assert alone.first
