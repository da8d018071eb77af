"""What is imported is declared, what is declared is pinned, locked with hashes, and listed with its licence."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
OURS = {"expunge", "experiments", "examples"}
INSTALLED = importlib.metadata.packages_distributions()


def script(name: str) -> ModuleType:
    """A script of docs/, as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LOCKING, LICENCES = script("make_lock"), script("make_licences")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DECLARED: dict[str, str] = LICENCES.declared(PROJECT)
PINS: dict[str, str] = LOCKING.pins((ROOT / "constraints.txt").read_text())
LOCK = (ROOT / "requirements.lock").read_text()
NOT_PINNED = {name for name, purpose in DECLARED.items() if purpose in ("onnx", "libraries")}
BESIDE = {"onnxruntime": {"onnx"}, "torch": {"torch"}}  # imported only where a user asks for what they alone do


def imported(folder: Path) -> set[str]:
    """Packages from elsewhere that the modules of a folder import, wherever in them."""
    found = set()
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.split(".")[0])
    here = {path.stem for path in folder.rglob("*.py")} | {path.name for path in folder.iterdir()}
    return found - set(sys.stdlib_module_names) - OURS - here


def distribution(package: str) -> str:
    """What the package is installed as; its own name where it is not installed."""
    return LOCKING.canonical(INSTALLED.get(package, [package])[0])


def test_every_imported_package_is_declared() -> None:
    needed = {"run"}
    for package in imported(ROOT / "src" / "expunge"):
        name = distribution(package)
        allowed = BESIDE.get(package, needed)
        assert DECLARED.get(name) in allowed, f"{package} is imported and {name} is not among the dependencies"
    assert "PIL" in imported(ROOT / "src" / "expunge")
    assert DECLARED["pillow"] == "run"


@pytest.mark.parametrize("folder", ["experiments", "tests", "benchmarks"])
def test_the_rest_of_the_repository_imports_what_some_extra_declares(folder: str) -> None:
    beside = {path.stem for path in (ROOT / "tests").glob("*.py")} | {
        "torchvision",
        "pip",
        "make_commands",
        "make_site",
    }
    for package in imported(ROOT / folder) - beside:
        assert distribution(package) in DECLARED, package


def test_every_declared_package_is_pinned_to_a_version_it_allows() -> None:
    assert DECLARED.keys() - PINS.keys() == NOT_PINNED


def test_the_lock_is_the_constraints_with_hashes_and_without_an_index() -> None:
    locked = dict(re.findall(r"^([a-z0-9-]+)==(\S+) \\$", LOCK, re.MULTILINE))
    assert locked == {name: version for name, version in PINS.items() if name != "torch"}
    assert "://" not in LOCK
    entries = re.split(r"^(?=[a-z0-9-]+==)", LOCK, flags=re.MULTILINE)[1:]
    for entry in entries:
        assert re.fullmatch(r"\S+==\S+( \\\n    --hash=sha256:[0-9a-f]{64})+\n", entry), entry


def test_what_a_locked_package_needs_is_locked_too() -> None:
    """pip refuses a lock in which something is missing; torch's own needs count, since it is installed beside them."""
    for name in PINS:
        try:
            needs = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # needed to build, not installed here
        for line in needs:
            if "extra ==" in line or "sys_platform" in line or "python_version <" in line or "platform_system" in line:
                continue
            needed = LOCKING.canonical(re.split(r"[<>=!~;() \[]", line, maxsplit=1)[0])
            assert needed in PINS, f"{name} needs {needed}"


def test_every_package_is_listed_with_its_licence() -> None:
    page = LICENCES.page()
    listed = {row[0]: row for row in re.findall(r"^\| ([a-z0-9-]+) \| (\S*) \| (.*?) \| (\S*) \|$", page, re.MULTILINE)}
    del listed["package"]  # the head of the table
    assert listed.keys() == DECLARED.keys() | PINS.keys()
    for name, (_, version, licence, purpose) in listed.items():
        assert version == PINS.get(name, version)
        assert purpose == DECLARED.get(name, "")
        if licence == LICENCES.NOT_HERE:
            continue
        assert len(licence) > 2, name
        assert licence.lower() not in ("unknown", "none")
