"""Writing results: whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

from expunge.errors import FileError


def require_absent(path: Path) -> None:
    """Refuse to write over something, or where nothing can be written, before any work is done."""
    if path.exists() or path.is_symlink():
        raise FileError(
            f"{path} exists already", "results are never written over", "Choose another name, or remove it first."
        )
    parent = path.absolute().parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        raise FileError(f"{parent} is not a folder", "results need one to be written in", "Choose another place.")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise FileError(
            f"{parent} cannot be written in",
            "write permission is needed",
            "Choose another place, or change its permissions.",
        )


def write_file(path: Path, content: bytes) -> None:
    """A new file, whole or not at all."""
    require_absent(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            _write(temporary, content)
            os.link(temporary, path)  # fails where somebody else was faster; a rename would replace
        finally:
            temporary.unlink(missing_ok=True)
        _sync_folder(path.parent)
    except OSError as error:
        raise _cannot_write(path, error) from error


def write_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """A new folder with these files, all of them or none."""
    require_absent(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            temporary.mkdir()
            for name, content in files.items():
                _write(temporary / name, content)
            _sync_folder(temporary)
            temporary.rename(path)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        _sync_folder(path.parent)
    except OSError as error:
        raise _cannot_write(path, error) from error


def _write(path: Path, content: bytes) -> None:
    with path.open("xb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _cannot_write(path: Path, error: OSError) -> FileError:
    return FileError(
        f"{path} could not be written ({error.strerror or error})",
        "a folder with room and permission is needed",
        "Nothing was written; try another place.",
    )
