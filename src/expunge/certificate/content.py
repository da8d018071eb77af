"""The dossier: what is claimed, every number behind it, and how to check it from the file alone. PRIVATE: it tells who
left. What may be handed out is made from it (statement.py). Before schema 3 it was the certificate, and was handed out.

The layout is documented in docs/certificate.md. Everything derived (terms, Delta, sigma, delta at sigma, status, the
sentences under `assumptions` and `limits`) is computed by `derive` from the facts; `verify.py` calls the same
function on the facts it reads from a file and compares.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from expunge.certificate.derive import Derived, bound_named
from expunge.certificate.facts import SCHEMAS, Claim, Json, PublicNote
from expunge.certificate.limits import FORM
from expunge.errors import FileError
from expunge.runtime.memory import require_fits
from expunge.runtime.paths import readable
from expunge.runtime.strict_json import read_json

SIZE_LIMIT = 10_000_000


@dataclass(frozen=True)
class Certificate:
    """A dossier's content, as it stands in the file; or that of a certificate of an earlier schema."""

    content: Json

    def __repr__(self) -> str:
        """What a notebook or a log may keep: no nonce, and no number that tells who left."""
        return f"Certificate({self.content.get('schema')}, {self.content.get('status')}; private)"

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

    @property
    def model_sha256(self) -> str:
        """Of the published model's file."""
        return str(self.content["model"]["after"]["sha256"])

    @property
    def total(self) -> float:
        """Delta: the bound on the distance to the retrained weights."""
        return float(self.content["bound"]["total"])

    @property
    def terms(self) -> dict[str, float]:
        return dict(self.content["bound"]["terms"])

    def to_json(self) -> str:
        return json.dumps(self.content, indent=2, allow_nan=False) + "\n"


def digest_of(content: Json) -> str:
    """SHA-256 of the content without its own digest, as JSON with sorted keys and no spaces."""
    bare = {key: value for key, value in content.items() if key != "digest"}
    return hashlib.sha256(json.dumps(bare, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()).hexdigest()


def build(
    claim: Claim,
    derived: Derived,
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
    content: Json = {
        "schema": claim.schema,
        "status": derived.status,
        "epsilon": claim.epsilon,
        "delta": claim.delta,
        "sigma": derived.sigma,
        "guarantee": derived.guarantee,
        "assumptions": list(derived.assumptions),
        "limits": list(derived.limits),
        "notes": [str(note) for note in notes],
        "public_notes": [str(note) for note in notes if isinstance(note, PublicNote)],
        "bound": {
            "kind": claim.bound,
            "total": derived.region.radius,
            "terms": dict(derived.region.terms),
            "inputs": {name: asdict(fact) for name, fact in claim.facts.items()},
        },
        "distance": asdict(claim.distance) | {"meaning": claim.distance.meaning},
        "noise": _noise(claim, derived),
        "sizes": sizes,
        "model": model,
        "step": step,
        "data": data,
        "software": software,
        "created": created,
        "nonce": nonce,
    }
    if bound_named(claim.bound).provable:
        content["bound"]["form"] = FORM
        if bound_named(claim.bound).kept:
            content["bound"]["convention"] = claim.convention
    else:
        content["bound"] |= {"convention": claim.convention, "tuned": claim.tuned}
    if estimate is not None:
        content["estimate"] = estimate
    content["digest"] = digest_of(content)
    return Certificate(content)


def _noise(claim: Claim, derived: Derived) -> Json:
    assert derived.noise is not None
    return {
        "calibration": bound_named(claim.bound).calibration,
        "averaged": claim.averaged,
        "mu": derived.mu,
        "delta_for_noise": derived.delta_for_noise,
        "failures": dict(claim.failures),
        "delta_at_sigma": derived.delta_at_sigma,
        "grid_exponent": derived.noise.grid_exponent,
        "generator": claim.generator,
        "choice": claim.scale.kind,
        "rehearsed_rows": claim.scale.rows,
        "required": derived.required,
    }


def read_certificate(path: str | Path) -> Certificate:
    """Read a certificate file; refuses what is not one."""
    return parse_certificate(bytes_of_at_most(SIZE_LIMIT, path, "a certificate"), str(Path(path)))


def bytes_of_at_most(limit: int, path: str | Path, what: str) -> bytes:
    """A file's bytes; refuses one that is too large to be what it should be, before it is read."""
    location = readable(Path(path))
    size = location.stat().st_size
    require_at_most(limit, size, location, what)
    require_fits(size, location, "the certificate")
    return location.read_bytes()


def require_at_most(limit: int, size: int, location: Path, what: str) -> None:
    """Refuse a file that is too large to be what it should be."""
    if size > limit:
        raise FileError(f"{location} has {size:,} bytes", f"{what} has at most {limit:,}", "Check the path.")


def parse_certificate(content: bytes, name: str) -> Certificate:
    """A certificate from the bytes of its file."""
    loaded = loaded_json(content, name)
    schema = loaded.get("schema") if isinstance(loaded, dict) else None
    if schema not in SCHEMAS:
        statement = str(schema).startswith("expunge/statement/")
        raise FileError(
            f"{name} has schema {schema!r}",
            f"this version verifies {' and '.join(SCHEMAS)}",
            "A statement is given first; the dossier is private/dossier.json, which was written with it."
            if statement
            else "Use the version of Expunge that wrote it, or a later one.",
        )
    return Certificate(loaded)


def loaded_json(content: bytes, name: str) -> Any:
    """JSON without repeated keys and without NaN."""
    try:
        return read_json(content)
    except (ValueError, RecursionError) as error:
        model = name.endswith((".safetensors", ".deposit"))
        raise FileError(
            f"{name} is not a certificate" + (" but a model or a deposit" if model else f" ({error})"),
            "JSON is needed",
            "Give statement.json as it was written, and the model with --model."
            if model
            else "Use the file as it was written.",
        ) from error
