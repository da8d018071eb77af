"""Paths that are to be read."""

from pathlib import Path

import pytest

from expunge.errors import FileError
from expunge.runtime.paths import readable


def test_a_file_with_something_in_it_is_its_own_path(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    (tmp_path / "link").symlink_to("a")
    assert readable(tmp_path / "a") == tmp_path / "a"
    assert readable(tmp_path / "link") == tmp_path / "link"


def test_each_way_not_to_be_one_has_its_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "closed").write_bytes(b"x")
    (tmp_path / "nowhere").symlink_to("missing")
    cases = {
        "nothing": "does not exist",
        "nowhere": "does not exist",
        "empty": "is empty",
        "a\0b": "does not exist|not a usable path",
        "x" * 256: "not a usable path",
    }
    for name, words in cases.items():
        with pytest.raises(FileError, match=words):
            readable(tmp_path / name)
    with pytest.raises(FileError, match="is a folder"):
        readable(tmp_path)
    monkeypatch.setattr("expunge.runtime.paths.os.access", lambda path, mode: False)
    with pytest.raises(FileError, match="read permission"):
        readable(tmp_path / "closed")


def test_a_misspelt_name_is_told_with_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "credit.csv").write_text("x")
    with pytest.raises(FileError, match=r"did you mean .*/credit\.csv\?"):
        readable(tmp_path / "credits.csv")
    with pytest.raises(FileError, match=r"does not exist; a file is needed\. Check the path\.$"):
        readable(tmp_path / "nothing-like-it")
    with pytest.raises(FileError, match=r"Check the path\.$"):
        readable(tmp_path / "nowhere" / "credit.csv")
