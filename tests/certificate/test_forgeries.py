"""What verify notices: honest certificates of every kind pass; one change, with all that follows made anew, does not."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import honest
from deposit_problems import made as made_deposit
from expunge.bounds.calibration import power_of_four
from expunge.certificate.dossier import Certificate, read_claim
from expunge.certificate.rules import FACTS, OF_MODEL, POSSIBLE, TABLE, Inspection, list_rules, off_grid, run
from expunge.certificate.statement import statement_of
from expunge.certificate.verify import checks, model_checks, verify
from expunge.distance import Distance
from expunge.errors import ExpungeError, VerificationFailed
from expunge.model import LinearModel, declared_record
from expunge.noise import add_noise
from expunge.record import read_model_file
from expunge.runtime.arrays import copy, double, to_numpy
from expunge.unlearn import unlearn
from forging import GONE, changed, forged, naming, read_bytes, redone, with_record, with_weights

pytestmark = pytest.mark.usefixtures("one_thread")

DIGEST = "0" * 64
Json = dict[str, Any]
MADE: dict[str, Callable[[], honest.Honest]] = {
    "plain": lambda: honest.linear(1, distance="chi2:0.05"),
    "same": lambda: honest.linear(1),
    "samples": lambda: honest.linear(1, distance=Distance("chi2", 0.05, "samples")),
    "seen": lambda: honest.linear(1, distance=Distance("chi2", 0.05, sampling="seen")),
    "bias": lambda: honest.linear(2, bias=True, store="float32"),
    "matched": lambda: honest.linear(3, match_classes=True),
    "source": lambda: honest.linear(1, distance="source"),
    "paper": lambda: honest.linear(1, distance="tv:0.01", bound="paper", constants="paper", epsilon=0.9),
    "series": lambda: honest.series(1, 3)[1],
    "tangent": honest.tangent,
    "whole": honest.whole,
    "long rows": lambda: honest.kept("softmax", l2=0.05, n=300),
    "range": lambda: honest.kept("softmax", 3, l2=1e-4, width=1, max_norm=1.0, n=120),
    "plain route": lambda: honest.kept("softmax", 3, l2=0.01, n=60, noise="exact"),
    "exact": lambda: honest.kept("ridge"),
    "free": lambda: honest.kept("logistic", l2=0.05, free=True, fixed_c=True, copies=True),
}
KEPT = ("long rows", "range", "plain route", "exact", "free")


@cache
def base(name: str) -> honest.Honest:
    return MADE[name]()


def of(name: str) -> Json:
    return base(name).certificate.content


class Times(float):
    """The fact itself, times this."""


CHANGE = dict[str, Any]
# what is forged: a certificate to begin with, what is changed in it, and a word of the check that notices
FORGERIES: list[tuple[str, CHANGE | Callable[[], CHANGE], str]] = [
    ("plain", {"model.loss": "hinge"}, "model.loss"),
    ("plain", {"step.kind": "gradient"}, "step.kind"),
    ("plain", {"distance.kind": "deposit", "distance.value": 0.0, "distance.provenance": "measured"}, "rows stand in"),
    ("plain", {"model.after.sha256": ""}, "model.after.sha256 are digests"),
    ("plain", {"model.after": {}}, "model.after.sha256 are digests"),
    ("plain", {"model.before.sha256": DIGEST[1:]}, "model.after.sha256 are digests"),
    # what is promised and spent
    ("plain", {"epsilon": 1e-9}, "epsilon"),
    ("plain", {"epsilon": 1e9}, "epsilon"),
    ("plain", {"delta": 1.0}, "delta is below 1"),
    ("plain", {"noise.failures": {"sampling": 5e-5, "eigenvalue": -4e-4}}, "noise.failures"),
    ("paper", {"noise.failures": {"sampling": 1e-4}}, "noise.failures"),
    ("long rows", {"noise.failures": {}}, "noise.failures"),
    ("samples", {"sampling_failure": 0.1}, "sampling_failure"),
    ("series", {"noise.averaged": True}, "noise.averaged"),
    ("long rows", {"noise.averaged": True}, "noise.averaged"),
    ("long rows", {"epsilon": 60.0}, "what float64 makes of the noise"),
    # sizes and series
    ("plain", {"n_forget": 0}, "n_forget is at least 1"),
    ("plain", lambda: {"n_forget": of("plain")["sizes"]["n_source"]}, "n_forget is below n_source"),
    ("source", {"n_source": 20_000}, "n_surrogate"),
    ("plain", {"n_surrogate": 30}, "n_surrogate over the largest weight"),
    ("series", {"data.sequence.position": 99}, "data.sequence.position"),
    ("series", {"data.sequence.forgotten_before": 10**6}, "data.sequence.forgotten_before"),
    ("matched", {"data.class_counts": [5, 6]}, "data.class_counts"),
    # training and step
    ("plain", {"l2": 0.04}, "l2"),
    ("free", {"l2": Times(0.5)}, "l2"),
    ("plain", {"model.max_norm": 99.0}, "model.row_bound"),
    ("long rows", {"row_bound": Times(0.5)}, "row_bound"),
    ("plain", {"directions": 1}, "directions"),
    ("plain", {"step.residual": 1.0}, "step.residual"),
    ("plain", {"step.residual": None}, "step.residual"),
    # where facts come from
    ("source", {"model.record": "declared"}, "facts that come from elsewhere"),
    ("plain", {"bound.inputs.change_trace.provenance": "derived"}, "facts that come from elsewhere"),
    ("plain", {"bound.inputs.change_supremum.provenance": "measured"}, "facts that come from elsewhere"),
    ("tangent", {"bound.inputs.rounding.provenance": "derived"}, "facts that come from elsewhere"),
    ("paper", {"bound.inputs.alpha.provenance": "measured"}, "facts that come from elsewhere"),
    ("long rows", {"bound.inputs.solver.provenance": "declared"}, "facts that come from elsewhere"),
    # moments of two data sets in one file
    ("plain", {"change_supremum": 0.0}, "change_longest"),
    ("plain", {"longest_row": 1e3}, "longest_row"),
    ("matched", {"weight_largest": 1e9}, "n_surrogate over the largest weight"),
    # deposits
    ("bias", {"model.free_bias": True}, "what only a deposit has"),
    ("plain", {"model.fixed_c": 1.0, "l2": 1e-3}, "what only a deposit has"),
    ("plain", {"model.class_weights": [1.0, 0.5]}, "what only a deposit has"),
    ("plain", {"noise.choice": "levels", "noise.rehearsed_rows": 6}, "what only a deposit has"),
    ("long rows", {"noise.choice": "policy"}, "noise with a deposit"),
    ("long rows", {"noise.rehearsed_rows": 1000}, "noise with a deposit"),
    ("long rows", lambda: {"sigma": 2.0 * of("long rows")["sigma"]}, "noise with a deposit"),
    ("long rows", {"bound.convention": "exact"}, "quadratic losses"),
    ("plain route", {"model.free_bias": True}, "the plain route"),
    ("long rows", {"shape_least": Times(1e6)}, "shape_least"),
    ("long rows", {"distance.kind": "same", "distance.provenance": "declared"}, "rows stand in"),
]


def forgery(start: str, change: CHANGE | Callable[[], CHANGE]) -> Certificate:
    changes = change() if callable(change) else change
    facts = of(start)["bound"]["inputs"]
    made = {
        name: value * facts[name]["value"] if isinstance(value, Times) else value for name, value in changes.items()
    }
    return forged(of(start), made)


def failures(certificate: Certificate) -> list[Any]:
    return [check for check in checks(certificate) if not check.passed]


@pytest.mark.parametrize(
    ("start", "change", "words"), FORGERIES, ids=lambda part: part if isinstance(part, str) else ""
)
def test_a_forged_certificate_is_rejected_by_the_check_that_says_why(start: str, change: Any, words: str) -> None:
    failed = failures(forgery(start, change))
    assert any(words in check.name for check in failed), [check.name for check in failed]
    assert {check.about for check in failed} == {POSSIBLE}, "what follows was made anew"
    with pytest.raises(VerificationFailed, match="no run of Expunge"):
        verify(forgery(start, change))


@pytest.mark.parametrize(
    ("start", "change", "name"),
    [
        ("plain", {"noise.required": 1e-9}, "noise.required"),
        ("plain", {"sizes.classes": 9}, "sizes"),
        ("plain", {"created": 5}, "notes, software and created are text"),
        ("plain", {"estimate": {"route": "kl"}}, "distance.provenance"),
        ("whole", {"bound.tuned": False}, "bound.tuned"),
        ("long rows", {"noise.generator": "INSECURE-TEST"}, "noise.generator"),
        ("free", {"model.published.l2": 0.04}, "model.published.l2"),
    ],
)
def test_what_follows_from_the_facts_is_recomputed(start: str, change: Json, name: str) -> None:
    """Every other number: tests/certificate/test_verify.py."""
    failed = failures(Certificate(changed(of(start), change)))
    assert any(check.name.startswith(name) for check in failed), [check.name for check in failed]


@pytest.mark.parametrize("name", ["long rows", "range"])
def test_noise_below_what_the_region_needs_is_not_enough(name: str) -> None:
    below = power_of_four(of(name)["noise"]["required"]) / 4.0  # the largest level that is not enough
    failed = {check.name for check in failures(redone(changed(of(name), {"sigma": below})))}
    assert failed >= {"the noise that was chosen is enough", "delta is not exceeded"}


def test_every_rule_is_in_the_list_in_words() -> None:
    page = list_rules()
    assert all(rule.sentence and rule.sentence in page for rules in TABLE.values() for rule in rules)


# The wrong model ------------------------------------------------------------------------------------------------------

Forger = Callable[[Path], tuple[Certificate, bytes]]


def published(name: str, folder: Path) -> LinearModel:
    return read_bytes(base(name).model or b"", folder)


def with_file(name: str, made: Callable[[LinearModel], LinearModel]) -> Forger:
    """The published model changed, and a certificate that names the result."""

    def forger(folder: Path) -> tuple[Certificate, bytes]:
        model = made(published(name, folder))
        return naming(of(name), model), model.to_bytes()

    return forger


def with_content(name: str, changes: Mapping[str, Any]) -> Forger:
    """The published model as it is, and another certificate."""
    return lambda folder: (forged(of(name), changes), published(name, folder).to_bytes())


def untouched(name: str) -> Forger:
    """The trained model in the place of the published one."""
    model = base(name).trained or b""
    digest = hashlib.sha256(model).hexdigest()
    return lambda _: (redone(changed(of(name), {"model.after.sha256": digest, "model.before.sha256": DIGEST})), model)


def disguised(folder: Path) -> tuple[Certificate, bytes]:
    """The trained weights under the record of the published ones."""
    trained = read_bytes(base("plain").trained or b"", folder).weight
    model = with_weights(published("plain", folder), trained)
    return naming(of("plain"), model), model.to_bytes()


def recorded(facts: Json, said: Json) -> Forger:
    """Other facts in the record, and something else in the certificate."""

    def forger(folder: Path) -> tuple[Certificate, bytes]:
        model = with_record(published("plain", folder), **facts)
        return forged(of("plain"), said | {"model.after.sha256": model.sha256()}), model.to_bytes()

    return forger


def fewer_classes(model: LinearModel) -> LinearModel:
    assert model.record is not None
    record = replace(model.record, classes=model.record.classes[1:])
    return LinearModel(model.weight[1:], model.bias).with_record(record)


LEARNT, ELSEWHERE = "learnt from the source", "learnt elsewhere"
MODELS: dict[str, tuple[Callable[[], Forger], str]] = {
    "another": (lambda: lambda _: (base("plain").certificate, base("seen").model or b""), "(model.sha256)"),
    "untouched": (lambda: untouched("plain"), "the model has its noise"),
    "untouched tangent weights": (lambda: untouched("tangent"), "the model has its noise"),
    "trained weights under the published record": (lambda: disguised, "the noise's grid"),
    "a weight changed": (
        lambda: with_file("plain", lambda m: with_weights(m, m.weight + 1e-13)), "the noise's grid"),
    "a float32 weight changed": (
        lambda: with_file("bias", lambda m: with_weights(m, np.nextafter(m.weight, np.float32(9.0)))),
        "the noise's grid",
    ),
    "no record": (lambda: with_file("plain", lambda m: replace(m, record=None)), "the model has a record"),
    "more rows": (lambda: with_file("plain", lambda m: with_record(m, n_source=m.record.n_source + 5)), "n_source"),
    "a certificate of more rows": (lambda: with_content("plain", {"n_source": 3000}), "model.n_source"),
    "another l2": (lambda: with_content("plain", {"l2": 7.0, "model.l2": 7.0}), "model.l2"),
    "another loss": (lambda: with_content("plain", {"model.loss": "ridge"}), "model.loss"),
    "another max_norm": (lambda: with_file("plain", lambda m: with_record(m, max_norm=0.75)), "model.max_norm"),
    "declared": (lambda: with_file("plain", lambda m: with_record(m, provenance="declared")), "model.record"),
    "another encoder": (lambda: with_file("plain", lambda m: with_record(m, encoder=DIGEST)), "model.encoder"),
    "no such encoder": (lambda: with_content("plain", {"model.encoder": DIGEST}), "model.encoder"),
    "a trained encoder": (
        lambda: recorded({"encoder": DIGEST, "encoder_trained": "yes"},
                         {"model.encoder": DIGEST, "model.encoder_trained_on_source": "no"}),
        "model.encoder_trained_on_source",
    ),
    "preparation": (lambda: recorded({"preparation": LEARNT}, {"model.preparation": ELSEWHERE}), "model.preparation"),
    "kept quiet": (lambda: recorded({"preparation": LEARNT}, {}), "model.preparation"),
    "class weights": (lambda: with_file("free", lambda m: with_record(m, class_weights=(1.0, 0.5))), "weights of classes"),
    "a free intercept": (lambda: with_content("free", {"model.free_bias": GONE}), "model.free_bias"),
    "a C": (
        lambda: with_file("long rows", lambda m: with_record(m, fixed_c=1.0 / (m.record.l2 * m.record.n_source))),
        "model.fixed_c",
    ),
    "more features": (
        lambda: with_file("plain", lambda m: with_weights(m, np.hstack([m.weight, m.weight[:, :1]]))),
        "the shape of the weights",
    ),
    "another type": (lambda: with_file("plain", lambda m: with_weights(m, m.weight.astype(np.float32))), "the type of the weights"),
    "fewer classes": (lambda: with_file("series", fewer_classes), "sizes.classes"),
    "a bias": (
        lambda: with_file(
            "plain", lambda m: LinearModel(m.weight, copy(m.weight[:, 0])).with_record(replace(m.record, bias=True))
        ),
        "model.bias",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_wrong_model_is_called_one(name: str, tmp_path: Path) -> None:
    forger, words = MODELS[name]
    certificate, model = forger()(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(model)
    assert failures(certificate) == [], "the certificate alone is beyond reproach"
    failed = [check for check in model_checks(statement_of(certificate), file) if not check.passed]
    assert any(words in check.name for check in failed), [check.name for check in failed]
    assert {check.about for check in failed} == {OF_MODEL}
    with pytest.raises(VerificationFailed, match="the model must be the one") as caught:
        verify(certificate, file)
    assert "its own numbers" not in str(caught.value)


def test_files_that_hold_no_such_model(tmp_path: Path) -> None:
    linear, tangent = base("plain"), base("tangent")
    file = tmp_path / "model.safetensors"

    def words(certificate: Certificate, content: bytes | None) -> str:
        file.write_bytes(content or b"")
        return model_checks(statement_of(certificate), file)[-1].words

    assert "holds no tangent weights" in words(tangent.certificate, linear.model)
    assert "the model's file is whole" in words(linear.certificate, tangent.model)
    damaged = (tangent.model or b"")[:-1] + bytes([(tangent.model or b"")[-1] ^ 1])
    assert "not those of its record" in words(tangent.certificate, damaged)
    found = model_checks(statement_of(base("whole").certificate), file)
    assert [check.passed for check in found] == [False], "of a whole network the digest alone is known"


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize(("sigma", "exponent"), [(1.0, -20), (1e-3, -30), (100.0, -14), (1e-15, -40)])
def test_noised_weights_are_on_the_grid_in_every_type(dtype: type, sigma: float, exponent: int) -> None:
    rng = np.random.default_rng(0)
    plain = rng.normal(size=2000) * rng.choice([1e-6, 1.0, 100.0], 2000)
    assert off_grid(add_noise(plain, sigma, exponent).astype(dtype), exponent) == 0
    assert off_grid(rng.normal(size=2000).astype(np.float32), -20) > 1000, "others are not"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_model_s_file_read_without_torch_has_the_same_numbers(dtype: torch.dtype, tmp_path: Path) -> None:
    weight = torch.linspace(-1.0, 1.0, 12, dtype=torch.float64).reshape(3, 4).to(dtype)
    model = LinearModel(weight, copy(weight[:, 0]))
    record = declared_record(model, n_source=90, l2=0.1, loss="softmax", max_norm=1.0, residual=1e-3)
    path = tmp_path / "model.safetensors"
    path.write_bytes(model.with_record(record).to_bytes())
    file = read_model_file(path)
    assert file.weight.dtype == str(dtype).removeprefix("torch.")
    assert np.array_equal(file.weight.values.astype(np.float64), to_numpy(double(weight)))
    assert file.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


# Honest ones ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MADE)
def test_what_forgers_begin_with_is_honest(name: str, tmp_path: Path) -> None:
    assert honest.wrongly_rejected(base(name), tmp_path) == []
    assert redone(of(name)).content == of(name), "redoing an honest one changes nothing"
    assert (of(name)["status"] == "proven") == (name in KEPT)


@pytest.mark.parametrize("seed", range(12))
def test_honest_requests_are_not_rejected(seed: int, tmp_path: Path) -> None:
    assert [honest.wrongly_rejected(one, tmp_path) for one in honest.drawn(seed)] in ([], [[]], [[], []], [[], [], []])


@pytest.mark.slow
def test_a_thousand_honest_requests_are_not_rejected() -> None:
    assert [(seed, [check.words for check in wrong]) for seed, _, wrong in honest.campaign(1000) if wrong] == []


def deletions(seed: int) -> list[str]:
    """The checks that a random series of deletions with a deposit fails: none."""
    rng = np.random.default_rng(seed)
    bias = bool(rng.random() < 0.7)
    case = made_deposit(
        str(rng.choice(["softmax", "logistic", "one-vs-rest", "ridge"])),
        n=int(rng.integers(20, 200)),
        width=int(rng.integers(1, 6)),
        classes=int(rng.integers(2, 6)),
        l2=float(10.0 ** rng.uniform(-6, 0)),
        bias=bias,
        free=bias and bool(rng.random() < 0.5),
        fixed_c=bool(rng.random() < 0.5),
        max_norm=float(10.0 ** rng.uniform(-2, 3)),
        seed=seed,
    )
    failed: list[str] = []
    deposit, start = case.deposit, 0
    for m in (1, 2, 5):
        which = np.arange(start, start + m)
        rows = case.X[which].astype(np.float32) if rng.random() < 0.3 else case.X[which]
        options: Json = {
            "noise": "exact" if rng.random() < 0.7 else None,
            "epsilon": float(10.0 ** rng.uniform(-1, 0.5)),
        }
        try:
            found = unlearn(case.model, (rows, case.y[which]), deposit=deposit, delta=1e-5, force=True, **options)
        except ExpungeError:
            continue
        deposit, start = found.deposit, start + m
        failed += [check.name for check in checks(found.certificate) if not check.passed]
    return failed


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(100, 250))])
def test_honest_deposits_are_not_rejected(seed: int) -> None:
    try:
        assert deletions(seed) == []
    except ExpungeError:  # no random row could be forgotten
        assert seed >= 8


def contents(value: Any) -> list[Json]:
    """Certificates anywhere in a stored case."""
    if isinstance(value, dict):
        found = [value["certificate"]] if "certificate" in value else []
        return found + [one for part in value.values() for one in contents(part)]
    return [one for part in value for one in contents(part)] if isinstance(value, list) else []


REFERENCE = sorted((Path(__file__).parents[1] / "stored" / "reference").glob("*.json"))


@pytest.mark.parametrize("file", REFERENCE, ids=lambda file: file.stem)
def test_stored_cases_break_no_rule(file: Path) -> None:
    """They are stored without digests, which differ from run to run."""
    for content in contents(json.loads(file.read_text())):
        whole = changed(content, {"model.before.sha256": "1" * 64, "model.after.sha256": "2" * 64})
        seen = Inspection(whole, read_claim(whole))
        assert [check.words for check in run(FACTS, seen, POSSIBLE) if not check.passed] == []
