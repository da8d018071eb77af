"""Whatever is unknown raises, everywhere: a loss, a kind of distance, a bound, a status."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import expunge
from asking import asked
from expunge import ExpungeError, verify
from expunge.certificate.dossier import Certificate, digest_of
from expunge.cli import main
from expunge.desk import Policy
from expunge.distance import Distance, kind_named
from expunge.heads import HEADS, Logistic
from expunge.record import LOSSES, TrainingRecord, loss_named
from expunge.report import run_page
from expunge.request.promise import Promise
from expunge.runtime.arrays import Array

pytestmark = pytest.mark.usefixtures("one_thread")
STORED = Path(__file__).parent / "stored"
Rows = tuple[np.ndarray, np.ndarray]


def rows(seed: int, count: int) -> Rows:
    generator = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    features = np.eye(3, 5)[labels] + 0.5 * generator.standard_normal((count, 5))
    return features / np.linalg.norm(features, axis=1, keepdims=True), labels


class Steeper(Logistic):
    """`ell(2 z, y)`: a subclass of a loss that deposits know."""

    about = replace(Logistic.about, name="steeper")

    def predictions(self, outputs: Array) -> Array:
        return super().predictions(2 * outputs)


def test_a_deposit_knows_losses_by_their_exact_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sums have formulas of their own: of a subclass they would be another loss's, and the certificate proven."""
    monkeypatch.setitem(HEADS, "steeper", Steeper)
    monkeypatch.setitem(LOSSES, "steeper", Steeper.about)
    X, y = rows(1, 90)
    model = expunge.train(X, np.minimum(y, 1), l2=0.05, max_norm=1.0, loss="steeper")
    with pytest.raises(expunge.ModelError, match=r"loss 'steeper'.*logistic, one-vs-rest, ridge, softmax"):
        expunge.deposit(model, X, np.minimum(y, 1), seed=1)


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
