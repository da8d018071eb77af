"""The site's page on commands is what the commands say of themselves."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

from expunge.cli import main

DOCS = Path(__file__).parents[2] / "docs"


def module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_commands", DOCS / "make_commands.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


REFERENCE = module()
PAGE = REFERENCE.page()


@pytest.mark.parametrize("path", list(REFERENCE.commands()), ids=" ".join)
def test_the_page_says_what_help_prints(path: tuple[str, ...]) -> None:
    printed = CliRunner().invoke(
        main, [*path[1:], "--help"], prog_name="expunge", terminal_width=REFERENCE.WIDTH, catch_exceptions=False
    )
    shown = REFERENCE.stripped(printed.stdout)
    assert f"# {' '.join(path)}\n\n```text\n{shown}```\n" in PAGE


def test_no_line_is_wider_than_the_page_nor_ends_in_a_space() -> None:
    lines = PAGE.splitlines()
    assert max(map(len, lines)) <= 120
    assert not [line for line in lines if line != line.rstrip()]
