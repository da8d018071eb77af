"""A table as people have it, which docs/tutorial-tables.md is about too."""

from __future__ import annotations

from examples.tables import HEADER, credit_lines, write_credit

__all__ = ["HEADER", "credit_lines", "write_credit"]
