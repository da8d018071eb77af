"""The sets of rows that commands take: options for their files, and for those that are larger than memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from expunge.cli.sections import section

FILE = click.Path(path_type=Path, readable=False)


def model_option(words: str, *, required: bool = True) -> Callable[[Any], Any]:
    """The option for the model a command starts from; `words` are its help."""
    return click.option("--model", "model_file", required=required, type=FILE, help=words)


def deposit_option(words: str, *, required: bool = False) -> Callable[[Any], Any]:
    """The option for a deposit that was kept of the source; `words` are its help."""
    return click.option("--deposit", required=required, type=FILE, help=words)


label_column = click.option(
    "--label", help="Label column of tables (default: the one the model was trained on, else y, or label)."
)
forget_class = click.option(
    "--forget-class",
    help="Forget a whole class: of the rows in --forget, those with this label, which must be all the source had "
    "of it.",
)
columns = click.option(
    "--columns",
    help="Feature columns of tables, with commas between (default: all but the label's; a model that was trained on a "
    "prepared table knows its own).",
)
memory = click.option(
    "--memory",
    help="A limit for each process, e.g. 1.5GB (default: half the machine's memory). A surrogate that does not fit is "
    "read anew in each pass.",
)
TRAINED = "The trained model, .safetensors with weight (K x d) and, where there is one, bias (K)."
FORGET = "The rows to forget, with their labels."
linear_sets = section(
    "Sets",
    model_option(TRAINED),
    click.option("--forget", required=True, type=FILE, help=FORGET),
    click.option("--surrogate", required=True, type=FILE, help="Rows that resemble the source."),
    forget_class,
    label_column,
    columns,
)


def read_rows(path: Path, label: str | None, model: Any) -> Any:
    """What is in a file, read whole: rows as a model takes them."""
    from expunge.model import table_of
    from expunge.rows import read_data

    return read_data(path, label, preparation=table_of(model)).rows


def read_source(path: Path, label: str | None, columns: str | None, memory: str | None, model: Any = None) -> Any:
    """What is in a file or folder with all rows of a source, read whole or to be streamed."""
    from expunge.model import table_of
    from expunge.rows import LabelledArrays, open_data
    from expunge.runtime.launched import launched_as_group
    from expunge.runtime.memory import Memory

    opened = open_data(
        path,
        label,
        columns=listed(columns),
        memory=Memory.of(memory),
        stream=memory is not None or launched_as_group() or None,
        preparation=table_of(model),
    )
    return opened.rows if isinstance(opened, LabelledArrays) else opened


def listed(columns: str | None) -> tuple[str, ...] | None:
    """`a, b` as ("a", "b")."""
    return None if columns is None else tuple(name.strip() for name in columns.split(","))


def read_forget_and_surrogate(
    forget: Path,
    surrogate: Path | None,
    label: str | None,
    columns: str | None,
    memory: str | None,
    model: Any = None,
) -> tuple[Any, Any]:
    """What is in the two files or folders, read whole or to be streamed; None for a surrogate that is not given."""
    from expunge.model import table_of
    from expunge.rows import LabelledArrays, open_data
    from expunge.rows.opening import is_folder
    from expunge.rows.raw_tables import is_table
    from expunge.runtime.launched import launched_as_group
    from expunge.runtime.memory import Memory

    limit = Memory.of(memory)
    names, given = listed(columns), [path for path in (forget, surrogate) if path is not None]
    # a label column may be named though only one of the two files is a table
    tables = [path for path in given if is_table(path) or is_folder(path)] or [forget]

    def read(path: Path) -> Any:
        opened = open_data(
            path,
            label if path in tables else None,
            columns=names if path in tables else None,
            memory=limit,
            stream=path is surrogate and (memory is not None or launched_as_group() or None),
            preparation=table_of(model),
        )
        return opened.rows if isinstance(opened, LabelledArrays) else opened

    return read(forget), None if surrogate is None else read(surrogate)


def read_prepared(path: Path) -> tuple[Any, Any]:
    """Examples before a network, as it takes them, and their labels."""
    from expunge.networks.encoders import Preparation
    from expunge.rows.images import read_examples

    examples = read_examples(path)
    return Preparation().applied(examples.inputs), examples.labels
