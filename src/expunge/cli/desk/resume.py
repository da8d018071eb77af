"""`expunge desk resume`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from expunge.cli.console import as_json, out, reporting
from expunge.cli.desk.options import another_person, desk_folder, say_clock, waiting
from expunge.cli.sections import Command


@click.command(cls=Command, short_help="Take up a request that was set aside.")
@desk_folder
@click.argument("number", type=int)
@another_person
@waiting
@as_json
@reporting
def resume(desk: Path, number: int, another_person: bool, timeout: float, json_output: bool) -> dict[str, Any]:
    """Take up the request of this NUMBER, which was set aside: it waits again for the next run.

    `expunge desk status` lists what is set aside and why. What was set aside for good is withdrawn.

    \b
    expunge desk resume desk/ 3 --another-person
    """
    from expunge.desk import open_desk
    from expunge.desk import resume as take_up

    opened = open_desk(desk, timeout)
    taken = take_up(opened, number, another_person=another_person)
    say_clock(opened)
    if not json_output:
        out.print(f"taken up: request {taken.id}")
    return asdict(taken)
