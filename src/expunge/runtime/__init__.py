"""What every part runs on: groups of processes, memory, durable files, strict JSON; here, names loaded when asked for.

A command that needs no torch does not wait for it.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


class LazyPackage(ModuleType):
    """A package whose public names live in its modules; `homes` says which."""

    homes: dict[str, str]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self.homes:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{self.__name__}.{self.homes[name]}"), name)
        self.__dict__[name] = value
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        # importing a module binds it in its package; where a function has the same name, the function is what is public
        if not (isinstance(value, ModuleType) and name in self.homes):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.homes})


def load_lazily(package: str, homes: dict[str, str]) -> None:
    """Make a package's public names lazy; `homes` maps each to its module, relative to the package."""
    module = sys.modules[package]
    module.__dict__["homes"] = homes
    module.__class__ = LazyPackage
