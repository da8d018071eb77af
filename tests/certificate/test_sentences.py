"""Sentences of a certificate: never better than the numbers, and what an encoder keeps is a limit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import expunge
from expunge.certificate.claim import OLD_SCHEMAS, SCHEMA, Claim
from expunge.certificate.derive import derive
from expunge.certificate.wording import ENCODERS, limits_of
from expunge.errors import DataError, FileError, OptionError
from expunge.evidence import build_claim
from expunge.mechanism import measure
from expunge.record import TRAINED_ON_SOURCE
from expunge.request.door import ask
from expunge.request.promise import Promise, wanted_distance
from expunge.rows import EncodedRows, read_data
from expunge.rows.arrays import feature_bytes

OURS = "a" * 64


def rows(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    labels = np.arange(count) % 3
    features = np.eye(3, 4)[labels] + 0.2 * np.random.default_rng(seed).normal(size=(count, 4))
    return features / np.linalg.norm(features, axis=1, keepdims=True), labels


SOURCE, SURROGATE = rows(150, 1), rows(200, 2)


def claimed(trained: str | None = None, encoder: str | None = OURS, **budget: float) -> Claim:
    model = expunge.train(*SOURCE, l2=0.1, max_norm=1.0, encoder=encoder, encoder_trained=trained)
    promise = Promise(**({"epsilon": 1.0, "delta": 1e-3} | budget), distance=wanted_distance("chi2:0.1")[0])
    request = ask(model, (SOURCE[0][:3], SOURCE[1][:3]), SURROGATE, promise)
    return build_claim(request, measure(request, seed=0))


def test_a_guarantee_is_never_printed_better_than_it_is() -> None:
    claim = claimed(epsilon=1.0000049, delta=1.0000049e-3)
    assert claim.schema == SCHEMA
    derived = derive(claim)
    assert "are (1.00001, 0.00100001)-indistinguishable" in derived.guarantee
    printed = float(derived.guarantee.split("standard deviation ")[1].split(" ")[0])
    assert derived.sigma <= printed <= derived.sigma * (1 + 1e-5)
    assert "are (1, 0.001)-indistinguishable" in derive(replace(claim, epsilon=1.0, delta=1e-3)).promise


def test_an_encoder_is_a_limit_in_words_that_depend_on_its_training() -> None:
    for trained in TRAINED_ON_SOURCE:
        limits = derive(claimed(trained)).limits
        assert [sentence for sentence in limits if "encoder" in sentence] == [ENCODERS[trained]]
    assert ENCODERS["unknown"] in derive(claimed(None)).limits
    assert not any("encoder" in sentence for sentence in derive(claimed(None, None)).limits)
    assert len(set(ENCODERS.values())) == 3


def test_the_record_and_the_certificate_say_it() -> None:
    model = expunge.train(*SOURCE, l2=0.1, max_norm=1.0, encoder=OURS, encoder_trained="yes")
    assert model.record is not None
    assert '"schema": "expunge/record/3"' in model.record.to_json()
    found = expunge.unlearn(
        model, EncodedRows(SOURCE[0][:3], SOURCE[1][:3], OURS), SURROGATE, epsilon=9.0, delta=1e-3, distance="chi2:0.1"
    )
    assert found.certificate.content["model"]["encoder_trained_on_source"] == "yes"
    assert ENCODERS["yes"] in found.certificate.content["limits"]
    assert found.model.record is not None
    assert found.model.record.encoder_trained == "yes"
    with pytest.raises(DataError, match="no encoder that it could be said of"):
        expunge.train(*SOURCE, l2=0.1, max_norm=1.0, encoder_trained="yes")
    with pytest.raises(OptionError, match="perhaps"):
        expunge.train(*SOURCE, l2=0.1, max_norm=1.0, encoder=OURS, encoder_trained="perhaps")


@pytest.mark.parametrize("ending", [".npz", ".safetensors"])
def test_a_feature_file_says_it(ending: str, tmp_path: Path) -> None:
    file = tmp_path / f"features{ending}"
    for trained in TRAINED_ON_SOURCE:
        file.write_bytes(feature_bytes(file, *SOURCE, OURS, trained))
        read = read_data(file)
        assert (read.encoder, read.encoder_trained, read.rows.encoder_trained) == (OURS, trained, trained)
    file.write_bytes(feature_bytes(file, *SOURCE, OURS).replace(b"unknown", b"perhaps"))
    if ending == ".safetensors":
        with pytest.raises(FileError, match="perhaps"):
            read_data(file)


@pytest.mark.parametrize("schema", OLD_SCHEMAS)
def test_sentences_of_older_certificates_stay_as_they_were(schema: str) -> None:
    from expunge.certificate import derive as judge

    claim = replace(claimed("yes", epsilon=1.0000049), schema=schema)
    assert "are (1, 0.001)-indistinguishable" in judge._guarantee(claim, 0.12345649)
    assert "deviation 0.123456 added" in judge._guarantee(claim, 0.12345649)
    assert not any("encoder" in sentence for sentence in limits_of(claim, kept=False))
