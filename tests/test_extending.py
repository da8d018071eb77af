"""A loss and a kind of distance from outside the package, one file each; and that whatever is unknown raises, everywhere."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import expunge
from asking import asked
from expunge import ExpungeError, verify
from expunge.certificate.dossier import Certificate, digest_of
from expunge.cli import main
from expunge.desk import Policy
from expunge.distance import KINDS, Distance, kind_named, register_kind
from expunge.heads import HEADS, Logistic, head_for, register_head
from expunge.mechanism import measure
from expunge.record import LOSSES, TrainingRecord, loss_named
from expunge.report import run_page
from expunge.request.promise import Promise
from expunge.runtime.arrays import Array, norm, to_numpy
from toys.hellinger import Hellinger
from toys.twice_ridge import TwiceRidge

pytestmark = pytest.mark.usefixtures("one_thread")
STORED = Path(__file__).parent / "stored"
Rows = tuple[np.ndarray, np.ndarray]


@pytest.fixture
def toys() -> Iterator[None]:
    register_head(TwiceRidge)
    register_kind(Hellinger())
    yield
    del HEADS["twice-ridge"], LOSSES["twice-ridge"], KINDS["hellinger"]


def rows(seed: int, count: int) -> Rows:
    generator = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    features = np.eye(3, 5)[labels] + 0.5 * generator.standard_normal((count, 5))
    return features / np.linalg.norm(features, axis=1, keepdims=True), labels


@pytest.mark.usefixtures("toys")
def test_a_loss_and_a_distance_from_outside_go_the_whole_way(tmp_path: Path) -> None:
    source, surrogate = rows(1, 600), rows(2, 600)
    model = expunge.train(*source, l2=0.05, max_norm=1.0, loss="twice-ridge")
    options: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-3, "distance": "hellinger:0.001", "force": True}
    forget = (source[0][:3], source[1][:3])
    result = expunge.unlearn(model, forget, surrogate, **options)
    assert result.certificate.content["distance"]["kind"] == "hellinger"
    assert all(check.passed for check in verify(result.certificate))

    retrained = expunge.train(source[0][3:], source[1][3:], l2=0.05, max_norm=1.0, loss="twice-ridge").matrix()
    request = asked(model, forget, surrogate, **options)
    updated = request.weights + measure(request).step.update
    assert float(norm(retrained - updated)) <= result.certificate.total
    assert float(norm(retrained - model.matrix())) > 1e-5

    (tmp_path / "model.safetensors").write_bytes(result.model.to_bytes())
    (tmp_path / "certificate.json").write_text(result.certificate.to_json())
    files = [str(tmp_path / "certificate.json"), "--model", str(tmp_path / "model.safetensors")]
    command = [sys.executable, "-m", "expunge", "verify", *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, "the command does not know them"
    assert "not known" in done.stderr


@pytest.mark.usefixtures("toys")
def test_a_toy_is_what_it_says_it_is() -> None:
    """Gradient, curvature and change of the toy loss agree with autograd: the way to test a loss of one's own."""
    features, labels = rows(3, 40)
    head = head_for("twice-ridge", l2=0.1, n_classes=3, n_features=5, row_bound=1.0)
    prepared = expunge.heads.Rows(torch.tensor(features), torch.tensor(labels))
    weights = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    targets = 2.0 * torch.nn.functional.one_hot(prepared.labels, 3) - 1
    loss = (prepared.features @ weights.T - targets).square().sum(dim=1).mean() + 0.05 * weights.square().sum()
    slope = torch.autograd.grad(loss, weights, create_graph=True)[0]
    plain = weights.detach()
    assert head.loss(plain, prepared) == pytest.approx(float(loss.detach()), rel=1e-12)
    np.testing.assert_allclose(to_numpy(head.gradient(plain, prepared)), to_numpy(slope.detach()), rtol=1e-7, atol=1e-7)
    direction = torch.linspace(-1, 1, 15, dtype=torch.float64).reshape(3, 5)
    curved = torch.autograd.grad((slope * direction).sum(), weights)[0]
    np.testing.assert_allclose(
        to_numpy(head.curvature(plain, prepared).product(direction)), to_numpy(curved), rtol=1e-7, atol=1e-7
    )
    np.testing.assert_allclose(
        to_numpy(head.curvature(plain, prepared).dense() @ direction.reshape(-1)),
        to_numpy(curved.reshape(-1)),
        rtol=1e-7,
        atol=1e-7,
    )


class Steeper(Logistic):
    """`ell(2 z, y)`: a loss from outside that is a subclass of one that deposits know."""

    about = replace(Logistic.about, name="steeper")

    def predictions(self, outputs: Array) -> Array:
        return super().predictions(2 * outputs)


class Unnamed(Logistic):
    """A loss of its own that kept the name, and the constants, of the one it is made from."""


@pytest.mark.usefixtures("toys")
def test_a_deposit_of_a_loss_from_outside_is_refused_though_it_is_made_from_one_that_is_known() -> None:
    """Its sums have formulas of their own: they would be another loss's, and the certificate would say proven."""
    register_head(Steeper)
    try:
        source = rows(1, 90)
        two = (source[0], np.minimum(source[1], 1))
        for loss, (X, y) in {"twice-ridge": source, "steeper": two}.items():
            model = expunge.train(X, y, l2=0.05, max_norm=1.0, loss=loss)
            with pytest.raises(expunge.ModelError, match=f"loss '{loss}'.*logistic, one-vs-rest, ridge, softmax"):
                expunge.deposit(model, X, y, seed=1)
    finally:
        del HEADS["steeper"], LOSSES["steeper"]
    for loss, (X, y) in {"ridge": source, "softmax": source, "one-vs-rest": source, "logistic": two}.items():
        assert expunge.deposit(expunge.train(X, y, l2=0.05, max_norm=1.0, loss=loss), X, y, seed=1)


@pytest.mark.usefixtures("toys")
def test_a_name_is_taken_once() -> None:
    class Other(Hellinger):
        """Another thing under the same name."""

    with pytest.raises(ExpungeError, match="taken"):
        register_kind(Other())
    with pytest.raises(ExpungeError, match="taken"):
        register_head(type("Other", (TwiceRidge,), {"about": replace(TwiceRidge.about, one_vector=True)}))
    with pytest.raises(ExpungeError, match="'logistic' is taken by Logistic"):
        register_head(Unnamed)
    assert HEADS["logistic"] is Logistic


# Whatever is unknown raises -------------------------------------------------------------------------------------------


def stored() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((STORED / "dossier-3-chi2.json").read_text())
    return content


def forged(path: tuple[str, ...], value: object) -> Certificate:
    content = copy.deepcopy(stored())
    place = content
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    content["digest"] = digest_of(content)
    return Certificate(content)


def a_record(**change: Any) -> Any:
    facts = {
        "n_source": 4, "classes": [0, 1], "class_counts": None, "l2": 0.1, "loss": "softmax", "max_norm": 1.0,
        "bias": False, "residual": 0.0, "rows_dtype": "float64", "provenance": "measured", "noised": False,
        "weights_sha256": "0" * 64, "row_bound": 1.0, "schema": "expunge/record/1",
    }  # fmt: skip
    TrainingRecord.from_json(json.dumps(facts), "the record")
    return TrainingRecord.from_json(json.dumps(facts | change), "the record")


def a_request(**change: Any) -> Any:
    facts = {"n_source": 200, "l2": 0.1, "loss": "softmax", "max_norm": 1.0, "training_residual": 0.0}
    options = {"epsilon": 1.0, "delta": 1e-3, "distance": "same"} | facts
    return asked(np.ones((3, 5)), rows(1, 2), rows(2, 200), **(options | change))


def a_command(*words: str) -> Any:
    done = CliRunner().invoke(main, list(words))
    if done.exit_code in (1, 2, 3) and isinstance(done.exception, SystemExit):
        raise expunge.OptionError(done.output, f"exit status {done.exit_code}", "")
    return done


def a_verification(tmp: Path, path: tuple[str, ...], value: object) -> Any:
    file = tmp / "certificate.json"
    file.write_text(forged(path, value).to_json())
    return a_command("verify", str(file))


UNLEARN = ("unlearn", "--model", "m.safetensors", "--forget", "f.npz", "--surrogate", "s.npz", "--epsilon", "1",
           "--delta", "1e-3", "--out", "never")  # fmt: skip

ENTRIES: dict[str, Callable[[Path], Any]] = {
    "distance: Distance": lambda tmp: Distance("wasserstein", 0.1),
    "distance: kind_named of no name": lambda tmp: kind_named(None),
    "distance: of another type": lambda tmp: Promise(1.0, 1e-3, 0.1),
    "distance: ask": lambda tmp: a_request(distance="wasserstein:0.1"),
    "distance: a desk's policy": lambda tmp: Policy(1.0, 1e-3, "wasserstein:0.1").check(),
    "distance: verify": lambda tmp: verify(forged(("distance", "kind"), "wasserstein")),
    "distance: expunge verify": lambda tmp: a_verification(tmp, ("distance", "kind"), "wasserstein"),
    "distance: expunge unlearn": lambda tmp: a_command(*UNLEARN, "--distance", "wasserstein:0.1"),
    "distance: total variation of means": lambda tmp: Distance("means", 0.1).tv_upper,
    "distance: shift of means": lambda tmp: Distance("means", 0.1).shift(1.0, 1.0, 1.0),
    "distance: sampling": lambda tmp: Distance("chi2", 0.1, sampling="loose"),
    "distance: between": lambda tmp: Distance("chi2", 0.1, between="friends"),
    "loss: loss_named": lambda tmp: loss_named("hinge"),
    "loss: a record": lambda tmp: a_record(loss="hinge"),
    "loss: ask": lambda tmp: a_request(loss="hinge"),
    "loss: verify": lambda tmp: verify(forged(("model", "loss"), "hinge")),
    "bound: Guarantee": lambda tmp: Promise(1.0, 1e-3, Distance("same", 0.0), bound="tight"),
    "bound: ask": lambda tmp: a_request(bound="tight"),
    "bound: verify": lambda tmp: verify(forged(("bound", "kind"), "tight")),
    "status: verify": lambda tmp: verify(forged(("status",), "certain")),
    "status: the page": lambda tmp: run_page(forged(("status",), "certain").content),
    "provenance: a distance": lambda tmp: Distance("chi2", 0.1, provenance="hearsay"),
    "provenance: verify": lambda tmp: verify(forged(("distance", "provenance"), "hearsay")),
    "step: Guarantee": lambda tmp: Promise(1.0, 1e-3, Distance("same", 0.0), step="giant"),
    "sizes: Guarantee": lambda tmp: Promise(1.0, 1e-3, Distance("same", 0.0), bound="paper", sizes="both"),
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_what_is_unknown_raises(entry: str, tmp_path: Path) -> None:
    with pytest.raises(ExpungeError):
        ENTRIES[entry](tmp_path)


def test_what_is_known_does_not() -> None:
    """The same entries with known words: the test above is about the words."""
    verify(Certificate(stored()))
    a_record()
    a_request()
    run_page(stored())
