"""The dossier: what is claimed, every number behind it, and how to check it from the file alone. PRIVATE: it tells who
left. What may be handed out is made from it (statement.py).

The layout is documented in docs/certificate.md. Everything derived (terms, Delta, sigma, delta at sigma, status, the
sentences under `assumptions` and `limits`) is computed by `derive` from the facts; `verify.py` calls the same
function on the facts it reads from a file and compares.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

from expunge.bounds.calibration import CHOICES, SET, Scale
from expunge.certificate.claim import (
    FORM,
    SCHEMA,
    WEAKEST_LAST,
    WHOLE,
    Claim,
    Fact,
    Json,
    PublicNote,
    needed_facts,
)
from expunge.certificate.derive import Conclusion, bound_named
from expunge.certificate.wording import ENCODERS
from expunge.distance import Distance
from expunge.record import MOST_ROWS, prepared_by

LARGEST_NUMBER = 1e300


@dataclass(frozen=True)
class Document:
    """The content of a statement or a dossier, as it stands in the file."""

    content: Json

    @property
    def status(self) -> str:
        return str(self.content["status"])

    @property
    def epsilon(self) -> float:
        return float(self.content["epsilon"])

    @property
    def delta(self) -> float:
        return float(self.content["delta"])

    @property
    def sigma(self) -> float:
        return float(self.content["sigma"])

    def to_json(self) -> str:
        return json.dumps(self.content, indent=2, allow_nan=False) + "\n"


@dataclass(frozen=True, repr=False)
class Certificate(Document):
    """A dossier: the private part of a certificate, with every number."""

    def __repr__(self) -> str:
        """What a notebook or a log may keep: no nonce, and no number that tells who left."""
        return f"Certificate({self.content.get('schema')}, {self.content.get('status')}; private)"

    @property
    def model_sha256(self) -> str:
        """Digest of the published model's file."""
        return str(self.content["model"]["after"]["sha256"])

    @property
    def total(self) -> float:
        """Delta: the bound on the distance to the retrained weights."""
        return float(self.content["bound"]["total"])

    @property
    def terms(self) -> dict[str, float]:
        return dict(self.content["bound"]["terms"])


def digest_of(content: Json) -> str:
    """SHA-256 of the content without its own digest, as JSON with sorted keys and no spaces."""
    bare = {key: value for key, value in content.items() if key != "digest"}
    return hashlib.sha256(json.dumps(bare, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()).hexdigest()


def build(
    claim: Claim,
    conclusion: Conclusion,
    *,
    model: Json,
    sizes: Json,
    step: Json,
    data: Json,
    estimate: Json | None,
    notes: tuple[str, ...],
    software: Json,
    created: str,
    nonce: str,
) -> Certificate:
    """Lay out the file; `nonce` is 32 secret random bytes in hexadecimal, the key of the statement's digests."""
    bound, noise = bound_named(claim.bound), conclusion.noise
    assert noise is not None
    route = {"convention": claim.convention} if bound.kept or not bound.provable else {}
    said = {"form": FORM, **route} if bound.provable else {**route, "tuned": claim.tuned}
    content: Json = {
        "schema": SCHEMA,
        "status": conclusion.status,
        "epsilon": claim.epsilon,
        "delta": claim.delta,
        "sigma": conclusion.sigma,
        "guarantee": conclusion.guarantee,
        "assumptions": list(conclusion.assumptions),
        "limits": list(conclusion.limits),
        "notes": [str(note) for note in notes],
        "public_notes": [str(note) for note in notes if isinstance(note, PublicNote)],
        "bound": {
            "kind": claim.bound,
            "total": conclusion.region.radius,
            "terms": dict(conclusion.region.terms),
            "inputs": {name: asdict(fact) for name, fact in claim.facts.items()},
            **said,
        },
        "distance": asdict(claim.distance) | {"meaning": claim.distance.meaning},
        "noise": {
            "calibration": bound.calibration,
            "averaged": claim.averaged,
            "mu": conclusion.mu,
            "delta_for_noise": conclusion.delta_for_noise,
            "failures": dict(claim.failures),
            "delta_at_sigma": conclusion.delta_at_sigma,
            "grid_exponent": noise.grid_exponent,
            "generator": claim.generator,
            "choice": claim.scale.kind,
            "rehearsed_rows": claim.scale.rows,
            "required": conclusion.required,
        },
        "sizes": sizes,
        "model": model,
        "step": step,
        "data": data,
        "software": software,
        "created": created,
        "nonce": nonce,
        **({} if estimate is None else {"estimate": estimate}),
    }
    return Certificate(content | {"digest": digest_of(content)})


# A claim from what a file says: strict about kinds, names and signs; whether numbers fit is for the rules.


def read_claim(content: Json, *, public: bool = False) -> Claim:
    """What a dossier's numbers and sentences follow from, or (`public`) a statement's sentences."""
    bound, noise, model = (content[name] for name in ("bound", "noise", "model"))
    stated = {name: value for name, value in content["distance"].items() if name != "meaning"}
    if public and stated["value"] is None:  # of an estimate, which depends on who left
        stated["value"] = 0.0
    distance = Distance(**stated)
    if public:
        facts = {name: Fact(0.0, "declared") for name in bound["declared"]}
        if "curvature" in facts:
            facts["curvature"] = Fact(number(bound["curvature"]), "declared")
    else:
        facts = {name: _read_fact(name, entry) for name, entry in bound["inputs"].items()}
        odd = sorted(facts.keys() ^ needed_facts(bound["kind"], distance))
        if odd:
            raise KeyError("bound.inputs lacks or adds " + ", ".join(odd))
    choice, preparation = _one_of(noise["choice"], CHOICES), model.get("preparation")
    if noise["rehearsed_rows"] is not None and choice not in SET:
        raise ValueError(f"a scale by {choice} that was rehearsed")
    if "preparation" in model and prepared_by(preparation) is None:
        raise ValueError(f"preparation {preparation!r}")
    return Claim(
        epsilon=number(content["epsilon"]),
        delta=number(content["delta"]),
        bound=bound["kind"],
        facts=facts,
        distance=distance,
        failures={str(name): number(value) for name, value in noise["failures"].items()},
        n_parameters=int(number(content["sizes"]["parameters"])),
        generator=noise["generator"],
        convention=bound.get("convention", "source"),
        tuned=_read_kind(bound.get("tuned", False), bool),
        averaged=_read_kind(noise["averaged"], bool),
        encoder=_one_of(model.get("encoder_trained_on_source", "unknown"), ENCODERS) if "encoder" in model else None,
        preparation=preparation,
        weighted="weighted" in model if public else "class_weights" in model,
        scale=Scale(choice, content["sigma"] if choice in SET else None, noise["rehearsed_rows"]),
        others=0 if public else _read_kind(content["data"].get("sequence", {}).get("another_person", 0), int),
        public=public,
    )


def number(value: Any) -> float:
    """A finite number that is not absurdly large."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= LARGEST_NUMBER:
        raise ValueError(f"{value!r} is not a number of at most {LARGEST_NUMBER:g}")
    return value


def _read_fact(name: str, entry: Json) -> Fact:
    value = number(entry["value"])
    if value < 0.0 or (name in WHOLE and not (type(value) is int and value <= MOST_ROWS)):
        raise ValueError(f"{name} {value!r}")
    return Fact(value, _one_of(entry["provenance"], WEAKEST_LAST))


def _one_of(value: Any, known: Collection[str]) -> str:
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{value!r} is none of {', '.join(known)}")
    return value


def _read_kind(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{value!r} is no {kind.__name__}")
    return value
