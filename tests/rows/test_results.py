"""Results that can be saved, and that show themselves."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import expunge
from expunge.deposit.keeping import keep
from expunge.errors import FileError
from small_deposit import rows, source, trained


@pytest.fixture(scope="module")
def result() -> expunge.Unlearned:
    kept = keep(trained(), source(), seed=3).deposit
    return expunge.unlearn(trained(), rows(1), epsilon=1.0, delta=1e-3, deposit=kept)


def test_a_saved_result_verifies_and_keeps_what_is_private_apart(result: expunge.Unlearned, tmp_path: Path) -> None:
    names = result.save(tmp_path / "result")
    assert [path.name for path in names] == ["model.safetensors", "statement.json"]
    statement = expunge.read_statement(names[1])
    assert expunge.verify_statement(
        statement, names[0], expunge.read_certificate(tmp_path / "result/private/dossier.json")
    )
    assert (
        expunge.read_deposit(tmp_path / "result/private/model.deposit").numbers.n_rows == result.deposit.numbers.n_rows
    )
    assert stat.S_IMODE((tmp_path / "result/private").stat().st_mode) == 0o700
    with pytest.raises(FileError, match="exists already"):
        result.save(tmp_path / "result")


def test_without_a_deposit_there_is_none_in_the_folder(result: expunge.Unlearned, tmp_path: Path) -> None:
    replace(result, deposit=None).save(str(tmp_path / "result"))
    assert [path.name for path in (tmp_path / "result/private").iterdir()] == ["dossier.json"]


def test_a_key_signs_the_statement(result: expunge.Unlearned, tmp_path: Path) -> None:
    names = result.save(tmp_path / "result", sign_key=Ed25519PrivateKey.generate())
    assert names[-1].name == "statement.signed.json"


def test_in_a_notebook_it_says_what_was_certified_and_nothing_of_who_left(result: expunge.Unlearned) -> None:
    page = result._repr_html_()
    for words in ("proven", "epsilon, delta", "indistinguishable", "may be handed out", ".deposit"):
        assert words in page
    for private in ("n_forget", result.certificate.content["nonce"], "change_mean"):
        assert private not in page
    odd = replace(result.statement, content=result.statement.content | {"status": "<script>"})
    assert "<script>" not in replace(result, statement=odd)._repr_html_()
    assert ".deposit" not in replace(result, deposit=None)._repr_html_()
