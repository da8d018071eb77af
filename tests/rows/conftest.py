"""Small blocks, so that a thousand rows are many of them."""

import pytest

from stream_sources import WIDTH


@pytest.fixture
def small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("expunge.rows.streams.READ_BYTES", 77 * WIDTH * 4)
    monkeypatch.setattr("expunge.rows.streams.ARRAY_ROWS", 77)
    monkeypatch.setattr("expunge.heads.rows.BLOCK_BYTES", 32 * WIDTH * 8)
