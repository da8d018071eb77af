"""Data files: four formats, one meaning; and whatever bytes a file holds, an answer or an error on purpose."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors.torch import save as torch_bytes

from expunge.errors import ExpungeError, FileError
from expunge.rows.arrays import read_npz
from expunge.runtime.arrays import double, to_numpy
from table_files import as_csv, as_parquet, read

pytestmark = pytest.mark.usefixtures("one_thread")
FORMATS = ("npz", "safetensors", "csv", "parquet")
RNG = np.random.default_rng(5)
X = RNG.normal(size=(40, 4))
Y = np.arange(40) % 3


def as_npz(features: np.ndarray, labels: np.ndarray, save: Callable[..., None] = np.savez) -> bytes:
    stream = io.BytesIO()
    save(stream, X=features, y=labels)
    return stream.getvalue()


def as_safetensors(features: np.ndarray, labels: np.ndarray) -> bytes:
    return safetensors.numpy.save({"X": np.ascontiguousarray(features), "y": np.ascontiguousarray(labels)})


WRITERS: dict[str, Callable[[np.ndarray, np.ndarray], bytes]] = {
    "npz": as_npz,
    "safetensors": as_safetensors,
    "csv": as_csv,
    "parquet": as_parquet,
}


# What the formats have in common --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_gives_the_same_arrays(kind: str, tmp_path: Path) -> None:
    found = read(tmp_path, WRITERS[kind](X, Y), kind)
    assert np.array_equal(found.features, X)
    assert np.array_equal(found.labels, Y)
    assert found.features.dtype == np.float64
    assert found.name == str(tmp_path / f"data.{kind}")


@pytest.mark.parametrize("kind", FORMATS)
def test_other_bytes_are_refused(kind: str, tmp_path: Path) -> None:
    for content in (b"a", b"\0" * 64, b"just some text, no more\n", bytes(range(256)) * 4):
        with pytest.raises(ExpungeError):
            read(tmp_path, content, kind)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_of_one_kind_under_the_name_of_another_is_refused(kind: str, tmp_path: Path) -> None:
    for other in FORMATS:
        if other != kind:
            with pytest.raises(ExpungeError):
                read(tmp_path, WRITERS[other](X, Y), kind)


# Number formats -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.uint8, torch.int32, torch.bool]
)
def test_safetensors_dtypes(dtype: torch.dtype, tmp_path: Path) -> None:
    values = torch.tensor([[1.5, -2.0], [0.0, 300.0]]).abs().to(dtype)
    found = read(tmp_path, torch_bytes({"X": values, "y": torch.tensor([0, 1])}), "safetensors")
    assert np.array_equal(found.features.astype(np.float64), to_numpy(double(values)))


# Sizes are checked before anything is allocated -----------------------------------------------------------------


def npy(shape: object, descr: str, data: bytes = b"") -> bytes:
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + data


def archive(**members: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return stream.getvalue()


# Headers that lie -----------------------------------------------------------------------------------------------

SHAPES = st.lists(
    st.sampled_from([-(2**63), -4, -1, 0, 1, 2, 4, 8, 2**31, 2**62, 2**63, 10**30, True]), max_size=4
).map(tuple)
DESCRIPTIONS = st.sampled_from(
    [
        "<f8",
        ">f8",
        "<f4",
        "<f2",
        "|b1",
        "|u1",
        "<i8",
        "<c16",
        "<U0",
        "<U2",
        "|S0",
        "|S8",
        "|V0",
        "|V8",
        "<M8[s]",
        "|O",
        "<f16",
    ]
)


@settings(
    derandomize=True, deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(shape=SHAPES, descr=DESCRIPTIONS)
@example(shape=(-2, -4), descr="<f8")
@example(shape=(0, 10**30), descr="<f8")
@example(shape=(0, 2**62), descr="<f8")
@example(shape=(True, 8), descr="<f8")
@example(shape=(2**63, 0), descr="|V0")
def test_npz_headers(shape: tuple[int, ...], descr: str, tmp_path: Path) -> None:
    good = {"X": npy((1, 4), "<f8", bytes(32)), "y": npy((1,), "<i8", bytes(8))}
    for name, data in (("X", bytes(64)), ("X", b""), ("y", bytes(64)), ("y", b"")):
        try:
            found = read(tmp_path, archive(**good | {name: npy(shape, descr, data)}), "npz")
        except ExpungeError:
            continue
        array = found.features if name == "X" else found.labels
        assert array.nbytes == len(data)
        assert array.shape == shape


# Damage at random -----------------------------------------------------------------------------------------------

DAMAGE = st.tuples(
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), max_size=4),
    st.one_of(st.just(1.0), st.floats(0, 1)),
)
FUZZ = settings(
    derandomize=True, deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def damaged(content: bytes, damage: tuple[list[tuple[float, int]], float]) -> bytes:
    """Some bytes changed, and the end cut off."""
    flips, keep = damage
    changed = bytearray(content)
    for place, mask in flips:
        changed[int(place * len(changed))] ^= mask
    return bytes(changed[: max(1, int(keep * len(changed)))])


CONTENTS = {
    "npz": ("npz", as_npz(X[:3], Y[:3])),
    "npz compressed": ("npz", as_npz(X[:3], Y[:3], np.savez_compressed)),
    "safetensors": ("safetensors", as_safetensors(X[:3], Y[:3])),
    "csv": ("csv", as_csv(X[:3], Y[:3])),
    "csv of words": ("csv", as_csv(X[:3], np.array(["cat", "dog", "eel"]))),
    "parquet": ("parquet", as_parquet(X[:3], Y[:3])),
    "parquet plain": (
        "parquet",
        as_parquet(X[:3], np.array(["cat", "dog", "eel"]), compression="none", use_dictionary=False),
    ),
}


@pytest.mark.parametrize("name", CONTENTS)
@FUZZ
@given(damage=DAMAGE)
def test_damaged_data(name: str, damage: tuple[list[tuple[float, int]], float], tmp_path: Path) -> None:
    kind, content = CONTENTS[name]
    try:
        found = read(tmp_path, damaged(content, damage), kind)
    except ExpungeError:
        return
    assert isinstance(found.features, np.ndarray)
    if name.startswith("npz"):  # an archive has a checksum for every member
        assert np.array_equal(found.features, X[:3])
        assert np.array_equal(found.labels, Y[:3])


@pytest.mark.parametrize("name", ["npz", "npz compressed", "safetensors", "parquet"])
def test_every_truncation_is_refused(name: str, tmp_path: Path) -> None:
    kind, content = CONTENTS[name]
    for length in range(1, len(content), 7):
        with pytest.raises(ExpungeError):
            read(tmp_path, content[:length], kind)


# Errors say which file ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_npz_that_numpy_did_not_compress_is_refused_before_it_is_opened(way: int, tmp_path: Path) -> None:
    """Of these a few bytes may become any number at once, whatever is asked for."""
    path = tmp_path / "rows.npz"
    plain = io.BytesIO()
    np.save(plain, np.zeros((4, 3)))
    with zipfile.ZipFile(path, "w", way) as archive:
        archive.writestr("X.npy", plain.getvalue())
    with pytest.raises(FileError, match=f"compressed in way {way} of zip files"):
        read_npz(path, ("X",))
