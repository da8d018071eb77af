"""The command line in tests: run in this process, taken apart, or parsed by click without being run."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import click
from click.testing import CliRunner, Result

from expunge.cli import main

TOP = (
    "demo", "embed", "train", "deposit", "plan", "unlearn", "tangent", "score", "predict", "member", "verify", "distance", "evaluate", "audit", "keygen", "sign", "report", "desk",
)  # fmt: skip


def commands_of(group: click.Command) -> dict[str, click.Command]:
    """The commands of a group, each of which is imported when it is asked for."""
    if not isinstance(group, click.Group):
        return {}
    context = click.Context(group)
    found = {name: group.get_command(context, name) for name in group.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None}


def paths(command: click.Command = main, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The words of every command that is not a group."""
    own = commands_of(command)
    return [each for name, one in own.items() for each in paths(one, (*path, name))] if own else [path]


COMMANDS = tuple(" ".join(path) for path in paths())


def run(line: str, *more: object) -> Result:
    """A command line, as it would be typed; `more` are words that may have blanks."""
    result = CliRunner().invoke(main, [*line.split(), *map(str, more)])
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    assert "Traceback" not in result.stderr
    return result


def done(line: str, *more: object) -> Any:
    """A command that is to succeed; what it prints, as JSON where that was asked for."""
    result = run(line, *more)
    assert result.exit_code == 0, (line, result.stderr)
    return json.loads(result.stdout.splitlines()[-1]) if "--json" in [*line.split(), *more] else result.stdout


def refused(line: str, *words: str, status: int = 2) -> str:
    """A command that is to end with this status; what it says on standard error, with these words in it."""
    result = run(line)
    assert result.exit_code == status, (line, result.output)
    said = " ".join(result.stderr.split())
    for word in words:
        assert word in said, (line, said)
    return said


def command_named(words: str) -> click.Command:
    found: click.Command = main
    for word in words.split():
        found = commands_of(found)[word]
    return found


def check_command(line: str, whole: bool) -> None:
    """Have click parse a line without running it; of one that is not whole, look at command and options alone."""
    words = [word for word in shlex.split(line) if word != "..."]
    command: click.Command = main
    context = click.Context(main, info_name="expunge", **main.context_settings)  # click keeps a command's help option
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        assert words[0] in commands_of(command), f"expunge {line}: no command {words[0]!r}"
        command = commands_of(command)[words.pop(0)]
        context = click.Context(command, parent=context, info_name=command.name, **command.context_settings)
    check_options(command, context, words, f"expunge {line}")
    if whole and not isinstance(command, click.Group):
        command.make_context(command.name, words, parent=context.parent)


def check_options(command: click.Command, context: click.Context, words: list[str], line: str) -> None:
    known = {name for option in command.get_params(context) for name in (*option.opts, *option.secondary_opts)}
    for word in words:
        if re.match(r"--?[a-z]", word):
            assert word.split("=")[0] in known, f"{line}: no option {word}"
