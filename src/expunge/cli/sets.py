"""Options for sets that are larger than memory, shared by the commands that go over one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--memory", help="A limit for each process, e.g. 1.5GB (default: half the machine's memory). A surrogate that does not fit is read anew in each pass."),
    click.option("--columns", help="Feature columns of Parquet files, with commas between (default: all but the label's)."),
)  # fmt: skip


def streaming(function: Command) -> Command:
    """Add the options to a command."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def rows_from(
    forget: Path, surrogate: Path, label: str | None, columns: str | None, memory: str | None
) -> tuple[Any, Any]:
    """What is in the two files or folders, read whole or to be streamed."""
    from expunge.data import LabelledArrays, open_data
    from expunge.data.files import TABLES
    from expunge.data.opening import is_folder
    from expunge.runtime.group import launched_as_group
    from expunge.runtime.memory import Memory

    limit = Memory.of(memory)
    names = None if columns is None else tuple(name.strip() for name in columns.split(","))
    found = []
    # a label column may be named though only one of the two files is a table
    tables = [path for path in (forget, surrogate) if path.suffix.lower() in TABLES or is_folder(path)] or [forget]
    for path in (forget, surrogate):
        opened = open_data(
            path,
            label if path in tables else None,
            columns=names if path in tables else None,
            memory=limit,
            stream=path is surrogate and (memory is not None or launched_as_group() or None),
        )
        found.append(opened.rows if isinstance(opened, LabelledArrays) else opened)
    return found[0], found[1]
