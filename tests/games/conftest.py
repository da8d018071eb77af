"""Deposits are made as users make them: by how many people can leave the noise in their anchor is chosen."""

import sys

import pytest

from expunge.deposit.forecast import GROUPS


@pytest.fixture(autouse=True)
def all_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    # by its module: as an attribute of the package expunge.deposit is the function, once somebody has called it
    monkeypatch.setattr(sys.modules["expunge.deposit.forecast"], "GROUPS", GROUPS)
