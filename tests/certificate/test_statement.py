"""The statement: made from the dossier, nothing in it depends on who left; every way of changing one is found."""

from __future__ import annotations

import copy
import hashlib
import hmac
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deposit_problems import made as made_deposit
from expunge import FileError, Unlearned, VerificationFailed, train, unlearn
from expunge.bounds.calibration import is_power_of_four, mu_for
from expunge.certificate.claim import PublicNote
from expunge.certificate.derive import sentences
from expunge.certificate.dossier import Certificate, digest_of, read_claim
from expunge.certificate.statement import (
    STATEMENT_SCHEMA,
    Statement,
    parse_document,
    read_certificate,
    read_statement,
    statement_of,
)
from expunge.certificate.verify import verify_statement
from expunge.distance import Distance
from expunge.door import ask
from expunge.mechanism import certify, measure
from expunge.request.promise import Promise

Json = dict[str, Any]


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
    assert is_power_of_four(made.statement.sigma)
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
    request = ask(MODEL, (SOURCE[0][:2], SOURCE[1][:2]), SURROGATE, Promise(1.0, 1e-3, "same", force=True))
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
    assert read_claim(said, public=True).distance.value == 0.0
    assert any("NOT KNOWN, ESTIMATED: means (" in sentence for sentence in said["assumptions"])


def test_reading(made: Unlearned, tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(made.statement.to_json())
    (tmp_path / "d.json").write_text(made.certificate.to_json())
    assert read_statement(tmp_path / "s.json") == made.statement
    assert read_certificate(tmp_path / "d.json") == made.certificate
    for read, other, needed in ((read_statement, "d", "statement/3"), (read_certificate, "s", "dossier/3")):
        with pytest.raises(FileError, match=f"expunge/{needed} is needed"):
            read(tmp_path / f"{other}.json")
    for content, words in ((b"{", "JSON is needed"), (b'{"schema": "else"}', "schema 'else'")):
        with pytest.raises(FileError, match=words):
            parse_document(content, "x")


# Checking one ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(made: Unlearned, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("published") / "model.safetensors"
    path.write_bytes(made.model.to_bytes())
    return path


def test_what_was_issued_verifies(made: Unlearned, model: Path) -> None:
    alone = len(verify_statement(made.statement))
    with_model = len(verify_statement(made.statement, model))
    assert alone < with_model < len(verify_statement(made.statement, model, made.certificate))


@pytest.mark.parametrize(
    "options", [{"noise": 0.25}, {"noise": "rows:2"}, {"distance": "chi2:0.1"}, {"step": "newton"}]
)
def test_so_does_every_kind(options: Json, tmp_path: Path) -> None:
    found = result(**options)
    (tmp_path / "model.safetensors").write_bytes(found.model.to_bytes())
    verify_statement(found.statement, tmp_path / "model.safetensors", found.certificate)


def forged(statement: Statement, change: Callable[[Json], object]) -> Statement:
    """Changed, and its digest computed anew, as a forger would."""
    content = copy.deepcopy(statement.content)
    change(content)
    content["digest"] = digest_of(content)
    return Statement(content)


def put(*path: str, value: Any) -> Callable[[Json], object]:
    def change(content: Json) -> None:
        for key in path[:-1]:
            content = content[key]
        content[path[-1]] = value

    return change


def with_distance(kind: str) -> Callable[[Json], object]:
    distance = Distance(kind, 0.0)
    return put("distance", value=asdict(distance) | {"meaning": distance.meaning})


UNREADABLE = "cannot be recomputed|do not hold|say what follows"
FORGERIES: dict[str, tuple[Callable[[Json], object], str]] = {
    "an epsilon that is none": (put("epsilon", value=-1.0), "epsilon is at least"),
    "a sigma between rungs": (put("sigma", value=0.003), "rung"),
    "another rung": (put("sigma", value=2.0**-6), "guarantee"),
    "noise said to be set beforehand": (put("noise", "choice", value="policy"), "limits"),
    "noise that was not rounded": (put("noise", "choice", value="exact"), "set beforehand"),
    "noise of a test": (put("noise", "generator", value="INSECURE-TEST"), "secret"),
    "an assumption left out": (lambda c: c["assumptions"].pop(), "assumptions"),
    "a limit left out": (lambda c: c["limits"].pop(), "limits"),
    "facts that were declared": (lambda c: c["bound"]["declared"].append("l2"), "assumptions"),
    "a closer distance": (put("distance", "sampling", value="seen"), "assumptions"),
    "no noise": (lambda c: c.pop("noise"), UNREADABLE),
    "no sigma": (put("sigma", value=None), UNREADABLE),
    "an unknown loss": (put("model", "loss", value="hinge"), UNREADABLE),
    "rows at no distance": (with_distance("deposit"), "rows stand in for the source"),
    "a free intercept": (put("model", "free_bias", value=True), "what only a deposit has"),
    "a fixed C": (put("model", "fixed_c", value=1.0), "what only a deposit has"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_statement_that_was_changed_is_refused(made: Unlearned, name: str) -> None:
    change, words = FORGERIES[name]
    with pytest.raises(VerificationFailed, match=words):
        verify_statement(forged(made.statement, change))


def test_a_change_without_a_new_digest_is_found(made: Unlearned) -> None:
    content = made.statement.content | {"software": {}}
    with pytest.raises(VerificationFailed, match="digest"):
        verify_statement(Statement(content))


def test_the_dossier_of_another_result_is_refused(made: Unlearned) -> None:
    other = result()
    with pytest.raises(VerificationFailed, match="the dossier is the one the statement names"):
        verify_statement(made.statement, None, other.certificate)
    with pytest.raises(VerificationFailed, match="dossier/3"):
        verify_statement(made.statement, None, Certificate(made.certificate.content | {"schema": "else"}))


def test_a_statement_that_does_not_follow_from_its_dossier_is_refused(made: Unlearned) -> None:
    note = forged(made.statement, lambda c: c["notes"].append("all is well"))
    verify_statement(note)  # nobody but the auditor can tell
    with pytest.raises(VerificationFailed, match="follows from the dossier"):
        verify_statement(note, None, made.certificate)


# With a deposit -----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kept() -> Unlearned:
    case = made_deposit("softmax", l2=0.05, n=300)
    rows_given = case.X[:1], case.y[:1]
    return unlearn(case.model, rows_given, epsilon=1.0, delta=1e-5, deposit=case.deposit, force=True)


def test_a_deposit_s_statement_verifies_with_model_and_dossier(kept: Unlearned, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(kept.model.to_bytes())
    verify_statement(kept.statement, tmp_path / "model.safetensors", kept.certificate)
    assert kept.statement.status == "proven"
    assert "inputs" not in kept.statement.content["bound"]
    assert "convention" not in kept.statement.content["bound"]


def at_epsilon(epsilon: float) -> Callable[[Json], object]:
    """Another epsilon, and the mu and the sentences that go with it."""

    def change(content: Json) -> None:
        content |= {"epsilon": epsilon, "mu": mu_for(epsilon, content["noise"]["delta_for_noise"])}
        content["guarantee"] = sentences(read_claim(content, public=True), content["sigma"])[0]

    return change


KEPT: dict[str, tuple[Callable[[Json], object], str]] = {
    "a declared distance": (with_distance("same"), "either rows stand in"),
    "nothing spent on arithmetic": (put("noise", "failures", value={}), "noise.failures"),
    "a ladder": (put("noise", "choice", value="ladder"), UNREADABLE),
    "a policy with levels": (put("noise", "choice", value="policy"), "one of six levels"),
    "no level": (put("sigma", value=0.3), "one of six levels"),
    "noise not rounded": (put("noise", "choice", value="exact"), UNREADABLE),
    "many levels": (lambda c: c["noise"].update(rungs=50, rehearsed_rows=50), "one of six levels"),
    "another exact part": (put("noise", "smallest", value=1e3), "noise.grid_exponent"),
    "an epsilon that no draw in float64 bears": (at_epsilon(60.0), "what float64 makes of the noise"),
    "an epsilon that cannot be asked for": (at_epsilon(1e-7), "epsilon is at least"),
}


@pytest.mark.parametrize("name", KEPT)
def test_a_deposit_s_statement_that_was_changed_is_refused(kept: Unlearned, name: str) -> None:
    change, words = KEPT[name]
    with pytest.raises(VerificationFailed, match=words):
        verify_statement(forged(kept.statement, change))


def test_nothing_in_a_deposit_s_statement_depends_on_who_left() -> None:
    """Requests that take the same noise level have the same statement, digests and day apart."""
    case = made_deposit("softmax", l2=0.05, n=300)
    said: dict[float, list[Any]] = {}
    for row in range(6):
        found = unlearn(
            case.model, (case.X[[row]], case.y[[row]]), epsilon=1.0, delta=1e-5, deposit=case.deposit, force=True
        )
        content = copy.deepcopy(found.statement.content)
        for name in ("digest", "dossier", "created"):
            content.pop(name)
        content["model"].pop("sha256")
        content["model"].pop("before")
        said.setdefault(content["sigma"], []).append(content)
    assert len(said) < 6  # some take the same
    for alike in said.values():
        assert all(content == alike[0] for content in alike)
