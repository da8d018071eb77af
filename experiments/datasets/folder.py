"""The folder given as --data: which data sets are in it, what they hold, and whether that is what was published.

The digest of a data set is over its arrays, not its files, so that every form of the same data has the same one;
contents that differ from the published ones are labelled so, and so is everything that is not the paper's own data.
Nothing is ever put in the place of a missing file.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from experiments.datasets.catalogue import CATALOGUE, FILE_DIGESTS, OWN_FEATURES, Entry, Form
from expunge.errors import FileError, OptionError
from expunge.networks.encoders import read_examples
from expunge.rows.arrays import Array
from expunge.runtime.files import readable

SCALE = 1000.0  # fractions count to the third decimal: formats of the same data differ in the last bits


@dataclass(frozen=True)
class DataSet:
    """A data set that was read."""

    name: str
    X: Array
    y: Array
    X_test: Array
    y_test: Array
    sha256: str
    label: str


@dataclass(frozen=True)
class DataFolder:
    """The folder given as --data, or none."""

    folder: Path | None = None
    catalogue: dict[str, Entry] = field(default_factory=lambda: CATALOGUE, compare=False)

    def entry(self, name: str) -> Entry:
        if name not in self.catalogue:
            raise OptionError(f"data set {name!r}", f"known are {', '.join(self.catalogue)}", "Check the config.")
        return self.catalogue[name]

    def form(self, name: str) -> Form | None:
        """The first form whose files are all there."""
        if self.folder is None:
            return None
        folder = self.folder
        return next(
            (form for form in self.entry(name).forms if all((folder / file).exists() for file in form.files)), None
        )

    def has(self, name: str) -> bool:
        return self.form(name) is not None

    def require(self, names: Sequence[str]) -> None:
        """A clear word on the first data set that is not there."""
        for name in names:
            self._found(name)

    def load(self, name: str) -> DataSet:
        """Train and test part, read once a process."""
        folder, form = self._found(name)
        if form.read is None:
            raise OptionError(f"data set {name!r} is not arrays", "its files are read one by one", "Use paths().")
        return _loaded(folder, form, self.entry(name))

    def paths(self, name: str) -> dict[str, Path]:
        """The files of a data set by name."""
        folder, form = self._found(name)
        return {file: folder / file for file in form.files}

    def digests(self, name: str) -> dict[str, str]:
        """SHA-256 of the data set's files, of those that are known."""
        files = [file for form in self.entry(name).forms for file in form.files]
        return {file: FILE_DIGESTS[file] for file in files if file in FILE_DIGESTS}

    def described(self, names: Sequence[str]) -> dict[str, Any]:
        """Digests and labels, as they are kept with results."""
        digests_and_labels: dict[str, Any] = {}
        for name in names:
            form = self._found(name)[1]
            if form.read is None:
                digests = {file: file_digest(path) for file, path in self.paths(name).items()}
                same = all(digest == FILE_DIGESTS.get(file, digest) for file, digest in digests.items())
                digests_and_labels[name] = {"sha256": digests, "label": _labelled(self.entry(name), same)}
            else:
                data = self.load(name)
                digests_and_labels[name] = {"sha256": data.sha256, "label": data.label}
        return digests_and_labels

    def pictures(self, name: str, size: int) -> tuple[Array, Array]:
        """Images and class names of the published folder, shorter side scaled to `size`, then cropped to a square."""
        entry = self.entry(name)
        folder = self.folder / entry.pictures if self.folder is not None and entry.pictures else None
        if folder is None or not folder.is_dir():
            raise self._missing(entry)
        examples = read_examples(folder, size=size)
        return examples.inputs, examples.labels

    def _found(self, name: str) -> tuple[Path, Form]:
        form = self.form(name)
        if form is None or self.folder is None:
            raise self._missing(self.entry(name))
        return self.folder, form

    def _missing(self, entry: Entry) -> FileError:
        where = "no --data folder" if self.folder is None else f"{self.folder} does not hold {entry.name}"
        files = " or ".join(" + ".join(form.files) for form in entry.forms)
        remedy = f"Get it from {entry.publisher}."
        if self.folder is not None and entry.pictures and (self.folder / entry.pictures).is_dir():
            remedy = (
                f"The images in {entry.pictures} are there, their features are not: make them with expunge embed "
                "--size, and save X, y, X_test, y_test."
            )
        return FileError(where, f"{entry.title} is needed: {files}", remedy)


@functools.lru_cache(maxsize=4)
def _loaded(folder: Path, form: Form, entry: Entry) -> DataSet:
    assert form.read is not None
    parts = form.read(folder, form.files)
    digest = content_digest(parts)
    label = OWN_FEATURES if form.own else _labelled(entry, digest == (entry.sha256 or digest))
    return DataSet(entry.name, *parts, digest, label)


def _labelled(entry: Entry, same: bool) -> str:
    """The label, after a word on contents that are not those known here."""
    return "; ".join(filter(None, ("" if same else f"contents differ from the {entry.name} known here", entry.label)))


def content_digest(parts: Sequence[Array]) -> str:
    """SHA-256 over numbers of rows and values; fractions as whole thousandths, so that no file's form counts."""
    digest = hashlib.sha256()
    for part in parts:
        values = part if part.dtype.kind in "iub" else part.astype(np.float64) * SCALE
        digest.update(f"{len(part)} rows".encode())
        digest.update(np.ascontiguousarray(np.rint(values).astype("<i4")).tobytes())
    return digest.hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    with readable(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
