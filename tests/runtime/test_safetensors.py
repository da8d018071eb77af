"""The safetensors format, read strictly: forged headers are refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from expunge.data.files import read_safetensors
from expunge.errors import ExpungeError

pytestmark = pytest.mark.usefixtures("one_thread")
WORDS = st.sampled_from(
    [
        None,
        True,
        -1,
        0,
        1,
        2,
        4,
        64,
        80,
        2**63,
        10**30,
        1.5,
        "F64",
        "",
        [],
        [2, 4],
        [0, 64],
        [64, 80],
        [0, 10**30],
        {},
        "BF16",
    ]
)
ENTRIES = st.one_of(
    WORDS,
    st.fixed_dictionaries(
        {
            "dtype": WORDS,
            "shape": WORDS | st.lists(WORDS, max_size=3),
            "data_offsets": WORDS | st.lists(WORDS, max_size=3),
        }
    ),
)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(header=st.one_of(WORDS, st.dictionaries(st.sampled_from(["X", "y", "weight", "__metadata__"]), ENTRIES)))
@example(header={"X": {"dtype": ["F64"], "shape": [2, 4], "data_offsets": [0, 64]}})
@example(
    header={
        "X": {"dtype": "F64", "shape": [0, 10**30], "data_offsets": [0, 0]},
        "y": {"dtype": "U8", "shape": [80], "data_offsets": [0, 80]},
    }
)
@example(header={"X": {"dtype": "F64", "shape": [10] + [1] * 70, "data_offsets": [0, 80]}})
def test_safetensors_headers(header: object) -> None:
    text = json.dumps(header).encode()
    try:
        tensors, _ = read_safetensors(struct.pack("<Q", len(text)) + text + bytes(80), Path("lies.safetensors"))
    except ExpungeError:
        return
    assert (
        sum(
            array.nbytes if array.dtype != np.float32 or header[name]["dtype"] != "BF16" else array.nbytes // 2
            for name, array in tensors.items()
        )
        == 80
    )
