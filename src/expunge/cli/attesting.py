"""The options that write a verdict for other tools, signed or not; shared by `verify` and `audit`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from expunge.cli.sections import section
from expunge.cli.sets import FILE

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Attest:
    """Where a verdict is to be written, and the key to sign it with, where there is one."""

    path: Path
    key: Any

    def write(self, content: dict[str, Any]) -> None:
        """The in-toto statement's file, whole."""
        from expunge.certificate.sign import as_file, seal_in_toto
        from expunge.rows.output import write_file

        write_file(self.path, as_file(content) if self.key is None else seal_in_toto(content, self.key))


def attested(option: str, words: str) -> Callable[[Function], Function]:
    """Add `option` and `--sign-key`, handed over as one `attest`; goes below `reporting`, so that errors are reported.

    Place and key are looked at before any work is done.
    """
    options = section(
        "Output",
        click.option(option, "attest_file", type=FILE, help=words),
        click.option("--sign-key", type=FILE, help=f"With {option}: sign it with this Ed25519 private key."),
    )

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def wrapper(*args: Any, attest_file: Path | None, sign_key: Path | None, **rest: Any) -> Any:
            return function(*args, attest=_wanted(option, attest_file, sign_key), **rest)

        decorated: Function = options(wrapper)  # type: ignore[assignment]
        return decorated

    return decorate


def _wanted(option: str, path: Path | None, sign_key: Path | None) -> Attest | None:
    from expunge.certificate.sign import read_private_key
    from expunge.errors import OptionError

    if path is None:
        if sign_key is not None:
            raise OptionError("--sign-key", f"it signs what {option} writes", f"Give {option} too, or leave it out.")
        return None
    from expunge.rows.output import require_absent  # here: it needs fcntl, and checking alone works without

    require_absent(path)
    return Attest(path, None if sign_key is None else read_private_key(sign_key))
