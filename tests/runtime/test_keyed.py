"""Known answers of HMAC-SHA-256 and ChaCha20, and what the noise relies on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from expunge.desk.state import MOST_BYTES, KeyedBytes, derived_key, prf
from expunge.noise import rounded_gaussian

parts = st.lists(st.binary(max_size=12), max_size=4)


@pytest.mark.parametrize(
    ("key", "content", "expected"),
    [
        (b"\x0b" * 20, b"Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"),
        (
            b"\xaa" * 131,
            b"Test Using Larger Than Block-Size Key - Hash Key First",
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
        ),
    ],
)
def test_rfc_4231(key: bytes, content: bytes, expected: str) -> None:
    assert prf(key, content).hex() == expected


@pytest.mark.parametrize(
    ("key", "block", "expected"),
    [
        (
            bytes(32),
            0,
            "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
            "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
        ),
        (
            bytes(32),
            1,
            "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
            "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
        ),
        (
            b"\x00\xff" + bytes(30),
            2,
            "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"
            "13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096",
        ),
    ],
)
def test_rfc_8439_appendix_a_1(key: bytes, block: int, expected: str) -> None:
    stream = KeyedBytes(key)
    stream(64 * block)
    assert stream(64).hex() == expected


def test_a_stream_goes_on_however_it_is_read() -> None:
    whole, piece = KeyedBytes(b"k" * 32)(1000), KeyedBytes(b"k" * 32)
    assert b"".join(piece(count) for count in (1, 63, 64, 65, 0, 807)) == whole


def test_a_key_has_32_bytes_and_a_stream_an_end() -> None:
    with pytest.raises(ValueError, match="248"):
        KeyedBytes(b"k" * 31)
    with pytest.raises(ValueError, match="of one stream"):
        KeyedBytes(b"k" * 32)(MOST_BYTES + 1)


@given(parts, parts)
def test_other_parts_are_another_key(first: list[bytes], second: list[bytes]) -> None:
    same = derived_key(b"k" * 32, "noise", *first) == derived_key(b"k" * 32, "noise", *second)
    assert same == (first == second)
    assert derived_key(b"k" * 32, "noise", *first) != derived_key(b"k" * 32, "other", *first)
    assert derived_key(b"l" * 32, "noise", *first) != derived_key(b"k" * 32, "noise", *first)


def test_noise_of_a_stream_is_gaussian_and_that_of_two_keys_independent() -> None:
    """Fixed keys, so that the test never wavers; sigma passes, two thirds and one and a half of it fail."""
    count, sigma, grid = 100_000, 1.0, -20
    draws = [
        np.ldexp(rounded_gaussian(count, sigma, grid, KeyedBytes(derived_key(bytes(32), "a", part))), grid)
        for part in (b"1", b"2")
    ]
    for draw in draws:
        assert stats.kstest(draw, "norm").pvalue > 1e-3
        for wrong in (2 / 3, 3 / 2):
            assert stats.kstest(draw, "norm", args=(0.0, wrong)).pvalue < 1e-9
    assert abs(np.corrcoef(*draws)[0, 1]) < 4 / np.sqrt(count)
