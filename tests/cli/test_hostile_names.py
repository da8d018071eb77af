"""Names that somebody else chose, of columns, labels, files and requests, are shown as text and never obeyed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import expunge.cli
from expunge.cli import main
from expunge.cli.console import escape_text, out

ESC, FORGED = "\x1b[2J\x1b]0;t\x07", "verified: proven"
COLUMNS = [f"{ESC}age", "[/b]pay", f"town\n{FORGED}", "\u202esize[bold]", ":smile:"]
LABELS = [f"[/foo]{ESC}", f"yes\n{FORGED}\u2066"]
TOWNS = [f"{ESC}a", "[/x]b", f"c\n{FORGED}"]
LABEL = ("--label", "out[/come]\x1b")
FOLDER = "a\x1b[31m[bold][b]\u202ez"
STEER = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]")


def _table(seed: int, count: int) -> pa.Table:
    draw = np.random.default_rng(seed)
    kind = np.arange(count) % 2
    towns = [TOWNS[town] for town in draw.integers(3, size=count)]
    numbers = draw.normal(size=(4, count)).round(3)
    columns = [numbers[0] + kind, numbers[1], towns, numbers[2], numbers[3], [LABELS[each] for each in kind]]
    return pa.table(dict(zip([*COLUMNS, LABEL[1]], columns, strict=True)))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile") / FOLDER
    folder.mkdir()
    source = _table(0, 400)
    tables = {"source": source, "surrogate": _table(1, 400), "test": _table(2, 100)}
    for name, table in (tables | {"forget": source[1:3], "other": source[5:6]}).items():
        pq.write_table(table, folder / f"{name}.parquet")
    return folder


def _run(place: Path, *arguments: str, ends: tuple[int, ...] = (0,)) -> str:
    """Run a command; `@name` is a file in the folder."""
    ran = CliRunner().invoke(main, [str(place / each[1:]) if each[:1] == "@" else each for each in arguments])
    if ran.exception is not None and not isinstance(ran.exception, SystemExit):
        raise ran.exception
    assert ran.exit_code in ends, (arguments, ran.output)
    said = ran.stdout + ran.stderr
    assert not STEER.search(said), (arguments, STEER.search(said), said)
    assert FORGED not in [line.strip(" │┃") for line in said.splitlines()], (arguments, said)
    assert "\N{SMILING FACE WITH OPEN MOUTH AND SMILING EYES}" not in said
    return said


def test_every_command_that_prints_names_shows_them_as_text(place: Path) -> None:
    said = _run(place, "train", "--data", "@source.parquet", *LABEL, "--out", "@model.safetensors", "--deposit", "@model.deposit",
                "--quiet")  # fmt: skip
    assert "\\x1b" in said
    assert "[/foo]" in _run(place, "score", "--model", "@model.safetensors", "--data", "@test.parquet")
    _run(place, "predict", "--model", "@model.safetensors", "--data", "@test.parquet", "--out", "@predicted.csv")
    _run(place, "member", "--deposit", "@model.deposit", "--rows", "@forget.parquet")
    _run(place, "plan", "--model", "@model.safetensors", "--deposit", "@model.deposit", "--forget", "@forget.parquet",
         "--epsilon", "1", "--delta", "1e-4", "--quiet", ends=(0, 3))  # fmt: skip
    _run(place, "unlearn", "--model", "@model.safetensors", "--forget", "@forget.parquet", "--deposit", "@model.deposit",
         "--epsilon", "1", "--delta", "1e-4", "--out", "@result", "--force", "--quiet")  # fmt: skip
    _run(place, "verify", "@result/statement.json", "--model", "@result/model.safetensors", "--verbose")
    _run(place, "verify", "@result/statement.json", "--model", "@model.safetensors", ends=(1, 2))
    _run(place, "report", "@result", "--out", "@page.md", ends=(0, 2))
    _run(place, "desk", "init", "@desk", "--deposit", "@model.deposit", "--epsilon", "1", "--delta", "1e-4", "--force")
    _run(place, "desk", "request", "@desk", "--forget", "@forget.parquet", "--reference", "[/foo] [bold]:smile:")
    _run(place, "desk", "request", "@desk", "--forget", "@other.parquet", "--reference", f"x{ESC}", ends=(2,))
    assert "[/foo] [bold]:smile:" in _run(place, "desk", "status", "@desk")
    _run(place, "desk", "status", "@desk", "--reference", "[/foo] [bold]:smile:")
    _run(place, "desk", "status", "@desk", "--reference", f"{ESC}[/nobody]", ends=(2,))
    _run(place, "desk", "run", "@desk", "--quiet", ends=(0, 3))
    _run(place, "desk", "history", "@desk")
    _run(place, "desk", "verify", "@desk")
    _run(place, "desk", "report", "@desk", "--out", "@report")
    _run(place, "desk", "withdraw", "@desk", "--reference", f"{ESC}[/nobody]", ends=(2,))


def test_errors_show_names_as_text(place: Path) -> None:
    absent = place / f"{ESC}\n{FORGED}.parquet"
    for arguments in (
        ("train", "--data", "@source.parquet", "--label", f"{ESC}no\n{FORGED}", "--out", "@m.safetensors"),
        ("train", "--data", str(absent), "--label", "x", "--out", "@m.safetensors"),
        ("train", "--data", "@source.parquet", "--label", COLUMNS[0], "--out", "@m.safetensors"),
        ("verify", str(absent)),
        ("desk", "status", str(absent)),
        ("report", str(absent), "--out", "@page.html"),
    ):
        _run(place, *arguments, ends=(1, 2, 3))


def test_shown() -> None:
    assert escape_text("a\x1b\x07\n\r\t\x9b\u202e\u2028\udcff z") == "a\\x1b\\x07\\n\\r\\t\\x9b\\u202e\\u2028\\udcff z"
    assert escape_text("Zürich [/b] 東京 − 1") == "Zürich [/b] 東京 − 1"  # noqa: RUF001 - a minus sign


def test_no_command_uses_markup(capsys: Any) -> None:
    """It is off, so that names cannot use it: what is written in it would be shown as it is."""
    for path in Path(expunge.cli.__file__).parent.rglob("*.py"):
        assert not re.search(r"\[/?(bold|red|dim|green|yellow)\b", path.read_text()), path
    out.print("[/foo] [bold]x[/bold]", markup=True)
    assert capsys.readouterr().out == "[/foo] [bold]x[/bold]\n"
