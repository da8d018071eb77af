"""Every command there is."""

from __future__ import annotations

import click

from expunge.cli import main

TOP = (
    "demo", "embed", "train", "deposit", "plan", "unlearn", "tangent", "score", "predict", "member", "verify", "distance", "evaluate", "audit", "keygen", "sign", "report", "card", "desk",
)  # fmt: skip
DESK = ("init", "request", "withdraw", "run", "status", "history", "report", "head", "verify")
COMMANDS = (
    *(name for name in TOP if name not in ("desk", "tangent")),
    *(f"desk {name}" for name in DESK),
    "tangent train",
    "tangent unlearn",
)


def command_named(words: str) -> click.Command:
    found: click.Command = main
    for word in words.split():
        assert isinstance(found, click.Group)
        found = found.commands[word]
    return found
