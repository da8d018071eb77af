"""UCI Adult as it is published: numbers standardised, one column for every word, both as the training file has them."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from experiments.datasets.formats import LONGEST_TEXT, Parts
from expunge.errors import FileError
from expunge.rows.arrays import DAMAGE
from expunge.runtime.files import readable

COLUMNS = 15
NUMBERS = (0, 2, 4, 10, 11, 12)  # age, weight, years of education, gain, loss, hours
WORDS = (1, 3, 5, 6, 7, 8, 9, 13)
LABELS = {"<=50K": 0, ">50K": 1}


def adult_tables(folder: Path, names: tuple[str, ...]) -> Parts:
    """Both files; the preparation is fitted once, to all people of the first, and kept."""
    from sklearn.preprocessing import OneHotEncoder, StandardScaler  # here: whoever has the arrays needs it not

    (numbers, words, y), (test_numbers, test_words, y_test) = (_people(folder / name) for name in names[:2])
    scaler, encoder = StandardScaler().fit(numbers), OneHotEncoder(sparse_output=False, handle_unknown="ignore")
    encoder.fit(words)
    X, X_test = (
        np.hstack([scaler.transform(some), encoder.transform(others)])
        for some, others in ((numbers, words), (test_numbers, test_words))
    )
    return X, y, X_test, y_test


def _people(path: Path) -> tuple[NDArray[np.float64], NDArray[np.object_], NDArray[np.int64]]:
    """Numbers, words and labels; the test file has a comment in its first line and a dot after each label."""
    try:
        with gzip.open(readable(path), "rt", encoding="ascii") as stream:
            text = stream.read(LONGEST_TEXT + 1)
        if len(text) > LONGEST_TEXT:
            raise ValueError(f"more than {LONGEST_TEXT:,} characters")
        rows = [
            [cell.strip() for cell in line.split(",")]
            for line in text.splitlines()
            if line.strip() and not line.startswith("|")
        ]
        if not rows or any(len(row) != COLUMNS for row in rows):
            raise ValueError(f"lines that are not {COLUMNS} cells, or none")
        numbers = np.array([[float(row[column]) for column in NUMBERS] for row in rows])
        labels = np.array([LABELS[row[-1].rstrip(".")] for row in rows], dtype=np.int64)
    except DAMAGE as error:
        raise FileError(
            f"{path} is not Adult ({type(error).__name__}: {error})", "its published file is needed", "Get it again."
        ) from error
    return numbers, np.array([[row[column] for column in WORDS] for row in rows], dtype=object), labels
