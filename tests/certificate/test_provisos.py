"""Limits in words: what is said of preparation follows from where it was learnt, and from nothing else."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import pytest

import expunge
from expunge.certificate.dossier import claim_of, preparation_word
from expunge.certificate.statement import public_claim
from expunge.certificate.verify import model_checks, verify_statement
from expunge.certificate.wording import PREPARATIONS, headline, limits_of, outside
from expunge.deposit.keeping import keep
from expunge.errors import ModelError, VerificationFailed
from expunge.record import LEARNT_COARSE, LEARNT_ELSEWHERE, LEARNT_FROM_SOURCE, PREPARATION
from expunge.report.card import model_card
from expunge.report.page import decision
from small_deposit import rows, source, trained


@functools.cache
def unlearned(preparation: str | None) -> expunge.Unlearned:
    assert trained().record is not None
    model = trained().with_record(replace(trained().record, preparation=preparation))
    kept = keep(model, source(), seed=3).deposit
    return expunge.unlearn(model, rows(1), epsilon=1.0, delta=1e-3, deposit=kept)


@pytest.mark.parametrize("preparation", [None, *PREPARATION])
def test_statement_dossier_and_model_say_where_preparation_was_learnt(preparation: str | None, tmp_path: Path) -> None:
    made = unlearned(preparation)
    assert outside(preparation) in made.statement.content["guarantee"]
    assert outside(preparation) in decision(made.statement.content, public=True)
    assert outside(preparation) in model_card(made.statement.content, "s.json").replace("\\", "")
    said = [sentence for sentence in made.statement.content["limits"] if sentence in PREPARATIONS.values()]
    assert said == ([] if preparation is None else [PREPARATIONS[preparation]])
    assert made.statement.content["limits"][-1:] == said or preparation is None
    assert made.model.record is not None
    assert made.model.record.preparation == preparation
    for content, claim in (
        (made.certificate.content, claim_of(made.certificate.content)),
        (made.statement.content, public_claim(made.statement.content)),
    ):
        assert content["model"].get("preparation") == claim.preparation == preparation
        assert content["limits"] == list(limits_of(claim, kept=True))
    file = tmp_path / "model.safetensors"
    file.write_bytes(made.model.to_bytes())
    assert verify_statement(made.statement, file, made.certificate)


def test_a_statement_that_is_silent_on_it_does_not_go_with_the_model(tmp_path: Path) -> None:
    made, silent = unlearned(LEARNT_FROM_SOURCE), unlearned(None)
    file = tmp_path / "model.safetensors"
    file.write_bytes(made.model.to_bytes())
    failed = {check.name for check in model_checks(silent.statement, file) if not check.passed}
    assert "the model has the preparation of the statement" in failed
    assert not {check.name for check in model_checks(made.statement, file) if not check.passed}


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
    with pytest.raises(ValueError, match="by heart"):
        preparation_word({"preparation": "by heart"})
    with pytest.raises(ValueError, match="None"):
        preparation_word({"preparation": None})
    assert preparation_word({}) is None
    assert trained().record is not None
    odd = replace(trained().record, preparation="by heart", weights_sha256="0" * 64).to_json()
    with pytest.raises(ModelError, match="preparation 'by heart'"):
        type(trained().record).from_json(odd, "the record")


def test_the_deposit_and_its_model_agree_on_it() -> None:
    made = unlearned(LEARNT_ELSEWHERE)
    with pytest.raises(ModelError, match="preparation"):
        expunge.unlearn(trained(), rows(2), epsilon=1.0, delta=1e-3, deposit=made.deposit)
    content = {**made.certificate.content, "model": {**made.certificate.content["model"]}}
    del content["model"]["preparation"]
    with pytest.raises(VerificationFailed):
        expunge.verify(type(made.certificate)(content))
