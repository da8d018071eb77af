"""docs/make_site.py as a module."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

SCRIPT = Path(__file__).parents[1] / "docs" / "make_site.py"


def module() -> ModuleType:
    """The script, without building anything."""
    spec = importlib.util.spec_from_file_location("make_site", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


MAKING = module()
