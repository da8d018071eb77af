"""Certificates: what they say, how status follows from provenance, and that verification fails on any difference."""

import copy
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import expunge
from expunge import Certificate, VerificationFailed, verify
from expunge.certificate.content import digest_of, parse_certificate
from expunge.certificate.derive import derive
from expunge.certificate.facts import INSECURE
from expunge.certificate.verify import checks, claim_of
from expunge.distance import Distance

STORED = Path(__file__).parent / "stored"


def made(distance: str | Distance = "same", seed: int = 0, **options: object) -> expunge.Unlearned:
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((400, 5))
    y = (x @ generator.standard_normal((5, 3)) + generator.gumbel(size=(400, 3))).argmax(axis=1)
    model = expunge.train(x[:200], y[:200], l2=0.1, max_norm=2.0)
    surrogate = (x[:200], y[:200]) if distance == "source" else (x[200:], y[200:])
    return expunge.unlearn(
        model, (x[:3], y[:3]), surrogate, epsilon=1.0, delta=1e-3, distance=distance, force=True, **options
    )


@pytest.fixture(scope="module")
def result() -> expunge.Unlearned:
    return made("chi2:0.1")


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


def test_a_fresh_certificate_verifies_and_survives_the_file(result, tmp_path) -> None:
    file, model = tmp_path / "c.json", tmp_path / "m.safetensors"
    file.write_text(result.certificate.to_json())
    model.write_bytes(result.model.to_bytes())
    assert all(check.passed for check in verify(expunge.read_certificate(file), model))


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
    assert unfelt <= 4


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
        forged((("step", "residual"), 0.0)),
        forged((("noise", "calibration"), "classical")),
        forged((("noise", "failures"), {})),
        forged((("delta",), 1.0)),
        forged((("epsilon",), 0.0)),
    ):
        with pytest.raises(VerificationFailed):
            verify(certificate)


@pytest.mark.parametrize(
    ("distance", "options", "status"),
    [
        ("source", {}, "proven"),
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


def test_what_is_derived_depends_on_the_facts_alone(result) -> None:
    claim = claim_of(result.certificate.content)
    assert derive(claim).sigma == result.certificate.sigma
    assert derive(replace(claim, epsilon=2.0)).sigma < result.certificate.sigma
    assert derive(replace(claim, delta=5e-4)).sigma > result.certificate.sigma


def test_top_level_keys_are_those_of_the_schema(result) -> None:
    page = (Path(__file__).parent.parent / "docs" / "certificate.md").read_text()
    for key in result.certificate.content:
        assert f"`{key}`" in page, key
    for section in ("bound", "noise", "sizes", "model", "step", "distance"):
        for key in result.certificate.content[section]:
            assert f"`{key}`" in page or f"`{section}.{key}`" in page, f"{section}.{key}"


@pytest.mark.parametrize("file", sorted(STORED.glob("certificate-*.json")), ids=lambda file: file.name)
def test_certificates_of_earlier_versions_keep_verifying(file: Path) -> None:
    model = file.with_name(file.name.replace("certificate", "model")).with_suffix(".safetensors")
    assert all(check.passed for check in verify(expunge.read_certificate(file), model))


def test_there_are_stored_certificates() -> None:
    assert list(STORED.glob("certificate-1-*.json"))
