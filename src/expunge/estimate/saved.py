"""An estimate in a file, so that it is made once, looked at, and then used: what `expunge distance --out` writes.

An .npz file, nothing in it pickled:

    samples               chains x features, float64: where the Langevin chains ended
    mean, covariance      of a Gaussian reference, where one was given
    facts                 JSON: settings, diagnostics, the parts of the KL, and what the estimate was made of

It is read like a stranger's: sizes before anything is allocated, every number finite (null stands for an infinite one),
no key too many or too few, settings as strictly as if they were typed. Whether it belongs to the model and the
surrogate at hand is `SourceEstimate.belonging_to`'s to say. It holds no row of anybody; but the samples show what the
model before deletion implies, so it is as private as that model.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import numpy as np
import torch

from expunge.data.files import DAMAGE, Array, not_whole, read_npz
from expunge.data.prepare import row_norms
from expunge.distance import Estimation
from expunge.errors import ExpungeError, FileError, OptionError
from expunge.estimate.conditional import ConditionalDivergence
from expunge.estimate.donsker_varadhan import DonskerVaradhanLower
from expunge.estimate.langevin import Diagnostics
from expunge.estimate.origin import Origin
from expunge.estimate.source import KullbackLeiblerEstimate, SampledSource, SourceEstimate
from expunge.heads import Rows
from expunge.runtime.paths import readable
from expunge.runtime.strict_json import is_digest, read_json

SCHEMA = "expunge/estimate/1"
LONGEST = 20_000  # characters of the facts; a file of ours has some 1,500
REMEDY = "Write it anew with expunge distance --out."
ARRAYS = ("mean", "covariance")
Value = TypeVar("Value")


def estimate_bytes(estimate: SourceEstimate) -> bytes:
    """The file, byte for byte."""
    wanted, sampled, kl = asdict(estimate.wanted), estimate.sampled, estimate.kl
    facts = {
        "schema": SCHEMA,
        "settings": {name: value for name, value in wanted.items() if name not in ARRAYS},
        "support": sampled.support,
        "step_size": sampled.step_size,
        "scaled": sampled.rows.n_scaled,
        "diagnostics": asdict(sampled.diagnostics),
        "conditional": None if kl is None else asdict(kl.conditional),
        "marginal": None if kl is None else asdict(kl.marginal),
        "origin": asdict(estimate.origin),
    }
    arrays = {name: np.asarray(wanted[name], dtype=np.float64) for name in ARRAYS if wanted[name] is not None}
    arrays["samples"] = sampled.features.double().cpu().contiguous().numpy()
    text = json.dumps(_null_for_infinite(facts), allow_nan=False)
    stream = io.BytesIO()
    np.savez(stream, allow_pickle=False, facts=np.array(text), **arrays)
    return stream.getvalue()


def read_estimate(path: str | Path) -> SourceEstimate:
    """The estimate in a file, checked; on the CPU until it is brought to a model."""
    location = readable(Path(path))
    try:
        arrays = read_npz(location, ("samples", "facts"), optional=ARRAYS)
        facts = _facts(arrays.pop("facts"))
        return _estimate(facts, {name: _numbers(name, array) for name, array in arrays.items()})
    except _NotAnEstimateError as error:
        raise FileError(f"{location}: {error}", "an estimate as it was written is needed", REMEDY) from error
    except OptionError as error:
        raise FileError(f"{location}: {error.found}", error.required, REMEDY) from error
    except ExpungeError:
        raise
    except DAMAGE as error:
        raise not_whole(location, error) from error


class _NotAnEstimateError(Exception):
    """What a file says that no estimate can."""


def _null_for_infinite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _null_for_infinite(entry) for key, entry in value.items()}
    return None if value == math.inf else value


def _facts(array: Array) -> dict[str, Any]:
    if array.shape != () or array.dtype.kind != "U" or array.dtype.itemsize > 4 * LONGEST:
        raise _NotAnEstimateError(f"facts of shape {array.shape} and dtype {array.dtype}")
    try:
        facts = read_json(array.item())
    except (ValueError, RecursionError) as error:
        raise _NotAnEstimateError(f"facts that are not JSON ({error})") from error
    expected = {"schema", "settings", "support", "step_size", "scaled"}
    expected |= {"diagnostics", "conditional", "marginal", "origin"}
    if not isinstance(facts, dict) or facts.get("schema") != SCHEMA or set(facts) != expected:
        named = facts.get("schema") if isinstance(facts, dict) else type(facts).__name__
        raise _NotAnEstimateError(f"facts of schema {named!r}, or with keys too many or too few, for {SCHEMA}")
    return facts


def _numbers(name: str, array: Array) -> Array:
    if array.dtype != np.float64 or not np.isfinite(array).all():
        raise _NotAnEstimateError(f"{name} of dtype {array.dtype}, or not finite, for finite float64")
    return array


def _estimate(facts: dict[str, Any], arrays: dict[str, Array]) -> SourceEstimate:
    origin = _read(Origin, facts["origin"], "origin")
    digests = (origin.weights, origin.surrogate, *(() if origin.encoder is None else (origin.encoder,)))
    _require(all(map(is_digest, digests)), "an origin whose digests are none")
    _require(0.0 < origin.max_norm < math.inf, f"max_norm {origin.max_norm}")
    wanted = _read(Estimation, facts["settings"], "settings", {name: arrays.get(name) for name in ARRAYS})
    kl = None
    if facts["conditional"] is not None or facts["marginal"] is not None:
        kl = KullbackLeiblerEstimate(
            _read(ConditionalDivergence, facts["conditional"], "conditional"),
            _read(DonskerVaradhanLower, facts["marginal"], "marginal"),
        )
        _require_possible(kl)
    return SourceEstimate(wanted, _sampled(facts, arrays["samples"], wanted, origin), kl, origin)


def _sampled(facts: dict[str, Any], samples: Array, wanted: Estimation, origin: Origin) -> SampledSource:
    words, step, scaled = facts["support"], facts["step_size"], facts["scaled"]
    _require(type(words) is str and 0 < len(words) <= 200 and words.isprintable(), "a support in no words")
    _require(type(step) is float and 0.0 < step < math.inf, f"step size {step!r}")
    _require(type(scaled) is int and 0 <= scaled <= wanted.chains, f"{scaled!r} rows scaled")
    _require(
        samples.ndim == 2 and samples.shape[0] == wanted.chains and samples.shape[1] > 0,
        f"samples of shape {samples.shape} for {wanted.chains} chains",
    )
    diagnostics = _read(Diagnostics, facts["diagnostics"], "diagnostics")
    _require(0.0 <= diagnostics.acceptance <= 1.0, f"acceptance {diagnostics.acceptance}")
    _require(diagnostics.r_hat > 0.0 and diagnostics.effective_samples > 0.0, "diagnostics below 0")
    features = torch.from_numpy(np.ascontiguousarray(samples))
    longest = float(row_norms(features).max())
    _require(longest <= origin.max_norm * (1.0 + 1e-12), f"a sample of norm {longest}, above {origin.max_norm}")
    if origin.bias:
        features = torch.cat([features, torch.ones(len(features), 1, dtype=torch.float64)], dim=1)
    rows = Rows(features, torch.zeros(len(features), dtype=torch.int64), n_scaled=scaled)
    return SampledSource(rows, samples.shape[1], diagnostics, words, step, wanted.steps)


def _require_possible(kl: KullbackLeiblerEstimate) -> None:
    part, marginal = kl.conditional, kl.marginal
    _require(part.standard_error >= 0.0 and part.folds >= 2 and part.n_rows >= 2 * part.folds, "a conditional part")
    counts = (marginal.epochs, marginal.n_nu, marginal.n_rho)
    _require(min(counts) >= 1 and min(marginal.best_epoch, marginal.left_out) >= 0, f"counts {counts} of the marginal")
    _require(
        marginal.standard_error >= 0.0
        and 0.0 <= marginal.ceiling < math.inf
        and marginal.value == min(max(0.0, marginal.raw), marginal.ceiling),
        f"a marginal part of value {marginal.value}, raw {marginal.raw}, ceiling {marginal.ceiling}",
    )


def _require(holds: bool, said: str) -> None:
    if not holds:
        raise _NotAnEstimateError(said)


def _real(value: Any) -> float:
    if value is None:
        return math.inf
    if type(value) not in (int, float):
        raise TypeError
    return float(value)


def _exactly(kind: type) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if type(value) is not kind:
            raise TypeError
        return value

    return check


def _or_none(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


READERS: dict[Any, Callable[[Any], Any]] = {
    float: _real,
    int: _exactly(int),
    bool: _exactly(bool),
    str: _exactly(str),
    float | None: _or_none(_real),
    str | None: _or_none(_exactly(str)),
}


def _read(kind: type[Value], content: Any, name: str, arrays: dict[str, Array | None] | None = None) -> Value:
    """A dataclass from a JSON object that has its fields, each of its type, and nothing else."""
    arrays = arrays or {}
    types = {field: hint for field, hint in get_type_hints(kind).items() if field not in arrays}
    if not isinstance(content, dict) or set(content) != set(types):
        raise _NotAnEstimateError(f"{name} with keys too many or too few")
    values: dict[str, Any] = dict(arrays)
    for field, hint in types.items():
        try:
            values[field] = READERS[hint](content[field])
        except (TypeError, OverflowError) as error:
            raise _NotAnEstimateError(f"{name}: {field} {content[field]!r}"[:200]) from error
    return kind(**values)
