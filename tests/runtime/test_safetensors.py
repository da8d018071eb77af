"""The safetensors format, read strictly: forged headers are refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save as library_bytes

from expunge.errors import ExpungeError
from expunge.runtime.safetensors import read_safetensors, safetensors_parts

pytestmark = pytest.mark.usefixtures("one_thread")
NUMBERS = [None, True, -1, 0, 1, 2, 4, 64, 80, 2**63, 10**30, 1.5]
WORDS = st.sampled_from([*NUMBERS, "F64", "", [], [2, 4], [0, 64], [64, 80], [0, 10**30], {}, "BF16"])
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
    half = {name for name in tensors if header[name]["dtype"] == "BF16"}
    assert sum(array.nbytes // (2 if name in half else 1) for name, array in tensors.items()) == 80


@given(
    shapes=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3), max_size=4),
    text=st.text(max_size=20),
    name=st.text(alphabet='abéc.1\n"', min_size=1, max_size=5),
)
@settings(derandomize=True, deadline=None, max_examples=60)
def test_what_is_written_is_what_the_library_writes(shapes: list[list[int]], text: str, name: str) -> None:
    """Byte for byte, whatever the order the arrays come in and the way they lie in memory."""
    generator, types = np.random.default_rng(0), (np.float64, np.float32, np.uint8)
    arrays = {f"{name}{i}": generator.normal(size=shape).astype(types[i % 3]) for i, shape in enumerate(shapes)}
    turned = {key: np.asfortranarray(arrays[key]) for key in reversed(arrays)}
    made = b"".join(safetensors_parts(turned, {"said": text}))
    assert made == library_bytes(arrays, {"said": text})
    back, metadata = read_safetensors(made, Path("made"))
    assert metadata == {"said": text}
    assert all(np.array_equal(back[key], array) for key, array in arrays.items())


def test_a_type_the_format_has_not_is_refused() -> None:
    with pytest.raises(KeyError):
        safetensors_parts({"a": np.zeros(2, dtype=np.complex128)}, {})
