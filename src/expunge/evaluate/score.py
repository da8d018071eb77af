"""The value every metric returns: a number with its error, or none and the reason why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Score:
    """`value` is None where it would be meaningless; `flags` say why, or what to mind.

    `error` is one standard error.
    """

    value: float | None
    error: float | None = None
    flags: tuple[str, ...] = ()

    @staticmethod
    def meaningless(*reasons: str) -> Score:
        return Score(None, None, reasons)
