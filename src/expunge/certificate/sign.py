"""Signed statements: Ed25519 over a DSSE envelope whose payload is an in-toto statement.

    envelope   {"payload": base64, "payloadType": type, "signatures": [{"keyid", "sig"}]}
    signed     PAE(type, payload) = "DSSEv1" SP len(type) SP type SP len(payload) SP payload
    payload    an in-toto statement v1: its subject is the published model's SHA-256, its predicate ours (statement.py)

The signature is checked before the payload is parsed, on bytes that include the payload's type and length. A file must
be, byte for byte, what `seal` writes: JSON and base64 have many spellings of one value, and none but ours is accepted.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import json
import stat
from dataclasses import dataclass, field
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
from expunge.certificate.dossier import SIZE_LIMIT, Certificate, bytes_of_at_most
from expunge.certificate.rules import Check
from expunge.certificate.statement import Statement, parse_document
from expunge.certificate.verify import UNSIGNED, Verdict, verify, verify_statement
from expunge.errors import FileError, VerificationFailed
from expunge.runtime.files import readable
from expunge.runtime.strict_json import read_json

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
PREDICATE_TYPE = "https://expunge.invalid/statement/3"  # a name, not a place: nothing is fetched
KEY_LIMIT = 10_000
ENVELOPE_LIMIT = 2 * SIZE_LIMIT
OTHERS = stat.S_IRWXG | stat.S_IRWXO
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
    location, content = _key_bytes(path, "private")
    mode = stat.S_IMODE(location.stat().st_mode)
    if b"-----BEGIN " in content and mode & OTHERS:
        raise FileError(
            f"{location} has mode {mode:04o}",
            "a private key must be readable by its owner alone",
            "Run chmod 600 on it.",
        )
    with contextlib.suppress(ValueError, TypeError, UnsupportedAlgorithm):
        if isinstance(key := load_pem_private_key(content, password=None), Ed25519PrivateKey):
            return key
    raise _no_key(location, "private")


def read_public_key(path: str | Path) -> Ed25519PublicKey:
    """An Ed25519 public key from a PEM file."""
    location, content = _key_bytes(path, "public")
    with contextlib.suppress(ValueError, TypeError, UnsupportedAlgorithm):
        if isinstance(key := load_pem_public_key(content), Ed25519PublicKey):
            return key
    raise _no_key(location, "public")


def _no_key(path: Path, kind: str) -> FileError:
    return FileError(f"{path} is not an Ed25519 {kind} key", "a PEM file is needed", "Make one with expunge keygen.")


def _key_bytes(path: str | Path, kind: str) -> tuple[Path, bytes]:
    """A key's file; the other half of a pair is refused by its first line, before anything is asked of the mode."""
    location = readable(Path(path))
    content, other = bytes_of_at_most(KEY_LIMIT, location, "a key"), "public" if kind == "private" else "private"
    if f"-----BEGIN {other.upper()} KEY-----".encode() in content:
        shared = "keep it to yourself" if other == "private" else "it may be handed out"
        name = "the file with .pub appended" if kind == "public" else "the file without .pub"
        raise FileError(
            f"{location} is a {other} key ({shared})", f"the {kind} key of the pair is needed", f"Give {name}."
        )
    return location, content


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


def is_envelope(content: bytes) -> bool:
    """Whether the file looks like a signed one; decides only which message an unfit one gets."""
    return b'"payloadType"' in content[:ENVELOPE_LIMIT] and b'"schema"' not in content[:2000]


def open_envelope(content: bytes, key: Ed25519PublicKey, name: str) -> Statement:
    """What is inside, if this key signed these very bytes; the payload is parsed only after that."""
    payload = _verified_payload(content, key, name)
    try:
        signed = read_json(payload)
        if signed["_type"] != STATEMENT_TYPE:
            raise ValueError(f"{signed['_type']!r}")
        document = parse_document(json.dumps(signed["predicate"]).encode(), name)
        if not isinstance(document, Statement) or signed != in_toto(document):
            raise ValueError("its type is another, or its subject is not the model it speaks of")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise VerificationFailed(
            f"{name}: what was signed is not a statement about a model ({error})",
            "an in-toto statement whose subject is the model it speaks of is needed",
            "Do not rely on it.",
        ) from error
    return document


def _verified_payload(content: bytes, key: Ed25519PublicKey, name: str) -> bytes:
    try:
        outer: Any = read_json(content)
        (signature_entry,) = outer["signatures"]
        payload = base64.b64decode(outer["payload"], validate=True)
        signature = base64.b64decode(signature_entry["sig"], validate=True)
        if content != _envelope(payload, keyid_of(key), signature):
            raise ValueError("it is not, byte for byte, a statement signed by this key")
        key.verify(signature, pae(PAYLOAD_TYPE, payload))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, binascii.Error, InvalidSignature) as error:
        reason = "the signature does not fit" if isinstance(error, InvalidSignature) else str(error)
        raise VerificationFailed(
            f"{name}: {reason or type(error).__name__}",
            "an envelope signed by the key given is needed",
            "Check that the key is the issuer's and that the file is the signed one; else do not rely on it.",
        ) from error
    return payload


@dataclass(frozen=True)
class StatementFile:
    """What was in a statement's file, and the key that signed it, where that was checked."""

    document: Statement | Certificate
    signed_by: str | None = None


def open_file(
    path: str | Path, public_key: str | Path | None = None, *, require_signature: bool = False
) -> StatementFile:
    """A statement's file, read once: with a key the signature is checked before anything is parsed."""
    content = bytes_of_at_most(ENVELOPE_LIMIT, path, "a signed statement")
    signed = is_envelope(content)
    if not signed and (require_signature or public_key is not None):
        raise VerificationFailed(
            f"{path}: {UNSIGNED}",
            "a statement signed by its issuer was asked for",
            "Give the signed one (statement.signed.json), with the issuer's public key; else do not rely on it.",
        )
    if public_key is not None:
        key = read_public_key(public_key)
        return StatementFile(open_envelope(content, key, str(path)), keyid_of(key))
    if signed:
        raise FileError(
            f"{path} is signed",
            "the issuer's public key is needed to check it",
            "Give it with --public-key, or check the unsigned statement.json beside it.",
        )
    return StatementFile(_parse(content, Path(path)))


def _parse(content: bytes, path: Path) -> Statement | Certificate:
    """What is in a file that was read; what is damaged fails the check, and another file was given by mistake."""
    try:
        return parse_document(content, str(path))
    except FileError as error:
        if path.suffix in MISTAKEN:
            raise
        raise VerificationFailed(error.found, error.required, error.remedy) from error


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
    opened = open_file(path, public_key, require_signature=require_signature)
    return opened.document, verify_opened(opened, path, model, dossier)


def verify_opened(
    opened: StatementFile, path: str | Path, model: str | Path | None = None, dossier: str | Path | None = None
) -> Verdict:
    """The verdict on a file that is open; `path` is what it is called in messages."""
    document, by = opened.document, opened.signed_by
    if isinstance(document, Statement):
        verdict = verify_statement(document, model, None if dossier is None else read_dossier(dossier))
    elif dossier is not None:
        schema = document.content["schema"]
        raise FileError(f"{path} has schema {schema!r}", "a dossier goes with a statement", "Check the paths.")
    else:
        verdict = verify(document, model)
    return Verdict([*([] if by is None else [Check("signature", by, by)]), *verdict], verdict.status, by)


def read_dossier(path: str | Path) -> Certificate:
    """A dossier that is to be checked: a damaged one fails the check."""
    document = _parse(bytes_of_at_most(SIZE_LIMIT, path, "a dossier"), Path(path))
    if isinstance(document, Statement):
        raise FileError(
            f"{path} is a statement",
            "a dossier is needed",
            "A statement is given first; the dossier is private/dossier.json, which was written with it.",
        )
    return document
