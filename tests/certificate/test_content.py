"""What a certificate holds, and that it survives its file."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

import expunge
from expunge.certificate.dossier import Certificate, parse_certificate
from expunge.certificate.verify import verify
from expunge.errors import ExpungeError, FileError


def test_a_fresh_certificate_verifies_and_survives_the_file(result, tmp_path) -> None:
    file, model = tmp_path / "c.json", tmp_path / "m.safetensors"
    file.write_text(result.certificate.to_json())
    model.write_bytes(result.model.to_bytes())
    assert all(check.passed for check in verify(expunge.read_certificate(file), model))


def test_top_level_keys_are_those_of_the_schema(result) -> None:
    page = (Path(__file__).parents[2] / "docs" / "certificate.md").read_text()
    for key in result.certificate.content:
        assert f"`{key}`" in page, key
    for section in ("bound", "noise", "sizes", "model", "step", "distance"):
        for key in result.certificate.content[section]:
            assert f"`{key}`" in page or f"`{section}.{key}`" in page, f"{section}.{key}"


pytestmark = pytest.mark.usefixtures("one_thread")


def test_nested_certificate(workshop: Path) -> None:
    """What is nested so deep that it can be parsed but hardly written again is refused like the rest."""
    content = (workshop / "result" / "private" / "dossier.json").read_bytes()
    assert b'"notes": []' in content

    def nested(depth: int) -> Certificate:
        return parse_certificate(content.replace(b'"notes": []', b'"notes": ' + b"[" * depth + b"]" * depth), "nested")

    readable = []
    for depth in range(900, 1000):
        with contextlib.suppress(FileError):
            readable.append(nested(depth))
    for certificate in readable[-20:]:
        with pytest.raises(ExpungeError):
            verify(certificate)
