"""Results of a long run, one file a finished unit, so that a run that was stopped can be continued."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.errors import ExpungeError, FileError
from expunge.rows.output import SWEPT, write_file
from expunge.runtime.strict_json import read_json

SETTING = "setting.json"


@dataclass(frozen=True)
class Partial:
    """A folder of finished units; each file is written whole or not at all."""

    folder: Path

    def load(self, unit: str) -> Any | None:
        """What was saved for this unit, or None."""
        return _read(path) if (path := self._path(unit)).exists() else None

    def save(self, unit: str, value: Any) -> None:
        write_file(self._path(unit), (json.dumps(value, allow_nan=False) + "\n").encode())

    def load_array(self, unit: str) -> NDArray[Any] | None:
        """The array that was saved for this unit, or None."""
        path = self._path(unit).with_suffix(".npy")
        if not path.exists():
            return None
        try:
            array: NDArray[Any] = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise _unreadable(path, error) from error
        return array

    def save_array(self, unit: str, values: NDArray[Any]) -> None:
        stream = io.BytesIO()
        np.save(stream, values, allow_pickle=False)
        write_file(self._path(unit).with_suffix(".npy"), stream.getvalue())

    def finished(self) -> list[str]:
        """Names of the units saved so far."""
        units = (path for pattern in ("*.json", "*.npy") for path in self.folder.glob(pattern))
        return sorted(path.stem for path in units if path.name != SETTING)

    @contextlib.contextmanager
    def gone_if_refused(self) -> Iterator[None]:
        """A setting that is refused before any unit is finished leaves nothing that stands in the way of the next."""
        try:
            yield
        except ExpungeError:
            if self.folder.exists() and not self.finished():
                self.remove()
            raise

    def remove(self) -> None:
        """Remove the units and the folder, once the whole result is written; what else is in it stays."""
        for path in self.folder.iterdir():
            if path.suffix in (".json", ".npy") or SWEPT.fullmatch(path.name):
                with contextlib.suppress(OSError):
                    path.unlink()
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def _path(self, unit: str) -> Path:
        return self.folder / (re.sub(r"[^A-Za-z0-9.+-]", "_", unit) + ".json")


def open_partial(folder: Path, setting: Any) -> Partial:
    """A new folder, or that of an earlier run with the same setting; units of another setting must not be mixed in.

    A folder that no run made is refused: its files would be taken for units, or removed with them.
    """
    described = json.loads(json.dumps(setting, allow_nan=False))
    file = folder / SETTING
    if file.exists():
        if _read(file) != described:
            raise FileError(
                f"{folder} holds unfinished results of another setting",
                "a run continues only its own",
                "Use the same options as before, or remove that folder.",
            )
    else:
        if folder.is_dir() and not all(SWEPT.fullmatch(path.name) for path in folder.iterdir()):
            raise FileError(
                f"{folder} is there, and is not of an unfinished run",
                "unfinished results are kept under this name, and removed",
                "Choose another --out, or give that folder another name.",
            )
        write_file(file, (json.dumps(described) + "\n").encode())
    return Partial(folder)


def _read(path: Path) -> Any:
    try:
        return read_json(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> FileError:
    return FileError(
        f"{path} cannot be read ({error})",
        f"a unit is a whole {path.suffix} file",
        "Remove it; the unit will be run again.",
    )
