"""A certificate in words: never better than its numbers; what encoders and preparation learnt is said."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import expunge
from expunge.certificate.claim import Claim
from expunge.certificate.derive import derive
from expunge.certificate.dossier import read_claim
from expunge.certificate.verify import verify_statement
from expunge.certificate.wording import ENCODERS, PREPARATIONS, headline, limits, outside
from expunge.deposit.make import make_deposit
from expunge.door import ask
from expunge.errors import DataError, FileError, ModelError, OptionError
from expunge.evidence import build_claim
from expunge.mechanism import measure
from expunge.networks.encoders import feature_bytes
from expunge.record import (
    LEARNT_COARSE,
    LEARNT_ELSEWHERE,
    LEARNT_FROM_SOURCE,
    PREPARATION,
    TRAINED_ON_SOURCE,
)
from expunge.report.page import decision
from expunge.request.promise import Promise
from expunge.rows import EncodedRows, read_data
from small_deposit import rows as small_rows
from small_deposit import source as small_source
from small_deposit import trained

OURS = "a" * 64


def rows(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    labels = np.arange(count) % 3
    features = np.eye(3, 4)[labels] + 0.2 * np.random.default_rng(seed).normal(size=(count, 4))
    return features / np.linalg.norm(features, axis=1, keepdims=True), labels


SOURCE, SURROGATE = rows(150, 1), rows(200, 2)


def claimed(trained: str | None = None, encoder: str | None = OURS, **budget: float) -> Claim:
    model = expunge.train(*SOURCE, l2=0.1, max_norm=1.0, encoder=encoder, encoder_trained=trained)
    promise = Promise(**({"epsilon": 1.0, "delta": 1e-3} | budget), distance="chi2:0.1")
    request = ask(model, (SOURCE[0][:3], SOURCE[1][:3]), SURROGATE, promise)
    return build_claim(request, measure(request, seed=0))


def test_a_guarantee_is_never_printed_better_than_it_is() -> None:
    derived = derive(claimed(epsilon=1.0000049, delta=1.0000049e-3))
    assert "are (1.00001, 0.00100001)-indistinguishable" in derived.guarantee
    printed = float(derived.guarantee.split("standard deviation ")[1].split(" ")[0])
    assert derived.sigma <= printed <= derived.sigma * (1 + 1e-5)


def test_an_encoder_is_a_limit_in_words_that_depend_on_its_training() -> None:
    for word in TRAINED_ON_SOURCE:
        limits = derive(claimed(word)).limits
        assert [sentence for sentence in limits if "encoder" in sentence] == [ENCODERS[word]]
    assert ENCODERS["unknown"] in derive(claimed(None)).limits
    assert not any("encoder" in sentence for sentence in derive(claimed(None, None)).limits)
    assert len(set(ENCODERS.values())) == 3


def test_the_record_and_the_certificate_say_it() -> None:
    model = expunge.train(*SOURCE, l2=0.1, max_norm=1.0, encoder=OURS, encoder_trained="yes")
    assert model.record is not None
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
    for word in TRAINED_ON_SOURCE:
        file.write_bytes(feature_bytes(file, *SOURCE, OURS, word))
        read = read_data(file)
        assert (read.encoder, read.encoder_trained) == (OURS, word)
    file.write_bytes(feature_bytes(file, *SOURCE, OURS).replace(b"unknown", b"perhaps"))
    if ending == ".safetensors":
        with pytest.raises(FileError, match="perhaps"):
            read_data(file)


# Preparation ----------------------------------------------------------------------------------------------------


@functools.cache
def unlearned(preparation: str | None) -> expunge.Unlearned:
    assert trained().record is not None
    model = trained().with_record(replace(trained().record, preparation=preparation))
    kept = make_deposit(model, small_source(), seed=3).deposit
    return expunge.unlearn(model, small_rows(1), epsilon=1.0, delta=1e-3, deposit=kept)


@pytest.mark.parametrize("preparation", [None, *PREPARATION])
def test_statement_dossier_and_model_say_where_preparation_was_learnt(preparation: str | None, tmp_path: Path) -> None:
    made = unlearned(preparation)
    assert outside(preparation) in made.statement.content["guarantee"]
    assert outside(preparation) in decision(made.statement.content, public=True)
    said = [sentence for sentence in made.statement.content["limits"] if sentence in PREPARATIONS.values()]
    assert said == ([] if preparation is None else [PREPARATIONS[preparation]])
    assert made.statement.content["limits"][-1:] == said or preparation is None
    assert made.model.record is not None
    assert made.model.record.preparation == preparation
    for content, claim in (
        (made.certificate.content, read_claim(made.certificate.content)),
        (made.statement.content, read_claim(made.statement.content, public=True)),
    ):
        assert content["model"].get("preparation") == claim.preparation == preparation
        assert content["limits"] == list(limits(claim, kept=True))
    file = tmp_path / "model.safetensors"
    file.write_bytes(made.model.to_bytes())
    assert verify_statement(made.statement, file, made.certificate)


def test_the_headline_names_the_steps_that_know_the_forgotten() -> None:
    said = headline({"status": "proven", "model": {"preparation": f"{LEARNT_FROM_SOURCE}: StandardScaler, Own"}})
    assert said.startswith(
        "PROVEN for the weights. StandardScaler, Own were learnt with the forgotten rows and are unchanged ("
    )
    assert "mean_ and scale_" in said
    assert "Own: whatever it learnt" in said
    assert "practice" in headline({"status": "proven", "model": {"preparation": LEARNT_COARSE}})
    assert headline({"status": "proven", "model": {"preparation": LEARNT_ELSEWHERE}}) == "proven"


def test_an_unknown_word_raises() -> None:
    content = unlearned(None).certificate.content
    for odd in ("by heart", None):
        with pytest.raises(ValueError, match=str(odd)):
            read_claim(content | {"model": content["model"] | {"preparation": odd}})
    assert trained().record is not None
    odd = replace(trained().record, preparation="by heart", weights_sha256="0" * 64).to_json()
    with pytest.raises(ModelError, match="preparation 'by heart'"):
        type(trained().record).from_json(odd, "the record")
