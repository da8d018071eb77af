"""What changes only speed: the dtype of rows, the device."""

import pytest
import torch

from expunge.errors import OptionError
from expunge.request.execution import DTYPES, Execution, computing_device, dtype_named


def test_nothing_said_is_float64_on_the_cpu_in_one_process() -> None:
    plain = Execution()
    assert (plain.rows_dtype, plain.place, plain.group.size) == (torch.float64, torch.device("cpu"), 1)
    assert {name: Execution(dtype=name).rows_dtype for name in DTYPES} == {name: dtype_named(name) for name in DTYPES}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int64", "", "torch.float64"])
def test_rows_are_kept_in_no_other_dtype(dtype: str) -> None:
    with pytest.raises(OptionError, match="dtype"):
        Execution(dtype=dtype)


@pytest.mark.parametrize("device", ["abacus", "cuda:99", "meta", "", "cpu:x"])
def test_a_device_that_cannot_be_used_here_is_refused(device: str) -> None:
    with pytest.raises(OptionError, match="Use cpu"):
        computing_device(device)


def test_a_device_is_called_what_tensors_there_call_it() -> None:
    """Else all that compares devices would take what is there for elsewhere, and copy it."""
    assert computing_device("cpu:0") == torch.zeros(1, device="cpu:0").device != torch.device("cpu:0")
