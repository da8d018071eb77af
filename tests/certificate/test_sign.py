"""Signed statements: what is accepted is what was signed, bit for bit."""

from __future__ import annotations

import base64
import json
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from expunge.certificate import sign as signing
from expunge.certificate.sign import open_envelope, pae, seal, verify_file
from expunge.certificate.statement import Statement, read_statement
from expunge.cli import main
from expunge.errors import FileError, VerificationFailed

pytestmark = pytest.mark.usefixtures("one_thread")

STORED = Path(__file__).parents[1] / "stored"
STATEMENT, MODEL = STORED / "statement-3-same.json", STORED / "model-3-same.safetensors"


@pytest.fixture(scope="module")
def key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.generate()


@pytest.fixture(scope="module")
def statement() -> Statement:
    return read_statement(STATEMENT)


@pytest.fixture(scope="module")
def envelope(statement: Statement, key: Ed25519PrivateKey) -> bytes:
    return seal(statement, key)


def test_what_is_signed_is_an_in_toto_statement_about_the_model(
    envelope: bytes, statement: Statement, key: Ed25519PrivateKey
) -> None:
    outer = json.loads(envelope)
    payload = base64.b64decode(outer["payload"])
    inner = json.loads(payload)
    assert outer["payloadType"] == "application/vnd.in-toto+json"
    assert inner["_type"] == "https://in-toto.io/Statement/v1"
    assert inner["subject"][0]["digest"]["sha256"] == statement.model_sha256
    assert inner["predicate"] == statement.content
    kind = outer["payloadType"].encode()
    naive = b"DSSEv1 " + str(len(kind)).encode() + b" " + kind + b" " + str(len(payload)).encode() + b" " + payload
    key.public_key().verify(base64.b64decode(outer["signatures"][0]["sig"]), naive)
    assert open_envelope(envelope, key.public_key(), "it").content == statement.content


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_a_single_bit_flip_is_rejected(step: int, envelope: bytes, key: Ed25519PrivateKey) -> None:
    """At every byte; at each fourth of them in the quick tests."""
    public, survived = key.public_key(), []
    for position in range(0, len(envelope), step):
        for bit in range(8):
            changed = bytearray(envelope)
            changed[position] ^= 1 << bit
            try:
                open_envelope(bytes(changed), public, "it")
            except VerificationFailed:
                continue
            survived.append((position, bit))
    assert not survived


@pytest.mark.parametrize(
    "change",
    [
        lambda b: b[:-1],
        lambda b: b + b"\n",
        lambda b: b.replace(b'"payload"', b'"payload" ', 1),
        lambda b: b"",
        lambda b: b"[]",
        lambda b: b"[" * 100_000,
        lambda b: b'{"signatures": [1], "payload": 3}',
        lambda b: json.dumps(json.loads(b)).encode(),
        lambda b: json.dumps(json.loads(b) | {"signatures": []}, indent=1).encode() + b"\n",
    ],
)
def test_other_spellings_are_rejected(change: object, envelope: bytes, key: Ed25519PrivateKey) -> None:
    with pytest.raises(VerificationFailed):
        open_envelope(change(envelope), key.public_key(), "it")  # type: ignore[operator]


def test_another_key_is_rejected(envelope: bytes) -> None:
    with pytest.raises(VerificationFailed):
        open_envelope(envelope, Ed25519PrivateKey.generate().public_key(), "it")


def test_the_payload_is_not_parsed_before_the_signature_is_checked(
    envelope: bytes, key: Ed25519PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bytes] = []
    real = json.loads
    monkeypatch.setattr(
        signing.json, "loads", lambda text, **options: seen.append(bytes(text)) or real(text, **options)
    )
    outer = real(envelope)
    forged = bytearray(base64.b64decode(outer["signatures"][0]["sig"]))
    forged[3] ^= 1
    changed = envelope.replace(outer["signatures"][0]["sig"].encode(), base64.b64encode(bytes(forged)))
    with pytest.raises(VerificationFailed, match="signature"):
        open_envelope(changed, key.public_key(), "it")
    assert seen == [changed], "only the envelope was parsed"


def sign_statement(content: object, key: Ed25519PrivateKey) -> bytes:
    payload = json.dumps(content).encode()
    return signing._envelope(payload, signing.keyid_of(key.public_key()), key.sign(pae(signing.PAYLOAD_TYPE, payload)))


@pytest.mark.parametrize("part", ["_type", "predicateType", "subject", "predicate"])
def test_a_signed_statement_about_something_else_is_rejected(
    part: str, statement: Statement, key: Ed25519PrivateKey
) -> None:
    good = signing.in_toto(statement)
    assert open_envelope(sign_statement(good, key), key.public_key(), "it").content == statement.content
    other = {"subject": [{"name": "model.safetensors", "digest": {"sha256": "0" * 64}}], "predicate": {"schema": "x"}}
    with pytest.raises((VerificationFailed, FileError)):
        open_envelope(sign_statement(good | {part: other.get(part, "other")}, key), key.public_key(), "it")


def write_keys(folder: Path) -> tuple[Path, Path]:
    result = CliRunner().invoke(main, ["keygen", "--out", str(folder / "k"), "--json"])
    assert result.exit_code == 0, result.stderr
    return folder / "k", folder / "k.pub"


def test_keys_are_written_with_care_and_never_over(tmp_path: Path) -> None:
    private, public = write_keys(tmp_path)
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert stat.S_IMODE(public.stat().st_mode) == 0o644
    again = CliRunner().invoke(main, ["keygen", "--out", str(private)])
    assert again.exit_code == 2
    assert "exists already" in again.stderr
    assert isinstance(signing.read_public_key(public), Ed25519PublicKey)
    private.chmod(0o640)
    with pytest.raises(FileError, match="0640"):
        signing.read_private_key(private)


def test_unlearn_signs_and_verify_checks(box: object, tmp_path: Path) -> None:
    private, public = write_keys(tmp_path)
    ran = box.run(box.unlearn("--sign-key", str(private)))  # type: ignore[attr-defined]
    assert ran.status == 0, ran.err
    folder = box.folder / "new"  # type: ignore[attr-defined]
    signed, model = folder / "statement.signed.json", folder / "model.safetensors"
    line = ["verify", str(signed), "--model", str(model), "--public-key", str(public)]
    result = CliRunner().invoke(main, [*line, "--json"])
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["checks"][0] == "signature"
    found, _ = verify_file(signed, public, model)
    assert found.content == json.loads((folder / "statement.json").read_text())
    assert (
        CliRunner().invoke(main, ["verify", str(folder / "statement.json"), "--public-key", str(public)]).exit_code == 1
    )
    unkeyed = CliRunner().invoke(main, ["verify", str(signed)])
    assert unkeyed.exit_code == 2
    assert "--public-key" in unkeyed.stderr
    changed = bytearray(model.read_bytes())
    changed[-1] ^= 1
    model.write_bytes(bytes(changed))
    assert CliRunner().invoke(main, line).exit_code in (1, 2)


def test_what_is_not_such_a_key_is_refused(tmp_path: Path) -> None:
    private, public = write_keys(tmp_path)
    rsa = generate_private_key(65537, 2048)
    odd = (
        *(b"no key", b"x" * 20_000, rsa.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())),
        rsa.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
    )
    for read, other in ((signing.read_private_key, public), (signing.read_public_key, private)):
        for content in (*odd, other.read_bytes()):
            (tmp_path / "odd").write_bytes(content)
            (tmp_path / "odd").chmod(0o600)
            with pytest.raises(FileError, match=r"Ed25519|has at most 10,000"):
                read(tmp_path / "odd")
