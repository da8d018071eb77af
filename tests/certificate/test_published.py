"""The published model beside its certificate; tests/certificate/test_forgeries.py forges against each check."""

from pathlib import Path

import numpy as np
import pytest

import honest
from expunge.certificate.model_file import off_grid, published_checks
from expunge.noise import add_noise

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize(("sigma", "exponent"), [(1.0, -20), (1e-3, -30), (100.0, -14), (1e-15, -40)])
def test_noised_weights_are_on_the_grid_in_every_type(dtype: type, sigma: float, exponent: int) -> None:
    rng = np.random.default_rng(0)
    values = add_noise(rng.normal(size=2000) * rng.choice([1e-6, 1.0, 100.0], 2000), sigma, exponent)
    assert off_grid(values.astype(dtype), exponent) == 0


def test_weights_that_were_not_noised_are_off_it() -> None:
    weights = np.random.default_rng(0).normal(size=2000)
    assert off_grid(weights, -20) > 1990
    assert off_grid(weights.astype(np.float32), -20) > 1000


def test_a_whole_network_has_a_digest_only(tmp_path: Path) -> None:
    file = tmp_path / "network.pt"
    file.write_bytes(b"anything")
    found = published_checks(honest.whole().certificate.content, file)
    assert [check.passed for check in found] == [False]


def test_what_holds_no_tangent_weights_is_no_such_model(tmp_path: Path) -> None:
    linear, tangent = honest.linear(1), honest.tangent()
    file = tmp_path / "model.safetensors"
    file.write_bytes(linear.model or b"")
    assert "holds no tangent weights" in published_checks(tangent.certificate.content, file)[-1].words
    file.write_bytes(tangent.model or b"")
    assert all(check.passed for check in published_checks(tangent.certificate.content, file))
    assert not published_checks(linear.certificate.content, file)[-1].passed


def test_a_damaged_tangent_file_is_refused(tmp_path: Path) -> None:
    tangent = honest.tangent()
    content = tangent.model or b""
    file = tmp_path / "model.safetensors"
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert "not those of its record" in published_checks(tangent.certificate.content, file)[-1].words
