"""Verification: fails on any difference, whoever recomputed the digest; a claim is read strictly, and checks speak in words."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest

import expunge
from certificates import made
from expunge import verify
from expunge.certificate.claim import (
    EIGENVALUE_SHARE,
    EVENTS_SHARE,
    INSECURE,
    LARGEST_EPSILON,
    SAMPLING_SHARE,
    SIZE_NAMES,
    SMALLEST_DELTA,
    SMALLEST_EPSILON,
    WEAKEST_LAST,
    due_failures,
    retained_facts,
    weakest,
)
from expunge.certificate.derive import derive
from expunge.certificate.dossier import LARGEST_NUMBER, Certificate, digest_of, read_claim
from expunge.certificate.rules import OF_MODEL, POSSIBLE, Check, equal, require_passed
from expunge.certificate.statement import parse_document
from expunge.certificate.verify import verify_statement
from expunge.distance import Distance
from expunge.errors import ExpungeError, FileError, OptionError, VerificationFailed
from expunge.request.promise import check_budget
from forging import GONE, changed
from private_values import leaves
from stored_certificates import NAMES, STORED, stored_dossier

pytestmark = pytest.mark.usefixtures("one_thread")
Json = dict[str, Any]


def altered(content: Json, path: tuple[object, ...]) -> Json:
    changed = copy.deepcopy(content)
    place: Any = changed
    for key in path[:-1]:
        place = place[key]
    value = place[path[-1]]
    if isinstance(value, bool):
        place[path[-1]] = not value
    elif isinstance(value, (int, float)):
        place[path[-1]] = value * 1.0001 + 1e-9 if isinstance(value, float) else value + 1
    else:
        place[path[-1]] = f"{value}x"
    return changed


def sealed(content: Json) -> Certificate:
    return Certificate(content | {"digest": digest_of(content)})


def test_a_fresh_certificate_verifies_and_survives_the_file(result: expunge.Unlearned, tmp_path: Path) -> None:
    file, model = tmp_path / "c.json", tmp_path / "m.safetensors"
    file.write_text(result.certificate.to_json())
    model.write_bytes(result.model.to_bytes())
    assert all(check.passed for check in verify(expunge.read_certificate(file), model))


@pytest.mark.parametrize("name", NAMES)
def test_what_is_stored_opens_and_verifies(name: str) -> None:
    model = STORED / f"model-3-{name}.safetensors"
    dossier = expunge.read_certificate(STORED / f"dossier-3-{name}.json")
    assert verify(dossier, model).status == dossier.status
    statement = expunge.read_statement(STORED / f"statement-3-{name}.json")
    assert verify_statement(statement, model, dossier).word == "consistent"


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 9])
@pytest.mark.parametrize("kind", ["statement", "dossier", "model"])
def test_one_bit_anywhere_is_noticed_or_changes_nothing(kind: str, step: int, tmp_path: Path) -> None:
    """Of every byte; of each ninth in the quick tests. Nothing but a refusal may come of it."""
    ending = "safetensors" if kind == "model" else "json"
    source = STORED / f"{kind}-3-deposit.{ending}"
    whole, flipped = source.read_bytes(), tmp_path / source.name
    statement = expunge.read_statement(STORED / "statement-3-deposit.json")
    for position in range(0, len(whole), step):
        changed = bytearray(whole)
        changed[position] ^= 1 << position % 8
        flipped.write_bytes(changed)
        with contextlib.suppress(ExpungeError):
            if kind == "model":
                verify_statement(statement, flipped)
            else:
                document, _ = expunge.verify_file(flipped)
                assert document.content == json.loads(whole), position
                continue
            raise AssertionError(f"a model with another byte {position} was taken for the published one")


@pytest.mark.parametrize("name", NAMES)
def test_numbers_changed_together_with_the_digest_are_still_noticed(name: str) -> None:
    """Whoever recomputes the digest must also make every derived number follow from the facts."""
    content, unfelt = stored_dossier(name), 0
    radius = derive(read_claim(content)).region.radius
    derived = {
        *("status", "sigma", "epsilon", "delta", "assumptions", "limits", "guarantee", "bound"),
        *("noise", "distance", "sizes"),
    }
    derived_of_model = [("model", "l2"), *(("model", "published", each) for each in ("l2", "n_source", "max_norm"))]
    for path in [path for path, _ in leaves(content) if path[0] in derived or path in derived_of_model]:
        forged = altered(content, path)
        is_number = path[:2] == ("bound", "inputs") and path[3] == "value"
        if is_number and derive(read_claim(forged)).region.radius == radius:
            unfelt += 1  # a fact that this kind of distance, or this route, does not use
            continue
        with pytest.raises(VerificationFailed) as failed:
            verify(sealed(forged))
        honest_value = repr(content["bound"]["terms"].get(path[-1], "never"))
        assert honest_value not in str(failed.value), "who asks what is wrong is not told what to paste"
    assert unfelt <= 13


@pytest.mark.parametrize("name", NAMES)
def test_so_are_those_of_a_statement(name: str) -> None:
    """But for what only model and dossier tell: notes, the exact part of the noise (which is coarse), and an average."""
    content = json.loads((STORED / f"statement-3-{name}.json").read_text())
    free = {"model", "dossier", "software", "created", "digest", "notes"}
    coarse = [("noise", "smallest"), ("noise", "averaged")]
    for path in [path for path, _ in leaves(content) if path[0] not in free and path not in coarse]:
        forged = altered(content, path)
        with pytest.raises(VerificationFailed):
            verify_statement(expunge.Statement(forged | {"digest": digest_of(forged)}))


def test_a_seed_makes_a_certificate_that_says_so_and_fails_verification() -> None:
    certificate = made("same", insecure_test_seed=1).certificate
    assert certificate.content["noise"]["generator"] == INSECURE
    assert INSECURE in certificate.content["limits"][0]
    with pytest.raises(VerificationFailed, match="secret"):
        verify(certificate)


def test_nested_certificate(result: expunge.Unlearned) -> None:
    """What is nested so deep that it can be parsed but hardly written again is refused like the rest."""
    content = sealed(result.certificate.content | {"notes": []}).to_json().encode()
    assert b'"notes": []' in content
    readable = []
    for depth in range(900, 1000):
        with contextlib.suppress(FileError):
            deep = content.replace(b'"notes": []', b'"notes": ' + b"[" * depth + b"]" * depth)
            readable.append(parse_document(deep, "nested"))
    for certificate in readable[-20:]:
        with pytest.raises(ExpungeError):
            verify(certificate)


def test_every_key_of_a_dossier_is_on_its_page(result: expunge.Unlearned) -> None:
    page = (Path(__file__).parents[2] / "docs" / "certificate.md").read_text()
    for key in result.certificate.content:
        assert f"`{key}`" in page, key
    for section in ("bound", "noise", "sizes", "model", "step", "distance"):
        for key in result.certificate.content[section]:
            assert f"`{key}`" in page or f"`{section}.{key}`" in page, f"{section}.{key}"


# Reading a claim ----------------------------------------------------------------------------------------------------


def test_what_is_read_is_what_was_claimed(result: expunge.Unlearned) -> None:
    content = result.certificate.content
    claim = read_claim(content)
    assert (claim.epsilon, claim.delta, claim.bound, claim.averaged) == (1.0, 1e-3, "residual", True)
    stated = {name: entry["value"] for name, entry in content["bound"]["inputs"].items()}
    assert {name: fact.value for name, fact in claim.facts.items()} == stated
    numbers = retained_facts(claim.facts)
    assert {name: getattr(numbers, name) for name in stated} == stated
    assert all(type(getattr(numbers, name)) is int for name in SIZE_NAMES)


@pytest.mark.parametrize(
    "change",
    [
        {"bound.inputs.change_trace": GONE},
        {"bound.inputs.luck": {"value": 1.0, "provenance": "measured"}},
        {"bound.inputs.weight_largest": {"value": 1.0, "provenance": "measured"}},
        {"change_trace": "many"},
        {"change_trace": True},
        {"change_trace": 1e301},
        {"bound.inputs.change_trace.provenance": "hearsay"},
        {"noise.averaged": 1},
        {"n_forget": 1.5},
        {"n_source": 2**60},
        {"training_residual": -1e-9},
        {"bound.tuned": "no"},
        {"bound.kind": "tight"},
        {"distance.kind": "wasserstein"},
        {"epsilon": None},
        {"delta": "small"},
        {"noise.failures": {"sampling": None}},
        {"sizes.parameters": []},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_is_no_claim_is_not_read(result: expunge.Unlearned, change: Json) -> None:
    content = changed(result.certificate.content, change)
    with pytest.raises((ValueError, KeyError, TypeError, ExpungeError)):
        read_claim(content)
    with pytest.raises(VerificationFailed):
        verify(sealed(content))


def test_of_several_provenances_the_latest_in_the_order_is_the_weakest() -> None:
    for first, weaker in itertools.combinations_with_replacement(WEAKEST_LAST, 2):
        assert weakest([first, weaker]) == weakest([weaker, first]) == weakest([first, weaker, first]) == weaker
    for odd in ("proven", "", "Declared", None):
        with pytest.raises(ValueError, match="not in tuple"):
            weakest(["derived", odd, "measured"])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("distance", "averaged", "due"),
    [
        (Distance("same", 0.0), True, {"sampling": EVENTS_SHARE, "eigenvalue": EIGENVALUE_SHARE}),
        (Distance("same", 0.0), False, {"sampling": SAMPLING_SHARE, "eigenvalue": EIGENVALUE_SHARE}),
        (Distance("same", 0.0, sampling="seen"), True, {"sampling": SAMPLING_SHARE, "eigenvalue": EIGENVALUE_SHARE}),
        (Distance("chi2", 0.1, "samples"), True, {"eigenvalue": EIGENVALUE_SHARE}),
        (Distance("tv", 0.1, "samples"), True, {}),
        (Distance("source", 0.0), True, {}),
    ],
)
def test_what_is_spent_of_delta(distance: Distance, averaged: bool, due: dict[str, float]) -> None:
    alone = due_failures(0.5, distance, averaged=averaged)
    assert alone == {name: 0.5 * share for name, share in due.items()}
    spread = due_failures(0.5, distance, averaged=averaged, planned=10)
    assert spread.get("sampling", 0.0) == alone.get("sampling", 0.0) / 10
    assert math.isclose(math.fsum(spread.values()), math.fsum(alone.values()))


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(SMALLEST_EPSILON / 2, 1e-3), (LARGEST_EPSILON * 2, 1e-3), (1.0, SMALLEST_DELTA / 2), (1.0, 1.0)],
)
def test_issuing_refuses_what_verifying_would(epsilon: float, delta: float) -> None:
    check_budget(SMALLEST_EPSILON, 1e-3)
    check_budget(LARGEST_EPSILON, SMALLEST_DELTA)
    with pytest.raises(OptionError):
        check_budget(epsilon, delta)


# A check, and the words in which it fails ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("claimed", "recomputed", "same"),
    [
        (1.0, 1.0 + 1e-13, True),
        (1.0, 1.0 + 1e-11, False),
        (1, 1.0, True),
        (True, 1.0, False),
        (1.0, 1, False),
        (10 * LARGEST_NUMBER, 1.0, False),
        (["a"], ("a",), True),
        (("a",), ["a"], False),
        ({"a": 1.0}, {"a": 1.0}, True),
        ({"a": 1.0, "b": 1.0}, {"a": 1.0}, False),
        (None, 0.0, False),
        ("x", "x", True),
    ],
)
def test_what_counts_as_equal(claimed: object, recomputed: object, same: bool) -> None:
    assert equal(claimed, recomputed) is same


def test_what_is_wrong_is_said_in_words_and_the_remedy_fits() -> None:
    impossible = Check("rows are there", False, True, "there are none", POSSIBLE)
    differing = Check("sigma", 1.0, 2.0)
    wrong_model = Check("the model is the one", "a", "b", "it is another", OF_MODEL)
    require_passed([Check("sigma", 1.0, 1.0)])
    for failed, words, remedy in (
        (
            [differing],
            "sigma is stated as 1.0, which does not follow from the rest; the file must say what follows",
            "rely on this certificate",
        ),
        ([wrong_model], "it is not so that the model is the one (it is another)", "published model's file"),
        ([differing, wrong_model, impossible], "it is not so that rows are there (there are none)", "wrote or changed"),
    ):
        with pytest.raises(VerificationFailed) as caught:
            require_passed(failed)
        assert words in str(caught.value)
        assert remedy in caught.value.remedy
    with pytest.raises(VerificationFailed, match="; and 5 more"):
        require_passed([Check(f"number {k}", k, -1) for k in range(10)])
    assert len(Check("text", "x" * 1000, "y").words) < 200
