"""The statement: what may be handed out with a published model.

Everything in it is made of the retained rows, coarsely, and of public numbers; it would be the same whoever had left,
but for the size of the noise where the request chose it (docs/what-is-handed-out.md). It is made from the dossier
(content.py), which tells who left and stays private, and names it by a digest that has the dossier's secret nonce in
it, so that nobody can try out dossiers. The layout is documented in docs/certificate.md.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from expunge.bounds.calibration import mu_for
from expunge.bounds.scale import LADDER, LEVELS, SET, Scale, count_levels
from expunge.certificate.claim import Claim, Fact, Json, ellipsoid_of
from expunge.certificate.derive import bound_named, sentences
from expunge.certificate.dossier import (
    SIZE_LIMIT,
    Certificate,
    bytes_of_at_most,
    digest_of,
    encoder_word,
    loaded_json,
    parse_certificate,
    preparation_word,
)
from expunge.distance import Distance
from expunge.errors import FileError

STATEMENT_SCHEMA = "expunge/statement/3"
SIZES = ("parameters", "classes", "features")
MODEL = ("loss", "bias", "dtype", "record", "encoder", "encoder_trained_on_source")
PUBLISHED = ("l2", "max_norm", "n_source")  # as the record of the published model has them
PREPARATION = ("preparation",)  # where what made rows of it was learnt
REFERENCE = ("free_bias", "fixed_c", "weighted")  # retraining, where that is not rows alike and l2 on every weight
SERIES = ("planned", "position", "ledger_head")
DAY = len("2026-01-31")


@dataclass(frozen=True)
class Statement:
    """A statement's content, as it stands in the file."""

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

    @property
    def mu(self) -> float:
        """The largest mu that (epsilon, delta) allows; what was achieved is in the dossier."""
        return float(self.content["mu"])

    @property
    def model_sha256(self) -> str:
        """Of the published model's file."""
        return str(self.content["model"]["sha256"])

    def to_json(self) -> str:
        return json.dumps(self.content, indent=2, allow_nan=False) + "\n"


def statement_of(dossier: Certificate) -> Statement:
    """The public part of a dossier."""
    private = dossier.content
    noise, data = private["noise"], private["data"]
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
        "bound": _public_bound(private["bound"]),
        "distance": _public_distance(private["distance"]),
        "noise": {
            "calibration": noise["calibration"],
            "averaged": noise["averaged"],
            "delta_for_noise": noise["delta_for_noise"],
            "failures": dict(noise["failures"]),
            "grid_exponent": noise["grid_exponent"],
            "generator": noise["generator"],
            "choice": noise["choice"],
            "rehearsed_rows": noise["rehearsed_rows"],
            "rungs": rungs_of(private, noise["choice"]),
        },
        "sizes": {name: private["sizes"][name] for name in SIZES},
        "model": {
            "sha256": private["model"]["after"]["sha256"],
            "before": keyed(private["nonce"], "model before", private["model"]["before"]["sha256"]),
            **{name: private["model"][name] for name in (*MODEL, *PREPARATION, *REFERENCE) if name in private["model"]},
            **_published(private["model"]),
        },
        "dossier": private["digest"],
        "software": dict(private["software"]),
        "created": str(private["created"])[:DAY],
    }
    if bound_named(private["bound"]["kind"]).kept:
        content["noise"] |= _shaped(private)
    if "sequence" in data:
        head = data["sequence"]["ledger_head"]
        told = None if head is None else committed_head(head_key(private["nonce"]), head)
        content["series"] = {name: data["sequence"][name] for name in SERIES} | {"ledger_head": told}
    guarantee, assumptions, limits = sentences(public_claim(content), content["sigma"])
    content |= {"guarantee": guarantee, "assumptions": list(assumptions), "limits": list(limits)}
    content["digest"] = digest_of(content)
    return Statement(content)


def _published(model: Json) -> Json:
    """What the published model's record says; that rows count by their class, not by how much."""
    said = {name: model["published"][name] for name in PUBLISHED} if "published" in model else {"l2": model["l2"]}
    return said | ({"weighted": True} if "class_weights" in model else {})


def _shaped(private: Json) -> Json:
    """Of noise with a shape: its exact part, which follows from sigma and a power of four of the retained rows."""
    facts = {name: Fact(fact["value"], fact["provenance"]) for name, fact in private["bound"]["inputs"].items()}
    return {"smallest": ellipsoid_of(facts, private["sizes"]["parameters"]).smallest(private["sigma"])}


def keyed(nonce: str, purpose: str, digest: str) -> str:
    """HMAC-SHA-256 of a digest under the dossier's nonce: without that, nobody can test a guess."""
    return hmac.new(bytes.fromhex(nonce), f"{purpose}\x00{digest}".encode(), hashlib.sha256).hexdigest()


def head_key(nonce: str) -> str:
    """The key of what is said of a ledger's head: a desk's ledger has it, and so not the dossier's nonce."""
    return keyed(nonce, "ledger head key", "")


def committed_head(key: str, head: Json, purpose: str = "ledger head before") -> str:
    """A head of a ledger as it is handed out: how many entries it has would say how many people asked."""
    return keyed(key, purpose, f"{head['size']} {head['hash']}")


def rungs_of(content: Json, choice: str) -> int | None:
    """How many rungs a ladder had, of a dossier's or a statement's public numbers; None where nothing was chosen."""
    sizes = content["sizes"]
    if choice == LEVELS:
        return int(content["noise"]["rehearsed_rows"])
    if choice != LADDER:
        return None
    return count_levels(content["model"]["l2"], sizes["classes"], sizes["parameters"], content["sigma"])


def _public_bound(bound: Json) -> Json:
    declared = sorted(name for name, fact in bound["inputs"].items() if fact["provenance"] == "declared")
    stated: Json = {"kind": bound["kind"], "declared": declared}
    return stated if bound_named(bound["kind"]).provable else stated | {"tuned": bound["tuned"]}


def _public_distance(distance: Json) -> Json:
    """As it was declared; what was estimated was estimated for the update, which depends on who left."""
    estimated = distance["provenance"] == "estimated"
    return {name: None if estimated and name == "value" else value for name, value in distance.items()}


def public_claim(content: Json) -> Claim:
    """What the sentences of a statement follow from, read from the statement itself."""
    bound, noise = content["bound"], content["noise"]
    stated: dict[str, Any] = {name: value for name, value in content["distance"].items() if name != "meaning"}
    value = 0.0 if stated["value"] is None else stated["value"]
    policy = noise["choice"] in SET
    return Claim(
        epsilon=content["epsilon"],
        delta=content["delta"],
        bound=bound["kind"],
        facts={name: Fact(0.0, "declared") for name in bound["declared"]},
        distance=Distance(**stated | {"value": value}),
        failures=noise["failures"],
        n_parameters=content["sizes"]["parameters"],
        generator=noise["generator"],
        tuned=bound.get("tuned", False),
        averaged=noise["averaged"],
        encoder=encoder_word(content["model"]),
        preparation=preparation_word(content["model"]),
        weighted="weighted" in content["model"],
        scale=Scale(noise["choice"], content["sigma"] if policy else None, noise["rehearsed_rows"]),
        public=True,
    )


def read_document(path: str | Path) -> Statement | Certificate:
    """A statement, a dossier, or a certificate of an earlier schema, from its file."""
    return parse_document(bytes_of_at_most(SIZE_LIMIT, path, "a statement"), str(Path(path)))


def read_statement(path: str | Path) -> Statement:
    """A statement from its file; refuses what is not one."""
    document = read_document(path)
    if not isinstance(document, Statement):
        raise FileError(
            f"{path} has schema {document.content['schema']!r}", f"{STATEMENT_SCHEMA} is needed", "Check the path."
        )
    return document


def parse_document(content: bytes, name: str) -> Statement | Certificate:
    """The same from the bytes of the file."""
    loaded = loaded_json(content, name)
    if isinstance(loaded, dict) and loaded.get("schema") == STATEMENT_SCHEMA:
        return Statement(loaded)
    return parse_certificate(content, name)
