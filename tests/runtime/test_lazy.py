"""Public names that are loaded when first asked for."""

import sys
from pathlib import Path

import pytest

from expunge.runtime import load_lazily


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package with a module and a function of one name, and a module that nobody asked for."""
    folder = tmp_path / "idle_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "work.py").write_text("def work() -> int:\n    return 7\n")
    (folder / "heavy.py").write_text("raise RuntimeError('loaded')\n")
    monkeypatch.syspath_prepend(tmp_path)
    __import__("idle_package")
    load_lazily("idle_package", {"work": "work", "weight": "heavy"})
    yield "idle_package"
    for name in [name for name in sys.modules if name.startswith("idle_package")]:
        del sys.modules[name]


def test_a_module_is_loaded_when_its_name_is_asked_for_and_not_before(package: str) -> None:
    module = sys.modules[package]
    assert f"{package}.work" not in sys.modules
    assert module.work() == 7
    assert f"{package}.work" in sys.modules
    with pytest.raises(RuntimeError, match="loaded"):
        _ = module.weight


def test_names_are_listed_and_others_refused(package: str) -> None:
    module = sys.modules[package]
    assert {"work", "weight"} <= set(dir(module))
    for name in ("nothing", "__wrapped__"):
        with pytest.raises(AttributeError, match=name):
            getattr(module, name)
