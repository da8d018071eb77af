"""`--help` in named sections: options by what they are about, commands by what they are for."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

from expunge.cli.streams import LOST, OutputLost, lose_output, silence

Function = TypeVar("Function", bound=Callable[..., Any])
Decorator = Callable[[Any], Any]

OTHERS = "Options"  # those of no section
LAST = ("A model without a record", "Speed", "Output", OTHERS)  # in every command, after what is its own
ONE_VALUE = "Every option takes one value: several files are put together first, names with blanks stand in quotes."
FEW = 10  # so many options are one list


@contextlib.contextmanager
def printing() -> Iterator[None]:
    """What is lost where click itself prints: help, version, usage."""
    try:
        yield
    except OSError as error:
        lose_output(OutputLost(error))


def section(title: str, *options: Decorator) -> Callable[[Function], Function]:
    """Add options to a command and show them under this title; a title that comes again adds to what is there."""

    def decorate(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
            function.__click_params__[-1].__dict__["section"] = title  # type: ignore[attr-defined]
        return function

    return decorate


def section_of(parameter: click.Parameter) -> str:
    """The title a parameter is shown under."""
    title: str = vars(parameter).get("section", OTHERS)
    return title


class Command(click.Command):
    """A command that shows its options section by section, in the order in which they are declared."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does it; an option that is missing is said with what it is for, a word too many with the reason."""
        try:
            return super().parse_args(ctx, args)
        except click.MissingParameter as error:
            about = error.message or vars(error.param).get("help") or ""
            raise click.MissingParameter(about, error.ctx, error.param, error.param_hint, error.param_type) from None
        except click.UsageError as error:
            if "unexpected extra argument" not in error.message:
                raise
            raise click.UsageError(f"{error.message}. {ONE_VALUE}", error.ctx) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            line = parameter.get_help_record(ctx)
            if line is not None:
                sections.setdefault(section_of(parameter), []).append(line)
        if sum(map(len, sections.values())) <= FEW:
            sections = {OTHERS: [line for lines in sections.values() for line in lines]}
        own = [title for title in sections if title not in LAST]
        for title in [*own, *(title for title in LAST if title in sections)]:
            with formatter.section(title):
                formatter.write_dl(sections[title])


class Group(click.Group):
    """A group that lists its commands section by section, in the order in which they were added."""

    command_class = Command

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.sections: dict[str, list[str]] = {}

    def add_section(self, title: str, *commands: click.Command) -> None:
        """Add commands under a title."""
        for command in commands:
            self.add_command(command)
            assert command.name is not None
            self.sections.setdefault(title, []).append(command.name)

    def main(self, *args: Any, **settings: Any) -> Any:
        """As click does it; usage errors are printed here, and standard error may be full too."""
        try:
            return super().main(*args, **settings)
        except OSError:
            silence(sys.stderr)
            sys.exit(LOST)

    def make_context(self, *args: Any, **settings: Any) -> click.Context:
        """As click does it; help and version are printed here, and standard output may be full."""
        with printing():
            return super().make_context(*args, **settings)

    def invoke(self, ctx: click.Context) -> Any:
        with printing():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        listed = [name for names in self.sections.values() for name in names]
        return [*listed, *(name for name in self.commands if name not in listed)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        listed = {name for names in self.sections.values() for name in names}
        rest = [name for name in self.commands if name not in listed]
        longest = max(map(len, self.commands), default=0)
        room = formatter.width - longest - 6
        for title, names in [*self.sections.items(), ("Commands", rest)]:
            lines = [(name.ljust(longest), self.commands[name].get_short_help_str(room)) for name in names]
            if lines:
                with formatter.section(title):
                    formatter.write_dl(lines)
