"""CSV files as wide as they come: read at a few bytes a cell, or refused before anything is taken."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from expunge import DataError, FileError, read_data
from expunge.rows import wide_csv
from expunge.rows.wide_csv import Extent, extent, is_wide, read_wide

MEMORY = """
import resource, sys
import expunge, expunge.rows
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    shape = expunge.read_data(sys.argv[1]).features.shape
except expunge.ExpungeError as error:
    shape = error
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024, shape)
"""


def taken(path: Path) -> tuple[int, str]:
    """MB that reading a file takes in a process of its own, and what came of it."""
    done = subprocess.run([sys.executable, "-c", MEMORY, str(path)], capture_output=True, text=True, check=True)
    first, _, rest = done.stdout.strip().partition(" ")
    return int(first), rest


def table(path: Path, columns: int, rows: int = 2) -> Path:
    header = ",".join(["y", *(f"c{place}" for place in range(columns))])
    lines = [",".join([str(row), *["0.5"] * columns]) for row in range(rows)]
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def test_two_hundred_thousand_columns_take_a_tenth_of_what_they_took(tmp_path: Path) -> None:
    """Two gigabytes, when Arrow read them."""
    mb, outcome = taken(table(tmp_path / "a.csv", 199_999))
    assert outcome == "(2, 199999)"
    assert mb < 200


def test_a_million_columns_are_refused_before_anything_is_taken(tmp_path: Path) -> None:
    """An abort at 7.4 gigabytes."""
    mb, outcome = taken(table(tmp_path / "a.csv", 1_000_000, 1))
    assert "more than 200,000 columns" in outcome
    assert mb < 40


def test_a_single_line_of_separators_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"," * 30_000_000)
    mb, outcome = taken(tmp_path / "a.csv")
    assert "more than 200,000 columns" in outcome
    assert mb < 40


def test_one_long_label_is_refused(tmp_path: Path) -> None:
    """2,000 rows as wide as the longest: 7.9 gigabytes."""
    (tmp_path / "a.csv").write_text("a,y\n1," + "x" * 500_000 + "\n" + "1,k\n" * 2_000)
    mb, outcome = taken(tmp_path / "a.csv")
    assert "a label of 500,000 characters" in outcome
    assert mb < 100


def test_many_short_values_count_by_number_and_not_by_their_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXPUNGE_MAX_BYTES", "100000000")
    (tmp_path / "a.csv").write_bytes(b"a,b,c,y\n" + b"0,0,0,1\n" * 2_000_000)
    with pytest.raises(FileError, match=r"takes .* bytes in memory"):
        read_data(tmp_path / "a.csv")


def test_the_extent_is_that_of_the_file_wherever_a_block_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = table(tmp_path / "a.csv", 30, 4)
    for part in (1, 7, 10_000):
        monkeypatch.setattr(wide_csv, "PART", part)
        assert extent(path) == Extent(31, 31 * 5 + 1)


def test_both_readers_read_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(5, 4))
    texts = [[f"{value!r}" for value in row] for row in values.tolist()]
    texts[1][2], texts[2][0], texts[3][1] = " 12 ", '"-3.5"', "1e-300"
    for labels in (["1", "2", "1", "3", "1"], ["a", 'b"c', "x,y", "", "d"], ["1.0", "2.0", "1.0", "1.0", "2.0"]):
        quoted = ['"' + label.replace('"', '""') + '"' for label in labels]
        lines = [",".join([*row[:2], label, *row[2:]]) for row, label in zip(texts, quoted, strict=True)]
        path = tmp_path / "a.csv"
        path.write_text("\ufeff" + "\r\n".join(['p,"q, r",y,s,t', *lines, "", ""]), encoding="utf-8", newline="")
        whole = read_data(path)
        features, named, names = read_wide(path, None)
        np.testing.assert_array_equal(features, whole.features)
        np.testing.assert_array_equal(named, whole.labels)
        assert named.dtype == whole.labels.dtype
        assert names == whole.feature_names == ("p", "q, r", "s", "t")
        monkeypatch.setattr(wide_csv, "WIDE", 2)
        assert is_wide(extent(path))
        np.testing.assert_array_equal(read_data(path).features, whole.features)
        monkeypatch.undo()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b,y\n1,2\n", "Expected 3 columns, got 2"),
        ("a,b,y\n1,x,0\n", "features must be numbers"),
        ("a,b,y\n1,,0\n", "every cell needs a value"),
        ("a,b,y\n1,NA,0\n", "every cell needs a value"),
        ("a,b,y\n1,2,\n3,4,5\n", "'y' has 1 empty"),
        ("a,b,y\n", "no rows"),
        ("a,a,y\n1,2,3\n", "two columns of one name"),
        ("a,b,z\n1,2,3\n", "label column"),
        ('a,b,y\n1,"2"x,3\n', "is not a table"),
        ("a,b,y\n1," + "2" * 200_000 + ",3\n", "is not a table"),
        (b"a,b,y\n\xff,2,3\n", "is not a table"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused_as_in_narrow_files(
    text: str | bytes, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wide_csv, "WIDE", 1)
    (tmp_path / "a.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises((FileError, DataError), match=words):
        read_data(tmp_path / "a.csv")
