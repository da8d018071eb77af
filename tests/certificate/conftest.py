"""Shared fixtures."""

import pytest

import expunge
from certificates import made


@pytest.fixture(scope="module")
def result() -> expunge.Unlearned:
    return made("chi2:0.1")
