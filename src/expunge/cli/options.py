"""Commands made from what Python calls: options, help and sections come from signatures and dataclasses.

A parameter of a command is an option of its own (`forget: Path = option("Rows to forget.")`) or stands for the options
of a dataclass (`execution: Execution = options_of(Execution, "device", "memory")`), which is handed over made: what it
refuses is refused here as in Python.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import Any

import click

from expunge.cli.console import LOST, OutputLost, lose_output, report_errors, silence
from expunge.runtime.values import Option, option

FILE = click.Path(path_type=Path, readable=False)
TYPES = {"Path": FILE, "str": str, "int": int, "float": float, "bool": bool}
OTHERS = "Options"  # those of no section
LAST = ("A model without a record", "Speed", "Output", OTHERS)  # in every command, after what is its own
ONE_VALUE = "Every option takes one value: several files are put together first, names with blanks stand in quotes."
FEW = 10  # so many options are one list


@dataclass(frozen=True)
class Options:
    """The options of a dataclass, and what is made of their values."""

    fields: dict[str, tuple[str, Field[Any]]]  # annotation and field by name
    build: Callable[..., Any]


def options_of(cls: Any, *names: str, leave: str = "", build: Callable[..., Any] | None = None) -> Any:
    """Ask for the fields of a dataclass that have words: all, those named, or all but those of `leave`.

    `build` is what is called with their values, the class unless it is given; `dict` hands over the values.
    """
    known = {each.name: each for each in fields(cls) if "option" in each.metadata}
    chosen = names or [name for name in known if name not in leave.split()]
    return Options({name: (str(known[name].type), known[name]) for name in chosen}, build or cls)


def argument() -> Any:
    """A parameter that is given by its place."""
    return option("", positional=True)


def written_to(words: str, *endings: str) -> Any:
    """The option `--out`: a file or folder that must not be there yet, whose name ends so."""
    return option(words, names=("--out",), section="Output", new=endings)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


def _counts(flag: str) -> Callable[[str], tuple[int, ...]]:
    def counts(text: str) -> tuple[int, ...]:
        from expunge.errors import OptionError

        try:
            return tuple(int(part) for part in text.split(","))
        except ValueError as error:
            raise OptionError(
                f"{flag} {text!r}", "whole numbers with commas between are needed", "Write for example 120,80."
            ) from error

    return counts


def _new_file(flag: str, endings: tuple[str, ...]) -> Callable[[Path], Path]:
    """Refuse, before any work is done, a file that cannot be written, or that is called like another kind."""

    def checked(path: Path) -> Path:
        from expunge.errors import FileError
        from expunge.rows.output import require_absent  # it needs fcntl, and checking alone works without

        if endings and path.suffix.lower() not in endings:
            raise FileError(
                f"{flag} {path}",
                f"the name of this file ends in {' or '.join(endings)}",
                f"Name it for example {path.with_suffix(endings[0]).name}.",
            )
        require_absent(path)
        return path

    return checked


def _parameter(name: str, annotation: str, default: Any, spec: Option) -> tuple[click.Parameter, Any]:
    """An option of click, and what is called with the value that was typed, if anything is."""
    kind, optional = annotation.removesuffix(" | None"), annotation.endswith(" | None")
    if default is MISSING and (optional or kind == "bool"):  # what may be left out says so in its type
        default = None if optional else False
    if spec.positional:
        return click.Argument([name], type=spec.kind or TYPES[kind], required=default is MISSING), None
    names = spec.names or ("--" + name.replace("_", "-"),)
    flag = names[0].partition("/")[0]
    several = kind.startswith("tuple[") and not optional
    text: Any = spec.text or (None if spec.new is None else _new_file(flag, spec.new))
    if "[" in kind and optional:
        text = text or (_counts(flag) if "[int" in kind else _names)
    settings: dict[str, Any] = {} if default is MISSING or default is None else {"default": default}
    if kind == "bool":
        settings |= {"default": default} if "/" in names[0] else {"is_flag": True}
    else:
        inner = kind.removeprefix("tuple[").removesuffix(", ...]") if several else kind
        settings["type"] = spec.kind or TYPES.get(inner, str)
        settings["show_default"] = default not in (MISSING, None, ())
    made = click.Option(
        [*names, name], help=spec.help, required=default is MISSING, multiple=several, metavar=spec.metavar, **settings
    )
    return made, text


class Command(click.Command):
    """A command that shows its options section by section, in the order in which they are declared."""

    sections: dict[str, str]  # of each parameter, by its name

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
            if line is not None and not isinstance(parameter, click.Argument):  # it stands in the first line of usage
                sections.setdefault(self.sections.get(str(parameter.name), OTHERS), []).append(line)
        if sum(map(len, sections.values())) <= FEW:
            sections = {OTHERS: [line for lines in sections.values() for line in lines]}
        own = [title for title in sections if title not in LAST]
        for title in [*own, *(title for title in LAST if title in sections)]:
            with formatter.section(title):
                formatter.write_dl(sections[title])


def command(short_help: str, *, quiet: bool = False, **settings: Any) -> Callable[[Callable[..., Any]], Command]:
    """Make a command of a function: what it returns is its JSON, with a status other than 0 beside it.

    `quiet` gives it that option, which is for those that show progress; `--json` every command has.
    """

    def decorate(function: Callable[..., Any]) -> Command:
        parameters, sections = [], {}
        parsers: dict[str, Any] = {}
        made: dict[str, Options] = {}

        def add(fields: dict[str, tuple[str, Field[Any]]], section: str) -> str:
            for name, (annotation, each) in fields.items():
                spec: Option = each.metadata["option"]
                section = spec.section or section
                assert name not in sections, f"two options are called {name}"
                parameter, parser = _parameter(name, annotation, each.default, spec)
                parameters.append(parameter)
                sections[name], parsers[name] = section, parser
            return section

        section = OTHERS
        for name, parameter in inspect.signature(function).parameters.items():
            if isinstance(parameter.default, Options):
                made[name] = parameter.default
                add(parameter.default.fields, section)
            else:
                section = add({name: (str(parameter.annotation), parameter.default)}, section)
        always = {"quiet": "No progress."} if quiet else {}
        always["json_output"] = "Print one JSON object instead of text."
        for name, words in always.items():
            parameters.append(click.Option(["--" + name.removesuffix("_output"), name], is_flag=True, help=words))
            sections[name] = "Output"

        def called(**values: Any) -> Any:
            for name, parser in parsers.items():
                if parser is not None and values[name] is not None:
                    values[name] = parser(values[name])
            for name, options in made.items():
                values[name] = options.build(**{field: values.pop(field) for field in options.fields})
            return function(**values)

        settings.setdefault("name", function.__name__)
        done = Command(
            params=parameters, callback=report_errors(called), help=function.__doc__, short_help=short_help, **settings
        )
        done.sections = sections
        return done

    return decorate


@contextlib.contextmanager
def _printing() -> Iterator[None]:
    """What is lost where click itself prints: help, version, usage."""
    try:
        yield
    except OSError as error:
        lose_output(OutputLost(error))


class CommandGroup(click.Group):
    """A group that lists its commands section by section, in the order in which they were added."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.sections: dict[str, list[str]] = {}

    def add_section(self, title: str, *commands: click.Command) -> None:
        """Add commands under a title."""
        for each in commands:
            self.add_command(each)
            self.sections.setdefault(title, []).append(str(each.name))

    def main(self, *args: Any, **settings: Any) -> Any:
        """As click does it; usage errors are printed here, and standard error may be full too."""
        try:
            return super().main(*args, **settings)
        except OSError:
            silence(sys.stderr)
            sys.exit(LOST)

    def make_context(self, *args: Any, **settings: Any) -> click.Context:
        """As click does it; help and version are printed here, and standard output may be full."""
        with _printing():
            return super().make_context(*args, **settings)

    def invoke(self, ctx: click.Context) -> Any:
        with _printing():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for names in self.sections.values() for name in names]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        longest = max(map(len, self.commands))
        room = formatter.width - longest - 6
        for title, names in self.sections.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name.ljust(longest), self.commands[name].get_short_help_str(room)) for name in names]
                )
