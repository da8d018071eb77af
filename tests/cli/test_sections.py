"""`--help` in named sections."""

from __future__ import annotations

import json
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from expunge.cli import main
from expunge.cli.sections import OTHERS, section_of

pytestmark = pytest.mark.usefixtures("one_thread")
TOP = (
    "demo", "embed", "train", "plan", "unlearn", "tangent", "verify", "distance", "evaluate", "audit", "keygen", "report", "desk",
)  # fmt: skip
DESK = ("init", "request", "withdraw", "run", "status", "history", "report", "head", "verify")
COMMANDS = (
    *(name for name in TOP if name not in ("desk", "tangent")),
    *(f"desk {name}" for name in DESK),
    "tangent train",
    "tangent unlearn",
)


def run(line: str, *more: object) -> Result:
    """A command line, as it would be typed."""
    result = CliRunner().invoke(main, [*line.split(), *map(str, more)])
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    return result


def done(line: str, *more: object) -> Any:
    """A command that is to succeed; what it prints, as JSON where that was asked for."""
    result = run(line, *more)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout) if "--json" in line else result.stdout


def command_named(words: str) -> click.Command:
    found: click.Command = main
    for word in words.split():
        assert isinstance(found, click.Group)
        found = found.commands[word]
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_many_options_come_in_named_sections(command: str) -> None:
    found = command_named(command)
    text = done(f"{command} --help")
    options = [parameter for parameter in found.params if isinstance(parameter, click.Option)]
    if len(options) < 11:
        return
    titles = {section_of(option) for option in options}
    assert OTHERS not in titles, "an option of no section"
    lines = text.splitlines()
    places = [lines.index(f"{title}:") for title in dict.fromkeys(section_of(option) for option in options)]
    assert len(places) >= 3
    assert lines.index("Output:") > max(place for place in places if lines[place] != "Output:")
