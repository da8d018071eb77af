"""The statement: made from the dossier, and nothing in it that depends on who left."""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from expunge import FileError, Unlearned, train, unlearn
from expunge.bounds.calibration import mu_for
from expunge.bounds.scale import is_level
from expunge.certificate.claim import PublicNote
from expunge.certificate.dossier import Certificate, digest_of
from expunge.certificate.statement import (
    STATEMENT_SCHEMA,
    Statement,
    parse_document,
    public_claim,
    read_document,
    read_statement,
    statement_of,
)
from expunge.mechanism import certify, measure
from expunge.request.door import ask
from expunge.request.promise import Promise, wanted_distance

STORED = Path(__file__).parent.parent / "stored"


def rows(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    labels = np.arange(count) % 3
    features = np.eye(3, 4)[labels] + 0.4 * np.random.default_rng(seed).normal(size=(count, 4))
    return features / np.linalg.norm(features, axis=1, keepdims=True), labels


SOURCE, SURROGATE = rows(600, 1), rows(600, 2)
MODEL = train(*SOURCE, l2=0.1, max_norm=1.0)


def result(first: int = 0, count: int = 2, **options: Any) -> Unlearned:
    forget = SOURCE[0][first : first + count], SOURCE[1][first : first + count]
    given = {"epsilon": 1.0, "delta": 1e-3, "distance": "same", "force": True} | options
    return unlearn(MODEL, forget, SURROGATE, **given)


@pytest.fixture(scope="module")
def made() -> Unlearned:
    return result()


def test_it_says_what_was_promised_and_the_target_not_what_was_achieved(made: Unlearned) -> None:
    said, private = made.statement.content, made.certificate.content
    assert (made.statement.epsilon, made.statement.delta, made.statement.status) == (1.0, 1e-3, "conditional")
    assert made.statement.sigma == made.certificate.sigma
    assert made.statement.mu == mu_for(1.0, private["noise"]["delta_for_noise"])
    assert made.statement.mu > private["noise"]["mu"]
    assert said["schema"] == STATEMENT_SCHEMA
    assert said["digest"] == digest_of(said)
    assert said["created"] == private["created"][:10]


def numbers(content: Any) -> set[float]:
    if isinstance(content, dict):
        return set().union(*(numbers(value) for value in content.values()), set())
    if isinstance(content, list):
        return set().union(*(numbers(value) for value in content), set())
    return {content} if isinstance(content, float) and content != int(content) else set()


def test_no_number_of_the_dossier_that_depends_on_who_left_is_in_it() -> None:
    one, other = result(noise=0.25), result(first=4, count=3, noise=0.25)
    private = numbers(one.certificate.content) ^ numbers(other.certificate.content)
    assert len(private) > 20, "the two dossiers do differ"
    assert not private & numbers(one.statement.content)


def test_two_statements_differ_in_digests_alone_where_the_noise_was_set_beforehand() -> None:
    said = [result(first=k, count=1 + k, noise=0.25).statement.content for k in (0, 3)]
    for content in said:
        for name in ("digest", "dossier"):
            content.pop(name)
        for name in ("sha256", "before"):
            content["model"].pop(name)
    assert said[0] == said[1]
    assert said[0]["noise"]["choice"] == "policy"
    assert said[0]["noise"]["rungs"] is None


def test_a_request_that_chooses_is_on_the_ladder_and_says_so(made: Unlearned) -> None:
    noise = made.statement.content["noise"]
    assert noise["choice"] == "ladder"
    assert is_level(made.statement.sigma)
    assert made.certificate.content["noise"]["required"] <= made.statement.sigma
    assert noise["rungs"] > 10
    assert any("power of two" in sentence for sentence in made.statement.content["limits"])


def test_digests_of_private_things_are_keyed(made: Unlearned) -> None:
    said, private = made.statement.content, made.certificate.content
    assert private["model"]["before"]["sha256"] == MODEL.sha256()
    assert MODEL.sha256() not in made.statement.to_json()
    key = bytes.fromhex(private["nonce"])
    assert len(key) == 32
    expected = hmac.new(key, b"model before\x00" + MODEL.sha256().encode(), hashlib.sha256).hexdigest()
    assert said["model"]["before"] == expected
    assert said["dossier"] == private["digest"]
    assert private["nonce"] not in made.statement.to_json()
    assert result().certificate.content["nonce"] != private["nonce"]


def test_notes_are_private_unless_they_are_marked(made: Unlearned) -> None:
    wanted, _ = wanted_distance("same")
    request = ask(MODEL, (SOURCE[0][:2], SOURCE[1][:2]), SURROGATE, Promise(1.0, 1e-3, wanted, force=True))
    request = replace(request, notes=("two of them are twins", PublicNote("the surrogate has no rows of class 7")))
    found = certify(request, measure(request))
    assert found.certificate.content["notes"] == ["two of them are twins", "the surrogate has no rows of class 7"]
    assert found.statement.content["notes"] == ["the surrogate has no rows of class 7"]


def test_an_estimated_distance_is_named_and_not_told(made: Unlearned) -> None:
    content = json.loads(made.certificate.to_json())
    content["distance"] |= {"kind": "means", "value": 0.123, "provenance": "estimated"}
    said = statement_of(Certificate(content)).content
    assert said["distance"]["value"] is None
    assert "0.123" not in json.dumps(said)
    assert public_claim(said).distance.value == 0.0
    assert any("NOT KNOWN, ESTIMATED: means (" in sentence for sentence in said["assumptions"])


def test_reading(made: Unlearned, tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(made.statement.to_json())
    (tmp_path / "d.json").write_text(made.certificate.to_json())
    assert read_statement(tmp_path / "s.json") == made.statement
    assert isinstance(read_document(tmp_path / "d.json"), Certificate)
    assert isinstance(read_document(STORED / "certificate-1-same.json"), Certificate)
    assert isinstance(parse_document(made.statement.to_json().encode(), "s"), Statement)
    with pytest.raises(FileError, match="expunge/statement/3 is needed"):
        read_statement(tmp_path / "d.json")
    with pytest.raises(FileError, match="JSON is needed"):
        parse_document(b"{", "x")
    with pytest.raises(FileError, match="schema 'else'"):
        parse_document(b'{"schema": "else"}', "x")
