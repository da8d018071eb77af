"""The licences of all that Expunge is installed with, from the packages' metadata: a page of the site (`make docs`).

Packages that are not installed here are listed without a licence: nothing is downloaded to build the site.
"""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from collections.abc import Mapping, Sequence
from email.message import Message
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
LONGEST = 60  # characters of a licence's name; beyond that it is the licence itself
NOT_HERE = "not installed here"
HEAD = """# Licences

Expunge itself is under the Apache License 2.0. The packages it is installed with are under these licences, as their own
metadata says. `run`: Expunge needs it; `torch`, `onnx`, `libraries`, `dev`, `docs`: that extra does; `build`: only
needed to install it; empty: another package needs it. Versions are those of `constraints.txt`.

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


def page() -> str:
    """Write the page from what is declared, pinned and installed."""
    purposes = declared(tomllib.loads((ROOT / "pyproject.toml").read_text()))
    pinned = pins((ROOT / "constraints.txt").read_text())
    lines = []
    for name in sorted({*purposes, *pinned}):
        version, text = installed(name) or ("", NOT_HERE)
        lines.append(f"| {name} | {pinned.get(name, version)} | {text} | {purposes.get(name, '')} |\n")
    return HEAD + "".join(lines)


if __name__ == "__main__":
    print(page(), end="")
