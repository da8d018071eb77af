"""Configs of the experiments: `experiments/configs/<name>.toml`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from experiments.protocol.experiment import Config
from expunge.errors import FileError, OptionError


def config_folder() -> Path:
    """Where the configs are."""
    return Path(__file__).parents[1] / "configs"


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
    by_name = {path.stem: read_config(path) for path in (folder or config_folder()).glob("*.toml")}
    return dict(sorted(by_name.items(), key=lambda item: item[1]["about"]["order"]))


def config_of(name: str, folder: Path | None = None) -> Config:
    """The config of that name."""
    known = configs(folder)
    if name not in known:
        raise OptionError(
            f"experiment {name!r}", f"it must be one of {', '.join(known)}, or all", "See python -m experiments --list."
        )
    return known[name]
