"""The licences of all that Expunge is installed with, docs/licences.md, by the packages' own metadata: `make licences`.

What is installed here is asked first; of the rest pip fetches the wheels, and installs nothing.
"""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "licences.md"
LONGEST = 60  # characters of a licence's name; beyond that it is the licence itself
HEAD = """# Licences

Expunge itself is under the Apache License 2.0 (`LICENSE`). What it is installed with is under these, as the packages
say of themselves; made by `make licences`, do not edit it by hand. `run`: Expunge needs it; `onnx`, `libraries`, `dev`,
`docs`: that extra does; `build`: only while it is installed; nothing: another package needs it. Versions are those of
`constraints.txt`; an extra that is not pinned there has the version that was found.

| package | version | licence | for |
|---|---|---|---|
"""


def canonical(name: str) -> str:
    """A package's name as an index spells it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(project: Mapping[str, Any]) -> dict[str, str]:
    """What a project file declares: each package with what it is for."""

    def names(requirements: Sequence[str]) -> list[str]:
        return [canonical(re.split(r"[<>=!~; \[]", text, maxsplit=1)[0]) for text in requirements]

    found = dict.fromkeys(names(project["build-system"]["requires"]), "build")
    for extra, requirements in project["project"]["optional-dependencies"].items():
        for name in names(requirements):
            found.setdefault(name, extra)
    return found | dict.fromkeys(names(project["project"]["dependencies"]), "run")


def pins(text: str) -> dict[str, str]:
    """Names and versions of a constraints file."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return {canonical(name): version for name, _, version in (line.partition("==") for line in lines if line)}


def licence(expression: str | None, text: str | None, classifiers: Sequence[str]) -> str:
    """What a package says its licence is, in a few words."""
    named = [line.rsplit(" :: ", 1)[1] for line in classifiers if line.startswith("License :: ")]
    if expression:
        return expression.strip()
    if text and text.strip() == "UNKNOWN":  # what setuptools wrote where nothing was said
        text = None
    if text and text.strip() and "\n" not in text.strip() and len(text) <= LONGEST:
        return text.strip()
    first = next((line.strip() for line in (text or "").splitlines() if line.strip()), "")
    return ", ".join(named) or first[:LONGEST]


def about(metadata: Message) -> tuple[str, str]:
    """Version and licence that a package states; without the part of a version that names a local build."""
    found = licence(metadata["License-Expression"], metadata["License"], metadata.get_all("Classifier") or [])
    return str(metadata["Version"]).partition("+")[0], found


def installed(name: str) -> tuple[str, str] | None:
    """The same of a package that is installed here."""
    try:
        return about(importlib.metadata.metadata(name))  # type: ignore[arg-type]
    except importlib.metadata.PackageNotFoundError:
        return None


def fetched(requirements: Sequence[str]) -> dict[str, tuple[str, str]]:
    """The same of packages that are not: their wheels are fetched, looked into and thrown away."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        if requirements:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
            subprocess.run([*command, "--dest", folder, *requirements], check=True)
        for wheel in Path(folder).iterdir():
            with zipfile.ZipFile(wheel) as archive:
                place = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
                metadata = message_from_bytes(archive.read(place))
            found[canonical(str(metadata["Name"]))] = about(metadata)
    return found


def main() -> None:
    """Write the page anew."""
    purposes = declared(tomllib.loads((ROOT / "pyproject.toml").read_text()))
    pinned = pins((ROOT / "constraints.txt").read_text())
    names = sorted({*purposes, *pinned})
    here = {name: found for name in names if (found := installed(name)) and pinned.get(name, found[0]) == found[0]}
    others = [f"{name}=={pinned[name]}" if name in pinned else name for name in names if name not in here]
    found = here | fetched(others)
    lines = [f"| {name} | {found[name][0]} | {found[name][1]} | {purposes.get(name, '')} |\n" for name in names]
    PAGE.write_text(HEAD + "".join(lines))


if __name__ == "__main__":
    main()
