"""`python -m expunge`."""

from __future__ import annotations

from expunge.cli import main

main(prog_name="expunge")
