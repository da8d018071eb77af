"""Bad input of every kind: its own message (value, requirement, remedy), no traceback, nothing written."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

pytestmark = pytest.mark.usefixtures("one_thread")

Words = str | re.Pattern[str] | tuple[str | re.Pattern[str], ...]
LONGEST = 800  # characters of a message that somebody still reads


class Trap:
    """Leaves a file named `unpickled` behind when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return open, ("unpickled", "w")


@dataclass(frozen=True)
class Kind:
    """A kind of bad input: the command line, and words of the three parts of the message."""

    name: str
    build: Callable[[Any], list[str]]
    found: Words
    required: Words = ""
    remedy: Words = ""
    status: int = 2
    env: dict[str, str] = field(default_factory=dict)


def changed(array: np.ndarray, index: Any, value: Any) -> np.ndarray:
    copy = np.array(array)
    copy[index] = value
    return copy


def rows(change: Callable[[np.ndarray], Any], count: int = 2) -> Callable[[Any], list[str]]:
    """Good rows to forget, their features changed."""
    return lambda b: b.unlearn(forget=b.npz(change(b.X[:count]), b.y[:count]))


def labels(*values: Any, dtype: Any = None) -> Callable[[Any], list[str]]:
    """Two good rows to forget, with these labels."""
    return lambda b: b.unlearn(forget=b.npz(b.X[:2], np.array(values, dtype=dtype)))


def option(*options: str) -> Callable[[Any], list[str]]:
    return lambda b: b.unlearn(*options)


def declared(*options: str) -> Callable[[Any], list[str]]:
    return lambda b: b.bare(*options)


def training(*options: str) -> Callable[[Any], list[str]]:
    return lambda b: b.train(*options)


def paper(constants: str) -> Callable[[Any], list[str]]:
    return option("--bound", "paper", "--distance", "tv:0.1", "--epsilon", "0.5", "--force", "--constants", constants)


def record(**changes: object) -> Callable[[Any], list[str]]:
    return lambda b: b.unlearn(model=b.recorded(**changes))


def record_text(change: Callable[[str], str]) -> Callable[[Any], list[str]]:
    return lambda b: b.unlearn(model=b.model(change(json.dumps(b.record))))


def weights(**make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], list[str]]:
    """A bare model with tensors made from the good one's weights."""
    return lambda b: b.bare(model=b.model(**{name: change(b.weight).contiguous() for name, change in make.items()}))


def csv(text: str | bytes, *options: str) -> Callable[[Any], list[str]]:
    return lambda b: b.unlearn(*options, forget=b.write("bad.csv", text))


def parquet(**columns: Any) -> Callable[[Any], list[str]]:
    """Two rows as Parquet, some columns changed."""

    def build(b: Any) -> list[str]:
        good = {name: pa.array(b.X[:2, index]) for index, name in enumerate("abcd")} | {"y": pa.array([0, 1])}
        pq.write_table(pa.table({**good, **columns}), b.folder / "bad.parquet")
        return b.unlearn(forget="bad.parquet")

    return build


def patched(make: Callable[[Any], str], change: Callable[[bytes], bytes]) -> Callable[[Any], str]:
    """A file made and then changed byte by byte."""

    def build(b: Any) -> str:
        name = make(b)
        return b.write(name, change(b.read(name)))

    return build


def forget(make: Callable[[Any], str], *options: str) -> Callable[[Any], list[str]]:
    return lambda b: b.unlearn(*options, forget=make(b))


def certificate(
    change: Callable[[dict[str, Any]], object], *, sealed: bool = False, model: str | None = None
) -> Callable[[Any], list[str]]:
    return lambda b: b.verify(b.certificate(change, sealed=sealed), model)


def certificate_text(change: Callable[[str], str]) -> Callable[[Any], list[str]]:
    return lambda b: b.verify(b.write("bad.json", change(b.read("result/private/dossier.json").decode())))


def pickled_model(b: Any, name: str) -> str:
    torch.save({"weight": b.weight, "trap": Trap()}, b.folder / name)
    return name


def link_to_nowhere(b: Any) -> list[str]:
    (b.folder / "dangling").symlink_to("nowhere")
    return b.unlearn("--out", "dangling")


def zero_model(b: Any) -> list[str]:
    return b.bare(model=b.model(weight=torch.zeros(3, 4, dtype=torch.float64)))


def repeat_key(text: str, key: str = '"l2"') -> str:
    return text.replace(key, f"{key}: 0.5, {key}", 1)


# fmt: off
FEATURES = [
    Kind("forget-nan", rows(lambda X: changed(X, (1, 2), np.nan)), ("forget", "row 1, column 2 is nan"), "finite",
         "repair"),
    Kind("features-cube", rows(lambda X: X[None]), "shape (1, 2, 4)", "rows x features", "two dimensions"),
    Kind("features-complex", rows(lambda X: X + 0j), "complex128", "real numbers", "float64"),
    Kind("forget-no-rows", rows(lambda X: X, 0), ("forget", "no rows"), "at least one", "written"),
    Kind("forget-no-columns", rows(lambda X: X[:, :0]), "no feature columns", "at least one", "written"),
]

LABELS = [
    Kind("labels-too-few", labels(0), "1 labels for 2 rows", "one label a row", "belong together"),
    Kind("labels-fraction", labels(0, 0.5), "label 0.5", "whole numbers or strings", "class numbers"),
    Kind("labels-nan", labels(0, np.nan), re.compile("label.*nan"), "whole numbers or strings", "Remove rows"),
    Kind("labels-bytes", labels(b"a", b"b"), "S1", "whole numbers or strings", "Convert"),
    Kind("labels-text", labels("cat", "dog"), "'cat', 'dog'", "the classes are 0, 1, 2", "for training"),
]

SIZES = [
    Kind("forget-most", lambda b: b.unlearn(forget=b.npz(b.X[:61], b.y[:61])), "61 of 120", "more than half", "--force",
         3),
    Kind("surrogate-small", lambda b: b.unlearn(surrogate=b.npz(b.S[:99], b.t[:99])), "99 rows", "at least 100",
         "Add surrogate rows"),
    Kind("surrogate-copied", lambda b: b.unlearn(surrogate=b.npz(np.tile(b.S, (3, 1)), np.tile(b.t, 3))),
         "copied, 3 times each", "probability below 1e-09", "Remove the copies"),
    Kind("distance-source-short", option("--distance", "source"), "150 rows", "the source had 120",
         "give the source itself"),
]

OPTIONS = [
    Kind("train-l2-zero", training("--l2", "0"), "l2 0.0", "above 0", "1e-4 to 1e-1"),
    Kind("train-loss", training("--loss", "svm"), "'svm'", "training has logistic, one-vs-rest, ridge, softmax",
         "Choose"),
    Kind("train-dtype", training("--dtype", "float16"), "dtype 'float16'", "float64, float32", "Choose"),
    Kind("device", option("--device", "cuda:99"), "device 'cuda:99'", "torch can use", "cpu"),
    Kind("bound", option("--bound", "tight"), "bound 'tight'", "residual, paper", "Choose"),
    Kind("constants-without-paper", option("--constants", "paper"), "constants", "only the paper's bound",
         "--bound paper"),
]

DISTANCES = [
    Kind("distance-tv-above-one", option("--distance", "tv:1.5"), "1.5", "between 0 and 1", "another kind"),
    Kind("distance-unknown", option("--distance", "wasserstein:0.1"), "'wasserstein'", "same, tv, chi2, kl, source",
         "chi2:0.1"),
    Kind("distance-without-number", option("--distance", "tv"), "'tv'", "needs one", "tv:0.1"),
    Kind("distance-same-with-value", option("--distance", "same:0.1"), "'same:0.1'", "takes no value", "same alone"),
]

MODELS = [
    Kind("model-pickled-renamed", lambda b: b.bare(model=pickled_model(b, "bad.safetensors")), "bad.safetensors",
         "header", "write it again"),
    Kind("model-truncated", lambda b: b.unlearn(model=patched(lambda b: b.recorded(), lambda content: content[:-9])(b)),
         "'weight'", "describe the bytes", "damaged"),
    Kind("model-width", weights(weight=lambda w: w[:, :3]), "4 features", "takes 3", "same features"),
    Kind("model-one-row", weights(weight=lambda w: w[:1]), "1 row", "at least two", "-w/2 and w/2"),
    Kind("model-bias-shape", weights(weight=lambda w: w, bias=lambda w: w[:2, 0]), "bias of shape (2,)", "(3,)",
         "a class"),
    Kind("model-more-tensors", weights(weight=lambda w: w, body=lambda w: w), "body, weight", "exactly weight",
         "head alone"),
    Kind("model-without-facts", lambda b: b.unlearn(model="bare.safetensors"), "no training record",
         "certificate needs", "--n-source, --l2, --loss"),
    Kind("model-without-one-fact",
         lambda b: b.unlearn("--n-source", "120", "--l2", "0.1", "--max-norm", "1", "--loss", "softmax", model="bare.safetensors"),
         "training_residual is not given", "certificate needs", "(--training-residual)"),
    Kind("declared-loss-of-one-row", declared("--loss", "logistic"), "'logistic' for 3 weight rows", "one row a class",
         "Declare softmax"),
    Kind("noised-already", lambda b: b.unlearn(model="result/model.safetensors"), "noised result", "near its optimum",
         "before noise, or retrain"),
]

RECORDS = [
    Kind("contradicts-n-source", option("--n-source", "119"), "n_source 119", "agree", "Leave the option out"),
    Kind("record-of-other-weights", lambda b: b.unlearn(model=b.model(json.dumps(b.record), weight=b.weight + 1e-9)),
         ("not those the record was made for", "digests differ"), "must agree", "as it was written"),
    Kind("record-key-twice", record_text(repeat_key), "twice", "a whole record", "the original model"),
    Kind("record-other-schema", record(schema="expunge/record/99"), "expunge/record/99", "expunge/record/1",
         "the original model"),
    Kind("record-residual", record(residual=-1.0), "residual -1.0", "must be possible", "the original model"),
    Kind("record-classes-fewer", record(classes=[0, 1], class_counts=[60, 60]), "3 weight rows, 2 classes", "agree",
         "as it was written"),
]

FILES = [
    Kind("file-missing", lambda b: b.unlearn(forget="gone.npz"), "gone.npz does not exist", "a file is needed", "path"),
    Kind("label-for-npz", option("--label", "species"), ("forget.npz", "'species'"), ".csv and .parquet",
         "Leave --label out"),
    Kind("limit-words", option(), "EXPUNGE_MAX_BYTES='plenty'", "number of bytes", "digits only",
         env={"EXPUNGE_MAX_BYTES": "plenty"}),
]

NPZ = [
    Kind("npz-truncated", forget(patched(lambda b: b.npz(b.X, b.y), lambda content: content[:-40])), "bad.npz",
         "complete", "again"),
    Kind("npz-without-y", lambda b: np.savez(b.folder / "bad.npz", X=b.X, z=b.y) or b.unlearn(forget="bad.npz"),
         "holds X, z", "X and y", "numpy.savez"),
    Kind("npz-pickled-features", lambda b: b.unlearn(forget=b.npz(np.array([[Trap()] * 4] * 2, dtype=object), b.y[:2])),
         "'X' holds Python objects", "never done", "astype(float)"),
    Kind("npz-pickled-labels", labels(Trap(), Trap(), dtype=object), "'y' holds Python objects", "never done",
         "astype(int)"),
    Kind("npz-bomb", lambda b: b.unlearn(forget=b.npz(np.zeros((10**5, 8)), np.zeros(10**5), save=np.savez_compressed)),
         "'X' declares 6,400,000 bytes", "the limit is 1,000,000", "EXPUNGE_MAX_BYTES",
         env={"EXPUNGE_MAX_BYTES": "1000000"}),
]

SAFETENSORS = [
    Kind("safetensors-truncated", forget(patched(lambda b: b.forge_safetensors(), lambda content: content[:-1])),
         "'y' declares 16 bytes at 64 to 80 of 79", "describe", "damaged"),
    Kind("safetensors-header-nested", forget(lambda b: b.forge_safetensors(b'{"X":' + b"[" * 10**5)), "not JSON (max",
         "describe", "damaged"),
    Kind("safetensors-without-y",
         forget(lambda b: b.forge_safetensors({"X": {"dtype": "F64", "shape": [2, 5], "data_offsets": [0, 80]}})),
         "holds X", "X and y", "save_file"),
]

TABLES = [
    Kind("csv-label-unknown",
         lambda b: b.unlearn("--label", "species", forget=b.write("bad.csv", "a,y\n1,0\n"), surrogate="bad.csv"),
         ("no column 'species'", "its columns are a, y"), "label column", "Name it with --label"),
    Kind("csv-words", csv("a,b,c,d,y\n1,red,0,0,0\n0,1,0,0,1\n"), "column 'b' holds text", "numbers", "Encode"),
    Kind("csv-empty-cell", csv("a,b,c,d,y\n1,,0,0,0\n0,1,0,0,1\n"), "column 'b' has 1 empty", "every cell",
         "Fill them in"),
    Kind("parquet-lists", parquet(a=pa.array([[1.0], [2.0, 3.0]])), "column 'a' holds list", "must be numbers",
         "X in an .npz"),
]

OUTPUT = [
    Kind("out-exists", option("--out", "result"), "result exists already", "never written over", "another name"),
    Kind("out-dangling-link", link_to_nowhere, "dangling exists already", "never written over", "another name"),
    Kind("out-under-a-file", option("--out", "forget.npz/new"), "forget.npz is not a folder", "written in",
         "another place"),
    Kind("demo-out-exists", lambda b: ["demo", "--out", "workshop.txt" if b.write("workshop.txt", "mine") else ""],
         "workshop.txt exists", "never", "name"),
]

REFUSED = [
    Kind("vacuous-paper", lambda b: [*paper("derived")(b), "--forget", b.npz(b.X[:30], b.y[:30])],
         ("infinite", "surrogate"), "finite", "n alpha must exceed m beta", 3),
    Kind("vacuous-epsilon", option("--bound", "paper", "--distance", "tv:0", "--epsilon", "50", "--force"),
         "true delta", "0.001", "residual", 3),
    Kind("vacuous-residual", declared("--training-residual", "1e308", "--force"), ("infinite", "training"), "finite",
         "", 3),
    Kind("useless-noise", option("--epsilon", "1e-3"), "swamp the weights", "more noise than weights", "--force", 3),
    Kind("useless-from-the-start", zero_model, "swamp the weights", "more noise than weights", "--force", 3),
    Kind("meaningless-epsilon", option("--epsilon", "30"), "epsilon 30", "above 10", "--force", 3),
]

CERTIFICATES = [
    Kind("verify-key-twice", certificate_text(lambda text: repeat_key(text, '"sigma"')), "twice", "JSON",
         "as it was written", 1),
    Kind("verify-other-schema", certificate(lambda c: c.update(schema="expunge/certificate/99")), "certificate/99",
         "expunge/dossier/3", "later", 1),
    Kind("verify-changed-digit",
         certificate(lambda c: c["bound"]["terms"].update(sampling=c["bound"]["terms"]["sampling"] * (1 + 1e-9))),
         "bound.terms", "its own numbers", "Do not rely", 1),
    Kind("verify-number-beyond-floats", certificate(lambda c: c.update(sigma=10**400), sealed=True), "beyond 2^64", "",
         "as it was written", 1),
    Kind("verify-wrong-model", lambda b: b.verify("result/private/dossier.json", "model.safetensors"),
         "its file has another digest", "issued for", "rely on neither", 1),
]

KINDS = [
    *FEATURES, *LABELS, *SIZES, *OPTIONS, *DISTANCES, *MODELS, *RECORDS, *FILES, *NPZ, *SAFETENSORS, *TABLES,
    *OUTPUT, *REFUSED, *CERTIFICATES,
]
# fmt: on


def named(name: str) -> Kind:
    return next(kind for kind in KINDS if kind.name == name)


def says(part: str, words: Words) -> bool:
    if isinstance(words, tuple):
        return all(says(part, word) for word in words)
    return words in part if isinstance(words, str) else words.search(part) is not None


@pytest.fixture(scope="module")
def outcome(make_box: Callable[[], Any], within: Callable[[float], Any]) -> Callable[[Kind], Any]:
    """What came of a kind of bad input; each is run once."""
    done: dict[str, Any] = {}

    def run(kind: Kind) -> Any:
        if kind.name not in done:
            box = make_box()
            args = kind.build(box)
            with within(20):
                done[kind.name] = box.run([*args, "--json"], kind.env)
        return done[kind.name]

    return run


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_kind(kind: Kind, outcome: Callable[[Kind], Any]) -> None:
    ran = outcome(kind)
    assert ran.crash is None, repr(ran.crash)
    assert ran.after == ran.before, "something was written"
    assert ran.status == kind.status, (ran.out, ran.err)
    error = json.loads(ran.out)["error"]
    assert set(error) == {"kind", "found", "required", "remedy"}
    marker = "refused" if kind.status == 3 else "error"
    assert ran.err == f"{marker}: {error['found']}; {error['required']}. {error['remedy']}\n"
    assert ran.message.isprintable(), "a message is one line of text, whatever the file holds"
    assert len(ran.message) <= LONGEST
    for part, words in (("found", kind.found), ("required", kind.required), ("remedy", kind.remedy)):
        assert error[part]
        assert says(error[part], words), (part, words, error)
    for noise in ("Traceback", "np.int64(", "np.str_(", "__init__()", "unhashable", "object is not"):
        assert noise not in ran.message


def test_no_two_kinds_share_a_name_or_a_message(outcome: Callable[[Kind], Any]) -> None:
    names: dict[str, list[str]] = {}
    assert len({kind.name for kind in KINDS}) == len(KINDS)
    for kind in KINDS:
        names.setdefault(outcome(kind).message, []).append(kind.name)
    same = [" = ".join(shared) for shared in names.values() if len(shared) > 1]
    assert not same, "; ".join(same)


# What the parser of the command line says itself ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "Usage"),
        (["forget"], "No such command 'forget'"),
        (["unlearn", "--epsilon", "much"], "'much' is not a valid float"),
        (["train", "--n-source", "1"], "No such option"),
        (["train", "--l2", "1"], "Missing option '--data'. The source: a table"),
        (["verify"], "Missing argument 'STATEMENT'"),
        (["verify", "a", "b"], "unexpected extra argument (b). Every option takes one value"),
        (["unlearn", "--n-source", "1.5"], "'1.5' is not a valid integer"),
        (["train", "--data", "source.npz", "--out", "."], "Name it for example new.safetensors"),
        (["train", "--data", "source.npz", "--out", "/"], "Name it for example new.safetensors"),
    ],
)
def test_usage(args: list[str], words: str, box: Any) -> None:
    ran = box.run(args)
    assert (ran.status, ran.crash, ran.after) == (2, None, ran.before)
    assert words in ran.err + ran.out


# Permissions ----------------------------------------------------------------------------------------------------


def permissions_bind() -> bool:
    """Whether a file without permissions is closed to this user (it is not to root)."""
    with tempfile.TemporaryDirectory() as folder:
        closed = Path(folder) / "closed"
        closed.write_text("")
        closed.chmod(0)
        return not os.access(closed, os.R_OK)


@pytest.mark.skipif(not permissions_bind(), reason="permission bits do not bind here")
@pytest.mark.parametrize(
    ("build", "locked", "mode"),
    [
        (lambda b: b.unlearn(), "forget.npz", 0o000),
        (lambda b: b.verify("result/statement.json"), "result/statement.json", 0o000),
        (lambda b: b.unlearn(forget="closed/forget.npz"), "closed", 0o000),
        (lambda b: b.unlearn("--out", "closed/new"), "closed", 0o500),
    ],
    ids=["file", "certificate", "folder-of-file", "folder-of-output"],
)
def test_no_permission(build: Callable[[Any], list[str]], locked: str, mode: int, box: Any) -> None:
    (box.folder / "closed").mkdir()
    box.write("closed/forget.npz", box.read("forget.npz"))
    path = box.folder / locked
    before = path.stat().st_mode
    path.chmod(mode)
    try:
        ran = box.run(build(box))
    finally:
        path.chmod(before)
    assert ran.crash is None, repr(ran.crash)
    assert (ran.status, ran.after) == (2, ran.before)
    assert re.fullmatch(".+; .+[.] .+", ran.message)
    assert "permission" in ran.message.lower()


# A process of its own -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["forget-most", "verify-wrong-model"])
def test_process(name: str, make_box: Callable[[], Any], snapshot: Callable[[Path], dict[str, str]]) -> None:
    """What is refused, and what fails verification, ends the process with its own status."""
    kind, box = named(name), make_box()
    args = kind.build(box)
    before = snapshot(box.folder)
    command = [sys.executable, "-m", "expunge", *args]
    done = subprocess.run(command, cwd=box.folder, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (kind.status, "")
    assert "Traceback" not in done.stderr
    assert all(says(done.stderr, words) for words in (kind.found, kind.required, kind.remedy))
    assert snapshot(box.folder) == before


# Settings at the edge of what floats can hold -------------------------------------------------------------------

PAPER = ("--bound", "paper", "--epsilon", "0.5")
LITTLE = ["--epsilon", "1e-6", "--delta", "1e-9", "--distance", "tv:1", "--force"]
EXTREMES = {
    "delta-smallest": option("--delta", "5e-324", "--force"),
    "delta-nearly-one": option("--delta", "0.9999999999999999", "--force"),
    "epsilon-huge": option("--epsilon", "1e308"),
    "chi2-huge": option("--distance", "chi2:1e308", "--force"),
    "max-norm-huge": training("--max-norm", "1e200"),
    "max-norm-smallest": training("--max-norm", "5e-324"),
    "l2-huge": training("--l2", "1e308"),
    "n-source-beyond-floats": declared("--n-source", "9" * 400),
    "alpha-tiny": paper("alpha=1e-200,beta=1e-300,L=1,gamma=1"),
    "noise-beyond-float16": lambda b: b.bare(*LITTLE, model=b.model(weight=b.weight.half())),
}


@pytest.mark.parametrize("name", EXTREMES)
def test_extremes(name: str, box: Any, within: Callable[[float], Any]) -> None:
    """Done and verified, or refused with nothing written; never a traceback, never a number that is not one."""
    with within(20):
        ran = box.run(EXTREMES[name](box))
    assert ran.crash is None, repr(ran.crash)
    if ran.status:
        assert ran.status in (2, 3)
        assert ran.after == ran.before
        assert ran.err.startswith(("error: ", "refused: "))
    elif (box.folder / "new").exists():
        again = box.run(box.verify("new/statement.json", "new/model.safetensors"))
        assert again.status == 0, again.err
    else:
        assert box.run(box.unlearn("--force", model="new.safetensors")).crash is None


# Refused, and overridden ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["useless-noise", "forget-most", "useless-from-the-start"])
def test_force_overrides_a_useless_model(name: str, box: Any) -> None:
    ran = box.run([*named(name).build(box), "--force"])
    assert ran.status == 0, (ran.err, ran.crash)
    written = ("", "/model.safetensors", "/statement.json", "/private", "/private/dossier.json")
    assert set(ran.after) - set(ran.before) == {f"new{path}" for path in written}
    assert box.run(box.verify("new/statement.json", "new/model.safetensors")).status == 0


@pytest.mark.parametrize("name", ["vacuous-paper", "vacuous-epsilon", "vacuous-residual"])
def test_force_does_not_override_a_vacuous_claim(name: str, box: Any) -> None:
    ran = box.run([*named(name).build(box), "--force"])
    assert (ran.status, ran.after) == (3, ran.before)


# Odd, but not an error: noted in the certificate ----------------------------------------------------------------


def notes(box: Any, args: list[str]) -> list[str]:
    ran = box.run(args)
    assert ran.status == 0, (ran.err, ran.crash)
    written = json.loads(box.read("new/private/dossier.json"))["notes"]
    assert all(note in ran.out for note in written)
    return written


def without_class_2(box: Any) -> tuple[np.ndarray, np.ndarray]:
    """Twice as many rows as the surrogate has of the other classes."""
    X, y = box.S[box.t != 2], box.t[box.t != 2]
    return np.vstack([X, 0.9 * X + 0.01 * np.random.default_rng(3).normal(size=X.shape)]), np.tile(y, 2)


def test_all_of_them_are_noted(box: Any) -> None:
    S, t = without_class_2(box)
    surrogate = box.npz(np.vstack([S, box.X[:1]]), np.append(t, box.y[:1]), "other.npz")
    twice = box.npz(box.X[[0, 0]], box.y[[0, 0]])
    repeated, forced, shared = notes(box, box.unlearn("--force", forget=twice, surrogate=surrogate))
    assert says(repeated, "repeats")
    assert says(forced, ("FORCED", "no row of class 2", "rows are retained", "may be false"))
    assert says(shared, "also in the surrogate")
    assert json.loads(box.read("new/statement.json"))["notes"] == [forced], "which says nothing of who left"


def test_good_data_is_not_noted(box: Any) -> None:
    assert notes(box, box.unlearn()) == []
