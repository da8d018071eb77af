"""The statement: what may be handed out with a published model.

Everything in it is made of the retained rows, coarsely, and of public numbers; it would be the same whoever had left,
but for the size of the noise where the request chose it (docs/what-is-handed-out.md). It is made from the dossier,
which tells who left and stays private, and names it by a digest that has the dossier's secret nonce in it, so that
nobody can try out dossiers. The layout is documented in docs/certificate.md.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from expunge.bounds.calibration import LADDER, LEVELS, count_levels, mu_for
from expunge.bounds.ellipsoid import EXACT_SHARE
from expunge.certificate.claim import SCHEMA, STATEMENT_SCHEMA, Fact, Json, ellipsoid_of
from expunge.certificate.derive import bound_named, sentences
from expunge.certificate.dossier import Certificate, Document, digest_of, read_claim
from expunge.errors import FileError
from expunge.runtime.files import readable
from expunge.runtime.memory import require_fits
from expunge.runtime.strict_json import read_json

SIZE_LIMIT = 10_000_000
SIZES = ("parameters", "classes", "features")
PUBLISHED = ("l2", "max_norm", "n_source")  # as the record of the published model has them
MODEL = (  # what is said of a model as the dossier says it, where it does
    *("loss", "bias", "dtype", "record", "encoder", "encoder_trained_on_source"),
    *("preparation", "free_bias", "fixed_c"),
)
NOISE = (  # as in the dossier
    *("calibration", "averaged", "delta_for_noise", "failures", "grid_exponent", "generator"),
    *("choice", "rehearsed_rows"),
)
SERIES = ("planned", "position", "ledger_head")
DAY = len("2026-01-31")
Part = TypeVar("Part", bound=Document)


@dataclass(frozen=True)
class Statement(Document):
    """A statement: the public part of a certificate."""

    @property
    def mu(self) -> float:
        """The largest mu that (epsilon, delta) allows; what was achieved is in the dossier."""
        return float(self.content["mu"])

    @property
    def model_sha256(self) -> str:
        """Digest of the published model's file."""
        return str(self.content["model"]["sha256"])


def statement_of(dossier: Certificate) -> Statement:
    """The public part of a dossier."""
    private = dossier.content
    bound, noise, model, nonce = (private[name] for name in ("bound", "noise", "model", "nonce"))
    declared = sorted(name for name, fact in bound["inputs"].items() if fact["provenance"] == "declared")
    estimated = private["distance"]["provenance"] == "estimated"  # for the update, which depends on who left
    published = model.get("published", {"l2": model["l2"]})
    exact = {}
    if bound_named(bound["kind"]).shape is not None:  # of noise with a shape its exact part, made of no row that left
        facts = {name: Fact(fact["value"], fact["provenance"]) for name, fact in bound["inputs"].items()}
        shape = ellipsoid_of(facts, private["sizes"]["parameters"])
        exact["smallest"] = shape.smallest(private["sigma"])
    content: Json = {
        "schema": STATEMENT_SCHEMA,
        "status": private["status"],
        "epsilon": private["epsilon"],
        "delta": private["delta"],
        "mu": mu_for(private["epsilon"], noise["delta_for_noise"]),
        "sigma": private["sigma"],
        "guarantee": "",
        "assumptions": [],
        "limits": [],
        "notes": list(private["public_notes"]),
        "bound": {
            "kind": bound["kind"],
            "declared": declared,
            **({} if bound_named(bound["kind"]).provable else {"tuned": bound["tuned"]}),
            **({"curvature": bound["inputs"]["curvature"]["value"]} if "curvature" in declared else {}),
        },
        "distance": private["distance"] | ({"value": None} if estimated else {}),
        "noise": {
            **{name: noise[name] for name in NOISE},
            "failures": dict(noise["failures"]),
            "rungs": rungs_of(private, noise["choice"], exact.get("smallest")),
            **exact,
        },
        "sizes": {name: private["sizes"][name] for name in SIZES},
        "model": {
            "sha256": model["after"]["sha256"],
            "before": key_digest(nonce, "model before", model["before"]["sha256"]),
            **{name: model[name] for name in MODEL if name in model},
            **{name: published[name] for name in PUBLISHED if name in published},
            **({"weighted": True} if "class_weights" in model else {}),
        },
        "dossier": private["digest"],
        "software": dict(private["software"]),
        "created": str(private["created"])[:DAY],
    }
    if "sequence" in private["data"]:
        place = private["data"]["sequence"]
        head = place["ledger_head"]
        told = None if head is None else committed_head(head_key(nonce), head)
        content["series"] = {name: place[name] for name in SERIES} | {"ledger_head": told}
    guarantee, assumptions, limits = sentences(read_claim(content, public=True), content["sigma"])
    content |= {"guarantee": guarantee, "assumptions": list(assumptions), "limits": list(limits)}
    return Statement(content | {"digest": digest_of(content)})


def key_digest(nonce: str, purpose: str, digest: str) -> str:
    """HMAC-SHA-256 of a digest under the dossier's nonce: without that, nobody can test a guess."""
    return hmac.new(bytes.fromhex(nonce), f"{purpose}\x00{digest}".encode(), hashlib.sha256).hexdigest()


def head_key(nonce: str) -> str:
    """The key of what is said of a ledger's head: a desk's ledger has it, and so not the dossier's nonce."""
    return key_digest(nonce, "ledger head key", "")


def committed_head(key: str, head: Json) -> str:
    """A head of a ledger as it is handed out: how many entries it has would say how many people asked."""
    return key_digest(key, "ledger head before", f"{head['size']} {head['hash']}")


def rungs_of(content: Json, choice: str, smallest: float | None = None) -> int | None:
    """How many noise levels there were to choose from (`noise.rungs`), by public numbers; None where none was.

    `smallest` is the deviation of the exact part of noise with a shape.
    """
    sizes = content["sizes"]
    if choice == LEVELS:
        return int(content["noise"]["rehearsed_rows"])
    if choice != LADDER:
        return None
    unit = 1.0 if smallest is None else smallest / math.sqrt(EXACT_SHARE) / content["sigma"]
    return count_levels(content["model"]["l2"], sizes["classes"], sizes["parameters"], content["sigma"], unit)


# Reading a file of either part.


def read_document(path: str | Path) -> Statement | Certificate:
    """A statement or a dossier from its file."""
    return parse_document(bytes_of_at_most(SIZE_LIMIT, path, "a certificate"), str(path))


def read_statement(path: str | Path) -> Statement:
    """A statement from its file; refuses what is not one."""
    return require_kind(Statement, read_document(path), path)


def read_certificate(path: str | Path) -> Certificate:
    """A dossier from its file; refuses what is not one."""
    return require_kind(Certificate, read_document(path), path)


def require_kind(kind: type[Part], document: Statement | Certificate, path: str | Path) -> Part:
    """The document, if it is of this kind; refuses the other one."""
    if isinstance(document, kind):
        return document
    raise FileError(
        f"{path} has schema {document.content['schema']!r}",
        f"{STATEMENT_SCHEMA if kind is Statement else SCHEMA} is needed",
        "The statement is statement.json; the dossier is private/dossier.json, which was written with it.",
    )


def parse_document(content: bytes, name: str) -> Statement | Certificate:
    """A statement or a dossier from the bytes of its file: JSON without repeated keys and without NaN."""
    try:
        loaded = read_json(content)
    except (ValueError, RecursionError) as error:
        raise FileError(
            f"{name} is not a certificate ({error})",
            "JSON is needed",
            "Give statement.json as it was written, and the model with --model.",
        ) from error
    schema = loaded.get("schema") if isinstance(loaded, dict) else None
    if schema == STATEMENT_SCHEMA:
        return Statement(loaded)
    if schema == SCHEMA:
        return Certificate(loaded)
    raise FileError(
        f"{name} has schema {schema!r}",
        f"this version verifies {STATEMENT_SCHEMA} and {SCHEMA}",
        "Use the version of Expunge that wrote it, or a later one.",
    )


def bytes_of_at_most(limit: int, path: str | Path, what: str) -> bytes:
    """A file's bytes; refuses one that is too large to be what it should be, before it is read."""
    location = readable(Path(path))
    size = location.stat().st_size
    if size > limit:
        raise FileError(f"{location} has {size:,} bytes", f"{what} has at most {limit:,}", "Check the path.")
    require_fits(size, location, "the certificate")
    return location.read_bytes()
