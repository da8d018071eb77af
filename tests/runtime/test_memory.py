"""Limits on memory, as they are written and as they are refused."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from expunge.errors import FileError, OptionError, OutOfMemory
from expunge.runtime import memory
from expunge.runtime.memory import Memory, file_buffer, file_bytes, memory_limit, out_of_memory, parse_size


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


def test_without_a_setting_the_limit_is_half_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EXPUNGE_MAX_BYTES", raising=False)
    assert 2**27 < memory_limit() < 2**50


@pytest.mark.parametrize("value", ["", "-1", "1e9", "many", "²", "1.5"])
def test_a_limit_that_is_no_number_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPUNGE_MAX_BYTES", value)
    with pytest.raises(FileError, match="EXPUNGE_MAX_BYTES"):
        memory_limit()


def too_much(library: str) -> object:
    """More than any machine has."""
    if library == "torch":
        return torch.zeros(10**14)
    return np.ones(10**15) if library == "numpy" else pa.allocate_buffer(1 << 62)


@pytest.mark.parametrize("library", ["torch", "numpy", "arrow"])
def test_memory_that_ran_out_is_known_whoever_says_so(library: str) -> None:
    with pytest.raises((MemoryError, RuntimeError)) as caught:
        too_much(library)
    found = out_of_memory(caught.value)
    assert isinstance(found, OutOfMemory)
    assert found.exit_status == 2
    assert "out of memory" in found.found


def test_other_errors_are_not_taken_for_it() -> None:
    for error in (
        RuntimeError("shapes differ"),
        OSError(errno.ENOENT, "No such file"),
        ValueError("out of memory"),
        KeyError(),
    ):
        assert out_of_memory(error) is None
    assert out_of_memory(OSError(errno.ENOMEM, "Cannot allocate memory")) is not None
    assert out_of_memory(torch.OutOfMemoryError("CUDA")) is not None


def test_a_limit_that_was_asked_for_is_one_for_a_gpu_too() -> None:
    assert Memory.of("20GB").on_device == 20 * 10**9
    assert Memory.of("20GB").less(10**6).on_device == 20 * 10**9
    assert Memory.of(None).on_device is None


def test_a_file_is_read_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    read = file_buffer(tmp_path / "file", "the file")
    assert isinstance(read, bytearray)
    assert read == b"12345" == file_bytes(tmp_path / "file", "the file")
    monkeypatch.setattr(memory, "_require_copies", lambda *_: 6)
    with pytest.raises(FileError, match="shorter"):
        file_buffer(tmp_path / "file", "the file")


@pytest.mark.parametrize("read", [file_bytes, file_buffer])
def test_a_file_that_does_not_fit_is_refused(read: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    monkeypatch.setenv("EXPUNGE_MAX_BYTES", "4")
    with pytest.raises(FileError, match="declares 5 bytes"):
        read(tmp_path / "file", "the file")
