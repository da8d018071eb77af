"""What a model says of its training, what a certificate has to know of its loss, and the file of both. No torch."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.errors import ModelError, OptionError
from expunge.runtime.memory import file_bytes
from expunge.runtime.safetensors import StoredTensor, stored_tensors
from expunge.runtime.strict_json import is_digest, read_json
from expunge.runtime.values import LARGEST, SMALLEST

# What a model says of its training, and what a certificate has to know of its loss -----------------------------------

RECORD_SCHEMA = "expunge/record/1"
OPTIONAL = (
    *("encoder", "encoder_trained", "features", "free_bias", "fixed_c", "preparation", "class_weights", "table"),
    "norm_measured",
)
TRAINED_ON_SOURCE = ("yes", "no", "unknown")
LEARNT_FROM_SOURCE, LEARNT_COARSE, LEARNT_ELSEWHERE = PREPARATION = (
    *("learnt from the source", "learnt from the source, coarse", "learnt elsewhere"),
)
CLASS_WEIGHT = "class_weight"  # named like a step, where weights of classes were worked out from the source
MOST_STEPS = 100  # of a pipeline, that are named
OTHER = "(other)"  # the feature of the rare values of a category
METADATA_KEY = "expunge"
ORIGINAL = "Use the original model as it was written, or a bare one with the facts of its training as they were."
MOST_ROWS = 2**53  # beyond this a count is no longer exact in float64
MOST_NAMES, LONGEST_NAME, ALL_NAMES = 200_000, 300, 10_000_000  # columns; characters of one, and of all together
HESSIAN_LIPSCHITZ_FACTOR = math.sqrt(2.0) / (3.0 * math.sqrt(3.0))

Label = int | str


@dataclass(frozen=True)
class Constants:
    """Constants of one example's regularised loss over `||x|| <= row_bound`, as the paper's Assumption asks for."""

    strong_convexity: float
    smoothness: float
    lipschitz: float
    hessian_lipschitz: float


@dataclass(frozen=True)
class Loss:
    """What a certificate has to know of a loss.

    `constants` gives them in closed form from l2, the number of classes, the row bound and a bound on the norm of the
    weights; None where none hold, since the loss is not convex. `one_vector`: the weights are one vector for all
    outputs. `one_row`: two classes, and weights for the second alone. `rounding_derived`: whether what float64 loses of
    a gradient is derived, or can only be declared.
    """

    name: str
    constants: Callable[[float, int, float, float], Constants] | None
    one_vector: bool = False
    rounding_derived: bool = True
    one_row: bool = False

    @property
    def convex(self) -> bool:
        return self.constants is not None

    def weight_rows(self, n_classes: int) -> int:
        """How many rows of weights so many classes have."""
        return 1 if self.one_vector or self.one_row else n_classes


def softmax_constants(l2: float, _n_classes: int, row_bound: float, weights_norm: float) -> Constants:
    """`C(p)` has norm at most 1/2 and `||p - t||` is at most sqrt 2, whatever the number of classes."""
    return Constants(
        strong_convexity=l2,
        smoothness=0.5 * row_bound**2 + l2,
        lipschitz=math.sqrt(2.0) * row_bound + l2 * weights_norm,
        hessian_lipschitz=HESSIAN_LIPSCHITZ_FACTOR * row_bound**3,
    )


def ridge_constants(l2: float, n_classes: int, row_bound: float, weights_norm: float) -> Constants:
    """The Hessian is constant; the gradient is at most `(||W|| B + sqrt K) B` long, regulariser apart."""
    return Constants(
        strong_convexity=l2,
        smoothness=row_bound**2 + l2,
        lipschitz=(weights_norm * row_bound + math.sqrt(n_classes)) * row_bound + l2 * weights_norm,
        hessian_lipschitz=0.0,
    )


def logistic_constants(l2: float, n_classes: int, row_bound: float, weights_norm: float) -> Constants:
    """A sigmoid has slope at most 1/4 and second derivative at most `1/(6 sqrt 3)`; outputs do not mix."""
    return Constants(
        strong_convexity=l2,
        smoothness=0.25 * row_bound**2 + l2,
        lipschitz=math.sqrt(n_classes) * row_bound + l2 * weights_norm,
        hessian_lipschitz=row_bound**3 / (6.0 * math.sqrt(3.0)),
    )


SOFTMAX = Loss("softmax", softmax_constants)
ONE_VS_REST = Loss("one-vs-rest", logistic_constants)
LOGISTIC = Loss("logistic", logistic_constants, one_row=True)
RIDGE = Loss("ridge", ridge_constants)
TANGENT = Loss("tangent", ridge_constants, one_vector=True, rounding_derived=False)
MODULE = Loss("module", None, one_vector=True, rounding_derived=False)
LOSSES: dict[str, Loss] = {loss.name: loss for loss in (SOFTMAX, ONE_VS_REST, LOGISTIC, RIDGE, TANGENT, MODULE)}


def loss_named(name: object) -> Loss:
    """The loss of that name; whatever is unknown raises."""
    if not isinstance(name, str) or name not in LOSSES:
        raise OptionError(
            f"loss {name!r} is not known",
            f"it must be one of {', '.join(sorted(LOSSES))}",
            "Choose the loss the model was trained with.",
        )
    return LOSSES[name]


@dataclass(frozen=True)
class TrainingRecord:
    """What is kept of the source once it is gone.

    `max_norm` is the length feature rows were scaled down to; `row_bound` counts the constant feature of a bias too.
    `residual` is an upper bound on the norm of the objective's gradient at the weights AS STORED. `provenance` is
    `measured` if this library trained the model, `declared` if somebody stated the same facts. A `noised` model is the
    result of unlearning: it is no longer near an optimum, and has no residual. `encoder` is the digest of what made the
    features, where their file named it, and `encoder_trained` whether it was trained on source rows (`yes`, `no`,
    `unknown`). `features` are the names of the columns, in the order of the weights, where the rows had names. With
    `free_bias` the bias is not regularised; with `fixed_c`, scikit-learn's C, retraining on n' rows would use
    `l2 = 1/(C n')`. `preparation` says where that of the rows (what fills, scales, encodes) was learnt, and by which
    steps of a pipeline (`prepared_by`); None where there was none. `class_weights`: how much a row of each class
    counts, the largest being 1, as fixed at training.
    `table`: how the columns of a table became features (rows/preparation.py), as plain JSON. `norm_measured`: the norm
    bound was taken from the rows, so that none had to be scaled, and is not published.
    """

    n_source: int
    classes: tuple[Label, ...]
    class_counts: tuple[int, ...] | None
    l2: float
    loss: str
    max_norm: float
    bias: bool
    residual: float | None
    rows_dtype: str = "float64"
    provenance: str = "measured"
    noised: bool = False
    weights_sha256: str = field(default="")
    encoder: str | None = None
    encoder_trained: str | None = None
    features: tuple[str, ...] | None = None
    free_bias: bool | None = None
    fixed_c: float | None = None
    preparation: str | None = None
    class_weights: tuple[float, ...] | None = None
    table: dict[str, Any] | None = None
    norm_measured: bool | None = None

    @property
    def row_bound(self) -> float:
        """B: the largest norm of a row, constant feature included."""
        return math.sqrt(self.max_norm**2 + 1.0) if self.bias else self.max_norm

    def to_json(self) -> str:
        return json.dumps({"schema": RECORD_SCHEMA, **self.facts()}, sort_keys=True, allow_nan=False)

    def facts(self) -> dict[str, Any]:
        """What the record says, as it is written."""
        known = asdict(self) | {"row_bound": self.row_bound}
        return {name: value for name, value in known.items() if name not in OPTIONAL or value is not None}

    @staticmethod
    def from_json(text: str, name: str) -> TrainingRecord:
        """Read a record back, refusing what does not make sense."""
        name = f"{name}: the training record"
        try:
            content = read_json(text)
        except (ValueError, RecursionError) as error:
            raise ModelError(f"{name} is not JSON ({error})", "a whole record is needed", ORIGINAL) from error
        schema = content.pop("schema", None) if isinstance(content, dict) else None
        if schema != RECORD_SCHEMA:
            raise ModelError(f"{name} has schema {schema!r}", f"{RECORD_SCHEMA} is understood", ORIGINAL)
        row_bound = content.pop("row_bound", None)
        always = set(TrainingRecord.__dataclass_fields__) - set(OPTIONAL)
        odd = ", ".join(sorted(set(content) ^ (always | (set(OPTIONAL) & set(content)))))
        if odd:
            raise ModelError(f"{name} lacks or adds {odd}", "the keys of its schema are needed", ORIGINAL)
        for key in LISTS:
            value = content.get(key)
            if not isinstance(value, list) and (value is not None or key == "classes"):
                raise ModelError(f"{name} says {key} {value!r}", "a list is needed", ORIGINAL)
        lists = {key: tuple(content[key]) for key in LISTS if content.get(key) is not None}
        record = TrainingRecord(**content | lists).check(name)
        if row_bound != record.row_bound:
            raise ModelError(f"{name} says row_bound {row_bound!r}", "its facts must be possible", ORIGINAL)
        return record

    def check(self, name: str = "the model's record") -> TrainingRecord:
        """The record itself; refuses one whose facts cannot be."""
        for problem in self._problems():
            raise ModelError(f"{name} says {problem}", "its facts must be possible", ORIGINAL)
        return self

    def _problems(self) -> Iterator[str]:
        """The facts that cannot be, one at a time: a later one may only be looked at if those before it are sound."""
        counts, weights, classes = self.class_counts, self.class_weights, self.classes
        if type(self.n_source) is not int or not 1 <= self.n_source <= MOST_ROWS:
            yield f"n_source {self.n_source!r} (a whole number from 1 to 2^53 is needed)"
        if not isinstance(self.loss, str) or self.loss not in LOSSES or not LOSSES[self.loss].convex:
            yield f"loss {self.loss!r}"
        for name in ("l2", "max_norm") if self.fixed_c is None else ("l2", "max_norm", "fixed_c"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not SMALLEST <= value <= LARGEST:
                yield f"{name} {value!r} (a number between {SMALLEST:g} and {LARGEST:g} is needed)"
        for name, possible in (
            ("weights_sha256", is_digest(self.weights_sha256)),
            ("bias", type(self.bias) is bool),
            ("noised", type(self.noised) is bool),
            ("residual", self.residual is None or (type(self.residual) is float and 0 <= self.residual < math.inf)),
            ("provenance", self.provenance in ("measured", "declared")),
            ("rows_dtype", self.rows_dtype in ("float64", "float32")),
            ("free_bias", self.free_bias is None or (self.free_bias is True and self.bias)),
            ("norm_measured", self.norm_measured is None or self.norm_measured is True),
            ("preparation", self.preparation is None or prepared_by(self.preparation) is not None),
            ("encoder", self.encoder is None or is_digest(self.encoder)),
            ("classes", len(set(classes)) == len(classes) > 1 and all(type(c) in (int, str) for c in classes)),
            ("class_weights", weights is None or are_class_weights(weights, len(classes))),
        ):
            if not possible:
                yield f"{name} {getattr(self, name)!r}"
        if self.residual is None and not self.noised:
            yield "no residual"
        if counts is not None and (
            len(counts) != len(classes)
            or not all(type(c) is int and c >= 0 for c in counts)
            or sum(counts) != self.n_source
        ):
            yield f"class counts {counts!r} of {self.n_source} rows"
        if self.encoder_trained is not None and (self.encoder is None or self.encoder_trained not in TRAINED_ON_SOURCE):
            yield f"encoder_trained {self.encoder_trained!r}"
        if self.features is not None and (problem := names_problem(self.features)) is not None:
            yield problem
        if self.table is not None and (self.preparation is None or not _is_table(self.table, self.features)):
            yield "a table that makes no such features"
        elif self.table is not None:
            here = LEARNT_COARSE if self.table["coarse"] else LEARNT_FROM_SOURCE
            if self.preparation not in (here, LEARNT_ELSEWHERE):
                yield f"preparation {self.preparation!r} of a table that was {here!r}"


def prepared_by(said: object) -> tuple[str, tuple[str, ...]] | None:
    """What a record says of its preparation: a word, and the steps of a pipeline that learnt exactly; None if neither.

    Of coarse preparation, class weights alone are named, where these are among it.

    >>> prepared_by("learnt from the source: StandardScaler, PCA")
    ('learnt from the source', ('StandardScaler', 'PCA'))
    >>> prepared_by("learnt from the source, coarse"), prepared_by("by heart")
    (('learnt from the source, coarse', ()), None)
    """
    word, colon, listed = said.partition(": ") if isinstance(said, str) else ("", "", "")
    steps = tuple(listed.split(", ")) if colon else ()
    weighted = word == LEARNT_COARSE and steps == (CLASS_WEIGHT,)
    if word not in PREPARATION or (steps and word != LEARNT_FROM_SOURCE and not weighted):
        return None
    named = len(steps) <= MOST_STEPS and all(step.isidentifier() and len(step) <= LONGEST_NAME for step in steps)
    return (word, steps) if named and len(set(steps)) == len(steps) else None


def one_digit(count: int) -> int:
    """A count to one significant digit, rounded down.

    >>> one_digit(30_123), one_digit(99), one_digit(7)
    (30000, 90, 7)
    """
    power: int = 10 ** (len(str(count)) - 1)
    return count // power * power


def are_class_weights(weights: Sequence[object], n_classes: int) -> bool:
    """Whether these can be the weights of so many classes: above 0 and at most 1, so that what bounds
    a row bounds a weighted one.

    >>> are_class_weights([0.25, 0.5], 2), are_class_weights([0.25, 1.5], 2)
    (True, False)
    """
    possible = all(isinstance(weight, float) and SMALLEST <= weight <= 1.0 for weight in weights)
    return possible and len(weights) == n_classes


LISTS = ("classes", "class_counts", "features", "class_weights")


TABLE = {"label": str, "text_labels": bool, "names": list, "columns": list, "dropped": list, "coarse": dict}
COARSE = {"digits": int, "rare": int, "most": float}  # of a preparation that is coarse; nothing of an exact one
NUMBER = {"column": str, "kind": str, "median": float, "mean": float, "scale": float}
CATEGORY = {"column": str, "kind": str, "values": list, "other": bool}
DROPPED = {"column": str, "reason": str}


def _is_table(value: object, features: tuple[str, ...] | None) -> bool:
    """Whether this says how the columns of a table become these features: whole, and of its kinds."""
    if not isinstance(value, dict) or not _has(value, TABLE):
        return False
    columns, dropped, coarse = value["columns"], value["dropped"], value["coarse"]
    if coarse and not (_has(coarse, COARSE) and all(1 <= number <= LARGEST for number in coarse.values())):
        return False
    if not all(_is_column(each) for each in columns) or not all(_has(each, DROPPED) for each in dropped):
        return False
    named = [each["column"] for each in (*columns, *dropped)]
    texts = [*named, *value["names"], *(word for each in columns for word in each.get("values", ()))]
    few = len(texts) <= 2 * MOST_NAMES and all(isinstance(text, str) for text in texts)
    return few and len(set(named)) == len(named) and value["label"] not in named and features == prepared_names(columns)


def _has(value: object, kinds: Mapping[str, type]) -> bool:
    return isinstance(value, dict) and set(value) == set(kinds) and all(type(value[k]) is t for k, t in kinds.items())


def _is_column(value: object) -> bool:
    if not isinstance(value, dict) or _has(value, CATEGORY):
        return isinstance(value, dict) and value["kind"] == "category"
    if not _has(value, NUMBER) or value["kind"] != "number":
        return False
    return all(math.isfinite(value[name]) for name in ("median", "mean", "scale")) and value["scale"] > 0.0


def prepared_names(columns: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """What the features that become of a table's columns are called.

    >>> prepared_names([{"column": "age", "kind": "number"}, {"column": "job", "values": ["clerk"], "other": True}])
    ('age', 'job=clerk', 'job=(other)')
    """
    names: list[str] = []
    for each in columns:
        words = [*each["values"], *([OTHER] if each["other"] else [])] if "values" in each else None
        names += [each["column"]] if words is None else [f"{each['column']}={word}" for word in words]
    return tuple(names)


def names_problem(names: Sequence[object]) -> str | None:
    """What cannot be a list of feature names, in words; None where it can.

    >>> names_problem(["age", "age"])
    "two features of one name, 'age'"
    """
    if not 1 <= len(names) <= MOST_NAMES:
        return f"{len(names):,} feature names (from 1 to {MOST_NAMES:,} are kept)"
    for name in names:
        if not isinstance(name, str) or len(name) > LONGEST_NAME:
            shown = repr(name)
            return f"feature name {shown[:60]} (text of at most {LONGEST_NAME} characters is kept)"
    if sum(len(str(name)) for name in names) > ALL_NAMES:
        return f"feature names of more than {ALL_NAMES:,} characters together"
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    return None if twice is None else f"two features of one name, {twice!r}"


# A model's file, read and checked without torch: all that whoever checks a certificate has to know of it ------------

FLOATS = ("float64", "float32", "float16", "bfloat16")
TANGENT_TENSOR = "tangent"


@dataclass(frozen=True)
class ModelFile:
    """The tensors as they are stored (of a linear model weight K x d and, where there is one, bias K), the training
    record, and the digest of the whole file."""

    tensors: tuple[StoredTensor, ...]
    record: TrainingRecord | None
    sha256: str

    @property
    def weight(self) -> StoredTensor:
        return self.tensors[0]

    @property
    def bias(self) -> StoredTensor | None:
        return self.tensors[1] if len(self.tensors) > 1 else None


def read_model_file(path: str | Path) -> ModelFile:
    """A linear model from a safetensors file, refusing what cannot be one."""
    location = Path(path)
    return parse_model_file(model_bytes(location), location)


def model_bytes(location: Path) -> bytes:
    """The bytes of a linear model's file, refusing what is not called one."""
    if location.is_dir():
        raise ModelError(
            f"{location} is a folder",
            "a model is a file",
            f"Name the file inside it, as {location / 'model.safetensors'}.",
        )
    if location.suffix.lower() != ".safetensors":
        raise ModelError(
            f"{location}: unknown model type {location.suffix!r}",
            "models are .safetensors files with tensors weight (K x d) and bias (K, optional)",
            "Save with safetensors.torch.save_file({'weight': W, 'bias': b}, path); pickled models are never loaded.",
        )
    return bytes(file_bytes(location, "the model"))


def parse_model_file(content: bytes, location: Path) -> ModelFile:
    """A linear model from the bytes of its file; `location` is what it is called in messages."""
    tensors, metadata = stored_tensors(content, location)
    if "weight" not in tensors or set(tensors) - {"weight", "bias"}:
        raise ModelError(
            f"{location} holds {', '.join(sorted(tensors)) or 'nothing'}",
            "exactly weight and, where there is one, bias are needed",
            "Save the linear head alone, under these names.",
        )
    name = str(location)
    record = TrainingRecord.from_json(metadata[METADATA_KEY], name) if METADATA_KEY in metadata else None
    stored = {part: tensors[part] for part in ("weight", "bias") if part in tensors}
    digest = weights_digest((part, tensor.dtype, tensor.shape, tensor.raw) for part, tensor in stored.items())
    require_weights({part: (tensor.dtype, tensor.values) for part, tensor in stored.items()}, record, digest, name)
    return ModelFile(tuple(stored.values()), record, hashlib.sha256(content).hexdigest())


def weights_digest(tensors: Iterable[tuple[str, str, tuple[int, ...], bytes | memoryview]]) -> str:
    """SHA-256 over name, dtype, shape and bytes of each tensor; weight first, then bias.

    >>> weights_digest([("weight", "float64", (1, 1), bytes(8))])[:16]
    '13f15b0a1a630ea5'
    """
    digest = hashlib.sha256()
    for name, dtype, shape, raw in tensors:
        digest.update(f"{name} torch.{dtype} {list(shape)}\n".encode())
        digest.update(raw)
    return digest.hexdigest()


def require_weights(
    tensors: Mapping[str, tuple[str, NDArray[Any]]], record: TrainingRecord | None, digest: str, name: str
) -> None:
    """Refuse weight and bias, each with its dtype, that are no linear classifier, or not the one of the record."""
    for part, (dtype, values) in tensors.items():
        if dtype not in FLOATS:
            raise ModelError(
                f"{name}: {part} of dtype torch.{dtype}",
                "floating-point weights are needed",
                "Convert them to float64 or float32.",
            )
        if not (finite := np.isfinite(values)).all():
            raise ModelError(
                f"{name}: {part} holds {float(values[~finite][0])}",
                "every weight must be a finite number",
                "Training diverged, or the file is damaged.",
            )
    shape = tensors["weight"][1].shape
    if len(shape) != 2 or shape[1] < 1:
        raise ModelError(
            f"{name}: weight of shape {shape}",
            "K x d is needed, one row a class and at least one feature",
            "Reshape it; see docs/how-to-choose.md.",
        )
    one_row = record is not None and loss_named(record.loss).one_row
    if shape[0] < 2 and not (one_row and shape[0] == 1):
        raise ModelError(
            f"{name}: weight has {shape[0]} row",
            "one row a class is needed, at least two",
            "Write a two-class model with one weight vector w as the rows -w/2 and w/2 (softmax, l2 doubled) "
            "or -w and w (ridge).",
        )
    if "bias" in tensors and (own := tensors["bias"][1].shape) != shape[:1]:
        raise ModelError(f"{name}: bias of shape {own}", f"({shape[0]},) is needed", "One bias a class.")
    if record is not None:
        require_record(record, shape[0], "bias" in tensors, digest, name, shape[1])


def require_record(
    record: TrainingRecord, n_classes: int, bias: bool, weights_sha256: str, name: str, width: int
) -> None:
    """Refuse a record that was made for other weights."""
    features = width if record.features is None else len(record.features)
    wrong = {
        f"{n_classes} weight rows, {len(record.classes)} classes recorded": (
            loss_named(record.loss).weight_rows(len(record.classes)) != n_classes
        ),
        f"{width} weight columns, {features} features named": features != width,
        f"the record says bias {record.bias}, the tensors do not": record.bias != bias,
        "the weights are not those the record was made for: their digests differ": (
            record.weights_sha256 != weights_sha256
        ),
    }
    remedy = "Record and weights do not belong together; use the file as it was written."
    for found, is_wrong in wrong.items():
        if is_wrong:
            raise ModelError(f"{name}: {found}", "they must agree", remedy)


# A published model, linear or a network's tangent weights.


def published_bytes(path: Path, loss: Loss) -> bytes:
    """The bytes of a published model's file."""
    return bytes(file_bytes(path, "the model")) if loss.one_vector else model_bytes(path)


def parse_published(content: bytes, path: Path, loss: Loss) -> ModelFile:
    """A published model from the bytes of its file; of a whole network nothing but the digest is known."""
    if not loss.one_vector:
        return parse_model_file(content, path)
    digest = hashlib.sha256(content).hexdigest()
    if not loss.convex:
        return ModelFile((), None, digest)
    tensors, metadata = stored_tensors(content, path)
    try:
        weights, text = tensors[TANGENT_TENSOR], str(read_json(metadata[METADATA_KEY])["record"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelError(
            f"{path} holds no tangent weights ({type(error).__name__}: {error})",
            "tensor tangent and its record are needed",
            "Give the published model's file as it was written.",
        ) from error
    record = TrainingRecord.from_json(text, str(path))
    if record.weights_sha256 != hashlib.sha256(weights.raw).hexdigest():
        raise ModelError(f"{path}: the weights are not those of its record", "they must agree", "Use the original.")
    if math.prod(weights.shape) == 0 or not bool(np.isfinite(weights.values).all()):
        raise ModelError(f"{path}: weights that are no numbers", "every weight must be finite", "Use the original.")
    return ModelFile((weights,), record, digest)
