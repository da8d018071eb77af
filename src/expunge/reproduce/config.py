"""Configs of the experiments: `experiments/<name>.toml` in a checkout, the same files inside an installed package."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import expunge
from expunge.errors import FileError, OptionError
from expunge.reproduce.experiment import Config


def config_folder() -> Path:
    """Where the configs are."""
    package = Path(expunge.__file__).parent
    found = [folder for folder in (package / "experiments", package.parents[1] / "experiments") if folder.is_dir()]
    if not found:
        raise FileError("no configs of experiments", "they are part of the package", "Install Expunge again.")
    return found[0]


def read_config(path: Path) -> dict[str, Any]:
    """One config, with its three parts."""
    try:
        content = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read ({error})", "a TOML file is needed", "Check the file.") from error
    for part, names in (("about", ("title", "paper", "order", "needs", "minutes")), ("run", ())):
        missing = [name for name in names if name not in content.get(part, {})] if part in content else [part]
        if missing:
            raise FileError(f"{path} lacks {', '.join(missing)}", "an experiment's config has it", "Add it.")
    return content | {"paper": content.get("paper", {})}


def configs(folder: Path | None = None) -> dict[str, Config]:
    """All experiments by name, in order."""
    found = {path.stem: read_config(path) for path in (folder or config_folder()).glob("*.toml")}
    return dict(sorted(found.items(), key=lambda item: item[1]["about"]["order"]))


def config_of(name: str, folder: Path | None = None) -> Config:
    """The config of that name."""
    known = configs(folder)
    if name not in known:
        raise OptionError(
            f"experiment {name!r}", f"it must be one of {', '.join(known)}, or all", "See expunge reproduce --list."
        )
    return known[name]
