"""Deposits are made as users make them: by how many people can leave the noise in their anchor is chosen."""

import pytest

from expunge.deposit.forecast import GROUPS


@pytest.fixture(autouse=True)
def all_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("expunge.deposit.forecast.GROUPS", GROUPS)
