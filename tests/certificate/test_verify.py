"""Verification: it fails on any difference, whoever recomputed the digest."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

import expunge
from certificates import made
from class_shift import shifted_problem
from expunge import unlearn, verify
from expunge.certificate.claim import INSECURE
from expunge.certificate.derive import derive
from expunge.certificate.dossier import Certificate, digest_of, parse_certificate
from expunge.certificate.rules import possible
from expunge.certificate.verify import claim_of, found_since
from expunge.errors import VerificationFailed
from forging import redone

STORED = Path(__file__).parents[1] / "stored"


def flat(content: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """Paths of all leaves."""
    if isinstance(content, dict):
        return [leaf for key, value in content.items() for leaf in flat(value, (*path, key))]
    if isinstance(content, list) and content:
        return [leaf for index, value in enumerate(content) for leaf in flat(value, (*path, index))]
    return [path]


def altered(content: dict, path: tuple[object, ...]) -> dict:
    changed = copy.deepcopy(content)
    place = changed
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


def test_every_changed_leaf_is_noticed(result) -> None:
    content = result.certificate.content
    for path in flat(content):
        with pytest.raises((VerificationFailed, expunge.FileError)):
            verify(parse_certificate(json.dumps(altered(content, path)).encode(), "altered"))


def test_numbers_changed_together_with_the_digest_are_still_noticed(result) -> None:
    """Whoever recomputes the digest must also make every derived number follow from the facts."""
    content = result.certificate.content
    derived = [
        ("status",),
        ("sigma",),
        ("epsilon",),
        ("delta",),
        ("bound", "total"),
        ("assumptions", 0),
        ("limits", 0),
        ("guarantee",),
    ]
    derived += [
        path for path in flat(content) if path[:2] in (("bound", "terms"), ("bound", "inputs"), ("noise", "mu"))
    ]
    derived += [("noise", "grid_exponent"), ("noise", "delta_at_sigma"), ("noise", "failures", "sampling"), ("distance", "value"),
                ("sizes", "n_source"), ("sizes", "parameters"), ("model", "l2")]  # fmt: skip
    unfelt = 0
    for path in derived:
        changed = altered(content, path)
        changed["digest"] = digest_of(changed)
        if path[:2] == ("bound", "inputs") and path[3] == "value" and same_bound(changed, content):
            unfelt += 1  # a fact that this kind of distance does not use
            continue
        with pytest.raises(VerificationFailed):
            verify(Certificate(changed))
    assert unfelt <= 6


def same_bound(changed: dict, content: dict) -> bool:
    return derive(claim_of(changed)).region.radius == derive(claim_of(content)).region.radius


def test_impossible_facts_are_refused_whatever_the_digest_says(result) -> None:
    def forged(*changes: tuple[tuple[str, ...], object]) -> Certificate:
        content = copy.deepcopy(result.certificate.content)
        for path, value in changes:
            place = content
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = value
        content["digest"] = digest_of(content)
        return Certificate(content)

    for certificate in (
        forged((("distance", "provenance"), "measured")),
        forged((("distance", "provenance"), "nonsense")),
        forged((("distance", "kind"), "source"), (("distance", "value"), 0.0)),
        forged((("bound", "inputs", "n_forget", "value"), 500)),
        forged((("bound", "inputs", "l2", "value"), -0.1)),
        forged((("sizes", "classes"), 4)),
        forged((("step", "residual"), 1.0)),
        forged((("noise", "calibration"), "classical")),
        forged((("noise", "failures"), {})),
        forged((("delta",), 1.0)),
        forged((("epsilon",), 0.0)),
    ):
        with pytest.raises(VerificationFailed):
            verify(certificate)


def test_a_seed_makes_a_certificate_that_says_so_and_fails_verification() -> None:
    certificate = made("same", insecure_test_seed=1).certificate
    assert certificate.content["noise"]["generator"] == INSECURE
    assert INSECURE in certificate.content["limits"][0]
    with pytest.raises(VerificationFailed, match="secret"):
        verify(certificate)


def test_raising_the_status_alone_is_noticed(result) -> None:
    changed = copy.deepcopy(result.certificate.content)
    changed["status"] = "proven"
    changed["assumptions"] = []
    changed["digest"] = digest_of(changed)
    with pytest.raises(VerificationFailed, match="status"):
        verify(Certificate(changed))


def test_a_smaller_claim_of_delta_or_epsilon_is_noticed(result) -> None:
    for key, factor in (("epsilon", 0.5), ("delta", 0.5)):
        changed = copy.deepcopy(result.certificate.content)
        changed[key] *= factor
        changed["digest"] = digest_of(changed)
        with pytest.raises(VerificationFailed):
            verify(Certificate(changed))


@pytest.mark.parametrize("file", sorted(STORED.glob("certificate-*.json")), ids=lambda file: file.name)
def test_certificates_of_earlier_versions_keep_verifying(file: Path) -> None:
    model = file.with_name(file.name.replace("certificate", "model")).with_suffix(".safetensors")
    assert all(check.passed for check in verify(expunge.read_certificate(file), model))


def test_there_are_stored_certificates() -> None:
    for schema in (1, 2):
        assert list(STORED.glob(f"certificate-{schema}-*.json"))


pytestmark = pytest.mark.usefixtures("one_thread")


def matched_certificate(**options: Any) -> Certificate:
    model, X, y, gone, S = shifted_problem(0, n=3000, s=3000)
    made = unlearn(
        model, (X[gone[:1]], y[gone[:1]]), S, epsilon=2.0, delta=1e-3, distance="same", match_classes=True, **options
    )
    return made.certificate


@pytest.mark.parametrize(
    ("name", "value"),
    [("weight_largest", 0.5), ("sampled_trace", 1e3), ("sampled_trace", None), ("weight_largest", None)],
)
def test_weights_that_cannot_be_are_found_out(name: str, value: float | None) -> None:
    content = matched_certificate().content
    inputs = {key: dict(entry) for key, entry in content["bound"]["inputs"].items()}
    if value is None:
        del inputs[name]
    else:
        inputs[name]["value"] = value
    content = content | {"bound": content["bound"] | {"inputs": inputs}}
    content["digest"] = digest_of(content)
    with pytest.raises(VerificationFailed):
        verify(Certificate(content))


FORGERIES = {
    "smaller moments": {"sampled_trace": 0.0, "sampled_eigenvalue": 0.0, "sampled_largest": 0.0},
    "a weight above the number of rows": {"weight_largest": 1e9},
    "too few rows count": {"weight_largest": 40.0},
    "an eigenvalue above the trace": {"sampled_eigenvalue": 1.0},
}


@pytest.mark.parametrize("name", FORGERIES)
def test_facts_that_contradict_each_other_are_found_out_even_if_all_that_follows_is_redone(name: str) -> None:
    content = matched_certificate().content
    inputs = {key: dict(entry) for key, entry in content["bound"]["inputs"].items()}
    for fact, value in FORGERIES[name].items():
        inputs[fact]["value"] = value
    with pytest.raises(VerificationFailed, match="possible"):
        verify(redone(content | {"bound": content["bound"] | {"inputs": inputs}}))


def test_a_matched_certificate_is_not_turned_into_another() -> None:
    content = matched_certificate().content
    inputs = {k: v for k, v in content["bound"]["inputs"].items() if k != "weight_largest" and "sampled" not in k}
    plain = {"bound": content["bound"] | {"inputs": inputs}, "distance": content["distance"] | {"matched": False}}
    with pytest.raises(VerificationFailed, match="effective_surrogate_rows"):
        verify(redone(content | plain))
    with pytest.raises(VerificationFailed, match="schema 1"):
        verify(redone(content | {"schema": "expunge/certificate/1"}))
    with pytest.raises(VerificationFailed, match="True or False"):
        verify(redone(content | {"distance": content["distance"] | {"matched": 1}}))


def test_the_paper_s_total_variation_follows_from_the_distance() -> None:
    model, X, y, gone, S = shifted_problem(0, n=3000, s=3000)
    made = unlearn(
        model, (X[gone[:1]], y[gone[:1]]), S, epsilon=0.9, delta=1e-3, distance="tv:0.7", bound="paper", force=True
    )
    verify(made.certificate)
    content = made.certificate.content
    inputs = content["bound"]["inputs"] | {"tv_upper": {"value": 0.0, "provenance": "derived"}}
    with pytest.raises(VerificationFailed, match="tv_upper"):
        verify(redone(content | {"bound": content["bound"] | {"inputs": inputs}}))


# What was found since -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("same", ["stands for the forgotten rows", "categorical", "chosen", "not for the public"]),
        ("strict", ["stands for the forgotten rows", "chosen", "a trifle", "not for the public"]),
        ("source", ["calls it proven", "not for the public"]),
        ("paper", ["not for the public"]),
    ],
)
def test_an_earlier_certificate_verifies_with_what_was_found_since(name: str, said: list[str]) -> None:
    checked = verify(expunge.read_certificate(STORED / f"certificate-1-{name}.json"))
    assert len(checked.found_since) == len(said)
    for words, sentence in zip(said, checked.found_since, strict=True):
        assert words in sentence


def test_nothing_was_found_of_a_certificate_of_today(result) -> None:
    assert verify(result.certificate).found_since == ()


def test_a_small_epsilon_of_an_earlier_schema_was_calibrated_wrongly() -> None:
    content = copy.deepcopy(expunge.read_certificate(STORED / "certificate-1-same.json").content)
    content["epsilon"] = 1e-8
    assert any("calibrated wrongly" in sentence for sentence in found_since(content))
    assert all(check.passed for check in possible(content, claim_of(content)))  # it could be issued then
