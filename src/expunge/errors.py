"""Every error Expunge raises on purpose.

    ExpungeError
    ├── InputError            exit status 2: something that was given cannot be used
    │   ├── OptionError           a setting (epsilon, delta, l2, a distance, ...)
    │   ├── DataError             rows or labels
    │   ├── ModelError            weights or their training record
    │   └── FileError             a file or folder: type, size, permission, content
    ├── Refused               exit status 3: the input is sound, the result would not be
    │   ├── VacuousClaim          the certificate would say nothing; never overridden
    │   ├── UselessModel          the model, or an epsilon above 10, would be of no use; `force` overrides
    │   ├── BeyondPolicy          this request needs more noise than was set before anybody asked
    │   └── RetrainNow            a desk's budget is used up: the next model must be a retrained one
    ├── GroupError            exit status 2: a process of a group is gone
    ├── OutOfMemory           exit status 2: this machine, or its GPU, has less memory than was needed
    └── VerificationFailed    exit status 1: a certificate does not say what its numbers say

A message has three parts: the value that was found, what is required, and what to do about it.
"""

from __future__ import annotations

LONGEST_PART = 400


def one_line(text: str) -> str:
    """Text that may quote a hostile file, made printable, on one line and of bounded length.

    >>> one_line("a\\tb")
    'a b'
    """
    clean = "".join(c if c.isprintable() else " " for c in text[: LONGEST_PART + 1])
    return clean if len(clean) <= LONGEST_PART else clean[: LONGEST_PART - 4] + " ..."


def said_by(error: BaseException) -> str:
    """An error of somebody else's code in brackets: its kind and what it says, without the calls that led to it.

    >>> said_by(RuntimeError("failed. Traceback (most recent call last):\\n  File x\\nRuntimeError: no such layer\\n"))
    'RuntimeError: no such layer'
    """
    kind, text = type(error).__name__, str(error).strip()
    if "Traceback" in text:
        last = text.splitlines()[-1].strip()
        return last if last.startswith(f"{kind}:") else f"{kind}: {last}"
    return f"{kind}: {text}"


class ExpungeError(Exception):
    """Root of the tree; `exit_status` is what the command line returns for it."""

    exit_status = 2

    def __init__(self, found: str, required: str, remedy: str) -> None:
        self.found = one_line(found)
        self.required = one_line(required)
        self.remedy = one_line(remedy)
        super().__init__(f"{self.found}; {self.required}. {self.remedy}")

    def __reduce__(self) -> tuple[type[ExpungeError], tuple[object, ...]]:
        """The error's parts, for a pickle: another process must be able to raise it."""
        return type(self), (self.found, self.required, self.remedy)


class InputError(ExpungeError):
    """Something that was given cannot be used."""


class OptionError(InputError):
    """A setting is outside what it can mean."""


class DataError(InputError):
    """Rows or labels cannot be used."""


class ModelError(InputError):
    """Weights or their training record cannot be used."""


class FileError(InputError):
    """A file or folder cannot be read or written."""


class Refused(ExpungeError):  # noqa: N818 - an outcome, called what a user would call it
    """The input is sound, but the result would not be."""

    exit_status = 3


class VacuousClaim(Refused):
    """The certificate would say nothing."""


class UselessModel(Refused):
    """The model would be of no use, or its epsilon mean nothing; `force` overrides."""


class BeyondPolicy(Refused):
    """The request needs more noise than was set beforehand. How much more would tell who asks, so nobody is told."""


class RetrainNow(Refused):
    """A desk's budget is used up: no further certificate would be worth having."""


class GroupError(ExpungeError):
    """A process of a group is gone, so that the others cannot go on."""


class OutOfMemory(ExpungeError):  # noqa: N818 - an outcome, as above
    """More memory was asked for than there is."""


class VerificationFailed(ExpungeError):  # noqa: N818 - an outcome, as above
    """A certificate does not say what its own numbers say; `wrong` has each thing that is wrong, in words."""

    exit_status = 1

    def __init__(self, found: str, required: str, remedy: str, wrong: tuple[str, ...] = ()) -> None:
        super().__init__(found, required, remedy)
        self.wrong = tuple(map(one_line, wrong)) or (self.found,)

    def __reduce__(self) -> tuple[type[ExpungeError], tuple[object, ...]]:
        return type(self), (self.found, self.required, self.remedy, self.wrong)
