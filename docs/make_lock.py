"""requirements.lock: what constraints.txt pins, with the hashes of the files that may be installed: `make lock`.

Hashes come from the package index that pip is set to use, which is asked for one page a package and for nothing else.
torch is left out: the extra of that name needs it, and its wheel may be a local build. No index is named in the lock.
"""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parent.parent
PINS, LOCK = ROOT / "constraints.txt", ROOT / "requirements.lock"
APART = ("torch",)
FILE = re.compile(r'href="[^"]*?/?([^/"#]+\.whl)#sha256=([0-9a-f]{64})"')
PYTHON = re.compile(r"py3(1[1-4])?$|py2\.py3$|cp3(1[1-4])$|cp3[0-9]+$")
ELSEWHERE = ("win32", "win_amd64", "win_arm64", "android", "ios", "pyodide", "emscripten")
HEAD = """\
# Made of constraints.txt by `make lock`; do not edit it by hand. Wheels for Python 3.11 and later, on Linux and macOS.
# torch, which the extra of that name needs, and the project itself are installed apart:
#
#     pip install --require-hashes -r requirements.lock
#     pip install --no-deps --no-build-isolation .
#     pip check
"""


def canonical(name: str) -> str:
    """A package's name as an index spells it.

    >>> canonical("Typing_Extensions")
    'typing-extensions'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(text: str) -> dict[str, str]:
    """Names and versions of a constraints file."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return {canonical(name): version for name, _, version in (line.partition("==") for line in lines if line)}


def usable(file: str) -> bool:
    """Whether a wheel is for a Python and a system this project is for."""
    _, _, *_, python, abi, platform = file.removesuffix(".whl").split("-")
    older = re.fullmatch(r"cp3[0-9]+", python) and abi != "abi3" and not re.fullmatch(r"cp31[1-4]", python)
    return bool(PYTHON.match(python)) and not older and not abi.endswith("t") and not platform.startswith(ELSEWHERE)


def hashes(page: str, name: str, version: str) -> list[str]:
    """The hashes of a version's usable wheels, from an index's page."""
    found = {
        digest
        for file, digest in FILE.findall(page.replace("%2B", "+"))
        if canonical(file.split("-")[0]) == name and file.split("-")[1] == version and usable(file)
    }
    if not found:
        raise SystemExit(f"{name} {version}: no wheel on the index")
    return sorted(found)


def index() -> str:
    """The index that pip is set to use."""
    asked = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True, check=False
    )
    if asked.returncode == 0:
        return asked.stdout.strip()
    from pip._internal.models.index import PyPI

    return str(PyPI.simple_url)


def main() -> None:
    """Write the lock anew."""
    where = index().rstrip("/")
    parts = [HEAD]
    for name, version in sorted(pins(PINS.read_text()).items()):
        if name in APART:
            continue
        asked = urllib.request.Request(f"{where}/{name}/", headers={"Accept": "text/html"})
        with urllib.request.urlopen(asked, timeout=120) as answer:
            found = hashes(answer.read().decode(), name, version)
        parts.append(" \\\n".join([f"{name}=={version}", *(f"    --hash=sha256:{digest}" for digest in found)]) + "\n")
    LOCK.write_text("".join(parts))


if __name__ == "__main__":
    main()
