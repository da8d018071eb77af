"""What the desk's commands share."""

from __future__ import annotations

import click

from expunge.cli.sets import FILE

desk_folder = click.argument("desk", type=FILE)
