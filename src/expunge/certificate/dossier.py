"""The dossier: what is claimed, every number behind it, and how to check it from the file alone. PRIVATE: it tells who
left. What may be handed out is made from it (statement.py). Before schema 3 it was the certificate, and was handed out.

The layout is documented in docs/certificate.md. Everything derived (terms, Delta, sigma, delta at sigma, status, the
sentences under `assumptions` and `limits`) is computed by `derive` from the facts; `verify.py` calls the same
function on the facts it reads from a file and compares.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any

from expunge.bounds import ResidualFacts, RetainedFacts
from expunge.bounds.retained import WEIGHT_FACTS
from expunge.bounds.scale import CHOICES, EXACTLY, SET, Scale
from expunge.certificate.check import LARGEST_NUMBER
from expunge.certificate.claim import (
    BESIDE_FACTS,
    FORM,
    OLD_SCHEMAS,
    OUTPUT_FACTS,
    OWN_FACTS,
    SCHEMAS,
    SHAPE_FACTS,
    WEAKEST_LAST,
    Claim,
    Fact,
    Json,
    PublicNote,
)
from expunge.certificate.derive import Derived, bound_named
from expunge.certificate.wording import ENCODERS
from expunge.distance import Distance
from expunge.errors import FileError
from expunge.record import prepared_by
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


# A claim read from a certificate's content: strict about kinds and names, with no opinion on whether it can be.


PAPER_FACTS = (
    *("n_source", "n_forget", "n_surrogate", "alpha", "beta", "lipschitz", "gamma", "lipschitz_power"),
    *("gradient_norm", "tv_upper"),
)


def claim_of(content: Json) -> Claim:
    """The facts a certificate states."""
    bound, noise, old = content["bound"], content["noise"], content["schema"] in OLD_SCHEMAS
    stated = dict(content["distance"])
    stated.pop("meaning")
    distance = Distance(**stated)
    if content["schema"] == OLD_SCHEMAS[0] and (
        distance.matched or distance.law.first_schema > 1 or "estimate" in content
    ):
        raise ValueError("schema 1 knew neither weighted rows nor estimates")
    facts = {
        name: Fact(number(entry["value"]), _provenance(entry["provenance"])) for name, entry in bound["inputs"].items()
    }
    _require_names(set(facts), bound["kind"], distance, old)
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
        tuned=_yes_or_no(bound.get("tuned", False)),
        averaged=not old and _yes_or_no(noise["averaged"]),
        encoder=encoder_word(content["model"]),
        preparation=preparation_word(content["model"]),
        weighted="class_weights" in content["model"],
        scale=EXACTLY if old else _scale(content),
        others=0 if old else _others(content),
        schema=content["schema"],
    )


def _require_names(given: set[str], bound: object, distance: Distance, old: bool) -> None:
    """Refuse facts that are missing or that the bound does not know."""
    needed = given  # of a bound that is not known, which is said elsewhere
    weights = set(WEIGHT_FACTS) if distance.matched else set()
    if bound == "paper":
        needed = set(PAPER_FACTS)
    if bound == "deposit":
        needed = {*OWN_FACTS, "n_source", "n_forget", "row_bound", *SHAPE_FACTS, *OUTPUT_FACTS}
        needed |= ({*BESIDE_FACTS} | weights) if distance.law.stands_in else set()
    if bound == "residual":
        known = fields(ResidualFacts if old else RetainedFacts)
        needed = {field.name for field in known if field.default is MISSING} | weights
    odd = sorted(given ^ needed)
    if odd:
        raise KeyError("bound.inputs lacks or adds " + ", ".join(odd))


def number(value: Any) -> float:
    """A finite number that is not absurdly large."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= LARGEST_NUMBER:
        raise ValueError(f"{value!r} is not a number of at most {LARGEST_NUMBER:g}")
    return value


def _scale(content: Json) -> Scale:
    """How the noise's scale was chosen; a policy's is the one that was published."""
    choice, rehearsed = content["noise"]["choice"], content["noise"]["rehearsed_rows"]
    if choice not in CHOICES:
        raise ValueError(f"choice {choice!r}")
    if rehearsed is not None and choice not in SET:
        raise ValueError(f"a scale by {choice} that was rehearsed")
    return Scale(choice, content["sigma"] if choice in SET else None, rehearsed)


def _others(content: Json) -> int:
    """Rows that were declared another person's; a whole number where any is stated."""
    stated = content["data"].get("sequence", {}).get("another_person", 0)
    if type(stated) is not int:
        raise ValueError(f"another_person {stated!r}")
    return stated


def encoder_word(model: Json) -> str | None:
    """Whether the encoder was trained on the source, where there is one."""
    said = str(model.get("encoder_trained_on_source", "unknown"))
    if said not in ENCODERS:
        raise ValueError(f"encoder_trained_on_source {said!r}")
    return said if "encoder" in model else None


def preparation_word(model: Json) -> str | None:
    """Where the rows' preparation was learnt, and by which steps, where there was one."""
    said = model.get("preparation")
    if "preparation" in model and prepared_by(said) is None:
        raise ValueError(f"preparation {said!r}")
    return said


def _provenance(value: Any) -> str:
    if not isinstance(value, str) or value not in WEAKEST_LAST:
        raise ValueError(f"provenance {value!r}")
    return value


def _yes_or_no(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is not true or false")
    return value


def is_text(content: Json) -> bool:
    """Whether what a page repeats is text: notes, versions by the name of the software, the time of issue."""
    notes, software = content["notes"], content["software"]
    return (
        isinstance(notes, list)
        and isinstance(software, dict)
        and "expunge" in software
        and all(isinstance(text, str) for text in (*notes, *software.values(), content["created"]))
    )
