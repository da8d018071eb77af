"""Commands made from what Python calls: options, help and sections come from signatures and dataclasses.

A parameter of a command is an option of its own (`forget: Path = option("Rows to forget.")`) or stands for the options
of a dataclass (`execution: Execution = options_of(Execution, "device", "memory")`), which is handed over made: what it
refuses is refused here as in Python.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import Any

import click

from expunge.cli.console import LOST, guard_output, report_errors, silence
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


def output_option(words: str, *endings: str, **more: Any) -> Any:
    """The option `--out`: a file or folder that must not be there yet, whose name ends so."""
    return option(words, names=("--out",), section="Output", new=endings, **more)


def _read(flag: str, kind: str, spec: Option, typed: Any) -> Any:
    """What was typed, as Python takes it; refuses a file that is to be new, and cannot be, before any work is done."""
    from expunge.errors import FileError, OptionError

    if spec.text is not None:
        typed = spec.text(typed)
    if spec.new is not None:
        from expunge.rows.output import require_absent  # it needs fcntl, and checking alone works without

        if spec.new and typed.suffix.lower() not in spec.new:
            raise FileError(
                f"{flag} {typed}",
                f"the name of this file ends in {' or '.join(spec.new)}",
                f"Name it for example {typed.stem.strip('.') or 'new'}{spec.new[0]}.",
            )
        require_absent(typed)
    if not isinstance(typed, str) or "[" not in kind:
        return typed
    parts = [part.strip() for part in typed.split(",")]
    try:
        return tuple(map(int, parts)) if "[int" in kind else tuple(parts)
    except ValueError as error:
        raise OptionError(
            f"{flag} {typed!r}", "whole numbers with commas between are needed", "Write for example 120,80."
        ) from error


def _parameter(name: str, annotation: str, default: Any, spec: Option) -> tuple[click.Parameter, Callable[[Any], Any]]:
    """An option of click, and what is called with the value that was typed."""
    kind, optional = annotation.removesuffix(" | None"), annotation.endswith(" | None")
    if default is MISSING and (optional or kind == "bool"):  # what may be left out says so in its type
        default = None if optional else False
    names = spec.names or ("--" + name.replace("_", "-"),)
    flag = names[0].partition("/")[0]
    read = functools.partial(_read, flag, kind, spec)
    if spec.positional:
        return click.Argument([name], type=spec.kind or TYPES[kind], required=default is MISSING), read
    several = kind.startswith("tuple[") and not optional
    settings: dict[str, Any] = {} if default in (MISSING, None) else {"default": default}
    if kind == "bool":
        settings |= {"default": default} if "/" in names[0] else {"is_flag": True}
    else:
        inner = kind.removeprefix("tuple[").removesuffix(", ...]") if several else kind
        settings["type"] = spec.kind or TYPES.get(inner, str)
        settings["show_default"] = default not in (MISSING, None, ())
    required = default is MISSING
    more: dict[str, Any] = {"required": required, "multiple": several, "metavar": spec.metavar, **settings}
    return click.Option([*names, name], help=spec.help, **more), read


class Command(click.Command):
    """A command that shows its options section by section, in the order in which they are declared."""

    sections: dict[str, str]  # of each parameter, by its name

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does; a missing option is said with what it is for, a word too many with the reason."""
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
        shown = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]  # usage has the arguments
        for each in shown:
            line = each.get_help_record(ctx)
            if line is not None:
                title = OTHERS if len(shown) <= FEW else self.sections.get(str(each.name), OTHERS)
                sections.setdefault(title, []).append(line)
        own = [title for title in sections if title not in LAST]
        for title in [*own, *(title for title in LAST if title in sections)]:
            with formatter.section(title):
                formatter.write_dl(sections[title])


def command(*, quiet: bool = False, **settings: Any) -> Callable[[Callable[..., Any]], Command]:
    """Make a command of a function: what it returns is its JSON, with a status other than 0 beside it.

    `quiet` gives it that option, which is for those that show progress; `--json` every command has.
    """

    def decorate(function: Callable[..., Any]) -> Command:
        parameters: list[click.Parameter] = []
        sections: dict[str, str] = {}
        readers: dict[str, Callable[[Any], Any]] = {}
        built: dict[str, Options] = {}
        section = OTHERS
        for argument, parameter in inspect.signature(function).parameters.items():
            given, asked = parameter.default, {argument: (str(parameter.annotation), parameter.default)}
            if isinstance(given, Options):
                built[argument], asked = given, given.fields
            before = section
            for name, (annotation, each) in asked.items():
                spec: Option = each.metadata["option"]
                section = spec.section or section
                assert name not in sections, f"two options are called {name}"
                made, readers[name] = _parameter(name, annotation, each.default, spec)
                parameters.append(made)
                sections[name] = section
            section = before if isinstance(given, Options) else section
        always = {"quiet": "No progress."} if quiet else {}
        for name, words in (always | {"json_output": "Print one JSON object instead of text."}).items():
            parameters.append(click.Option(["--" + name.removesuffix("_output"), name], is_flag=True, help=words))
            sections[name] = "Output"

        def called(**values: Any) -> Any:
            values = {name: value if value is None else readers[name](value) for name, value in values.items()}
            for name, options in built.items():
                values[name] = options.build(**{field: values.pop(field) for field in options.fields})
            return function(**values)

        settings.setdefault("name", function.__name__)
        done = Command(params=parameters, callback=report_errors(called), help=function.__doc__, **settings)
        done.sections = sections
        return done

    return decorate


class CommandGroup(click.Group):
    """A group that lists its commands section by section, and imports each when it is asked for.

    `listing` has, by section and name, the module of `expunge.cli` that a command is in, and what it does.
    """

    def __init__(self, listing: dict[str, dict[str, tuple[str, str]]], **settings: Any) -> None:
        super().__init__(**settings)
        self.listing = listing
        self.homes = {name: home for commands in listing.values() for name, home in commands.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.homes)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for name in [cmd_name] if cmd_name in self.homes else self.homes:  # all: click says which name is like it
            if name not in self.commands:
                module, short_help = self.homes[name]
                found: click.Command = getattr(importlib.import_module(f"expunge.cli.{module}"), name)
                found.short_help = short_help
                self.add_command(found)
        return self.commands.get(cmd_name)

    def main(self, *args: Any, **settings: Any) -> Any:
        """Run as click does; usage errors are printed here, and standard error may be full too."""
        try:
            return super().main(*args, **settings)
        except OSError:
            silence(sys.stderr)
            sys.exit(LOST)

    def make_context(self, *args: Any, **settings: Any) -> click.Context:
        """Begin as click does; help and version are printed here, and standard output may be full."""
        with guard_output():
            return super().make_context(*args, **settings)

    def invoke(self, ctx: click.Context) -> Any:
        with guard_output():
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        longest = max(map(len, self.homes))
        for title, commands in self.listing.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(longest), words) for name, (_, words) in commands.items()])
