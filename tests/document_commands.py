"""Command lines in documents: parsed by click without being run."""

from __future__ import annotations

import re
import shlex

import click

from expunge.cli import main


def check_command(line: str, whole: bool) -> None:
    """Have click parse a line without running it; of one that is not whole, look at command and options alone."""
    words = [word for word in shlex.split(line) if word != "..."]
    command: click.Command = main
    context = click.Context(main, info_name="expunge", **main.context_settings)  # click keeps a command's help option
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        assert words[0] in command.commands, f"expunge {line}: no command {words[0]!r}"
        command = command.commands[words.pop(0)]
        context = click.Context(command, parent=context, info_name=command.name, **command.context_settings)
    check_options(command, context, words, f"expunge {line}")
    if whole and not isinstance(command, click.Group):
        command.make_context(command.name, words, parent=context.parent)


def check_options(command: click.Command, context: click.Context, words: list[str], line: str) -> None:
    known = {name for option in command.get_params(context) for name in (*option.opts, *option.secondary_opts)}
    for word in words:
        if re.match(r"--?[a-z]", word):
            assert word.split("=")[0] in known, f"{line}: no option {word}"
