"""Limits on memory, as they are written and as they are refused."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from expunge.errors import FileError, OptionError, OutOfMemory
from expunge.runtime.memory import Memory, file_bytes, memory_limit, out_of_memory, parse_size


def test_sizes_are_numbers_of_bytes() -> None:
    assert parse_size("1.5GB") == 1_500_000_000
    assert parse_size("300 mib") == 300 * 2**20
    assert parse_size("12345") == 12345
    for text in ("", "much", "1.5.2GB", "-3GB", "3iB", "1e9"):
        with pytest.raises(OptionError, match="a number of bytes"):
            parse_size(text)


def test_a_limit_in_which_nothing_can_be_done_is_refused() -> None:
    with pytest.raises(OptionError, match="needed to work in"):
        Memory.of("200MB")
    with pytest.raises(OptionError, match="its vectors"):
        Memory(10**9, 0).less(10**9)


def test_the_limit_is_half_the_memory_or_a_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EXPUNGE_MAX_BYTES", raising=False)
    assert 2**27 < memory_limit() < 2**50
    for value in ("", "-1", "1e9", "²", "1.5"):
        monkeypatch.setenv("EXPUNGE_MAX_BYTES", value)
        with pytest.raises(FileError, match="EXPUNGE_MAX_BYTES"):
            memory_limit()


@pytest.mark.parametrize(
    "too_much", [lambda: torch.zeros(10**14), lambda: np.ones(10**15), lambda: pa.allocate_buffer(1 << 62)]
)
def test_memory_that_ran_out_is_known_whoever_says_so(too_much: Callable[[], object]) -> None:
    with pytest.raises((MemoryError, RuntimeError)) as caught:
        too_much()
    found = out_of_memory(caught.value)
    assert isinstance(found, OutOfMemory)
    assert (found.exit_status, "out of memory" in found.found) == (2, True)


def test_other_errors_are_not_taken_for_it() -> None:
    for error in (RuntimeError("shapes differ"), OSError(errno.ENOENT, "No such file"), ValueError("out of memory")):
        assert out_of_memory(error) is None
    assert out_of_memory(OSError(errno.ENOMEM, "Cannot allocate memory")) is not None
    assert out_of_memory(torch.OutOfMemoryError("CUDA")) is not None


def test_a_limit_that_was_asked_for_is_one_for_a_gpu_too() -> None:
    assert Memory.of("20GB").on_device == 20 * 10**9
    assert Memory.of("20GB").less(10**6).on_device == 20 * 10**9
    assert Memory.of(None).on_device is None


def test_a_file_that_does_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert file_bytes(tmp_path / "file", "the file") == b"12345"
    monkeypatch.setenv("EXPUNGE_MAX_BYTES", "4")
    with pytest.raises(FileError, match="declares 5 bytes"):
        file_bytes(tmp_path / "file", "the file")
