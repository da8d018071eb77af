"""Signed statements: Ed25519 over a DSSE envelope whose payload is an in-toto statement.

    envelope   {"payload": base64, "payloadType": type, "signatures": [{"keyid", "sig"}]}
    signed     PAE(type, payload) = "DSSEv1" SP len(type) SP type SP len(payload) SP payload
    payload    an in-toto statement v1: its subject is the published model's SHA-256, its predicate ours (statement.py)

The signature is checked before the payload is parsed, on bytes that include the payload's type and length. A file must
be, byte for byte, what `seal` writes: JSON and base64 have many spellings of one value, and none but ours is accepted.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from expunge.certificate.claim import Json
from expunge.certificate.dossier import Certificate
from expunge.certificate.rules import Check
from expunge.certificate.statement import SIZE_LIMIT, Statement, bytes_of_at_most, parse_document, require_kind
from expunge.certificate.verify import UNSIGNED, Verdict, verify, verify_statement
from expunge.errors import FileError, VerificationFailed
from expunge.runtime.strict_json import read_json

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
PREDICATE_TYPE = "https://expunge.invalid/statement/3"  # a name, not a place: nothing is fetched
KEY_LIMIT = 10_000
ENVELOPE_LIMIT = 2 * SIZE_LIMIT
OTHERS = stat.S_IRWXG | stat.S_IRWXO
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError, InvalidSignature)
MISTAKEN = (".safetensors", ".deposit")  # another file of the same result, given by mistake


@dataclass(frozen=True)
class KeyPair:
    """A key pair, as the bytes of its two PEM files."""

    private: bytes = field(repr=False)
    public: bytes
    keyid: str


def generate_keys() -> KeyPair:
    """A fresh Ed25519 key pair from the operating system's generator."""
    return keys_of(Ed25519PrivateKey.generate())


def keys_of(key: Ed25519PrivateKey) -> KeyPair:
    """The pair that a private key belongs to."""
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return KeyPair(private, public, keyid_of(key.public_key()))


def keyid_of(key: Ed25519PublicKey) -> str:
    """SHA-256 of the public key's 32 bytes: a name for it, never trusted as one."""
    return hashlib.sha256(key.public_bytes(Encoding.Raw, PublicFormat.Raw)).hexdigest()


def read_private_key(path: str | Path) -> Ed25519PrivateKey:
    """An Ed25519 private key from a PEM file that nobody but its owner can read."""
    load = partial(load_pem_private_key, password=None)
    key: Ed25519PrivateKey = _read_key(path, "private", load, Ed25519PrivateKey)
    if (mode := stat.S_IMODE(Path(path).stat().st_mode)) & OTHERS:
        raise FileError(
            f"{path} has mode {mode:04o}", "a private key must be readable by its owner alone", "Run chmod 600 on it."
        )
    return key


def read_public_key(path: str | Path) -> Ed25519PublicKey:
    """An Ed25519 public key from a PEM file."""
    key: Ed25519PublicKey = _read_key(path, "public", load_pem_public_key, Ed25519PublicKey)
    return key


def _read_key(path: str | Path, half: str, load: Callable[[bytes], Any], kind: Any) -> Any:
    content = bytes_of_at_most(KEY_LIMIT, path, "a key")
    with contextlib.suppress(ValueError, TypeError, UnsupportedAlgorithm):
        if isinstance(key := load(content), kind):
            return key
    raise FileError(
        f"{path} is not an Ed25519 {half} key",
        f"the {half} key of a pair is needed, in a PEM file",
        "expunge keygen makes a pair: the public key is the file with .pub appended, the private key the one without.",
    )


def pae(payload_type: str, payload: bytes) -> bytes:
    """The bytes that are signed: DSSE's pre-authentication encoding.

    >>> pae("http://example.com/HelloWorld", b"hello world")
    b'DSSEv1 29 http://example.com/HelloWorld 11 hello world'
    """
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def in_toto(document: Statement) -> Json:
    """An in-toto statement about the published model."""
    subject = {"name": "model.safetensors", "digest": {"sha256": document.model_sha256}}
    return {
        "_type": STATEMENT_TYPE,
        "subject": [subject],
        "predicateType": PREDICATE_TYPE,
        "predicate": document.content,
    }


def seal(document: Statement, key: Ed25519PrivateKey) -> bytes:
    """The signed statement's file."""
    payload = json.dumps(in_toto(document), allow_nan=False).encode()
    signature = key.sign(pae(PAYLOAD_TYPE, payload))
    return _envelope(payload, keyid_of(key.public_key()), signature)


def _envelope(payload: bytes, keyid: str, signature: bytes) -> bytes:
    content = {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": PAYLOAD_TYPE,
        "signatures": [{"keyid": keyid, "sig": base64.b64encode(signature).decode()}],
    }
    return json.dumps(content, indent=1).encode() + b"\n"


def open_envelope(content: bytes, key: Ed25519PublicKey, name: str) -> Statement:
    """What is inside, if this key signed these very bytes; the payload is parsed only after that."""
    try:
        outer: Any = read_json(content)
        (signature_entry,) = outer["signatures"]
        payload = base64.b64decode(outer["payload"], validate=True)
        signature = base64.b64decode(signature_entry["sig"], validate=True)
        if content != _envelope(payload, keyid_of(key), signature):
            raise ValueError("it is not, byte for byte, a statement signed by this key")
        key.verify(signature, pae(PAYLOAD_TYPE, payload))
        signed: Any = read_json(payload)
        document = parse_document(json.dumps(signed["predicate"]).encode(), name)
        if not isinstance(document, Statement) or signed != in_toto(document):
            raise ValueError("what was signed is not a statement about the model that is its subject")
    except UNREADABLE as error:
        reason = "the signature does not fit" if isinstance(error, InvalidSignature) else str(error)
        raise VerificationFailed(
            f"{name}: {reason or type(error).__name__}",
            "a statement about a model, signed by the key given, is needed",
            "Check that the key is the issuer's and that the file is the signed one; else do not rely on it.",
        ) from error
    return document


def verify_file(
    path: str | Path,
    public_key: str | Path | None = None,
    model: str | Path | None = None,
    dossier: str | Path | None = None,
    *,
    require_signature: bool = False,
) -> tuple[Statement | Certificate, Verdict]:
    """A statement's file and the verdict on it: with a key the signature first; raises if anything differs.

    With `require_signature` what nobody has signed fails too. A dossier is checked by itself.
    """
    content = bytes_of_at_most(ENVELOPE_LIMIT, path, "a signed statement")
    signed, keyid = b'"payloadType"' in content and b'"schema"' not in content[:2000], None
    if signed and public_key is None:
        raise FileError(
            f"{path} is signed",
            "the issuer's public key is needed to check it",
            "Give it with --public-key, or check the unsigned statement.json beside it.",
        )
    if public_key is not None and signed:
        key = read_public_key(public_key)
        document: Statement | Certificate = open_envelope(content, key, str(path))
        keyid = keyid_of(key)
    elif public_key is not None or require_signature:
        raise VerificationFailed(
            f"{path}: {UNSIGNED}",
            "a statement signed by its issuer was asked for",
            "Give the signed one (statement.signed.json), with the issuer's public key; else do not rely on it.",
        )
    else:
        document = _parse(content, path)
    if isinstance(document, Statement):
        verdict = verify_statement(document, model, None if dossier is None else read_dossier(dossier))
    elif dossier is not None:
        require_kind(Statement, document, path)
    else:
        verdict = verify(document, model)
    of_signature = [] if keyid is None else [Check("signature", keyid, keyid)]
    return document, Verdict([*of_signature, *verdict], verdict.status, keyid)


def read_dossier(path: str | Path) -> Certificate:
    """A dossier that is to be checked: a damaged one fails the check."""
    document = _parse(bytes_of_at_most(SIZE_LIMIT, path, "a dossier"), path)
    return require_kind(Certificate, document, path)


def _parse(content: bytes, path: str | Path) -> Statement | Certificate:
    """What is in a file that was read; what is damaged fails the check, and another file was given by mistake."""
    try:
        return parse_document(content, str(path))
    except FileError as error:
        if Path(path).suffix in MISTAKEN:
            raise
        raise VerificationFailed(error.found, error.required, error.remedy) from error
