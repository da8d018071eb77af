"""The command reference, made of what `--help` prints: a page of the site (`make docs`), not a file in git."""

from __future__ import annotations

from collections.abc import Iterator

import click

from expunge.cli import main

WIDTH = 100  # of every line, whatever terminal this runs in
HEAD = """# Commands

Every command and option, as `expunge COMMAND --help` prints them.
"""


def commands(command: click.Command = main, path: tuple[str, ...] = ("expunge",)) -> Iterator[tuple[str, ...]]:
    """The words of every command, a group before its own."""
    yield path
    if isinstance(command, click.Group):
        for name in command.list_commands(context := click.Context(command)):
            yield from commands(command.get_command(context, name) or command, (*path, name))


def help_of(path: tuple[str, ...]) -> str:
    """What `--help` prints for these words, at a fixed width and without spaces at the ends of lines."""
    command: click.Command = main
    context = click.Context(main, info_name=path[0], terminal_width=WIDTH, **main.context_settings)
    for name in path[1:]:
        assert isinstance(command, click.Group)
        command = command.get_command(context, name) or command
        context = click.Context(command, info_name=name, parent=context, **command.context_settings)
    return stripped(command.get_help(context))


def stripped(text: str) -> str:
    """Without spaces at the ends of lines and empty lines at the end of the text."""
    return "\n".join(line.rstrip() for line in text.splitlines()).rstrip() + "\n"


def page() -> str:
    """Write the whole reference."""
    parts = [HEAD]
    for path in commands():
        parts.append(f"{'#' * min(len(path) + 1, 4)} {' '.join(path)}\n\n```text\n{help_of(path)}```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")
