"""`--help` in named sections."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from command_names import COMMANDS, command_named
from expunge.cli import main
from expunge.cli.options import OTHERS, Command

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("command", COMMANDS)
def test_many_options_come_in_named_sections(command: str) -> None:
    found = command_named(command)
    result = CliRunner().invoke(main, [*command.split(), "--help"])
    assert result.exit_code == 0, result.stderr
    text = result.stdout
    options = [parameter for parameter in found.params if isinstance(parameter, click.Option)]
    if len(options) < 11:
        return
    assert isinstance(found, Command)
    titles = {found.sections[str(option.name)] for option in options}
    assert OTHERS not in titles, "an option of no section"
    lines = text.splitlines()
    places = [
        lines.index(f"{title}:") for title in dict.fromkeys(found.sections[str(option.name)] for option in options)
    ]
    assert len(places) >= 3
    assert lines.index("Output:") > max(place for place in places if lines[place] != "Output:")
