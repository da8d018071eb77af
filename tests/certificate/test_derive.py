"""The only judge: status, sigma and sentences follow from the facts alone."""

from dataclasses import replace

import numpy as np
import pytest

import expunge
from certificates import made
from expunge.certificate.derive import derive
from expunge.certificate.verify import checks, claim_of
from expunge.distance import Distance


@pytest.mark.parametrize(
    ("distance", "options", "status"),
    [
        ("source", {}, "conditional"),
        ("same", {}, "conditional"),
        ("tv:0.01", {}, "conditional"),
        ("kl:0.01", {}, "conditional"),
        (Distance("chi2", 0.1, "samples"), {}, "conditional"),
        ("tv:0.01", {"bound": "paper", "constants": "paper", "step": "newton"}, "estimated"),
        (Distance("chi2", 0.1, "populations", "estimated"), {}, "estimated"),
    ],
)
def test_status_follows_from_where_the_numbers_come_from(distance, options, status) -> None:
    certificate = made(distance, **options).certificate
    assert certificate.status == status
    assert all(check.passed for check in checks(certificate))
    assert bool(certificate.content["assumptions"]) == (status != "proven")


def test_a_declared_record_makes_a_source_certificate_conditional() -> None:
    generator = np.random.default_rng(5)
    x = generator.standard_normal((120, 3)) / 4
    y = (x[:, 0] > 0).astype(int)
    trained = expunge.train(x, y, l2=0.1, max_norm=2.0)
    result = expunge.unlearn(
        trained.weight.numpy(), (x[:2], y[:2]), (x, y), epsilon=1.0, delta=1e-3, distance="source",
        n_source=120, l2=0.1, loss="softmax", max_norm=2.0, training_residual=1e-9, force=True,
    )  # fmt: skip
    assert result.certificate.status == "conditional"
    assert result.certificate.content["bound"]["inputs"]["l2"]["provenance"] == "declared"
    assert result.certificate.content["bound"]["inputs"]["training_residual"]["provenance"] == "measured"


def test_what_is_derived_depends_on_the_facts_alone(result) -> None:
    claim = claim_of(result.certificate.content)
    assert derive(claim).sigma == result.certificate.sigma
    needed = derive(claim).required
    assert derive(replace(claim, epsilon=2.0)).required < needed <= result.certificate.sigma
    assert derive(replace(claim, delta=5e-4)).required > needed
