"""How a forger works who has the code: facts are changed, and everything that follows from them is made anew."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from expunge.certificate.derive import derive
from expunge.certificate.dossier import Certificate, digest_of, read_claim
from expunge.errors import ExpungeError
from expunge.model import LinearModel, read_model
from expunge.record import one_digit

GONE = object()  # a key to be taken out
Json = dict[str, Any]


def changed(content: Json, changes: Mapping[str, Any]) -> Json:
    """Values at dotted paths replaced; a name without a dot that is a fact's stands for its value."""
    made = copy.deepcopy(content)
    for path, value in changes.items():
        keys = path.split(".")
        if len(keys) == 1 and path in made["bound"]["inputs"]:
            keys = ["bound", "inputs", path, "value"]
        place = made
        for key in keys[:-1]:
            place = place.setdefault(key, {})
        if value is GONE:
            del place[keys[-1]]
        else:
            place[keys[-1]] = value
    return made


def redone(content: Json) -> Certificate:
    """With sizes, terms, noise, status, sentences and digest as they follow; what cannot be derived stays as it was."""
    content = copy.deepcopy(content)
    inputs = content["bound"]["inputs"]
    sizes = {name: inputs[name]["value"] for name in ("n_source", "n_forget", "n_surrogate") if name in inputs}
    content["sizes"] |= sizes | {"n_retain": sizes["n_source"] - sizes["n_forget"]}
    try:
        claim = read_claim(content)
        found = derive(claim)
        assert found.noise is not None
    except (ExpungeError, ValueError, KeyError, TypeError, ArithmeticError, AssertionError):
        return Certificate(content | {"digest": digest_of(content)})
    content |= {
        "sigma": found.sigma,
        "status": found.status,
        "guarantee": found.guarantee,
        "assumptions": list(found.assumptions),
        "limits": list(found.limits),
    }
    content["distance"]["meaning"] = claim.distance.meaning
    content["bound"] |= {"terms": dict(found.region.terms), "total": found.region.radius}
    content["noise"] |= {
        "mu": found.mu,
        "delta_for_noise": found.delta_for_noise,
        "delta_at_sigma": found.delta_at_sigma,
        "grid_exponent": found.noise.grid_exponent,
        "required": found.required,
    }
    if "published" in (model := content["model"]):
        rows = one_digit(max(1, int(content["sizes"]["n_retain"])))
        model["published"] |= {"n_source": rows, "l2": model["l2"], "max_norm": model["max_norm"]}
        if "fixed_c" in model:
            model["published"]["l2"] = 1.0 / (model["fixed_c"] * rows)
    return Certificate(content | {"digest": digest_of(content)})


def forged(content: Json, changes: Mapping[str, Any]) -> Certificate:
    return redone(changed(content, changes))


def read_bytes(content: bytes, folder: Path) -> LinearModel:
    file = folder / "read.safetensors"
    file.write_bytes(content)
    return read_model(file)[0]


def with_record(model: LinearModel, **facts: Any) -> LinearModel:
    """The model with other facts in its record, which is bound to its weights anew."""
    assert model.record is not None
    return model.with_record(replace(model.record, **facts))


def with_weights(model: LinearModel, weight: Any) -> LinearModel:
    """Other weights under the same record, bound to them anew."""
    assert model.record is not None
    return LinearModel(weight, model.bias).with_record(model.record)


def naming(content: Json, model: LinearModel) -> Certificate:
    """A certificate that names this model as the published one."""
    return redone(changed(content, {"model.after.sha256": model.sha256()}))
