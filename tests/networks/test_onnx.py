"""A real ONNX file through the real onnxruntime, where it is installed (`pip install 'expunge[onnx]'`)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from expunge import DataError, ModelError
from expunge.networks.encoders import Normalisation, embed, load_encoder
from expunge.rows.images import Examples

pytest.importorskip("onnxruntime")

WEIGHTS = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32)


def varint(value: int) -> bytes:
    found = b""
    while value > 127:
        found, value = found + bytes([value & 127 | 128]), value >> 7
    return found + bytes([value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def part(field: int, content: bytes | str) -> bytes:
    content = content.encode() if isinstance(content, str) else content
    return varint(field << 3 | 2) + varint(len(content)) + content


def value_info(name: str, *sizes: int | str) -> bytes:
    """A float tensor; a size given by name is free."""
    dimensions = b"".join(part(1, number(1, size) if isinstance(size, int) else part(2, size)) for size in sizes)
    return part(1, name) + part(2, part(1, number(1, 1) + part(2, dimensions)))


def onnx_file(path: Path, rows: int | str = "rows") -> Path:
    """`relu(flatten(x) W)` for 3 x 2 x 2 inputs, written field by field as the format's protocol buffers say."""
    initial = b"".join(number(1, size) for size in WEIGHTS.shape)
    initial += number(2, 1) + part(8, "W") + part(9, WEIGHTS.tobytes())
    nodes = [("x", "flat", "Flatten"), ("flat W", "product", "MatMul"), ("product", "features", "Relu")]
    graph = b"".join(
        part(1, b"".join(part(1, name) for name in before.split()) + part(2, after) + part(4, kind))
        for before, after, kind in nodes
    )
    graph += part(2, "encoder") + part(5, initial)
    graph += part(11, value_info("x", rows, 3, 2, 2)) + part(12, value_info("features", rows, 5))
    path.write_bytes(number(1, 8) + part(7, graph) + part(8, part(1, "") + number(2, 13)))
    return path


def test_features_are_those_of_the_file(tmp_path: Path) -> None:
    images = np.random.default_rng(1).integers(0, 255, (70, 3, 2, 2), dtype=np.uint8)
    encoder = load_encoder(str(onnx_file(tmp_path / "encoder.onnx")))
    found = embed(Examples(images, np.arange(70) % 2, "it"), encoder, preparation=Normalisation(), batch=16)
    expected = np.maximum((images.reshape(70, -1) / np.float32(255)) @ WEIGHTS, 0.0)
    np.testing.assert_allclose(found.features, expected, rtol=1e-5, atol=1e-6)
    assert len(found.encoder) == 64


def test_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "odd.onnx").write_bytes(b"not a model")
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_encoder(str(tmp_path / "odd.onnx"))


@pytest.mark.parametrize("shape", [(70, 3, 4, 4), (70, 12)])
def test_inputs_it_does_not_take(tmp_path: Path, shape: tuple[int, ...]) -> None:
    encoder = load_encoder(str(onnx_file(tmp_path / "encoder.onnx")))
    given = Examples(np.zeros(shape, dtype=np.uint8), np.arange(70) % 2, "it")
    with pytest.raises(DataError, match="does not take"):
        embed(given, encoder, preparation=Normalisation(), batch=16)
