"""What a deletion hands over: a folder with the model, its certificate and, where there is a key, the signed one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from expunge.cli.console import out, print_certificate


def write_result(target: Path, result: Any, key: Any = None) -> tuple[str, ...]:
    """The folder, whole or not at all; the names of its files."""
    from expunge.certificate.sign import seal
    from expunge.data.output import write_folder

    files = {"model.safetensors": result.model.to_bytes(), "certificate.json": result.certificate.to_json().encode()}
    if key is not None:
        files["certificate.signed.json"] = seal(result.certificate, key)
    write_folder(target, files)
    return tuple(files)


def told_result(target: Path, result: Any, names: tuple[str, ...], json_output: bool) -> dict[str, Any]:
    """What was written and certified, on the screen or for JSON."""
    if not json_output:
        print_certificate(result.certificate.content)
        out.print("written: " + ", ".join(str(target / name) for name in names), markup=False)
    return {
        "model": str(target / "model.safetensors"),
        "certificate_file": str(target / "certificate.json"),
        "certificate": result.certificate.content,
    }
