"""One certificate, looked at by many."""

import pytest

import expunge
from certificates import made


@pytest.fixture(scope="session")
def result() -> expunge.Unlearned:
    return made("chi2:0.1")
