"""What a certificate holds, and that it survives its file."""

from pathlib import Path

import expunge
from expunge import verify


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
