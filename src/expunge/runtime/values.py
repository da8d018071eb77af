"""What somebody gives for an option, checked and described; numbers and cells as they are written out."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from decimal import ROUND_CEILING, Context
from typing import Any

import numpy as np

from expunge.errors import OptionError

# What a field of a dataclass is for, in words: the command line makes an option of it, with its help and its section
# >>> from dataclasses import dataclass, fields
# >>> @dataclass
# ... class Promise:
# ...     epsilon: float = option("Smaller protects more.", section="Promise")
# >>> fields(Promise)[0].metadata["option"].help
# 'Smaller protects more.'


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


# Options that must be numbers, or one of a few words ---------------------------------------------------------------

SMALLEST, LARGEST = 1e-30, 1e30  # of l2, norms and constants: beyond this their powers leave float64


def positive(value: float, name: str, remedy: str) -> float:
    """The value as a float, if it is a number above 0 whose powers stay within float64."""
    number = not isinstance(value, bool) and isinstance(value, (int, float, np.floating, np.integer))
    if not number or not 0 < value < math.inf:
        raise OptionError(f"{name} {value}", "it must be a finite number above 0", remedy)
    if not SMALLEST <= value <= LARGEST:
        raise OptionError(f"{name} {value}", f"it must lie between {SMALLEST:g} and {LARGEST:g}", remedy)
    return float(value)


def choice(value: str, options: Sequence[str], name: str) -> str:
    """The value, if it is one of the options."""
    if value not in options:
        raise OptionError(
            f"{name} {value!r}", f"it must be one of {', '.join(options)}", f"Choose one of them for {name}."
        )
    return value


# Numbers for sentences that promise something: never below what they stand for -------------------------------------


def up(value: float, digits: int = 6) -> str:
    """A number in so many digits, rounded up from the shortest text that stands for it.

    >>> up(1.0000049), up(1.0), up(1e-5), up(0.01)
    ('1.00001', '1', '1e-05', '0.01')
    """
    rounded = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(repr(float(value)))
    return f"{float(rounded):.{digits}g}"


# Cells of a CSV file that a spreadsheet shows as text and never computes -------------------------------------------

FORMULA = "=+-@−"  # noqa: RUF001 - what a spreadsheet takes for a formula; the last is the minus sign of mathematics
SKIPPED = "ZCM"  # categories that show nothing by themselves: separators, controls and format, marks
BLANK = '"\u115f\u1160\u2800\u3164\uffa0'  # a quote, which ends or begins a cell; letters and a symbol drawn as nothing
BREAKS = re.compile("([;,\t\r\n])")  # where a file may be split into cells, whatever it was written with


def safe_cell(value: Any) -> str:
    """A cell's text, with a quote in front where it could be taken for a formula; numbers stay numbers.

    A spreadsheet may split at semicolons what was written with commas, quotes or not: so every part between commas,
    semicolons, tabs and line breaks is looked at like a cell. Whatever is not seen before the first sign is looked
    through, since spreadsheets trim it: spaces of every width, controls, marks. Signs in another width (`＝`) count as
    what they stand for.

    >>> safe_cell('=HYPERLINK("x")')
    '\\'=HYPERLINK("x")'
    >>> safe_cell('\\u3000@SUM(1)')
    "'\\u3000@SUM(1)"
    >>> safe_cell('x;=cmd')
    "x;'=cmd"
    >>> safe_cell(-1.5)
    '-1.5'
    """  # noqa: RUF002
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        text = "" if value is None else str(value)
        moved = text.startswith(("\t", "\r", "\n"))  # these alone move what follows into another cell
        return "".join("'" + part if _as_formula(part) else part for part in BREAKS.split("'" * moved + text))
    return str(value)


def _as_formula(text: str) -> bool:
    for sign in text:
        if unicodedata.category(sign)[0] not in SKIPPED and sign not in BLANK:
            return unicodedata.normalize("NFKC", sign)[:1] in tuple(FORMULA)
    return False
