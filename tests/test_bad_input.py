"""Bad input of every kind: its own message (value, requirement, remedy), no traceback, nothing written."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import zipfile
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


def alike(required: Words = "", remedy: Words = "", status: int = 2, *, kinds: Any, env: Any = None) -> list[Kind]:
    """Kinds of bad input whose messages ask for the same: name, command line, words of what was found."""
    return [Kind(name, build, found, required, remedy, status, env or {}) for name, build, found in kinds]


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


def npz_member(shape: object, descr: object = "<f8") -> Callable[[Any], list[str]]:
    """64 bytes of features under a header that describes them as it likes."""
    return lambda b: b.unlearn(forget=b.forge_npz(X=b.npy(shape, descr, b.X[:2].tobytes())))


def tensors(**entries: object) -> Callable[[Any], list[str]]:
    return lambda b: b.unlearn(forget=b.forge_safetensors(**entries))


def entry(dtype: object, shape: list[int], start: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def header(change: Callable[[str], str]) -> Callable[[Any], list[str]]:
    """The good safetensors header as text, changed."""

    def build(b: Any) -> list[str]:
        content = b.read(b.forge_safetensors())
        (length,) = struct.unpack("<Q", content[:8])
        return b.unlearn(forget=b.forge_safetensors(change(content[8 : 8 + length].decode()).encode()))

    return build


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


def flip(position: int) -> Callable[[bytes], bytes]:
    return lambda content: content[:position] + bytes([content[position] ^ 0xFF]) + content[position + 1 :]


def flip_in_data(content: bytes) -> bytes:
    """One bit of the last feature's mantissa, which no format but the archive's own checksum can tell."""
    at = content.index(b"\x93NUMPY") + 128 + 48
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def spoil_compressed(content: bytes) -> bytes:
    """The first member's compressed bytes, spoilt."""
    return content[:48] + bytes(byte ^ 0xA5 for byte in content[48:80]) + content[80:]


def encrypted(content: bytes) -> bytes:
    """The archive with its members marked as encrypted."""
    content = bytearray(content)
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = content.index(signature)
        content[at + offset] |= 1
    return bytes(content)


def gigabytes(b: Any) -> str:
    """An archive whose directory and header agree on 8 GB that are not there."""
    name = b.forge_npz(X=b.npy((250_000_000, 4), "<f8"))
    content = bytearray(b.read(name))
    directory = content.index(b"PK\x01\x02")
    (size,) = struct.unpack_from("<I", content, directory + 24)
    struct.pack_into("<I", content, directory + 24, min(size + 8_000_000_000, 2**32 - 2))
    return b.write(name, bytes(content))


def pickled_model(b: Any, name: str) -> str:
    torch.save({"weight": b.weight, "trap": Trap()}, b.folder / name)
    return name


def as_source(make: Callable[[Any], tuple[Any, Any]]) -> Callable[[Any], list[str]]:
    """A surrogate with as many rows as the source had, said to be the source."""
    return lambda b: b.unlearn("--distance", "source", surrogate=b.npz(*make(b)))


def not_the_source(b: Any) -> tuple[Any, Any]:
    """The rows to forget are among them, and others'."""
    return np.concatenate([b.X[:2], b.S[2:120]]), np.concatenate([b.y[:2], b.t[2:120]])


def link_to_nowhere(b: Any) -> list[str]:
    (b.folder / "dangling").symlink_to("nowhere")
    return b.unlearn("--out", "dangling")


def zero_model(b: Any) -> list[str]:
    return b.bare(model=b.model(weight=torch.zeros(3, 4, dtype=torch.float64)))


def repeat_key(text: str, key: str = '"l2"') -> str:
    return text.replace(key, f"{key}: 0.5, {key}", 1)


# fmt: off
FEATURES = [
    *alike("finite", "repair", kinds=[
        ("forget-nan", rows(lambda X: changed(X, (1, 2), np.nan)), ("forget", "row 1, column 2 is nan")),
        ("surrogate-nan", lambda b: b.unlearn(surrogate=b.npz(changed(b.S, (149, 0), np.nan), b.t)),
         ("surrogate", "row 149, column 0 is nan")),
        ("source-nan", lambda b: b.train(data=b.npz(changed(b.X, (7, 1), np.nan), b.y)),
         ("source", "row 7, column 1 is nan")),
    ]),
    *alike("rows x features", "two dimensions", kinds=[
        ("features-scalar", rows(lambda X: 1.0), "shape ()"),
        ("features-vector", rows(lambda X: X[0], 1), "shape (4,)"),
        ("features-cube", rows(lambda X: X[None]), "shape (1, 2, 4)"),
    ]),
    *alike("takes 4", "same features", kinds=[
        ("forget-narrow", rows(lambda X: X[:, :3]), ("forget", "3 features")),
        ("surrogate-wide", lambda b: b.unlearn(surrogate=b.npz(np.hstack([b.S, b.S]), b.t)), ("surrogate", "8 features")),
    ]),
    *alike("real numbers", "float64", kinds=[
        ("features-complex", rows(lambda X: X + 0j), "complex128"),
        ("features-text", rows(lambda X: X.astype("U9")), "U9"),
        ("features-fields", rows(lambda X: np.zeros(2, "f8,f8,f8,f8")), "f8"),
    ]),
    *alike("at least one", "written", kinds=[
        ("forget-no-rows", rows(lambda X: X, 0), ("forget", "no rows")),
        ("forget-no-columns", rows(lambda X: X[:, :0]), "no feature columns"),
        ("surrogate-no-rows", lambda b: b.unlearn(surrogate=b.npz(b.S[:0], b.t[:0])), ("surrogate", "no rows")),
        ("source-no-rows", lambda b: b.train(data=b.npz(b.X[:0], b.y[:0])), ("source", "no rows")),
    ]),
]

LABELS = [
    Kind("labels-too-few", labels(0), "1 labels for 2 rows", "one label a row", "belong together"),
    Kind("labels-too-many", labels(0, 1, 2), "3 labels for 2 rows", "one label a row", "belong together"),
    Kind("labels-one-hot", lambda b: b.unlearn(forget=b.npz(b.X[:2], np.eye(3)[:2])), "shape (2, 3)", "one label a row",
         "argmax"),
    Kind("labels-scalar", lambda b: b.unlearn(forget=b.npz(b.X[:1], 0)), "shape ()", "one label a row"),
    Kind("labels-fraction", labels(0, 0.5), "label 0.5", "whole numbers or strings", "class numbers"),
    Kind("labels-nan", labels(0, np.nan), re.compile("label.*nan"), "whole numbers or strings", "Remove rows"),
    Kind("labels-huge-float", labels(0, 1e300), re.compile(r"1e\+300|10{20}")),
    Kind("labels-complex", labels(0, 1j), "complex128", "whole numbers or strings", "int64"),
    Kind("labels-bytes", labels(b"a", b"b"), "S1", "whole numbers or strings", "Convert"),
    Kind("labels-unknown", labels(0, 7), ("forget", "label 7"), "the classes are 0, 1, 2", "for training"),
    Kind("labels-text", labels("cat", "dog"), "'cat', 'dog'", "the classes are 0, 1, 2", "for training"),
    Kind("labels-unknown-surrogate", lambda b: b.unlearn(surrogate=b.npz(b.S, changed(b.t, 5, 9))),
         ("surrogate", "label 9"), "the classes are 0, 1, 2", "for training"),
    Kind("source-one-class", lambda b: b.train(data=b.npz(b.X, b.y * 0 + 3)), re.compile("one class, 3$"),
         "two or more", "label column"),
]

SIZES = [
    Kind("forget-everything", lambda b: b.unlearn(forget="source.npz"), "120 rows to forget of a source of 120",
         "retained", "delete the model"),
    Kind("forget-more-than-source", declared("--n-source", "1"), "2 rows to forget of a source of 1", "retained",
         "n_source"),
    Kind("forget-most", lambda b: b.unlearn(forget=b.npz(b.X[:61], b.y[:61])), "61 of 120", "more than half", "--force",
         3),
    Kind("class-overdrawn", lambda b: b.unlearn(forget=b.npz(b.X[:41], b.y[:41] * 0 + 2)), "41 rows of class 2",
         "the source had 40", "cannot all have been trained on"),
    Kind("surrogate-small", lambda b: b.unlearn(surrogate=b.npz(b.S[:99], b.t[:99])), "99 rows", "at least 100",
         "Add surrogate rows"),
    Kind("surrogate-copied", lambda b: b.unlearn(surrogate=b.npz(np.tile(b.S, (3, 1)), np.tile(b.t, 3))),
         "copied, 3 times each", "probability below 1e-09", "Remove the copies"),
    Kind("distance-source-short", option("--distance", "source"), "150 rows", "the source had 120",
         "give the source itself"),
    Kind("distance-source-without-forgotten", as_source(lambda b: (changed(b.X, slice(0, 2), b.S[:2]), b.y)),
         "2 of 2 forget rows", "every forget row", "another distance"),
    Kind("distance-source-classes", as_source(lambda b: (b.X, changed(b.y, 9, 1))),
         "class counts (39, 41, 40)", "(40, 40, 40)", "give the source itself"),
    Kind("distance-source-others", as_source(not_the_source), re.compile("gradient has norm|class counts"), "at training",
         re.compile("not the rows the model was trained on|give the source itself")),
]

OPTIONS = [
    Kind("epsilon-zero", option("--epsilon", "0"), "epsilon 0.0", "above 0", "0.1 to 5"),
    Kind("epsilon-nan", option("--epsilon", "nan"), "epsilon nan", "finite", "0.1 to 5"),
    Kind("delta-zero", option("--delta", "0"), "delta 0.0", "between 0 and 1", "1/n"),
    Kind("delta-one", option("--delta", "1"), "delta 1.0", "between 0 and 1", "1/n"),
    Kind("delta-negative", option("--delta", "-1e-5"), "delta -1e-05", "between 0 and 1", "1/n"),
    Kind("train-l2-zero", training("--l2", "0"), "l2 0.0", "above 0", "1e-4 to 1e-1"),
    Kind("train-l2-nan", training("--l2", "nan"), "l2 nan", "finite", "1e-4 to 1e-1"),
    Kind("train-max-norm-zero", training("--max-norm", "0"), "max_norm 0.0", "above 0", "before looking at the rows"),
    Kind("train-loss", training("--loss", "svm"), "'svm'", "training has logistic, one-vs-rest, ridge, softmax",
         "Choose"),
    *alike("float64, float32", "Choose", kinds=[
        ("train-dtype", training("--dtype", "float16"), "dtype 'float16'"),
        ("train-store", training("--store", "bfloat16"), "store 'bfloat16'"),
        ("dtype", option("--dtype", "int8"), "dtype 'int8'"),
    ]),
    Kind("train-device", training("--device", "abacus"), "device 'abacus'", "torch can use", "cpu"),
    Kind("device", option("--device", "cuda:99"), "device 'cuda:99'", "torch can use", "cpu"),
    Kind("step", option("--step", "leap"), "step 'leap'", "converged, newton", "Choose"),
    Kind("bound", option("--bound", "tight"), "bound 'tight'", "residual, paper", "Choose"),
    Kind("sizes", option("--sizes", "both"), "sizes 'both'", "source, surrogate", "Choose"),
    Kind("device-without-data", option("--device", "meta"), "device 'meta'", "", "cpu"),
    Kind("between", option("--between", "friends"), "'friends'", "populations, samples"),
    Kind("constants-without-paper", option("--constants", "paper"), "constants", "only the paper's bound",
         "--bound paper"),
]

DISTANCES = [
    Kind("distance-negative", option("--distance", "tv:-0.1"), "tv:-0.1", "at least 0", "closer to the source"),
    Kind("distance-nan", option("--distance", "chi2:nan"), "chi2:nan", "finite", "closer to the source"),
    Kind("distance-tv-above-one", option("--distance", "tv:1.5"), "1.5", "between 0 and 1", "another kind"),
    Kind("distance-unknown", option("--distance", "wasserstein:0.1"), "'wasserstein'", "same, tv, chi2, kl, source",
         "chi2:0.1"),
    Kind("distance-empty", option("--distance", ""), "''", "same, tv, chi2, kl, source", "chi2:0.1"),
    Kind("distance-without-number", option("--distance", "tv"), "'tv'", "needs one", "tv:0.1"),
    Kind("distance-words", option("--distance", "chi2:small"), "'chi2:small'", "needs one", "chi2:0.1"),
    Kind("distance-same-with-value", option("--distance", "same:0.1"), "'same:0.1'", "takes no value", "same alone"),
]

CONSTANTS = [
    Kind("constants-unknown", paper("best"), "'best'", "derived", "derived"),
    Kind("constants-some", paper("alpha=1,beta=1"), "'alpha=1,beta=1'", "gamma", "alpha=0.01"),
    Kind("constants-more", paper("alpha=1,beta=1,L=1,gamma=1,theta=1"), "theta=1", "", "alpha=0.01"),
    Kind("constants-twice", paper("alpha=1,alpha=2,beta=1,L=1,gamma=1"), "alpha=1,alpha=2", "", "alpha=0.01"),
    Kind("constants-nan", paper("alpha=nan,beta=1,L=1,gamma=1"), "nan"),
    Kind("constants-alpha-zero", paper("alpha=0,beta=0,L=1,gamma=1"), "0"),
    Kind("constants-alpha-negative", paper("alpha=-1,beta=1,L=1,gamma=1"), "-1"),
]

MODELS = [
    Kind("model-pickled", lambda b: b.bare(model=pickled_model(b, "bad.pt")), "'.pt'", ".safetensors", "never loaded"),
    Kind("model-pickled-renamed", lambda b: b.bare(model=pickled_model(b, "bad.safetensors")), "bad.safetensors",
         "header", "write it again"),
    Kind("model-missing", lambda b: b.unlearn(model="gone.safetensors"), "gone.safetensors does not exist",
         "a file is needed", "path"),
    Kind("model-truncated", lambda b: b.unlearn(model=patched(lambda b: b.recorded(), lambda content: content[:-9])(b)),
         "'weight'", "describe the bytes", "damaged"),
    Kind("model-width", weights(weight=lambda w: w[:, :3]), "4 features", "takes 3", "same features"),
    Kind("model-classes", weights(weight=lambda w: w[:2]), "label 2", "the classes are 0, 1", "for training"),
    Kind("model-one-row", weights(weight=lambda w: w[:1]), "1 row", "at least two", "-w/2 and w/2"),
    Kind("model-vector", weights(weight=lambda w: w[0]), "shape (4,)", "K x d", "Reshape"),
    Kind("model-no-features", weights(weight=lambda w: w[:, :0]), "shape (3, 0)", "at least one feature", "file"),
    Kind("model-nan", weights(weight=lambda w: w * float("nan")), re.compile("weight.*nan"), "finite", "diverged"),
    Kind("model-integers", weights(weight=lambda w: w.long()), "int64", "floating-point", "float64"),
    Kind("model-bias-shape", weights(weight=lambda w: w, bias=lambda w: w[:2, 0]), "bias of shape (2,)", "(3,)",
         "a class"),
    Kind("model-more-tensors", weights(weight=lambda w: w, body=lambda w: w), "body, weight", "exactly weight",
         "head alone"),
    Kind("model-without-weight", weights(W=lambda w: w), "holds W", "exactly weight", "these names"),
    Kind("model-without-facts", lambda b: b.unlearn(model="bare.safetensors"), "no training record",
         "certificate needs", "--n-source, --l2, --loss"),
    Kind("model-without-one-fact",
         lambda b: b.unlearn("--n-source", "120", "--l2", "0.1", "--max-norm", "1", "--loss", "softmax", model="bare.safetensors"),
         "training_residual is not given", "certificate needs", "(--training-residual)"),
    Kind("declared-n-source", declared("--n-source", "0"), "n_source 0", re.compile("whole number.* 1"),
         "number of training rows"),
    Kind("declared-l2", declared("--l2", "-1"), "l2 -1.0", "above 0", "1/(C n)"),
    Kind("declared-max-norm", declared("--max-norm", "0"), "max_norm 0.0", "above 0", "largest norm"),
    Kind("declared-loss", declared("--loss", "hinge"), "'hinge'", "ridge, softmax", "trained with"),
    Kind("declared-loss-of-one-row", declared("--loss", "logistic"), "'logistic' for 3 weight rows", "one row a class",
         "Declare softmax"),
    Kind("declared-residual-nan", declared("--training-residual", "nan"), "training_residual nan", "finite",
         "gradient"),
    Kind("noised-already", lambda b: b.unlearn(model="result/model.safetensors"), "noised result", "near its optimum",
         "before noise, or retrain"),
]

RECORDS = [
    *alike("agree", "Leave the option out", kinds=[
        (f"contradicts-{name}", option(f"--{name}", value), found)
        for name, value, found in (
            ("n-source", "119", "n_source 119"), ("l2", "0.2", "l2 0.2"), ("max-norm", "2", "max_norm 2.0"),
            ("loss", "ridge", "loss ridge"), ("training-residual", "0.5", "training_residual 0.5"),
        )
    ]),
    Kind("record-of-other-weights", lambda b: b.unlearn(model=b.model(json.dumps(b.record), weight=b.weight + 1e-9)),
         ("not those the record was made for", "digests differ"), "must agree", "as it was written"),
    Kind("record-digest-missing", record(weights_sha256=""), re.compile("sha256|digest|not those")),
    Kind("record-l2-beyond-floats", record(l2=10**400), "401 characters, beyond 2^64"),
    Kind("record-loss-unknown", record(loss="hinge"), ("record", "'hinge'")),
    Kind("record-cut", record_text(lambda text: text[:-9]), "not JSON", "a whole record", "use the original"),
    Kind("record-nan", record_text(lambda text: re.sub('"l2": [^,]+', '"l2": NaN', text)), "NaN", "a whole record",
         "use the original"),
    Kind("record-key-twice", record_text(repeat_key), "twice", "a whole record", "use the original"),
    Kind("record-not-a-table", record_text(lambda text: "[1, 2]"), re.compile("schema|table"), "expunge/record/1",
         "use the original"),
    Kind("record-other-schema", record(schema="expunge/record/99"), "expunge/record/99", "expunge/record/1",
         "use the original"),
    Kind("record-unknown-key", record(colour="red"), "colour", "", "use the original"),
    *alike("must be possible", "use the original", kinds=[
        ("record-n-source", record(n_source=0), "n_source 0"),
        ("record-l2", record(l2=-0.1), "l2 -0.1"),
        ("record-max-norm", record(max_norm=0.0), "max_norm 0.0"),
        ("record-row-bound", record(row_bound=0.5), "row_bound 0.5"),
        ("record-residual", record(residual=-1.0), "residual -1.0"),
        ("record-without-residual", record(residual=None), "no residual"),
        ("record-classes-repeat", record(classes=[0, 1, 1]), "classes (0, 1, 1)"),
        ("record-rows-dtype", record(rows_dtype="int8"), "'int8'"),
        ("record-provenance", record(provenance="hearsay"), "'hearsay'"),
    ]),
    Kind("record-classes-fewer", record(classes=[0, 1], class_counts=[60, 60]), "3 weight rows, 2 classes", "agree",
         "as it was written"),
    Kind("record-bias", record(bias=True, row_bound=2.0**0.5), "bias True", "agree", "as it was written"),
]

FILES = [
    Kind("file-missing", lambda b: b.unlearn(forget="gone.npz"), "gone.npz does not exist", "a file is needed", "path"),
    Kind("file-under-file", lambda b: b.unlearn(forget="source.npz/forget.npz"), "source.npz/forget.npz",
         "a file is needed", "path"),
    Kind("file-type", lambda b: b.unlearn(forget=b.write("bad.txt", "1 2 3")), "'.txt'", ".npz", "arrays X and y"),
    Kind("file-type-pickle", lambda b: b.unlearn(forget=pickled_model(b, "bad.pkl")), "'.pkl'", ".npz",
         "arrays X and y"),
    Kind("file-folder", lambda b: (b.folder / "bad.npz").mkdir() or b.unlearn(forget="bad.npz"), "is a folder",
         "a file is needed", "inside it"),
    Kind("file-empty", lambda b: b.unlearn(forget=b.write("bad.npz", b"")), "bad.npz is empty", "with data",
         "Write it again"),
    Kind("file-name-too-long", lambda b: b.unlearn(forget="n" * 300 + ".npz"), "n" * 50),
    Kind("label-for-npz", option("--label", "species"), ("forget.npz", "'species'"), ".csv and .parquet",
         "Leave --label out"),
    Kind("label-for-safetensors", forget(lambda b: b.forge_safetensors(), "--label", "y"), ("safetensors", "'y'"),
         ".csv and .parquet", "--label"),
    Kind("limit-words", option(), "EXPUNGE_MAX_BYTES='plenty'", "number of bytes", "digits only",
         env={"EXPUNGE_MAX_BYTES": "plenty"}),
    Kind("limit-superscript", option(), "²", "number of bytes", "digits only", env={"EXPUNGE_MAX_BYTES": "²"}),
]

NPZ = [
    Kind("npz-truncated", forget(patched(lambda b: b.forge_npz(), lambda content: content[:-40])), "bad.npz",
         "complete", "again"),
    Kind("npz-bit-flipped", forget(patched(lambda b: b.forge_npz(), flip_in_data)), ("bad.npz", "CRC")),
    Kind("npz-deflate-spoilt",
         forget(patched(lambda b: b.forge_npz(compression=zipfile.ZIP_DEFLATED), spoil_compressed)), "bad.npz"),
    Kind("npz-encrypted", forget(patched(lambda b: b.forge_npz(), encrypted)), ("bad.npz", "encrypted")),
    Kind("npz-not-arrays", lambda b: b.unlearn(forget=b.forge_npz(X=b"just text")),
         ("bad.npz", re.compile("magic|dtype"))),
    Kind("npz-header-negative", npz_member((-2, -4)), "'X'"),
    Kind("npz-header-truth-values", npz_member((True, 8)), "'X'"),
    Kind("npz-header-subarrays", npz_member((2,), ("<f8", (4,))), "'X'"),
    Kind("npz-header-unknown-dtype", npz_member((2, 4), "<q9"), ("bad.npz", re.compile("magic|dtype"))),
    Kind("npz-header-zero-by-huge", lambda b: b.unlearn(forget=b.forge_npz(X=b.npy((0, 10**30), "<f8"))), "bad.npz"),
    Kind("npz-header-cut",
         lambda b: b.unlearn(forget=b.forge_npz(X=b"\x93NUMPY\x01\x00" + struct.pack("<H", 11) + b"{'descr': (")),
         "bad.npz"),
    Kind("npz-without-y", lambda b: np.savez(b.folder / "bad.npz", X=b.X, z=b.y) or b.unlearn(forget="bad.npz"),
         "holds X, z", "X and y", "numpy.savez"),
    Kind("npz-without-x", lambda b: np.savez(b.folder / "bad.npz", b.X, y=b.y) or b.unlearn(forget="bad.npz"),
         "holds arr_0, y", "X and y", "savez"),
    Kind("npz-pickled-features", lambda b: b.unlearn(forget=b.npz(np.array([[Trap()] * 4] * 2, dtype=object), b.y[:2])),
         "'X' holds Python objects", "never done", "astype(float)"),
    Kind("npz-pickled-labels", labels(Trap(), Trap(), dtype=object), "'y' holds Python objects", "never done",
         "astype(int)"),
    Kind("npz-header-more", npz_member((3, 4)), "declares 96 bytes but 64 follow", "truth", "damaged"),
    Kind("npz-header-gigabytes", npz_member((10**9, 4)), "declares 32,000,000,000 bytes", "truth", "damaged"),
    Kind("npz-directory-gigabytes", forget(gigabytes), ("'X'", "bytes"), "", "", env={"EXPUNGE_MAX_BYTES": "1000000"}),
    Kind("npz-bomb-of-empty-labels", lambda b: b.unlearn(forget=b.forge_npz(y=b.npy((10**8,), "<U0"))), "'y'", "", "",
         env={"EXPUNGE_MAX_BYTES": "1000000"}),
    Kind("npz-bomb", lambda b: b.unlearn(forget=b.npz(np.zeros((10**5, 8)), np.zeros(10**5), save=np.savez_compressed)),
         "'X' declares 6,400,000 bytes", "the limit is 1,000,000", "EXPUNGE_MAX_BYTES",
         env={"EXPUNGE_MAX_BYTES": "1000000"}),
]

SAFETENSORS = [
    Kind("safetensors-short", forget(lambda b: b.write("bad.safetensors", b"abc")), "shorter", "describe the bytes",
         "write it again"),
    Kind("safetensors-truncated", forget(patched(lambda b: b.forge_safetensors(), lambda content: content[:-1])),
         "'y' declares 16 bytes at 64 to 80 of 79", "describe the bytes", "damaged"),
    *alike("describe", "damaged", kinds=[
        ("safetensors-header-beyond-file", forget(lambda b: b.forge_safetensors(length=10**6)), "1,000,000 bytes"),
        ("safetensors-header-beyond-all", forget(lambda b: b.forge_safetensors(length=2**63)),
         "9,223,372,036,854,775,808"),
        ("safetensors-header-not-json", forget(lambda b: b.forge_safetensors(b"{'X': 1}")), "not JSON"),
        ("safetensors-header-list", forget(lambda b: b.forge_safetensors([])), "not a table"),
        ("safetensors-header-nested", forget(lambda b: b.forge_safetensors(b'{"X":' + b"[" * 10**5)), "not JSON (max"),
        ("safetensors-metadata", tensors(__metadata__={"n": 5}), "metadata"),
        ("safetensors-entry-text", tensors(X="here"), "'X'"),
        ("safetensors-offsets-words", tensors(y={"dtype": "I64", "shape": [2], "data_offsets": "end"}), "'y'"),
    ]),
    Kind("safetensors-key-twice",
         header(lambda text: text.replace('"y":', f'"X": {json.dumps(entry("F64", [2, 4], 0, 64))}, "y":')), "twice"),
    Kind("safetensors-number-beyond-all", header(lambda text: text.replace("[2, 4]", "[" + "9" * 5000 + "]")),
         "bad.safetensors"),
    Kind("safetensors-product-beyond-all",
         header(lambda text: text.replace("[2, 4]", "[" + "9" * 4000 + ", " + "9" * 4000 + "]")),
         "4000 characters, beyond 2^64"),
    Kind("safetensors-shape-lies", tensors(X=entry("F64", [3, 4], 0, 64)), "'X' declares 96 bytes at 0 to 64"),
    Kind("safetensors-shape-negative", tensors(X=entry("F64", [-2, -4], 0, 64)), "[-2, -4]"),
    Kind("safetensors-shape-deep", tensors(X=entry("F64", [2, 4] + [1] * 70, 0, 64)), "'X'"),
    Kind("safetensors-shape-zero-by-huge", tensors(X=entry("F64", [0, 10**30], 0, 0), y=entry("I64", [10], 0, 80)),
         "31 characters, beyond 2^64"),
    Kind("safetensors-offsets-beyond", tensors(y=entry("I64", [2], 640, 656)),
         "'y' declares 16 bytes at 640 to 656 of 80"),
    Kind("safetensors-offsets-overlap", tensors(y=entry("I64", [2], 48, 64)), "'y' declares 16 bytes at 48 to 64"),
    Kind("safetensors-more-bytes", forget(patched(lambda b: b.forge_safetensors(), lambda content: content + b"more")),
         "4 bytes belong to no tensor"),
    Kind("safetensors-dtype-unknown", tensors(X=entry("F8_E4M3", [16, 4], 0, 64)), "'F8_E4M3'", "describe"),
    Kind("safetensors-dtype-list", tensors(X={"dtype": ["F64"], "shape": [2, 4], "data_offsets": [0, 64]}), "['F64']",
         "describe"),
    Kind("safetensors-without-y", forget(lambda b: b.forge_safetensors({"X": entry("F64", [2, 5], 0, 80)})), "holds X",
         "X and y", "save_file"),
    Kind("safetensors-limit",
         forget(lambda b: b.forge_safetensors(body=bytes(10**6), X=entry("F64", [31250, 4], 0, 10**6))),
         re.compile("1,000,[0-9]{3}"), "limit is 10,000", "EXPUNGE_MAX_BYTES", env={"EXPUNGE_MAX_BYTES": "10000"}),
]

TABLES = [
    Kind("csv-without-label", csv("a,b,c,d,z\n1,0,0,0,0\n"), "columns a, b, c, d, z", "label column", "--label"),
    Kind("csv-label-unknown",
         lambda b: b.unlearn("--label", "species", forget=b.write("bad.csv", "a,y\n1,0\n"), surrogate="bad.csv"),
         "no column 'species'", "label column", "the columns are a, y"),
    Kind("csv-words", csv("a,b,c,d,y\n1,red,0,0,0\n0,1,0,0,1\n"), "column 'b' holds string", "numbers", "Encode"),
    *alike("every cell", "Fill them in", kinds=[
        ("csv-empty-cell", csv("a,b,c,d,y\n1,,0,0,0\n0,1,0,0,1\n"), "column 'b' has 1 empty"),
        ("parquet-empty-cells", parquet(c=pa.array([None, 1.0])), "column 'c' has 1 empty"),
    ]),
    Kind("csv-ragged", csv("a,b,c,d,y\n1,0,0,0\n0,1,0,0,1\n"), "Expected 5 columns, got 4", "equally long rows", "CSV"),
    Kind("csv-open-quote", csv('a,b,c,d,y\n1,"0,0,0,0\n0,1,0,0,1\n'), "bad.csv"),
    Kind("csv-only-header", csv("a,b,c,d,y\n"), re.compile("no rows|0 rows")),
    Kind("csv-binary", csv(b"\xcb\x00\xff,\x01\n" + bytes(range(256))), "bad.csv"),
    Kind("csv-escape-codes", csv("a,b,c,d,y\n1,0,0,\x1b[2J\x1b[31mtrust me\n"), "bad.csv"),
    Kind("parquet-label-lists", parquet(y=pa.array([[0], [1, 2]])), "'y'"),
    Kind("csv-only-label", csv("y\n0\n1\n"), "only the label column 'y'", "at least one feature", "Add the features"),
    Kind("csv-column-twice", csv("a,a,c,d,y\n1,0,0,0,0\n"), "two columns of one name", "must differ", "Rename"),
    Kind("csv-inf", csv("a,b,c,d,y\n1,0,0,0,0\n0,inf,0,0,1\n"), "row 1, column 1 is inf", "finite", "repair"),
    Kind("csv-empty-label", csv("a,b,c,d,y\n1,0,0,0,\n0,1,0,0,1\n"), "1 of 2 rows have no value in the label column 'y'",
         "every row needs its class", "Remove those rows"),
    Kind("csv-limit", csv("a,b,c,d,y\n" + "1,0,0,0,0\n" * 2000), "declares 20,010 bytes", "the limit is 10,000", "",
         env={"EXPUNGE_MAX_BYTES": "10000"}),
    Kind("parquet-truncated",
         lambda b: parquet()(b) and b.unlearn(forget=b.write("bad.parquet", b.read("bad.parquet")[:-20])),
         "bad.parquet", "complete", "again"),
    Kind("parquet-lists", parquet(a=pa.array([[1.0], [2.0, 3.0]])), "column 'a' has lists", "as many features", "Pad"),
    Kind("parquet-limit", parquet(**{f"more{i}": pa.array([0.0, 1.0]) for i in range(95)}), "declares 1,600 bytes",
         "the limit is 1,000", "EXPUNGE_MAX_BYTES", env={"EXPUNGE_MAX_BYTES": "1000"}),
]

OUTPUT = [
    *alike("never written over", "another name", kinds=[
        ("out-exists", option("--out", "result"), "result exists already"),
        ("out-is-a-file", option("--out", "forget.npz"), "forget.npz exists already"),
        ("out-dangling-link", link_to_nowhere, "dangling exists already"),
        ("train-out-exists", training("--out", "model.safetensors"), "model.safetensors exists already"),
    ]),
    Kind("out-under-a-file", option("--out", "forget.npz/new"), "forget.npz is not a folder", "written in",
         "another place"),
    Kind("out-name-too-long", option("--out", "n" * 300), "n" * 50),
    Kind("train-out-type", training("--out", "new.pt"), "new.pt", ".safetensors", "new.safetensors"),
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
    Kind("verify-missing", lambda b: b.verify("gone.json"), "gone.json does not exist", "a file is needed", "path"),
    Kind("verify-folder", lambda b: b.verify("result"), "result is a folder", "a file is needed",
         "inside it, for example"),
    Kind("verify-empty", lambda b: b.verify(b.write("bad.json", "")), "bad.json is empty", "with data", "again"),
    *alike("JSON", "as it was written", 1, kinds=[
        ("verify-text", lambda b: b.verify(b.write("bad.json", "all is well")), "not a certificate"),
        ("verify-cut", certificate_text(lambda text: text[:-40]), "not a certificate"),
        ("verify-nan", certificate_text(lambda text: re.sub('"sigma": [^,]+', '"sigma": NaN', text)), "NaN"),
        ("verify-key-twice", certificate_text(lambda text: repeat_key(text, '"sigma"')), "twice"),
    ]),
    Kind("verify-model-as-certificate", lambda b: b.verify("model.safetensors"), "not a certificate", "JSON",
         "as it was written"),
    Kind("verify-list", lambda b: b.verify(b.write("bad.json", "[]")), "schema None", "expunge/dossier/3", "later", 1),
    Kind("verify-other-schema", certificate(lambda c: c.update(schema="expunge/certificate/99")), "certificate/99",
         "expunge/dossier/3", "later", 1),
    Kind("verify-oversized", lambda b: b.verify(b.write("bad.json", b" " * 10_000_001)), "10,000,001 bytes",
         "10,000,000", "path"),
    Kind("verify-model-missing", lambda b: b.verify("result/private/dossier.json", "lost.safetensors"),
         "lost.safetensors does not exist", "a file", "path"),
    Kind("verify-changed-digit",
         certificate(lambda c: c["bound"]["terms"].update(sampling=c["bound"]["terms"]["sampling"] * (1 + 1e-9))),
         "bound.terms", "its own numbers", "Do not rely", 1),
    Kind("verify-number-beyond-floats", certificate(lambda c: c.update(sigma=10**400), sealed=True), "beyond 2^64", "",
         "as it was written", 1),
    Kind("verify-wrong-model", lambda b: b.verify("result/private/dossier.json", "model.safetensors"),
         "its file has another digest", "issued for", "rely on neither", 1),
]

KINDS = [
    *FEATURES, *LABELS, *SIZES, *OPTIONS, *DISTANCES, *CONSTANTS, *MODELS, *RECORDS, *FILES, *NPZ, *SAFETENSORS, *TABLES,
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


def test_no_two_kinds_share_a_message(outcome: Callable[[Kind], Any]) -> None:
    names: dict[str, list[str]] = {}
    for kind in KINDS:
        names.setdefault(outcome(kind).message, []).append(kind.name)
    same = [" = ".join(shared) for shared in names.values() if len(shared) > 1]
    assert not same, "; ".join(same)


def test_names_differ_and_there_are_enough() -> None:
    assert len({kind.name for kind in KINDS}) == len(KINDS) >= 50


def test_the_trap_would_spring(box: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tests of pickled files look for does happen when such a file is unpickled."""
    monkeypatch.chdir(box.folder)
    box.npz(np.array([Trap()], dtype=object), np.zeros(1))
    with np.load(box.folder / "bad.npz", allow_pickle=True) as arrays:
        arrays["X"][0].close()
    assert (box.folder / "unpickled").exists()


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
        (lambda b: b.unlearn(), "model.safetensors", 0o000),
        (lambda b: b.verify("result/statement.json"), "result/statement.json", 0o000),
        (lambda b: b.unlearn(forget="closed/forget.npz"), "closed", 0o000),
        (lambda b: b.unlearn("--out", "closed/new"), "closed", 0o500),
        (lambda b: b.train("--out", "closed/new.safetensors"), "closed", 0o500),
        (lambda b: b.unlearn("--out", "closed/new"), "closed", 0o000),
    ],
    ids=["file", "model", "certificate", "folder-of-file", "folder-of-output", "folder-of-model", "hidden-output"],
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


@pytest.mark.parametrize("name", ["npz-pickled-features", "forget-most", "verify-wrong-model"])
def test_process(name: str, make_box: Callable[[], Any], snapshot: Callable[[Path], dict[str, str]]) -> None:
    """One of each exit status."""
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
    "delta-tiny": option("--delta", "1e-300", "--force"),
    "delta-nearly-one": option("--delta", "0.9999999999999999", "--force"),
    "epsilon-huge": option("--epsilon", "1e308"),
    "epsilon-smallest": option("--epsilon", "5e-324", "--force"),
    "chi2-huge": option("--distance", "chi2:1e308", "--force"),
    "kl-huge": option("--distance", "kl:1e308", "--force"),
    "max-norm-huge": training("--max-norm", "1e200"),
    "max-norm-huge-bias": training("--max-norm", "1e200", "--bias"),
    "max-norm-huge-ridge": training("--max-norm", "1e200", "--loss", "ridge"),
    "max-norm-smallest": training("--max-norm", "5e-324"),
    "l2-huge": training("--l2", "1e308"),
    "n-source-beyond-floats": declared("--n-source", "9" * 400),
    "n-source-beyond-integers-of-floats": declared("--n-source", "9" * 17),
    "declared-l2-tiny": declared("--l2", "1e-320"),
    "declared-l2-tiny-paper": declared("--l2", "1e-320", *PAPER),
    "declared-l2-huge-paper": declared("--l2", "1e308", *PAPER),
    "declared-max-norm-huge-ridge": declared("--max-norm", "1e200", "--loss", "ridge"),
    "declared-max-norm-huge-paper": declared("--max-norm", "1e200", *PAPER),
    "lipschitz-huge": paper("alpha=1,beta=1,L=1e200,gamma=1"),
    "alpha-tiny": paper("alpha=1e-200,beta=1e-300,L=1,gamma=1"),
    "alpha-huge": paper("alpha=1e200,beta=1,L=1,gamma=1"),
    "weights-huge": lambda b: b.bare(model=b.model(weight=b.weight * 1e300)),
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


def test_class_missing_from_the_surrogate_is_noted(box: Any) -> None:
    surrogate = box.npz(*without_class_2(box))
    note, forced, public = notes(box, box.unlearn("--force", surrogate=surrogate))
    assert says(note, ("surrogate", "no rows of class 2"))
    assert says(forced, ("FORCED", "no row of class 2", "retained rows", "may be false"))
    assert says(public, ("FORCED", "no row of class 2", "may be false"))
    statement = json.loads(box.read("new/statement.json"))
    assert statement["notes"] == [note, public], "how many of whom are retained is in the dossier alone"


def test_all_of_them_are_noted(box: Any) -> None:
    S, t = without_class_2(box)
    surrogate = box.npz(np.vstack([S, box.X[:1]]), np.append(t, box.y[:1]), "other.npz")
    twice = box.npz(box.X[[0, 0]], box.y[[0, 0]])
    found = notes(box, box.unlearn("--force", forget=twice, surrogate=surrogate))
    for expected in ("repeats", "no rows of class 2", "FORCED", "also in the surrogate"):
        assert sum(expected in note for note in found) == (2 if expected == "FORCED" else 1), expected
    assert len(found) == 5


def test_good_data_is_not_noted(box: Any) -> None:
    assert notes(box, box.unlearn()) == []
