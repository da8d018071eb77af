"""Paths that are to be read."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from expunge.errors import FileError

LIKELY = ("statement.json", "model.safetensors")  # what is in a result


def readable(path: Path) -> Path:
    """The path, if it is a file that can be read."""
    try:
        exists = path.exists()
    except (OSError, ValueError) as error:
        raise FileError(f"{path} is not a usable path ({error})", "a file is needed", "Check the path.") from error
    if not exists:
        raise FileError(f"{path} does not exist", "a file is needed", _nearest(path))
    if path.is_dir():
        inside = next((each for name in LIKELY if (each := path / name).is_file()), None)
        example = "" if inside is None else f", for example {inside}"
        raise FileError(f"{path} is a folder", "a file is needed", f"Name the file inside it{example}.")
    if not os.access(path, os.R_OK):
        raise FileError(
            f"{path} cannot be read", "read permission is needed", "Change its permissions, or run as its owner."
        )
    if path.stat().st_size == 0:
        raise FileError(f"{path} is empty", "a file with data is needed", "Write it again.")
    return path


def _nearest(path: Path) -> str:
    """What to do about a file that is not there: the name that is written most alike, where there is one."""
    if path.parts[:1] in (("http:",), ("https:",)):
        return "Nothing is fetched: download it, and name the file."
    try:
        names = [each.name for each in path.parent.iterdir()]
    except OSError:
        return "Check the path."
    close = difflib.get_close_matches(path.name, names, 1, 0.7)
    return f"Check the path; did you mean {path.parent / close[0]}?" if close else "Check the path."
