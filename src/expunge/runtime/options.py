"""What a field of a dataclass is for, in words: the command line makes an option of it, with its help and its section.

>>> from dataclasses import dataclass, fields
>>> @dataclass
... class Promise:
...     epsilon: float = option("Smaller protects more.", section="Promise")
>>> fields(Promise)[0].metadata["option"].help
'Smaller protects more.'
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class Option:
    """How a field is asked for; what is not said follows from its name, its type and its default.

    `section` is where it stands in the help; without one it stands where the field before it does. `kind` is the type
    on the command line, `text` parses what was typed. `new` marks a file to be written, which must not be there yet
    and whose name ends so.
    """

    help: str
    section: str | None = None
    names: tuple[str, ...] = ()
    kind: Any = None
    text: Callable[[str], Any] | None = None
    metavar: str | None = None
    new: tuple[str, ...] | None = None
    positional: bool = False


def option(help: str, default: Any = MISSING, **more: Any) -> Any:
    """A field of a dataclass, or a parameter of a command, with its help; without a default it has to be given."""
    return field(default=default, metadata={"option": Option(help, **more)})


def words_of(cls: Any, name: str) -> str:
    """The help of a field."""
    (found,) = (each.metadata["option"].help for each in fields(cls) if each.name == name)
    return str(found)
